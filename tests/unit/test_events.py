"""Registering types: stable names, keys that exist, one class per name."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

import pillarbox
from pillarbox.errors import ConfigError, DuplicateType, UnknownType
from pillarbox.events import DEFAULT_TYPES, Types
from pillarbox.message import Kind
from tests.support.order_types import AttrsOrder, DataOrder, ModelOrder, StructOrder


@pytest.mark.parametrize("cls", [DataOrder, AttrsOrder, StructOrder, ModelOrder])
def test_each_kind_of_class_can_be_registered(cls: type) -> None:
    types = Types()
    assert types.event("orders.placed", topic="orders", key="order_id")(cls) is cls
    found = types.get_by_class(cls)
    assert (found.name, found.kind, found.topic, found.cls) == ("orders.placed", Kind.EVENT, "orders", cls)
    assert types.find_by_name("orders.placed") is found
    assert list(types) == [found]


def test_the_topic_is_the_name_unless_given() -> None:
    types = Types()
    types.command("orders.pay")(StructOrder)
    assert (types.get_by_class(StructOrder).topic, types.get_by_class(StructOrder).kind) == ("orders.pay", Kind.COMMAND)


@pytest.mark.parametrize("option", ["key", "subject", "event_time"])
@pytest.mark.parametrize("cls", [DataOrder, AttrsOrder, StructOrder, ModelOrder])
def test_a_field_that_does_not_exist_is_refused_at_once(cls: type, option: str) -> None:
    types = Types()
    with pytest.raises(ConfigError, match=rf"no field 'orderid' for {option}=; its fields are order_id, placed_at"):
        types.event("orders.placed", **{option: "orderid"})(cls)
    assert list(types) == []


def test_a_pydantic_field_is_named_as_in_python_not_by_its_alias() -> None:
    Types().event("orders.placed", key="note")(ModelOrder)
    with pytest.raises(ConfigError, match="no field 'remark'"):
        Types().event("orders.placed", key="remark")(ModelOrder)


@pytest.mark.parametrize("bad", ["", " ", "1st", ".dot", "with space", "ö", "new\nline", "x" * 256, None, 5])
def test_names_must_be_usable(bad: Any) -> None:
    with pytest.raises(ConfigError, match="type name"):
        Types().event(bad)


@pytest.mark.parametrize("good", ["a", "orders.placed", "com.example/orders.placed:v1", "A_b-c", "x" * 255])
def test_usual_names_are_usable(good: str) -> None:
    types = Types()
    types.event(good)(StructOrder)
    assert types.find_by_name(good) is not None


@pytest.mark.parametrize("bad", ["", "bell\a", "x" * 256, 5])
def test_topics_must_be_usable(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"topic of orders.placed"):
        Types().event("orders.placed", topic=bad)


def test_a_name_belongs_to_one_class() -> None:
    types = Types()
    types.event("orders.placed")(DataOrder)
    with pytest.raises(DuplicateType, match=r"'orders.placed' belongs to .*\.DataOrder and cannot also name .*\.Attrs"):
        types.event("orders.placed")(AttrsOrder)
    assert types.get_by_class(DataOrder).name == "orders.placed"
    with pytest.raises(UnknownType):
        types.get_by_class(AttrsOrder)


def test_a_class_has_one_name() -> None:
    types = Types()
    types.event("orders.placed")(DataOrder)
    with pytest.raises(DuplicateType, match=r"already registered as 'orders.placed'"):
        types.event("orders.opened")(DataOrder)


def test_a_reloaded_module_registers_its_classes_again() -> None:
    def module() -> type:
        @dataclasses.dataclass
        class Placed:
            order_id: int

        return Placed

    types = Types()
    old, new = module(), module()
    types.event("orders.placed", topic="old")(old)
    types.event("orders.placed", topic="new")(new)
    assert types.find_by_name("orders.placed") is types.get_by_class(new)
    assert types.get_by_class(new).topic == "new"
    assert types.get_by_class(old).cls is old


def test_an_unregistered_class_gets_advice() -> None:
    with pytest.raises(UnknownType, match=r"DataOrder is not registered: decorate it with @event\(\"a.name\"\)"):
        Types().get_by_class(DataOrder)


def test_a_subclass_is_a_type_of_its_own() -> None:
    @dataclasses.dataclass
    class Base:
        order_id: int

    @dataclasses.dataclass
    class Derived(Base):
        more: int

    types = Types()
    types.event("base")(Base)
    with pytest.raises(UnknownType, match="Derived is not registered"):
        types.get_by_class(Derived)


def test_other_classes_are_refused_with_advice() -> None:
    class FallbackIdentity:
        order_id: int

    @pydantic.dataclasses.dataclass
    class Half:
        order_id: int

    @attrs.define
    class Private:
        _order_id: int

    for cls, reason in ((FallbackIdentity, "not a dataclass"), (Half, "pydantic dataclass"), (Private, "underscore")):
        with pytest.raises(ConfigError, match=reason):
            Types().event("orders.placed")(cls)
    with pytest.raises(ConfigError, match="must be a class"):
        Types().event("orders.placed")(FallbackIdentity())  # type: ignore[type-var]


def test_the_decorator_stands_above_the_one_that_makes_the_class() -> None:
    with pytest.raises(ConfigError, match="write @event or @command above"):

        @dataclasses.dataclass
        @Types().event("orders.placed")
        class Placed:
            order_id: int


def test_registries_do_not_know_each_other() -> None:
    one, other = Types(), Types()
    one.event("orders.placed")(DataOrder)
    other.command("orders.placed")(AttrsOrder)
    assert one.get_by_class(DataOrder).kind is Kind.EVENT
    assert other.get_by_class(AttrsOrder).kind is Kind.COMMAND


def test_the_module_level_decorators_fill_the_default_registry() -> None:
    @pillarbox.event("tests.default.registry", key="order_id")
    class Placed(msgspec.Struct):
        order_id: UUID

    @pillarbox.command("tests.default.registry.command")
    class Pay(msgspec.Struct):
        order_id: UUID

    assert DEFAULT_TYPES.get_by_class(Placed).kind is Kind.EVENT
    assert DEFAULT_TYPES.get_by_class(Pay).kind is Kind.COMMAND


def test_the_key_may_be_a_function() -> None:
    types = Types()
    types.event("orders.placed", key=lambda order: f"{order.line.sku}!")(StructOrder)
    getter = types.get_by_class(StructOrder).key
    assert getter is not None
