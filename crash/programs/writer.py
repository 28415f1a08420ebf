"""A writer, mined: one transaction after the other."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from crash.backends import BACKENDS
from crash.mine import Mine
from crash.parcels import parcel
from crash.programs.orders import WriterOrder
from crash.steps import Call
from crash.writing import write

__all__ = ["main"]


def main(order: WriterOrder) -> None:
    """Write until done, or dead."""
    mine = Mine(order.trap)
    with closing(BACKENDS[order.backend].reopened(order.store, order.schema)) as place:
        for transaction in range(order.transactions):
            first = 1 + transaction * order.parcels
            parcels = [parcel(order.key, number) for number in range(first, first + order.parcels)]
            write(place, parcels, reached=partial(mine.at, call=Call("write")))
