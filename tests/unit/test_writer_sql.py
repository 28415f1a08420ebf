"""The texts and values that writers execute."""

from __future__ import annotations

import gc
import hashlib
import logging
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from pillarbox.contracts.writer import Accept, Fail, Insert, Start
from pillarbox.errors import DecodeError
from pillarbox.message import Kind, Message, Names
from pillarbox.writers.awaitable import MustAwait
from pillarbox.writers.inbox_sql import StatementResult, build_steps
from pillarbox.writers.insert_sql import COLUMNS, Dialect, Statement, build_insert, build_lock, to_microseconds

MESSAGE = Message(
    id=0,
    message_id=UUID("01890000-0000-7000-8000-000000000001"),
    destination="broker",
    partition=7,
    kind=Kind.EVENT,
    type="orders.placed",
    topic="orders",
    key="k",
    payload=b"{}",
    content_type="application/json",
    headers={"a": "b"},
    source="/shop",
    subject=None,
    correlation_id="c",
    causation_id=None,
    event_time=datetime(2026, 1, 1, tzinfo=UTC),
)
NAMES = Names(schema="shop", prefix="mail_")
POSTGRES = [Dialect.POSTGRES_DOLLAR, Dialect.POSTGRES_FORMAT]


def _only(batch: Insert, dialect: Dialect) -> Statement:
    (statement,) = build_insert(batch, dialect)
    return statement


def _batch(count: int = 1, *, due: datetime | None = None, delay: timedelta | None = None) -> Insert:
    first = msgspec.structs.replace(MESSAGE, available_at=due)
    return Insert(names=NAMES, messages=[first, *[MESSAGE] * (count - 1)], delay=delay)


def _marks(statement: Statement) -> int:
    dollars = {int(number) for number in re.findall(r"\$(\d+)", statement.sql)}
    assert dollars == set(range(1, len(dollars) + 1))
    return len(dollars) + statement.sql.count("%s") + statement.sql.count("?")


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("due", [None, MESSAGE.event_time])
@pytest.mark.parametrize("delay", [None, timedelta(seconds=1)])
def test_every_mark_has_its_value(dialect: Dialect, count: int, due: datetime | None, delay: timedelta | None) -> None:
    statement = _only(_batch(count, due=due, delay=delay), dialect)
    assert _marks(statement) == len(statement.parameters)
    bare = statement.sql.replace(dialect.quote, "")
    assert bare.startswith("insert into shop.mail_outbox (")
    assert ("available_at, waits)" in bare) is not (due is None and delay is None)


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("count", [1, 2])
def test_a_writer_needs_no_right_but_insert(dialect: Dialect, count: int) -> None:
    statement = _only(_batch(count, delay=timedelta(1)), dialect)
    assert not re.search(r"returning|conflict", statement.sql)
    columns = re.search(r"\((.*?)\)", statement.sql)
    assert columns is not None
    named = columns[1].replace(dialect.quote, "").split(", ")
    assert named == [*COLUMNS, "available_at", "waits"]
    assert {"tx", "id", "attempts", "last_error", "status_at", "created_at"}.isdisjoint(named)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_text_is_made_once(dialect: Dialect) -> None:
    for count in (1, 3):
        assert _only(_batch(count), dialect).sql is _only(_batch(count), dialect).sql
    assert _only(_batch(), dialect).sql is not _only(_batch(due=MESSAGE.event_time), dialect).sql


def test_arrays_follow_the_list() -> None:
    messages = [msgspec.structs.replace(MESSAGE, subject=str(number)) for number in range(9)]
    statement = _only(Insert(names=NAMES, messages=messages), Dialect.POSTGRES_DOLLAR)
    assert [str(number) for number in range(9)] in statement.parameters
    assert statement.sql.endswith("order by m.position")


def test_what_all_share_is_sent_once() -> None:
    statement = _only(_batch(3), Dialect.POSTGRES_DOLLAR)
    arrays = [value for value in statement.parameters if isinstance(value, list)]
    assert arrays == [[MESSAGE.message_id] * 3, [7] * 3, ["k"] * 3, [b"{}"] * 3, ["c"] * 3]


def test_postgres_takes_any_number_in_one_statement() -> None:
    assert len(build_insert(_batch(50_000), Dialect.POSTGRES_DOLLAR)) == 1


