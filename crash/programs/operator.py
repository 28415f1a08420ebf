"""An operator, mined: acts on all failed messages, batch by batch."""

from __future__ import annotations

import asyncio

from crash.backends import BACKENDS
from crash.mine import Mine
from crash.mined import mined_store
from crash.operating import all_failed
from crash.programs.orders import OperatorOrder
from pillarbox.names import Names
from pillarbox.stores.opening import open_store

__all__ = ["main"]


def main(order: OperatorOrder) -> None:
    """Act until done, or dead."""
    asyncio.run(_run(order))


async def _run(order: OperatorOrder) -> None:
    mine = Mine(order.trap)
    BACKENDS[order.backend].wire(mine)
    store = mined_store(open_store(order.store, names=Names(order.schema)), mine)
    await store.open()
    try:
        await all_failed(store, order.action, batch=order.batch)
    finally:
        await store.close()
