"""The whole shop, and the relay that carries events between its modules: `make example NAME=modular_monolith`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from examples.modular_monolith import billing, orders, stock
from examples.modular_monolith.database import FILE, transaction
from pillarbox.names import Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.opening import open_store
from pillarbox.stores.schema import schema_at
from pillarbox.stores.urls import store_url
from pillarbox.transports.handlers import HandlersTransport

MODULES: Final = {"orders": orders, "stock": stock, "billing": billing}
STORE: Final = store_url(f"sqlite:///{FILE}")


async def main() -> None:
    await schema_at(STORE, names=Names()).upgrade()
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
