"""Writes invoices for goods that are put aside."""

from __future__ import annotations

from typing import Final

from examples.modular_monolith.database import outbox, transaction
from examples.modular_monolith.messages import GoodsReserved, InvoiceWritten
from pillarbox import Inbox, Message
from pillarbox.brokers.handlers import Handlers

TABLE: Final = "create table if not exists invoices (id integer primary key, order_id integer not null)"

handlers = Handlers()
inbox = Inbox("billing")


@handlers.on(GoodsReserved)
def bill(event: GoodsReserved, message: Message) -> None:
    with transaction() as tx:
        if inbox.accept(tx, message):
            [(invoice_id,)] = tx.execute("insert into invoices (order_id) values (?) returning id", [event.order_id])
            outbox.publish(tx, InvoiceWritten(event.order_id, invoice_id))
            print(f"billing: invoice {invoice_id} is written for order {event.order_id}", flush=True)
