"""Makes tables and queues, starts both services, and places an order: `make example NAME=shop_fastapi`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

from sqlalchemy.ext.asyncio import create_async_engine

from examples.launching import Program, post, run_together
from examples.shop_fastapi import orders, shipping
from examples.shop_fastapi.wiring import DATABASE
from pillarbox import Names, PillarboxError, open_schema

ORDERS_PORT: Final = os.environ.get("ORDERS_PORT", "8001")
SHIPPING_PORT: Final = os.environ.get("SHIPPING_PORT", "8002")


async def prepare() -> None:
    """What a deployment does first. A message that no queue is there for would be unroutable."""
    engine = create_async_engine(DATABASE)
    for service in (orders, shipping):
        await open_schema(DATABASE, names=Names(schema=service.SERVICE)).upgrade()
        async with engine.begin() as connection:
            await connection.run_sync(service.Base.metadata.create_all)
        await service.receiver.open()
        await service.receiver.close()
    await engine.dispose()


def main() -> None:
    try:
        asyncio.run(prepare())
    except PillarboxError as error:
        sys.exit(f"Error: {error}")
    run_together(
        served("orders", port=ORDERS_PORT),
        served("shipping", port=SHIPPING_PORT),
        first=lambda: post(f"http://127.0.0.1:{ORDERS_PORT}/orders?article=teapot"),
    )


def served(service: str, *, port: str) -> Program:
    app = f"examples.shop_fastapi.{service}:app"
    return Program(service, "-m", "uvicorn", app, f"--port={port}", "--log-level=warning")


if __name__ == "__main__":
    main()