def test_sqlite_is_split_only_by_its_limit_on_variables() -> None:
    parts = build_insert(_batch(5_000, delay=timedelta(1)), Dialect.SQLITE)
    assert [len(part.parameters) <= 32_766 for part in parts] == [True] * len(parts)
    assert sum(len(part.parameters) for part in parts) == 5_000 * (len(COLUMNS) + 3)
    assert len(build_insert(_batch(1_800), Dialect.SQLITE)) == 1


def test_mysql_is_split_by_size_and_by_number() -> None:
    for payload, at_once in ((b"{}", 500), (bytes(100_000), 5), (bytes(3_000_000), 1)):
        messages = [msgspec.structs.replace(MESSAGE, subject=str(number), payload=payload) for number in range(1_001)]
        messages = messages[: 3 if at_once == 1 else 1_001 if at_once == 500 else 12]
        parts = build_insert(Insert(names=NAMES, messages=messages), Dialect.MYSQL)
        counts = [len(part.parameters) // len(COLUMNS) for part in parts]
        assert max(counts) == at_once
        assert sum(counts) == len(messages)
        subjects = [bytes.fromhex(str(row)) for part in parts for row in part.parameters[11 :: len(COLUMNS)]]
        assert subjects == [message.subject.encode() for message in messages if message.subject]


def test_mysql_is_told_texts_and_bytes_in_digits() -> None:
    """No character set, escaping mode or driver can then change them."""
    odd = msgspec.structs.replace(MESSAGE, key="'\\\x00é😀", payload=b"\xff'", subject="%s")
    values = _only(Insert(names=NAMES, messages=[odd]), Dialect.MYSQL).parameters
    texts = [value for value in values if isinstance(value, str)]
    assert all(text.isascii() and text.replace("-", "").replace(".", "").isalnum() for text in texts)
    assert bytes.fromhex(str(values[COLUMNS.index("key")])).decode() == odd.key
    assert bytes.fromhex(str(values[COLUMNS.index("payload")])) == odd.payload


@pytest.mark.parametrize("dialect", list(Dialect))
def test_headers_are_json_or_nothing(dialect: Dialect) -> None:
    at = COLUMNS.index("headers")
    bare = msgspec.structs.replace(MESSAGE, headers={})
    expected = '{"a":"b"}'
    assert _only(_batch(), dialect).parameters[at] == (
        expected.encode().hex() if dialect is Dialect.MYSQL else expected
    )
    assert _only(Insert(names=NAMES, messages=[bare]), dialect).parameters[at] is None


def test_sqlite_keeps_plain_values() -> None:
    values = dict(zip(COLUMNS, _only(_batch(), Dialect.SQLITE).parameters, strict=True))
    assert values["message_id"] == "01890000-0000-7000-8000-000000000001"
    assert values["event_time"] == 1_767_225_600_000_000
    assert type(values["kind"]) is str


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_799_999_999),
    ],
)
def test_microseconds_are_exact(at: datetime, expected: int) -> None:
    assert to_microseconds(at) == expected


@pytest.mark.parametrize("dialect", POSTGRES)
def test_lock_names_each_key_once(dialect: Dialect) -> None:
    keyed = [msgspec.structs.replace(MESSAGE, key=key) for key in ("b", None, "a", "b")]
    batch = Insert(names=NAMES, messages=keyed, serialize_keys=True)
    lock = build_lock(batch, dialect)
    assert lock is not None
    assert lock.parameters == (["a", "b"],)
    assert _marks(lock) == 1


def test_mysql_locks_the_slots_of_the_keys_in_their_order() -> None:
    keyed = [msgspec.structs.replace(MESSAGE, key=key) for key in ("b", None, "a", "b", "z")]
    lock = build_lock(Insert(names=NAMES, messages=keyed, serialize_keys=True), Dialect.MYSQL)
    assert lock is not None
    digests = [hashlib.md5(key.encode(), usedforsecurity=False).digest() for key in ("a", "b", "z")]
    assert list(lock.parameters) == sorted(digest[0] for digest in digests)
    assert lock.sql.startswith("select slot from `shop`.`mail_slot` where slot in (%s, %s, %s)")
    assert lock.sql.endswith("order by slot for update")


