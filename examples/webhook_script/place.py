"""Writes an order, and the message about it: `python -m examples.webhook_script.place teapot`."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from pillarbox import Outbox, event

FILE: Final = os.environ.get("SHOP_FILE", "webhook_script.db")

outbox = Outbox(routes="partner", source="/shop")


@event("orders.placed", topic="orders", key="order_id")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    article: str


def place(article: str) -> None:
    """Both rows are written, or neither. Nobody else needs to run."""
    with closing(sqlite3.connect(FILE)) as connection, connection:
        connection.execute("create table if not exists orders (id integer primary key, article text not null)")
        [(order_id,)] = connection.execute("insert into orders (article) values (?) returning id", [article])
        outbox.publish(connection, OrderPlaced(order_id, article))
    print(f"shop: order {order_id} is placed ({article})", flush=True)


if __name__ == "__main__":
    for article in sys.argv[1:]:
        place(article)
