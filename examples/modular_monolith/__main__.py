"""The whole shop, and the relay that carries events between its modules: `make example NAME=modular_monolith`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from examples.modular_monolith import billing, orders, stock
from examples.modular_monolith.database import FILE, transaction
from pillarbox import Destination, DestinationSettings, Relay, open_schema
from pillarbox.brokers.handlers import HandlersTransport

MODULES: Final = {"orders": orders, "stock": stock, "billing": billing}
STORE: Final = f"sqlite:///{FILE}"


async def main() -> None:
    await open_schema(STORE).upgrade()
    with transaction() as tx:
        for module in MODULES.values():
            tx.execute(module.TABLE)
    destinations = [
        Destination(partial(HandlersTransport, module.handlers), DestinationSettings(name=name))
        for name, module in MODULES.items()
    ]
    async with Relay(STORE, destinations):
        await asyncio.to_thread(orders.place, "teapot")
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
