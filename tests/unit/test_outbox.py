"""Publishing into a real transaction: SQLite, sync and async."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any
from uuid import UUID

import aiosqlite
import msgspec
import pytest

from pillarbox import Outbox, Route, Routes, Types, correlation, decode, handling, trace
from pillarbox.clock import FrozenClock
from pillarbox.cloudevents import CloudEvent
from pillarbox.errors import (
    ConfigError,
    NoRoute,
    NotInTransaction,
    PayloadNotSerializable,
    PayloadTooLarge,
    PublishError,
    UnknownType,
    UnsupportedHandle,
    WrongKind,
)
from pillarbox.message import SKIPPED_DESTINATION, compute_partition
from pillarbox.publish_options import to_utc
from pillarbox.stores.migrations import load_migrations

TYPES = Types()
CLOCK = FrozenClock(datetime(2026, 3, 1, 12, tzinfo=UTC))
SCHEMA = "\n".join(migration.up for migration in load_migrations("sqlite"))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Region(Enum):
    EU = "eu"
    NUMBER = 7


@TYPES.event("orders.placed", topic="orders", key="order_id")
@dataclasses.dataclass
class Placed:
    order_id: Any
    total: float = 1.0


@TYPES.command("orders.pay", key=lambda pay: pay.order_id)
class Pay(msgspec.Struct):
    order_id: str


@TYPES.event("orders.seen", subject="page", event_time="at")
class Seen(msgspec.Struct):
    page: Any = None
    at: Any = None


def outbox(routes: Any = "broker", **settings: Any) -> Outbox:
    return Outbox(routes=routes, source="/shop", types=TYPES, clock=CLOCK, **settings)


@pytest.fixture
def tx() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA)
    connection.row_factory = sqlite3.Row
    yield connection
    connection.close()


@pytest.fixture
async def async_tx() -> AsyncIterator[aiosqlite.Connection]:
    async with aiosqlite.connect(":memory:") as connection:
        await connection.executescript(SCHEMA)
        yield connection


def rows(tx: sqlite3.Connection) -> list[dict[str, Any]]:
    return [dict(row) for row in tx.execute("select * from pillarbox_outbox order by id")]


def row(tx: sqlite3.Connection) -> dict[str, Any]:
    (only,) = rows(tx)
    return only


def microseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


# --- one message -------------------------------------------------------------------------------


def test_an_event_is_written_with_everything_the_type_says(tx: sqlite3.Connection) -> None:
    message_id = outbox().publish(tx, Placed("o-1", 2.5))
    written = row(tx)
    assert message_id.version == 7
    assert written["message_id"] == str(message_id)
    assert {
        name: written[name] for name in ("destination", "kind", "type", "topic", "key", "content_type", "source")
    } == {
        "destination": "broker",
        "kind": "event",
        "type": "orders.placed",
        "topic": "orders",
        "key": "o-1",
        "content_type": "application/json",
        "source": "/shop",
    }
    assert json.loads(written["payload"]) == {"order_id": "o-1", "total": 2.5}
    assert written["partition"] == compute_partition("o-1", message_id)
    assert written["correlation_id"] == str(message_id)
    assert (written["causation_id"], written["headers"], written["subject"]) == (None, None, None)
    assert written["event_time"] == microseconds(CLOCK.now())
    assert (written["available_at"], written["waits"], written["attempts"]) == (None, None, 0)


def test_a_message_shares_the_fate_of_the_transaction(tx: sqlite3.Connection) -> None:
    tx.execute("create table business (id)")
    tx.commit()
    tx.execute("insert into business values (1)")
    outbox().publish(tx, Placed("o-1"))
    tx.rollback()
    assert rows(tx) == []
    outbox().publish(tx, Placed("o-2"))
    tx.commit()
    tx.rollback()
    assert row(tx)["key"] == "o-2"


def test_a_handle_that_would_commit_by_itself_is_refused() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(SCHEMA)
    with pytest.raises(NotInTransaction):
        outbox().publish(connection, Placed("o-1"))
    assert connection.execute("select count(*) from pillarbox_outbox").fetchone() == (0,)
    connection.close()


def test_what_is_no_handle_is_refused_before_anything_else() -> None:
    with pytest.raises(UnsupportedHandle):
        outbox().publish(object(), 5)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("text", "text"),
        (42, "42"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Region.EU, "eu"),
        (Region.NUMBER, "7"),
        (None, None),
        ("ключ", "ключ"),
    ],
)
def test_a_key_becomes_text(tx: sqlite3.Connection, given: Any, key: str | None) -> None:
    message_id = outbox().publish(tx, Placed(given))
    outbox().publish(tx, Placed("other"), key=given)
    first, second = rows(tx)
    assert first["key"] == second["key"] == key
    assert first["partition"] == compute_partition(key, message_id)


@pytest.mark.parametrize(
    "bad", [1.5, b"bytes", ["list"], object(), "", "nul\0", "tab\t", "\ud800", "x" * 1025, "ö" * 513]
)
def test_a_key_that_could_break_order_or_a_store_is_refused(tx: sqlite3.Connection, bad: Any) -> None:
    with pytest.raises(PublishError, match="The key"):
        outbox().publish(tx, Placed("fine"), key=bad)
    assert rows(tx) == []


def test_the_longest_key(tx: sqlite3.Connection) -> None:
    outbox().publish(tx, Placed("ö" * 512))
    assert row(tx)["key"] == "ö" * 512


def test_a_call_can_say_otherwise(tx: sqlite3.Connection) -> None:
    at = datetime(2020, 1, 1, 3, tzinfo=timezone(timedelta(hours=3)))
    outbox().publish(
        tx,
        Placed("o-1"),
        key=None,
        topic="elsewhere",
        subject="sub",
        headers={"X-Tenant": "eu"},
        event_time=at,
        correlation_id="chain",
        causation_id="cause",
    )
    written = row(tx)
    assert (written["key"], written["topic"], written["subject"]) == (None, "elsewhere", "sub")
    assert json.loads(written["headers"]) == {"X-Tenant": "eu"}
    assert written["event_time"] == microseconds(datetime(2020, 1, 1, tzinfo=UTC))
    assert (written["correlation_id"], written["causation_id"]) == ("chain", "cause")


def test_subject_and_time_from_the_type(tx: sqlite3.Connection) -> None:
    at = datetime(2020, 1, 1, tzinfo=UTC)
    outbox().publish(tx, [Seen(7, at), Seen(None, None)])
    first, second = rows(tx)
    assert (first["subject"], first["event_time"]) == ("7", microseconds(at))
    assert (second["subject"], second["event_time"]) == (None, microseconds(CLOCK.now()))
    with pytest.raises(PublishError, match="event_time must be a datetime with a time zone"):
        outbox().publish(tx, Seen(1, datetime(2020, 1, 1)))  # noqa: DTZ001


def test_a_type_made_by_the_same_registry_is_read_back(tx: sqlite3.Connection) -> None:
    outbox().publish(tx, Placed("o-1", 2.5))
    written = row(tx)
    event = CloudEvent(
        message_id="1", source="/", type=written["type"], topic="t", payload=written["payload"], correlation_id="1"
    )
    assert decode(event, types=TYPES) == Placed("o-1", 2.5)


# --- dicts and bytes ---------------------------------------------------------------------------


def test_a_dict_needs_a_type(tx: sqlite3.Connection) -> None:
    with pytest.raises(UnknownType, match="A dict payload needs type="):
        outbox().publish(tx, {"a": 1})
    outbox().publish(tx, {"a": 1}, type="plain.dict", key=5)
    written = row(tx)
    assert (written["type"], written["topic"], written["key"]) == ("plain.dict", "plain.dict", "5")
    assert written["payload"] == b'{"a":1}'


def test_bytes_need_a_type_and_a_content_type_and_stay_as_they_are(tx: sqlite3.Connection) -> None:
    with pytest.raises(UnknownType, match="A bytes payload needs type="):
        outbox().publish(tx, b"\x00\xff")
    with pytest.raises(PublishError, match="need content_type="):
        outbox().publish(tx, b"\x00\xff", type="raw")
    outbox().publish(tx, b"\x00\xff", type="raw", content_type="application/avro")
    assert (row(tx)["payload"], row(tx)["content_type"]) == (b"\x00\xff", "application/avro")


def test_a_dict_is_json_and_says_so(tx: sqlite3.Connection) -> None:
    outbox().publish(tx, {"a": 1}, type="t", content_type="application/vnd.shop+json")
    assert row(tx)["content_type"] == "application/vnd.shop+json"
    with pytest.raises(PublishError, match="must be a JSON one"):
        outbox().publish(tx, {"a": 1}, type="t", content_type="text/plain")


@pytest.mark.parametrize("bad", ["", "with space", "ö", "x" * 256, 5])
def test_a_type_given_in_a_call_must_be_usable(tx: sqlite3.Connection, bad: Any) -> None:
    with pytest.raises(PublishError, match="type= is not usable"):
        outbox().publish(tx, {"a": 1}, type=bad)


def test_a_dict_of_a_registered_type_keeps_its_topic_and_must_be_given_its_key(tx: sqlite3.Connection) -> None:
    with pytest.raises(PublishError, match=r"orders.placed takes its key from Placed; give key="):
        outbox().publish(tx, {"order_id": 1}, type="orders.placed")
    outbox().publish(tx, {"order_id": 1}, type="orders.placed", key=1)
    assert (row(tx)["topic"], row(tx)["key"]) == ("orders", "1")
    with pytest.raises(WrongKind, match=r"orders.pay is a command"):
        outbox().publish(tx, {"order_id": 1}, type="orders.pay", key=1)


@pytest.mark.parametrize("options", [{"type": "x"}, {"content_type": "application/json"}])
def test_a_registered_class_has_its_own_type_and_content_type(tx: sqlite3.Connection, options: Any) -> None:
    with pytest.raises(PublishError, match=r"are for a dict or bytes; Placed is registered as orders.placed"):
        outbox().publish(tx, Placed("o-1"), **options)


class Plain:
    """Not decorated."""


def test_a_class_that_is_not_registered_is_not_a_message(tx: sqlite3.Connection) -> None:
    with pytest.raises(UnknownType, match="The class Plain is not registered: decorate it"):
        outbox().publish(tx, Plain())


# --- many --------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", [list, tuple])
def test_a_list_is_written_in_order(tx: sqlite3.Connection, container: Callable[[Any], Any]) -> None:
    given = container([Placed("a"), Seen(), {"x": 1}, Placed("b")])
    with pytest.raises(PublishError, match="type= and content_type= are for"):
        outbox().publish(tx, given, type="plain")
    ids = outbox().publish(tx, container([Placed("a"), Seen("p"), Placed("b")]))
    assert [written["message_id"] for written in rows(tx)] == [str(one) for one in ids]
    assert [(written["type"], written["key"]) for written in rows(tx)] == [
        ("orders.placed", "a"),
        ("orders.seen", None),
        ("orders.placed", "b"),
    ]
    assert len(set(ids)) == 3


def test_an_empty_list_writes_nothing(tx: sqlite3.Connection) -> None:
    assert outbox().publish(tx, []) == []
    assert not tx.in_transaction
    tx.isolation_level = None
    assert outbox().send(tx, ()) == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Placed(object()), PublishError),
        (Placed("k", float("nan")), PayloadNotSerializable),
        (Pay("o"), WrongKind),
        (object(), UnknownType),
        (Placed, PublishError),
        (Seen("x" * 2_000_000), PublishError),
    ],
)
@pytest.mark.parametrize("place", [0, 5, 9])
def test_when_one_of_a_list_is_bad_nothing_is_written(
    tx: sqlite3.Connection, bad: object, error: type[Exception], place: int
) -> None:
    given: list[object] = [Placed(str(number)) for number in range(10)]
    given[place] = bad
    with pytest.raises(error):
        outbox().publish(tx, given)
    assert rows(tx) == []


def test_fan_out_is_one_row_per_destination_with_one_id(tx: sqlite3.Connection) -> None:
    routes = [Route(to=["a", "b"], topic="orders"), Route(to="c", type="*.placed")]
    one, two = outbox(routes).publish(tx, [Placed("x"), Placed("y")])
    assert [(written["message_id"], written["destination"]) for written in rows(tx)] == [
        (str(one), "a"),
        (str(one), "b"),
        (str(one), "c"),
        (str(two), "a"),
        (str(two), "b"),
        (str(two), "c"),
    ]
    assert len({written["partition"] for written in rows(tx) if written["key"] == "x"}) == 1


# --- routes, kinds, limits ---------------------------------------------------------------------


def test_an_unrouted_event_is_recorded_as_skipped_or_refused(tx: sqlite3.Connection) -> None:
    outbox(Routes()).publish(tx, Placed("x"))
    assert row(tx)["destination"] == SKIPPED_DESTINATION
    with pytest.raises(NoRoute):
        outbox(Routes(unrouted="error")).publish(tx, Placed("x"))
    assert len(rows(tx)) == 1


def test_routes_see_the_topic_and_headers_of_the_call(tx: sqlite3.Connection) -> None:
    routes = Routes([Route(to="eu", headers={"tenant": "eu"}), Route(to="other", topic="else")])
    outbox(routes).publish(tx, Placed("x"), headers={"tenant": "eu"})
    outbox(routes).publish(tx, Placed("x"), topic="else")
    assert [written["destination"] for written in rows(tx)] == ["eu", "other"]


def test_a_call_can_name_its_destinations(tx: sqlite3.Connection) -> None:
    outbox().publish(tx, Placed("x"), destinations=["a", "b", "a"])
    outbox().send(tx, Pay("x"), destinations="c")
    assert [written["destination"] for written in rows(tx)] == ["a", "b", "c"]
    for bad in ([], ["no good"], SKIPPED_DESTINATION):
        with pytest.raises(NoRoute):
            outbox().publish(tx, Placed("x"), destinations=bad)


def test_a_command_goes_to_exactly_one(tx: sqlite3.Connection) -> None:
    message_id = outbox().send(tx, Pay("o-1"))
    assert (row(tx)["kind"], row(tx)["message_id"], row(tx)["key"]) == ("command", str(message_id), "o-1")
    with pytest.raises(NoRoute):
        outbox(Routes()).send(tx, Pay("o-1"))
    with pytest.raises(NoRoute):
        outbox([Route(to=["a", "b"])]).send(tx, Pay("o-1"))
    with pytest.raises(NoRoute):
        outbox().send(tx, Pay("o-1"), destinations=["a", "b"])
    assert len(rows(tx)) == 1


def test_events_are_published_and_commands_sent(tx: sqlite3.Connection) -> None:
    with pytest.raises(WrongKind, match=r"orders.pay is a command; give it to send\(\), not publish\(\)"):
        outbox().publish(tx, Pay("x"))
    with pytest.raises(WrongKind, match=r"orders.placed is an event; give it to publish\(\), not send\(\)"):
        outbox().send(tx, Placed("x"))
    outbox().send(tx, {"a": 1}, type="ad.hoc")
    assert row(tx)["kind"] == "command"


def test_the_size_limit_counts_encoded_bytes(tx: sqlite3.Connection) -> None:
    small = outbox(max_payload=10)
    small.publish(tx, {"a": "ö"}, type="t")  # 9 characters, 10 bytes
    with pytest.raises(PayloadTooLarge, match="The payload of t is 11 bytes and the limit is 10"):
        small.publish(tx, {"a": "öx"}, type="t")
    with pytest.raises(PayloadTooLarge, match="1048577 bytes and the limit is 1048576"):
        outbox().publish(tx, b"x" * (1024 * 1024 + 1), type="t", content_type="text/plain")
    assert len(rows(tx)) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"": "x"},
        {"with space": "x"},
        {"ö": "x"},
        {"x" * 101: "x"},
        {5: "x"},
        {"a": 5},
        {"a": None},
        {"a": "new\nline"},
        {"a": "nul\0"},
        {"a": "ö"},
        {"a": " outer"},
        {"a": "outer "},
        {"a": "1", "A": "2"},
        {"Content-Type": "x"},
        {"traceparent": PARENT},
        {"CE-id": "1"},
        {"cloudEvents:id": "1"},
        {"authorization": "x"},
        {"Webhook-Signature": "x"},
        {"a": "x" * 8192},
        {f"h{n}": "x" * 100 for n in range(100)},
    ],
)
def test_headers_that_some_broker_would_change_are_refused(tx: sqlite3.Connection, headers: Any) -> None:
    with pytest.raises(PublishError, match=r"[Hh]eader"):
        outbox().publish(tx, Placed("x"), headers=headers)
    assert rows(tx) == []


def test_usual_headers_are_kept_as_they_are(tx: sqlite3.Connection) -> None:
    given = {"X-Tenant": "eu west", "empty": "", "a.b_c-1": "~!@#$%^&*()", "big": "x" * 8100}
    outbox().publish(tx, Placed("x"), headers=given)
    given["later"] = "no"
    assert json.loads(row(tx)["headers"]) == {name: value for name, value in given.items() if name != "later"}


@pytest.mark.parametrize("option", ["topic", "subject", "content_type", "correlation_id", "causation_id"])
@pytest.mark.parametrize("bad", ["", "nul\0", "x" * 1025, 5])
def test_texts_that_a_store_or_broker_cannot_keep_are_refused(tx: sqlite3.Connection, option: str, bad: Any) -> None:
    with pytest.raises(PublishError):
        outbox().publish(tx, b"", **{"type": "t", "content_type": "a/b", option: bad})
    assert rows(tx) == []


# --- time --------------------------------------------------------------------------------------


def test_a_fixed_time(tx: sqlite3.Connection) -> None:
    at = datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    outbox().publish(tx, [Placed("x"), Placed("y")], deliver_at=at)
    expected = microseconds(datetime(2030, 1, 1, tzinfo=UTC))
    assert [(written["available_at"], written["waits"]) for written in rows(tx)] == [(expected, "deferred")] * 2


def test_a_delay_counts_from_the_database_clock(tx: sqlite3.Connection) -> None:
    outbox().publish(tx, Placed("x"), delay=timedelta(hours=1))
    written = row(tx)
    assert written["waits"] == "deferred"
    assert abs(written["available_at"] - written["created_at"] - 3_600_000_000) < 60_000_000


def test_no_delay_is_none(tx: sqlite3.Connection) -> None:
    outbox().publish(tx, Placed("x"), delay=timedelta(0))
    assert (row(tx)["waits"], row(tx)["available_at"]) == (None, None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"delay": timedelta(seconds=1), "deliver_at": CLOCK.now()}, "exclude each other"),
        ({"delay": timedelta(0), "deliver_at": CLOCK.now()}, "exclude each other"),
        ({"delay": timedelta(microseconds=-1)}, "must be between 0 and"),
        ({"delay": timedelta.max}, "must be between 0 and"),
        ({"deliver_at": datetime(2030, 1, 1)}, "deliver_at must be a datetime with a time zone"),  # noqa: DTZ001
        ({"deliver_at": "tomorrow"}, "deliver_at must be a datetime"),
        ({"event_time": datetime(2030, 1, 1)}, "event_time must be a datetime with a time zone"),  # noqa: DTZ001
    ],
)
def test_times_that_mean_nothing_are_refused(tx: sqlite3.Connection, options: Any, reason: str) -> None:
    with pytest.raises(PublishError, match=reason):
        outbox().publish(tx, Placed("x"), **options)
    assert rows(tx) == []


# --- context -----------------------------------------------------------------------------------


def test_a_message_inherits_the_context(tx: sqlite3.Connection) -> None:
    cause = CloudEvent(
        message_id="cause", source="/", type="t", topic="t", correlation_id="chain", headers={"traceparent": PARENT}
    )
    with handling(cause):
        outbox().publish(tx, Placed("x"), headers={"tenant": "eu"})
    written = row(tx)
    assert (written["correlation_id"], written["causation_id"]) == ("chain", "cause")
    assert json.loads(written["headers"]) == {"tenant": "eu", "traceparent": PARENT}


def test_a_call_beats_the_context(tx: sqlite3.Connection) -> None:
    with correlation("request"), trace(PARENT, "a=1"):
        outbox().publish(tx, Placed("x"), correlation_id="mine", causation_id="why")
        outbox().publish(tx, Placed("x"))
    first, second = rows(tx)
    assert (first["correlation_id"], first["causation_id"]) == ("mine", "why")
    assert (second["correlation_id"], second["causation_id"]) == ("request", None)
    assert json.loads(second["headers"]) == {"traceparent": PARENT, "tracestate": "a=1"}


# --- async -------------------------------------------------------------------------------------


async def test_an_async_handle_is_awaited(async_tx: aiosqlite.Connection) -> None:
    one = await outbox().publish(async_tx, Placed("x"))
    many = await outbox().publish(async_tx, [Placed("y"), Placed("z")])
    sent = await outbox().send(async_tx, Pay("w"))
    assert await outbox().publish(async_tx, []) == []
    found = await async_tx.execute_fetchall("select message_id, key from pillarbox_outbox order by id")
    assert [tuple(entry) for entry in found] == [
        (str(one), "x"),
        (str(many[0]), "y"),
        (str(many[1]), "z"),
        (str(sent), "w"),
    ]


async def test_it_can_be_gathered_and_timed_out(async_tx: aiosqlite.Connection) -> None:
    pending = [outbox().publish(async_tx, Placed(str(number))) for number in range(3)]
    ids = await asyncio.gather(*pending)
    ids.append(await asyncio.wait_for(outbox().publish(async_tx, Placed("t")), timeout=30))
    assert len(set(ids)) == 4


async def test_what_is_wrong_is_said_at_the_call(async_tx: aiosqlite.Connection) -> None:
    with pytest.raises(WrongKind):
        outbox().publish(async_tx, Pay("x"))  # type: ignore[unused-coroutine]


async def test_a_publication_is_written_once(async_tx: aiosqlite.Connection) -> None:
    pending = outbox().publish(async_tx, Placed("x"))
    await pending
    with pytest.raises(RuntimeError, match="awaited twice"):
        await pending
    found = await async_tx.execute_fetchall("select count(*) from pillarbox_outbox")
    assert [tuple(entry) for entry in found] == [(1,)]


async def test_one_that_is_never_awaited_is_loud(
    async_tx: aiosqlite.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="pillarbox"), pytest.warns(RuntimeWarning, match="never awaited"):
        outbox().publish(async_tx, [Placed("x"), Seen()])  # type: ignore[unused-coroutine]
    (record,) = caplog.records
    assert record.name == "pillarbox"
    assert "Publishing orders.placed, orders.seen was never awaited" in record.getMessage()
    found = await async_tx.execute_fetchall("select count(*) from pillarbox_outbox")
    assert [tuple(entry) for entry in found] == [(0,)]


# --- configuration -----------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["/shop", "shop", "https://example.com/a?b#c", "urn:x:%C3%B6", "//host"])
def test_a_source_is_a_uri_reference(source: str, tx: sqlite3.Connection) -> None:
    Outbox(routes="x", source=source).publish(tx, {"a": 1}, type="t")
    assert row(tx)["source"] == source


@pytest.mark.parametrize("source", ["", "with space", "ö", "100%", "%zz", "a\nb", "x" * 1025, "<>"])
def test_other_sources_are_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="URI reference"):
        Outbox(routes="x", source=source)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_payload=0"):
        outbox(max_payload=0)
    with pytest.raises(ConfigError, match="schema"):
        outbox(schema="no good")
    with pytest.raises(ConfigError, match="destination"):
        outbox("no good")


def test_prefix_and_schema_reach_the_tables(tx: sqlite3.Connection) -> None:
    tx.executescript(SCHEMA.replace("pillarbox_", "other_"))
    outbox(prefix="other_", schema="main").publish(tx, Placed("x"))
    assert rows(tx) == []
    assert tx.execute("select key from other_outbox").fetchall()[0]["key"] == "x"


def test_the_default_registry_serves_an_outbox_without_its_own(tx: sqlite3.Connection) -> None:
    with pytest.raises(UnknownType):
        Outbox(routes="x", source="/s").publish(tx, Placed("x"))


def test_a_class_in_place_of_an_instance_is_named(tx: sqlite3.Connection) -> None:
    with pytest.raises(PublishError, match=r"^Placed is a class, .* write Placed\(…\)\.$"):
        outbox().publish(tx, Placed)
    with pytest.raises(PublishError, match="Pay is a class"):
        outbox().send(tx, Pay)


@pytest.mark.parametrize("payload", ["text", 5, None, object(), {1, 2}])
def test_a_builtin_is_not_to_be_decorated(tx: sqlite3.Connection, payload: object) -> None:
    with pytest.raises(UnknownType, match="cannot be published by itself: give an instance of a class"):
        outbox().publish(tx, payload)


@pytest.mark.parametrize("option", ["event_time", "deliver_at"])
@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-12:00", "9999-12-31T00:00:00Z", "0001-01-01T00:00:00+12:00"])
def test_a_time_that_utc_does_not_have_is_refused(option: str, text: str) -> None:
    with pytest.raises(PublishError, match=f"{option} .* is not within the years 1 to 9999"):
        to_utc(datetime.fromisoformat(text), what=option)
