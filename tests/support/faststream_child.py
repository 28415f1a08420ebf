"""A FastStream service with an inbox, as a process that is killed: `python -m tests.support.faststream_child …`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import asyncpg
from faststream import BaseMiddleware, Context, StreamMessage
from faststream.middlewares import AckPolicy
from faststream.rabbit import RabbitBroker, RabbitQueue

from pillarbox import Outbox
from pillarbox.events import Types
from pillarbox.integrations.faststream import InboxMiddleware


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DiesAfterCommit(BaseMiddleware[Any, Any]):
    """Around the inbox: what is inside has committed, and FastStream has not acknowledged yet."""

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
        result = await call_next(msg)
        die()
        return result


async def main(url: str, queue: str, database: str, schema: str, point: str) -> None:
    pool = await asyncpg.create_pool(database, min_size=1, max_size=2)
    outbox = Outbox(routes="broker", source="/billing", schema=schema, types=Types())
    around: list[Any] = [DiesAfterCommit] if point == "after commit" else []
    broker = RabbitBroker(
        url, middlewares=[*around, InboxMiddleware("billing", database=pool, schema=schema)], logger=None
    )

    @broker.subscriber(RabbitQueue(queue, durable=True, declare=False), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def bill(note: str, tx: Annotated[Any, Context("transaction")]) -> None:
        await tx.execute(f'insert into "{schema}".orders (note) values ($1)', note)
        await outbox.publish(tx, {"note": note}, type="billed")
        if point == "before commit":
            die()

    await broker.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await broker.stop()
    await pool.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
