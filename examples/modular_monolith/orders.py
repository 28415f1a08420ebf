"""Takes orders, and completes them when they are paid for: `python -m examples.modular_monolith.orders teapot`."""

from __future__ import annotations

import sys
from typing import Final

from examples.modular_monolith.database import outbox, transaction
from examples.modular_monolith.messages import InvoiceWritten, OrderPlaced
from pillarbox import Inbox, Message
from pillarbox.brokers.handlers import Handlers

TABLE: Final = "create table if not exists orders (id integer primary key, article text not null, status text not null)"

handlers = Handlers()
inbox = Inbox("orders")


def place(article: str) -> None:
    """The order and the message about it commit together."""
    with transaction() as tx:
        [(order_id,)] = tx.execute("insert into orders (article, status) values (?, 'placed') returning id", [article])
        outbox.publish(tx, OrderPlaced(order_id, article))
    print(f"orders: order {order_id} is placed ({article})", flush=True)


@handlers.on(InvoiceWritten)
def complete(event: InvoiceWritten, message: Message) -> None:
    with transaction() as tx:
        if inbox.accept(tx, message):  # False: it was done before
            tx.execute("update orders set status = 'complete' where id = ?", [event.order_id])
            print(f"orders: order {event.order_id} is complete with invoice {event.invoice_id}", flush=True)


if __name__ == "__main__":
    for article in sys.argv[1:]:
        place(article)