def test_nothing_to_lock() -> None:
    keyless = msgspec.structs.replace(MESSAGE, key=None)
    assert build_lock(Insert(names=NAMES, messages=[keyless], serialize_keys=True), Dialect.POSTGRES_DOLLAR) is None
    assert build_lock(Insert(names=NAMES, messages=[MESSAGE]), Dialect.POSTGRES_DOLLAR) is None
    assert build_lock(Insert(names=NAMES, messages=[MESSAGE], serialize_keys=True), Dialect.SQLITE) is None


@pytest.mark.parametrize("dialect", list(Dialect))
def test_nothing_to_insert(dialect: Dialect) -> None:
    assert len(build_insert(Insert(names=NAMES, messages=[]), dialect)) == 0


@pytest.mark.parametrize("dialect", list(Dialect))
def test_inbox_statements_name_the_table_and_bind_the_rest(dialect: Dialect) -> None:
    given = {"names": NAMES, "consumer": "c", "source": "/s", "message_id": "'; drop table x"}
    fail = Fail(**given, attempts=2, error="drop", message=b"drop")  # type: ignore[arg-type]
    for ask in (Accept(**given), Start(**given), fail):  # type: ignore[arg-type]
        statement = next(build_steps(ask, dialect))
        table = "mail_own_inbox" if dialect is Dialect.MYSQL else "mail_inbox"
        assert f"shop.{table} " in statement.sql.replace(dialect.quote, "")
        assert "drop" not in statement.sql
        identity = ("c", "/s", "'; drop table x")
        expected = tuple(text.encode().hex() for text in identity) if dialect is Dialect.MYSQL else identity
        assert tuple(statement.parameters)[:3] == expected
        assert _marks(statement) == len(statement.parameters)


@pytest.mark.parametrize(("first", "second", "is_new"), [(1, None, True), (2, 0, False), (2, 1, True)])
def test_mysql_tells_new_from_known_from_unfinished(first: int, second: int | None, is_new: bool) -> None:
    """1 is a new row and 2 a changed one, whatever the driver counts; an unfinished one is taken over."""
    accepting = build_steps(Accept(names=NAMES, consumer="c", source="/s", message_id="1"), Dialect.MYSQL)
    counting = next(accepting)
    assert counting.sql.endswith("on duplicate key update duplicates = duplicates + 1")
    if second is not None:
        taking_over = accepting.send(StatementResult(first))
        assert "duplicates - 1" in taking_over.sql
        assert _marks(taking_over) == len(taking_over.parameters)
    with pytest.raises(StopIteration) as end:
        accepting.send(StatementResult(first if second is None else second))
    assert end.value.value is is_new


def test_mysql_refuses_an_identity_that_its_column_would_cut() -> None:
    fits, long = "é" * 512, "é" * 513
    assert next(build_steps(Accept(names=NAMES, consumer="c", source=fits, message_id=fits), Dialect.MYSQL))
    for source, message_id in ((long, "1"), ("/s", long)):
        with pytest.raises(DecodeError, match="1026 bytes"):
            next(build_steps(Accept(names=NAMES, consumer="c", source=source, message_id=message_id), Dialect.MYSQL))


@pytest.mark.parametrize("dialect", [dialect for dialect in Dialect if dialect is not Dialect.MYSQL])
def test_a_duplicate_is_counted(dialect: Dialect) -> None:
    accepting = build_steps(Accept(names=NAMES, consumer="c", source="/s", message_id="1"), dialect)
    next(accepting)
    counting = accepting.send(StatementResult(0))
    assert "duplicates + 1" in counting.sql
    assert _marks(counting) == len(counting.parameters)
    with pytest.raises(StopIteration) as end:
        accepting.send(StatementResult(1))
    assert end.value.value is False


async def _three() -> int:
    return 3


async def test_awaited_answers_once() -> None:
    answer = MustAwait(_three, "Outbox.publish")
    assert await answer == 3
    with pytest.raises(RuntimeError, match="awaited twice"):
        await answer


async def test_never_awaited_is_logged_and_warned(caplog: pytest.LogCaptureFixture) -> None:
    forgotten = [MustAwait(_three, "Outbox.publish of orders.placed")]
    with caplog.at_level(logging.ERROR, logger="pillarbox"), pytest.warns(RuntimeWarning, match="never awaited"):
        forgotten.clear()
    (record,) = caplog.records
    assert record.getMessage().startswith("Outbox.publish of orders.placed was never awaited")


async def test_awaited_that_failed_is_not_called_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await MustAwait(fails, "Outbox.publish")
    gc.collect()
    assert caplog.records == []
