"""A FastAPI service that receives messages: `python -m tests.support.fastapi_service DATABASE WHEN_TO_DIE`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from pillarbox.brokers.http import HttpReceiver
from pillarbox.consumer import Consumer

SECRET: Final = "whsec_" + "c2VjcmV0" * 6


def service(database: Path, *, dies: str = "never") -> FastAPI:
    """Messages come to /hooks, and its own users to /orders."""
    receiver = HttpReceiver(secrets=[SECRET])
    consumer = Consumer("billing", receiver=receiver, database=database)

    @consumer.on("*")
    def bill(event: Any, tx: sqlite3.Connection) -> None:
        tx.execute("insert into orders (note) values (?)", (event["note"],))
        if dies == "in the handler":
            os.kill(os.getpid(), signal.SIGKILL)
        if dies == "slowly":
            database.with_suffix(".handling").touch()
            time.sleep(1)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with consumer:
            yield

    api = FastAPI(lifespan=lifespan)
    api.mount("/hooks", receiver.app)

    @api.get("/orders")
    def orders() -> list[str]:
        with sqlite3.connect(database) as connection:
            return [note for (note,) in connection.execute("select note from orders order by id")]

    return api


async def main(database: str, dies: str) -> None:
    line = socket.socket()
    line.bind(("127.0.0.1", 0))
    config = uvicorn.Config(service(Path(database), dies=dies), log_level="critical", lifespan="on", ws="none")
    print(line.getsockname()[1], flush=True)  # noqa: T201
    await uvicorn.Server(config).serve(sockets=[line])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
