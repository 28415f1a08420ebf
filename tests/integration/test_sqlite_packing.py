"""Reads of an SQLite store that come in one row: the same messages as row by row, whatever stands in the columns."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pillarbox.message import Message, Names, compute_partition
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite import SqliteStore, packing
from pillarbox.stores.sqlite import store as store_module
from pillarbox.stores.sqlite.connection import Transaction
from pillarbox.stores.urls import parse_store_url

DEFAULTS: Mapping[str, Any] = {
    "destination": "orders", "kind": "event", "type": "orders.placed", "topic": "orders", "key": "customer-1",
    "payload": b"{}", "content_type": "application/json", "headers": None, "source": "/shop", "subject": None,
    "correlation_id": "c", "causation_id": None, "event_time": 5, "created_at": 7, "available_at": None, "attempts": 0,
    "last_error": None, "status_at": 7,
}  # fmt: skip


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tables in it, which takes any row."""
    path = tmp_path_factory.mktemp("packing") / "empty.db"
    asyncio.run(open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install())
    with connected(path) as connection:
        connection.execute("pragma journal_mode = delete")
        connection.execute("drop trigger pillarbox_outbox_trust_trg")
    return path


@pytest.fixture
def path(empty: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(empty, tmp_path / "shop.db"))


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma synchronous = off")
        yield connection


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with connected(path) as connection:
        for row in rows:
            message_id, key = uuid4(), row.get("key", "customer-1")
            partition = compute_partition(key if isinstance(key, str) else None, message_id)
            values = {**DEFAULTS, "message_id": str(message_id), "partition": partition, **row}
            # An expression instead of a value makes what the driver would not bind.
            texts = {name: value.sql if isinstance(value, Sql) else "?" for name, value in values.items()}
            bound = [value for value in values.values() if not isinstance(value, Sql)]
            connection.execute(
                f"insert into pillarbox_outbox ({', '.join(texts)}) values ({', '.join(texts.values())})", bound
            )


class Sql:
    def __init__(self, sql: str) -> None:
        self.sql = sql

    def __repr__(self) -> str:
        return f"Sql({self.sql!r})"


async def read(path: Path, *, limit: int = 100) -> Sequence[Message]:
    store = SqliteStore(path)
    await store.open()
    try:
        return (await store.read("orders", partitions=range(64), cursor=None, limit=limit)).messages
    finally:
        await store.close()


@contextmanager
def watch_statements() -> Iterator[list[str]]:
    """Yield the statements that read messages."""
    names: list[str] = []
    query = Transaction.query

    def watched(tx: Transaction, name: str, *arguments: Any, **options: Any) -> list[Any]:
        names.append(name)
        return query(tx, name, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "query", watched)
        yield names


# --- the usual case ----------------------------------------------------------------------------


async def test_messages_are_read_in_one_row(path: Path) -> None:
    write(path, [{"payload": bytes([number])} for number in range(20)])
    with watch_statements() as names:
        messages = await read(path)
    assert [message.payload for message in messages] == [bytes([number]) for number in range(20)]
    assert names.count("read_packed") == 1
    assert "read" not in names


async def test_large_payloads_are_not_copied_once_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_PACKED", 10)
    write(path, [{"payload": b"12345"}, {"payload": b"123456"}])
    with watch_statements() as names:
        assert len(await read(path)) == 2
        assert len(await read(path, limit=1)) == 1
    assert [name for name in names if name in ("read", "read_packed")] == ["read", "read_packed"]


# --- any row -----------------------------------------------------------------------------------

TEXTS = st.one_of(
    st.text(max_size=5), st.sampled_from(["", '"', "\\", "\x00a", "\u2028", "\U0001f600", "null", "[1]", "\x7f", "ÿ"])
)
ODD = st.sampled_from(
    [
        b"\xff",
        1.5,
        -1,
        2**63 - 1,
        -(2**63),
        "x",
        Sql("null"),
        Sql("9e999"),
        Sql("cast(x'ff' as text)"),
        Sql("cast(x'eda080' as text)"),
    ]
)
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "payload": st.one_of(st.binary(max_size=6), st.sampled_from([b"\x00\x00", b"\xff\x00", "text", 12, 1.5])),
    "key": st.one_of(st.none(), TEXTS),
    "headers": st.one_of(st.none(), TEXTS, st.sampled_from(['{"a":"b"}', '{"a":1}', "{", "[]"])),
    "message_id": st.one_of(TEXTS, st.sampled_from(["C0FFEE00-0000-4000-8000-000000000000", "c0ffee" * 5 + "00"])),
    "kind": st.sampled_from(["command", "event"]),
    **dict.fromkeys(("type", "topic", "content_type", "source", "correlation_id"), st.one_of(TEXTS, ODD)),
    **dict.fromkeys(("subject", "causation_id", "last_error"), st.one_of(st.none(), TEXTS, ODD)),
    **dict.fromkeys(
        ("event_time", "created_at", "status_at", "available_at", "attempts"), st.one_of(st.integers(0, 9), ODD)
    ),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.fixed_dictionaries({}, optional=COLUMNS), min_size=1, max_size=4))
def test_whatever_stands_in_a_row_is_read_as_row_by_row(empty: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copy(empty, Path(folder, "shop.db")))
        try:
            write(path, rows)
        except (sqlite3.IntegrityError, UnicodeEncodeError):
            return  # a null, or a text that no file can hold
        packed = asyncio.run(read(path))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_module, "unpack_messages", lambda *_: None)
            by_row = asyncio.run(read(path))
    assert packed == by_row
    assert [type(one.attempts) for one in packed] == [type(one.attempts) for one in by_row]


async def test_one_odd_row_costs_no_other_its_message(path: Path) -> None:
    write(path, [{}, {"type": b"\xff"}, {}])
    first, second, third = await read(path)
    assert first.unreadable is third.unreadable is None
    assert second.unreadable is not None


async def test_payloads_of_a_file_in_another_encoding_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "utf16.db"
    with connected(path) as connection:
        connection.execute("pragma encoding = 'UTF-16'")
        connection.execute("create table shop (id integer)")
    await open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install()
    payloads = [b"\xff\xfe\x00", b"{}", b"\xd8\x00", "ä".encode()]
    write(path, [{"payload": payload} for payload in payloads])
    assert [message.payload for message in await read(path)] == payloads


def test_lengths_that_are_not_those_of_the_payloads_are_refused() -> None:
    names = b'"orders",0,"event","t","t",null,2,"a","{}","/shop"'
    row = b'[[1,"c0ffee00-0000-4000-8000-000000000000",' + names + b',null,"c",null,5,7,null,null,0,null,7]]'
    assert packing.unpack_messages(row, b"{}") is not None
    assert packing.unpack_messages(row, b"{}}") is None
    assert packing.unpack_messages(row, b"{") is None
    assert packing.unpack_messages(row, None) is None
