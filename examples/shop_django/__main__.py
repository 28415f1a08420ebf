"""Makes tables and stream, starts shop, relay and warehouse, and places an order: `make example NAME=shop_django`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Final

from examples.launching import Program, post, run_together
from examples.shop_django.settings import BROKER
from pillarbox import PillarboxError
from pillarbox.brokers import transport_from_url

PORT: Final = os.environ.get("SHOP_PORT", "8004")
MANAGE: Final = ("-m", "examples.shop_django.manage")
STREAM: Final = f"{BROKER}?stream=SHOP&subject=shop.{{topic}}&declare=true"


async def prepare() -> None:
    """What a deployment does first: the stream that the warehouse reads."""
    transport = transport_from_url(STREAM)
    await transport.open()
    await transport.close()


def main() -> None:
    try:
        asyncio.run(prepare())
    except PillarboxError as error:
        sys.exit(f"Error: {error}")
    subprocess.run([sys.executable, *MANAGE, "migrate", "--verbosity=0"], check=True)
    run_together(
        Program("shop", *MANAGE, "runserver", "--noreload", PORT),
        Program("relay", *MANAGE, "pillarbox", "relay", "--to", f"broker={STREAM}"),
        Program("warehouse", *MANAGE, "pillarbox", "consume", "examples.shop_django.shop.warehouse:consumer"),
        first=lambda: post(f"http://127.0.0.1:{PORT}/orders?article=teapot"),
    )


if __name__ == "__main__":
    main()
