"""Aggregates, mapped in the three ways there are, and what they raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Integer, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, registry

from pillarbox import Aggregate, Outbox
from pillarbox.events import Types
from tests.support.writers.places import Place

TYPES = Types()


@TYPES.event("orders.told", key="order", subject="word")
@dataclass
class OrderNoted:
    """Its subject is what the tests look for."""

    order: int
    word: str


class Base(DeclarativeBase):
    pass


class Declared(Aggregate, Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str | None]


class DataBase(MappedAsDataclass, DeclarativeBase):
    pass


class AsDataclass(Aggregate, DataBase):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True, default=None)
    note: Mapped[str | None] = mapped_column(default=None)


class Imperative(Aggregate):
    def __init__(self, id: int | None = None, note: str | None = None) -> None:
        self.id = id
        self.note = note


_mapping = registry()
_mapping.map_imperatively(
    Imperative,
    Table("orders", _mapping.metadata, Column("id", Integer, primary_key=True), Column("note", String)),
)
MODELS: list[Any] = [Declared, AsDataclass, Imperative]


def raise_words(order: Any, *words: str) -> None:
    """Raise one event for each word; its payload carries the key that the database makes."""
    for word in words:
        order.raise_event(lambda word=word: OrderNoted(order.id, word))


def build_outbox(place: Place) -> Outbox:
    return Outbox(routes="broker", source="/shop", schema=place.names.schema, prefix=place.names.prefix, types=TYPES)
