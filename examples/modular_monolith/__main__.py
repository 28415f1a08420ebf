"""The whole shop, and the relay that carries events between its modules: `make example NAME=modular_monolith`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from examples.modular_monolith import billing, orders, stock
from examples.modular_monolith.database import FILE, transaction
from pillarbox import Destination, DestinationSettings, Names, Relay, open_store
from pillarbox.brokers.handlers import HandlersTransport
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url

MODULES: Final = {"orders": orders, "stock": stock, "billing": billing}
STORE: Final = parse_store_url(f"sqlite:///{FILE}")


async def main() -> None:
    await open_schema(STORE, names=Names()).upgrade()
    with transaction() as tx:
        for module in MODULES.values():
            tx.execute(module.TABLE)
    destinations = [
        Destination(partial(HandlersTransport, module.handlers), DestinationSettings(name=name))
        for name, module in MODULES.items()
    ]
    async with Relay(open_store(STORE), destinations):
        await asyncio.to_thread(orders.place, "teapot")
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
