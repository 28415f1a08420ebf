"""The test kit says what was published and, when a test is wrong, what was there instead."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox import Outbox, State
from pillarbox.events import Types
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite.store import SqliteStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.testing.kit import OutboxKit
from pillarbox.testing.plugin import outbox_kit  # noqa: F401 - a fixture

TYPES = Types()
OUTBOX = Outbox(routes="billing", source="/shop", types=TYPES)


@TYPES.event("orders.placed", key="order_id")
@dataclass
class OrderPlaced:
    order_id: str
    total: int = 0


@TYPES.event("orders.cancelled", key="order_id")
@dataclass
class OrderCancelled:
    order_id: str


@pytest.fixture
def kit() -> OutboxKit:
    return OutboxKit(types=TYPES)


def publish(kit: OutboxKit, *events: object) -> None:
    with kit.transaction() as tx:
        for event in events:
            OUTBOX.publish(tx, event)


def test_what_was_published_is_found_by_class_and_fields(kit: OutboxKit) -> None:
    publish(kit, OrderPlaced("1", 5), OrderPlaced("2", 7))
    assert kit.assert_published(OrderPlaced, total=7) == OrderPlaced("2", 7)
    assert kit.assert_published("orders.placed", key="1", destination="billing").total == 5
    assert kit.published(OrderPlaced) == [OrderPlaced("1", 5), OrderPlaced("2", 7)]
    kit.assert_published(OrderPlaced, count=2)
    kit.assert_published(OrderCancelled, count=0)
    kit.assert_not_published(OrderCancelled)
    kit.assert_not_published(OrderPlaced, order_id="3")


def test_a_rollback_is_honoured(kit: OutboxKit) -> None:
    tx = kit.transaction()
    OUTBOX.publish(tx, OrderPlaced("1"))
    tx.rollback()
    kit.assert_not_published(OrderPlaced)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda kit: kit.assert_published(OrderCancelled), "0 of OrderCancelled with any fields"),
        (lambda kit: kit.assert_published(OrderPlaced, total=9), "0 of OrderPlaced with total=9"),
        (lambda kit: kit.assert_published(OrderPlaced, count=2), "and 2 should be"),
        (lambda kit: kit.assert_not_published(OrderPlaced), "and none should be"),
    ],
)
def test_a_failure_tells_what_was_there(kit: OutboxKit, ask: object, said: str) -> None:
    publish(kit, OrderPlaced("1", 5))
    with pytest.raises(AssertionError) as error:
        ask(kit)  # type: ignore[operator]
    assert said in str(error.value)
    assert "orders.placed key='1' to billing: OrderPlaced(order_id='1', total=5)" in str(error.value)


def test_draining_delivers_what_is_due(kit: OutboxKit) -> None:
    publish(kit, OrderPlaced("1"))
    with kit.transaction() as tx:
        OUTBOX.publish(tx, OrderPlaced("2"), delay=timedelta(hours=1))
    assert kit.drain() == 1
    kit.advance(timedelta(hours=2))
    assert kit.drain() == 1
    assert [message.key for message in kit.transport("billing").received] == ["1", "2"]


def test_a_destination_can_be_made_to_fail(kit: OutboxKit) -> None:
    publish(kit, OrderPlaced("1"), OrderPlaced("2"))
    kit.transport("billing").reject_next(error="no such account")
    assert kit.drain() == 1
    (failed,) = kit.messages(states=[State.FAILED])
    assert (failed.key, failed.last_error) == ("1", "no such account")


async def test_it_works_in_async_tests_too(kit: OutboxKit) -> None:
    publish(kit, OrderPlaced("1"))
    kit.assert_published(OrderPlaced)
    assert await kit.drain_async() == 1


def test_a_real_store_is_read(tmp_path: Path) -> None:
    import asyncio

    file = tmp_path / "shop.db"
    asyncio.run(open_schema(parse_store_url(f"sqlite:///{file}"), names=Names()).install())
    kit = OutboxKit(store=SqliteStore(file), types=TYPES)
    with closing(sqlite3.connect(file)) as connection:
        OUTBOX.publish(connection, OrderPlaced("1"))
        connection.rollback()
        kit.assert_not_published(OrderPlaced)
        OUTBOX.publish(connection, OrderPlaced("1"))
        connection.commit()
    kit.assert_published(OrderPlaced, order_id="1")
    assert kit.drain() == 1


def test_a_failing_assertion_shows_no_frame_of_the_kit(kit: OutboxKit) -> None:
    publish(kit, OrderPlaced("1"))
    with pytest.raises(AssertionError) as published:
        kit.assert_published(OrderCancelled)
    with pytest.raises(AssertionError) as not_published:
        kit.assert_not_published(OrderPlaced)
    for failure in (published, not_published):
        shown = [entry.name for entry in failure.traceback if not entry.ishidden(failure)]
        assert shown == ["test_a_failing_assertion_shows_no_frame_of_the_kit"]


def test_a_kit_of_a_store_creates_its_tables(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    for store in (SqliteStore(file), f"sqlite:///{file}"):
        OutboxKit(store=store, types=TYPES).assert_not_published(OrderPlaced)


def test_a_kit_has_a_store_or_a_connection(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, pytest.raises(TypeError, match="not both"):
        OutboxKit(store=f"sqlite:///{tmp_path / 'shop.db'}", connection=connection)


async def test_the_methods_for_async_code_read_a_store_too(kit: OutboxKit) -> None:
    publish(kit, OrderPlaced("1"))
    await kit.assert_published_async(OrderPlaced, order_id="1")
    await kit.assert_not_published_async(OrderCancelled)
    assert await kit.published_async(OrderPlaced) == [OrderPlaced("1")]


def test_the_fixture(outbox_kit: OutboxKit) -> None:  # noqa: F811
    assert outbox_kit.published() == []
