"""Puts goods aside for orders."""

from __future__ import annotations

from typing import Final

from examples.modular_monolith.database import outbox, transaction
from examples.modular_monolith.messages import GoodsReserved, OrderPlaced
from pillarbox import Inbox, Message
from pillarbox.brokers.handlers import Handlers

TABLE: Final = "create table if not exists reserved (article text primary key, pieces integer not null)"

handlers = Handlers()
inbox = Inbox("stock")


@handlers.on(OrderPlaced)
def reserve(event: OrderPlaced, message: Message) -> None:
    with transaction() as tx:
        if inbox.accept(tx, message):
            tx.execute(
                "insert into reserved values (?, 1) on conflict (article) do update set pieces = pieces + 1",
                [event.article],
            )
            outbox.publish(tx, GoodsReserved(event.order_id, event.article))
            print(f"stock: a {event.article} is put aside for order {event.order_id}", flush=True)
