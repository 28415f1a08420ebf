"""One order in each kind of class a message can be, with every sort of field, and strategies that make them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
from hypothesis import strategies as st

__all__ = ["AttrsOrder", "Colour", "DataOrder", "Level", "ModelOrder", "StructOrder", "orders"]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class DataLine:
    sku: str
    price: Decimal


@attrs.frozen
class AttrsLine:
    sku: str
    price: Decimal


class StructLine(msgspec.Struct, frozen=True):
    sku: str
    price: Decimal


class ModelLine(pydantic.BaseModel, frozen=True):
    sku: str
    price: Decimal


@dataclasses.dataclass
class DataOrder:
    order_id: UUID
    placed_at: datetime
    day: date
    hour: time
    wait: timedelta
    colour: Colour
    level: Level
    seal: bytes
    tags: set[str]
    weight: float
    counts: dict[str, int]
    pair: tuple[int, str]
    line: DataLine
    model: ModelLine
    models: list[ModelLine]
    note: str | None = None


@attrs.define
class AttrsOrder:
    order_id: UUID
    placed_at: datetime
    day: date
    hour: time
    wait: timedelta
    colour: Colour
    level: Level
    seal: bytes
    tags: set[str]
    weight: float
    counts: dict[str, int]
    pair: tuple[int, str]
    line: AttrsLine
    model: ModelLine
    models: list[ModelLine]
    note: str | None = None


class StructOrder(msgspec.Struct):
    order_id: UUID
    placed_at: datetime
    day: date
    hour: time
    wait: timedelta
    colour: Colour
    level: Level
    seal: bytes
    tags: set[str]
    weight: float
    counts: dict[str, int]
    pair: tuple[int, str]
    line: StructLine
    model: ModelLine
    models: list[ModelLine]
    note: str | None = None


class ModelOrder(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    order_id: UUID
    placed_at: datetime
    day: date
    hour: time
    wait: timedelta
    colour: Colour
    level: Level
    seal: bytes
    tags: set[str]
    weight: float
    counts: dict[str, int]
    pair: tuple[int, str]
    line: DataLine
    model: ModelLine
    models: list[ModelLine]
    note: str | None = pydantic.Field(default=None, alias="remark")


LINES: dict[type, type] = {
    DataOrder: DataLine,
    AttrsOrder: AttrsLine,
    StructOrder: StructLine,
    ModelOrder: DataLine,
}

_texts = st.text(max_size=10)
_prices = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9)
_models = st.builds(ModelLine, sku=_texts, price=_prices)


def orders(cls: Any) -> st.SearchStrategy[Any]:
    """Orders of one class."""
    note = "remark" if cls is ModelOrder else "note"
    return st.builds(
        cls,
        order_id=st.uuids(),
        placed_at=st.datetimes(timezones=st.just(UTC)),
        day=st.dates(),
        hour=st.times(),
        wait=st.timedeltas(min_value=timedelta(days=-1000), max_value=timedelta(days=1000)),
        colour=st.sampled_from(Colour),
        level=st.sampled_from(Level),
        seal=st.binary(max_size=10),
        tags=st.sets(_texts, max_size=3),
        weight=st.floats(allow_nan=False, allow_infinity=False),
        counts=st.dictionaries(_texts, st.integers(-(2**53), 2**53), max_size=3),
        pair=st.tuples(st.integers(-(2**53), 2**53), _texts),
        line=st.builds(LINES[cls], sku=_texts, price=_prices),
        model=_models,
        models=st.lists(_models, max_size=2),
        **{note: st.none() | _texts},
    )
