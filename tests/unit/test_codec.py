"""Payloads to JSON and back."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.cloudevents import CloudEvent
from pillarbox.errors import DecodeError, PayloadNotSerializable
from pillarbox.events import JSON, Types, decode, encode, encode_dict, is_json
from tests.support.order_types import (
    AttrsOrder,
    Colour,
    DataLine,
    DataOrder,
    ModelLine,
    ModelOrder,
    StructOrder,
    orders,
)

TYPES = Types()
for number, cls in enumerate((DataOrder, AttrsOrder, StructOrder, ModelOrder)):
    TYPES.event(f"orders.{number}")(cls)


def received(name: str, payload: bytes, content_type: str = JSON) -> CloudEvent:
    return CloudEvent(
        message_id="1",
        source="/s",
        type=name,
        topic=name,
        payload=payload,
        content_type=content_type,
        correlation_id="1",
    )


@given(order=st.one_of(*(orders(cls) for cls in (DataOrder, AttrsOrder, StructOrder, ModelOrder))))
def test_what_is_encoded_comes_back_equal(order: Any) -> None:
    name = TYPES.get_by_class(type(order)).name
    payload = encode(order, name)
    json.loads(payload)
    back = decode(received(name, payload), types=TYPES)
    assert type(back) is type(order)
    assert back == order


def test_the_json_is_what_other_languages_expect() -> None:
    @dataclasses.dataclass
    class Sample:
        order_id: UUID
        at: datetime
        price: Decimal
        colour: Colour
        seal: bytes
        wait: timedelta
        model: ModelLine
        line: DataLine
        note: str | None = None

    sample = Sample(
        UUID(int=1),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        Decimal("1.10"),
        Colour.RED,
        b"\xff\x00",
        timedelta(minutes=1),
        ModelLine(sku="a", price=Decimal("2.50")),
        DataLine("b", Decimal(3)),
    )
    assert json.loads(encode(sample, "sample")) == {
        "order_id": "00000000-0000-0000-0000-000000000001",
        "at": "2026-01-02T03:04:05Z",
        "price": "1.10",
        "colour": "red",
        "seal": "/wA=",
        "wait": "PT60S",
        "model": {"sku": "a", "price": "2.50"},
        "line": {"sku": "b", "price": "3"},
        "note": None,
    }


def test_a_pydantic_model_is_written_and_read_by_its_aliases() -> None:
    class Aliased(pydantic.BaseModel):
        order_id: int = pydantic.Field(alias="orderId")

    class ByName(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(serialize_by_alias=False, validate_by_name=True)
        order_id: int = pydantic.Field(alias="orderId")

    types = Types()
    types.event("aliased")(Aliased)
    payload = encode(Aliased(orderId=1), "aliased")
    assert payload == b'{"orderId":1}'
    assert decode(received("aliased", payload), types=types) == Aliased(orderId=1)
    assert encode(ByName(orderId=1), "by.name") == b'{"order_id":1}'


# --- what cannot be encoded --------------------------------------------------------------------


class Secret:
    def __repr__(self) -> str:
        return "hunter2"


@dataclasses.dataclass
class Inner:
    value: Any


@dataclasses.dataclass
class DataOuter:
    ok: int
    inner: list[Inner]


@attrs.define
class AttrsOuter:
    ok: int
    inner: list[Inner]


class StructOuter(msgspec.Struct):
    ok: int
    inner: list[Inner]


class ModelInner(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    value: Any


OUTERS = [DataOuter, AttrsOuter, StructOuter]


@pytest.mark.parametrize("outer", OUTERS)
def test_an_object_that_cannot_be_encoded_is_named_by_path_and_type(outer: Any) -> None:
    with pytest.raises(PayloadNotSerializable) as caught:
        encode(outer(1, [Inner(1), Inner({"deep": Secret()})]), "orders.placed")
    assert str(caught.value).startswith("Field inner[1].value.deep of orders.placed is, or holds, a Secret ")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("outer", OUTERS)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused(outer: Any, number: float) -> None:
    with pytest.raises(PayloadNotSerializable, match=r"Field inner\[0\].value of orders.placed is not a finite number"):
        encode(outer(1, [Inner(number)]), "orders.placed")


@pytest.mark.parametrize(
    "value", [{"a": math.nan}, (math.nan,), {math.inf}, Inner(math.nan), ModelInner(value=math.nan)]
)
def test_not_finite_numbers_are_found_wherever_they_are(value: object) -> None:
    with pytest.raises(PayloadNotSerializable, match="not a finite number"):
        encode(DataOuter(1, [Inner(value)]), "orders.placed")


@pytest.mark.parametrize(
    "value",
    [
        None,
        "null",
        [None, 10**30],
        [None, b"\xcb\x7f\xf8"],
        ["null", None, 1.5],
        "Infinity NaN",
        ModelInner(value=None),
    ],
)
def test_null_is_not_mistaken_for_a_number(value: object) -> None:
    payload = encode(DataOuter(1, [Inner(value)]), "orders.placed")
    assert b"null" in payload or b"Infinity NaN" in payload


@given(st.floats())
def test_exactly_the_finite_floats_are_written(number: float) -> None:
    for value in (Inner(number), ModelInner(value=number), Inner([None, {"x": number}])):
        if math.isfinite(number):
            encode(value, "sample")
        else:
            with pytest.raises(PayloadNotSerializable):
                encode(value, "sample")


@pytest.mark.parametrize("mode", ["null", "constants"])
def test_a_pydantic_model_cannot_write_them_either(mode: Any) -> None:
    class Loose(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(ser_json_inf_nan=mode)
        weight: float
        note: str = "a"

    with pytest.raises(PayloadNotSerializable, match="weight of loose is not a finite number"):
        encode(Loose(weight=math.nan), "loose")
    assert b"NaN" in encode(Loose(weight=1.0, note="NaN and Infinity"), "loose")


def test_a_pydantic_model_that_fails_is_named_without_its_value() -> None:
    class Angry(pydantic.BaseModel):
        secret: str

        @pydantic.field_serializer("secret")
        def _refuse(self, value: str) -> str:
            raise ValueError(value)

    with pytest.raises(PayloadNotSerializable) as caught:
        encode(DataOuter(1, [Inner(Angry(secret="hunter2"))]), "angry")
    assert "inner[0].value of angry" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_bytes_that_a_pydantic_model_would_write_as_text_get_advice() -> None:
    class Sealed(pydantic.BaseModel):
        seal: bytes

    with pytest.raises(PayloadNotSerializable, match=r"The payload of sealed .* Sealed .* val_json_bytes = 'base64'"):
        encode(Sealed(seal=b"\xff"), "sealed")


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(PayloadNotSerializable, match=r"inner.0..value of orders.placed is a str with half a surrogate"):
        encode(DataOuter(1, [Inner("\ud800")]), "orders.placed")


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PayloadNotSerializable):
        encode(Inner(endless), "endless")
    with pytest.raises(PayloadNotSerializable):
        encode_dict({"a": endless}, "endless")


@pytest.mark.parametrize(
    ("payload", "where"),
    [({1: 2}, "its top"), ({"a": [{2: 3}]}, ".a[0]"), ({"a": {UUID(int=1): 3}}, ".a"), ({None: 1}, "top")],
)
def test_keys_of_a_dict_payload_must_be_str(payload: Any, where: str) -> None:
    with pytest.raises(PayloadNotSerializable) as caught:
        encode_dict(payload, "plain")
    assert where in str(caught.value)
    assert "must be str" in str(caught.value)


_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), _plain))
def test_a_dict_comes_back_as_plain_data(payload: dict[str, Any]) -> None:
    assert decode(received("plain", encode_dict(payload, "plain")), types=Types()) == payload


# --- what cannot be decoded --------------------------------------------------------------------


@pytest.mark.parametrize("cls", [DataOrder, AttrsOrder, StructOrder, ModelOrder])
@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff", b'{"order_id": 5}', b"[" * 5_000])
def test_what_is_malformed_or_of_the_wrong_type_is_a_decode_error(cls: type, payload: bytes) -> None:
    name = TYPES.get_by_class(cls).name
    with pytest.raises(DecodeError, match=rf"A message of type {name} is not a {cls.__name__}: \S"):
        decode(received(name, payload), types=TYPES)


def test_the_reason_names_the_field() -> None:
    class Item(pydantic.BaseModel):
        price: int

    @dataclasses.dataclass
    class Order:
        item: Item
        number: int

    types = Types()
    types.event("item")(Item)
    types.event("order")(Order)
    types.event("struct")(StructOuter)
    for name, payload, reason in (
        ("item", b'{"price": "hunter2"}', "price: Input should be a valid integer"),
        ("struct", b'{"ok": "hunter2", "inner": []}', r"Expected `int`, got `str` - at `\$.ok`"),
    ):
        with pytest.raises(DecodeError, match=reason) as caught:
            decode(received(name, payload), types=types)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_type_that_cannot_be_resolved_is_a_decode_error() -> None:
    class Holder(msgspec.Struct):
        value: Secret

    types = Types()
    types.event("holder")(Holder)
    with pytest.raises(DecodeError, match=r"holder is not a .*Holder"):
        decode(received("holder", b'{"value": 1}'), types=types)


def test_an_error_raised_by_the_class_itself_is_a_decode_error() -> None:
    @dataclasses.dataclass
    class Positive:
        amount: int

        def __post_init__(self) -> None:
            if self.amount < 0:
                raise KeyError("amount")

    types = Types()
    types.event("positive")(Positive)
    assert decode(received("positive", b'{"amount":1}'), types=types) == Positive(1)
    with pytest.raises(DecodeError, match="amount"):
        decode(received("positive", b'{"amount":-1}'), types=types)


def test_fields_that_the_class_does_not_know_are_ignored() -> None:
    types = Types()
    types.event("line")(DataLine)
    back = decode(received("line", b'{"sku":"a","price":"1","new":true}'), types=types)
    assert back == DataLine("a", Decimal(1))


def test_of_an_unregistered_type_json_is_plain_data_and_the_rest_bytes() -> None:
    assert decode(received("x", b'{"a":[1]}'), types=Types()) == {"a": [1]}
    assert decode(received("x", b'{"a":[1]}', "application/vnd.x+json; charset=utf-8"), types=Types()) == {"a": [1]}
    assert decode(received("x", b"\x01", "application/avro"), types=Types()) == b"\x01"
    with pytest.raises(DecodeError, match="A message of type x is not JSON"):
        decode(received("x", b"{"), types=Types())


def test_a_registered_type_is_not_read_from_another_format() -> None:
    with pytest.raises(DecodeError, match="content type 'application/avro'"):
        decode(received("orders.0", b"\x01", "application/avro"), types=TYPES)


@pytest.mark.parametrize(
    ("content_type", "answer"),
    [
        ("application/json", True),
        ("Application/JSON", True),
        ("text/json", True),
        ("application/cloudevents+json", True),
        ("application/json;charset=utf-8", True),
        ("application/json ; charset=utf-8", True),
        ("image/svg+json", True),
        ("application/jsonl", False),
        ("application/xml", False),
        ("text/plain", False),
        ("json", False),
        ("", False),
    ],
)
def test_which_content_types_are_json(content_type: str, *, answer: bool) -> None:
    assert is_json(content_type) is answer
