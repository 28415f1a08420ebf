"""Rows of the outbox that no writer of ours writes, by plain SQL and under the granted writer role."""

from __future__ import annotations

import json
import random
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pymysql

from pillarbox.message import Message, Names
from pillarbox.stores.mariadb.grants import grants
from pillarbox.stores.postgres.grants import build_grants
from pillarbox.writers.insert_sql import COLUMNS, to_microseconds

__all__ = [
    "MARIADB_FAULTS",
    "MARIADB_REFUSED",
    "POSTGRES_FAULTS",
    "POSTGRES_REFUSED",
    "SQLITE_FAULTS",
    "SQLITE_REFUSED",
    "MariadbWriterRole",
    "PostgresWriterRole",
    "combine",
    "draw_for_mariadb",
    "draw_for_postgres",
    "draw_for_sqlite",
    "insert_into_mariadb",
    "insert_into_postgres",
    "insert_into_sqlite",
]

Fault = Mapping[str, str]
"""Column to the SQL of its value."""


def _late(faults: Mapping[str, Fault], waits: Fault) -> dict[str, Fault]:
    """The same faults in rows that wait and are due: the checks of the table are for fresh rows."""
    return {f"{name}, {waits['waits']}": {**fault, **waits} for name, fault in faults.items()}


def combine(faults: Mapping[str, Fault], names: Sequence[str]) -> Fault:
    """Return one fault that is all of these."""
    return {column: sql for name in names for column, sql in faults[name].items()}


_POSTGRES: Mapping[str, Fault] = {
    "a number among the headers": {"headers": """'{"a": 1}'"""},
    "headers that are a list": {"headers": "'[1]'"},
    "headers that are a text": {"headers": """'"a"'"""},
    "headers that are null": {"headers": "'null'"},
    "a null among the headers": {"headers": """'{"a": null}'"""},
    "headers in headers": {"headers": """'{"a": {"b": "c"}}'"""},
    "a line break in a header": {"headers": r"""'{"a": "x\r\nb: y"}'"""},
    "a header of the wire": {"headers": """'{"Content-Length": "5"}'"""},
    "a header without a name": {"headers": """'{"": "x"}'"""},
    "many headers": {"headers": "(select jsonb_object_agg('h' || n, repeat('x', 100)) from generate_series(1, 200) n)"},
    "an event at infinity": {"event_time": "'infinity'"},
    "an event before all time": {"event_time": "'-infinity'"},
    "an event in the year 200000": {"event_time": "'200000-01-01'"},
    "an event before our era": {"event_time": "'4000-01-01 BC'"},
    "the lane of another key": {"partition": "(%(partition)s + 1) % 64"},
    "a key of 9 kB": {"key": "repeat('k', 9000)"},
    "an empty key": {"key": "''"},
    "a line break in the key": {"key": "E'a\\nb'"},
    "no type": {"type": "''"},
    "a long topic": {"topic": "repeat('ü', 200)"},
    "a tab in the topic": {"topic": "E'a\\tb'"},
    "a megabyte of subject": {"subject": "repeat('s', 1000000)"},
    "an escape in the source": {"source": "E'\\x1b[2J'"},
    "an empty correlation id": {"correlation_id": "''"},
    "a delete character in the causation id": {"causation_id": "E'\\x7f'"},
    "a long content type": {"content_type": "repeat('c', 256)"},
    "deep headers": {"headers": """(repeat('{"a":', 6000) || '1' || repeat('}', 6000))::jsonb"""},
    "a megabyte of headers": {"headers": "jsonb_build_object('a', repeat('x', 1000000))"},
    "a key of 9 kB that no index takes": {
        "key": "(select string_agg(md5(n::text), '') from generate_series(1, 300) n)"
    },
}
POSTGRES_FAULTS: Mapping[str, Fault] = {
    **_POSTGRES,
    **_late(_POSTGRES, {"waits": "'deferred'", "available_at": "now() - interval '1 hour'"}),
    **_late(_POSTGRES, {"waits": "'retry'", "available_at": "now() - interval '1 hour'"}),
    **_late(_POSTGRES, {"waits": "'parked'", "available_at": "'infinity'"}),
    "due before all time": {"headers": "'[]'", "waits": "'deferred'", "available_at": "'-infinity'"},
    "a retry nobody asked for": {"headers": "'[]'", "waits": "'retry'", "available_at": "'4000-01-01 BC'"},
}

_SQLITE: Mapping[str, Fault] = {
    "a number among the headers": {"headers": """'{"a": 1}'"""},
    "headers that are a list": {"headers": "'[1]'"},
    "headers that are no JSON": {"headers": "'{'"},
    "headers that are bytes": {"headers": "x'ff'"},
    "deep headers": {"headers": "replace(hex(zeroblob(20000)), '00', '[')"},
    "headers in headers, very deep": {
        "headers": """replace(hex(zeroblob(20000)), '00', '{"a":') || '1' || replace(hex(zeroblob(20000)), '00', '}')"""
    },
    "a NUL among the headers": {"headers": r"""'{"a": "\u0000"}'"""},
    "a NUL in the name of a header": {"headers": r"""'{"a\u0000": "b"}'"""},
    "a NUL in the source": {"source": "'/a' || char(0)"},
    "a NUL in the type": {"type": "char(0)"},
    "half a surrogate pair in a header": {"headers": r"""'{"a": "\ud800"}'"""},
    "a message id that is no UUID": {"message_id": "'abc'"},
    "a message id of bytes": {"message_id": "x'00ff'"},
    "a message id that is no UTF-8": {"message_id": "cast(x'ff' as text)"},
    "a number for a message id": {"message_id": "7"},
    "an event at no time": {"event_time": "'soon'"},
    "an event after all time": {"event_time": "9223372036854775807"},
    "an event before all time": {"event_time": "-9223372036854775808"},
    "an event at infinity": {"event_time": "9e999"},
    "a row written at no time": {"created_at": "'soon'"},
    "a row written after all time": {"created_at": "9223372036854775807"},
    "the lane of another key": {"partition": "(:partition + 1) % 64"},
    "half a lane": {"partition": "1.5"},
    "a key of bytes": {"key": "x'00'"},
    "a key that is no UTF-8": {"key": "cast(x'ff' as text)"},
    "a NUL in the key": {"key": "'a' || char(0) || 'b'"},
    "a long key": {"key": "hex(zeroblob(600))"},
    "no type": {"type": "''"},
    "a type of bytes": {"type": "x'41'"},
    "a topic that is no UTF-8": {"topic": "cast(x'c328' as text)"},
    "a NUL in the topic": {"topic": "'a' || char(0)"},
    "a source of bytes": {"source": "x'ff'"},
    "a long subject": {"subject": "hex(zeroblob(600))"},
    "a NUL for a correlation id": {"correlation_id": "char(0)"},
    "a causation id that is no UTF-8": {"causation_id": "cast(x'80' as text)"},
    "a payload of text": {"payload": "'text'"},
    "a number for a payload": {"payload": "7"},
    "attempts below zero": {"attempts": "-1"},
    "attempts beyond measure": {"attempts": "9223372036854775807"},
    "attempts that are a text": {"attempts": "'many'"},
}
SQLITE_FAULTS: Mapping[str, Fault] = {
    **_SQLITE,
    **_late(_SQLITE, {"waits": "'deferred'", "available_at": "0"}),
    **_late(_SQLITE, {"waits": "'retry'", "available_at": "0"}),
    **_late(_SQLITE, {"waits": "'parked'", "available_at": "9223372036854775807"}),
    "an error that is no UTF-8": {"last_error": "cast(x'ff' as text)", "headers": "'[1]'"} | {
        "waits": "'deferred'", "available_at": "0"
    },
    "due before all time": {"headers": "'[]'", "waits": "'deferred'", "available_at": "-9223372036854775808"},
}  # fmt: skip

_MARIADB: Mapping[str, Fault] = {
    "a number among the headers": {"headers": """'{"a": 1}'"""},
    "headers that are a list": {"headers": "'[1]'"},
    "headers that are a text": {"headers": """'"a"'"""},
    "headers that are null": {"headers": "'null'"},
    "a line break in a header": {"headers": r"""'{"a": "x\\r\\nb: y"}'"""},
    "half a surrogate pair in a header": {"headers": r"""'{"a": "\\ud800"}'"""},
    "a message id that is no UUID": {"message_id": "'abc'"},
    "an empty message id": {"message_id": "''"},
    "an event after all time": {"event_time": "9223372036854775807"},
    "an event before all time": {"event_time": "-9223372036854775808"},
    "the lane of another key": {"partition": "(%(partition)s + 1) %% 64"},
    "a NUL in the key": {"key": "concat('a', char(0))"},
    "an empty key": {"key": "''"},
    "no type": {"type": "''"},
    "a line break in the topic": {"topic": r"'a\nb'"},
    "a NUL in the subject": {"subject": "char(0)"},
    "a NUL among the headers": {"headers": r"""'{"a": "\\u0000"}'"""},
    "a NUL in the topic": {"topic": "concat('a', char(0))"},
    "too long in bytes": {"topic": "repeat('ü', 200)"},
    "an empty source": {"source": "''"},
    "a delete character in the correlation id": {"correlation_id": "char(127)"},
}
MARIADB_FAULTS: Mapping[str, Fault] = {
    **_MARIADB,
    **_late(_MARIADB, {"waits": "'deferred'", "available_at": "0"}),
    **_late(_MARIADB, {"waits": "'retry'", "available_at": "0"}),
    **_late(_MARIADB, {"waits": "'parked'", "available_at": "9223372036854775807"}),
    "due before all time": {"headers": "'[]'", "waits": "'deferred'", "available_at": "-9223372036854775808"},
}


POSTGRES_REFUSED: Mapping[str, Fault] = {
    "never due": {"waits": "'deferred'", "available_at": "'infinity'"},
    "due without a time": {"waits": "'retry'"},
    "parked behind nothing": {"waits": "'parked'", "key": "null"},
    "a destination that no relay serves": {"destination": "'no such place'"},
    "headers that are a list": {"headers": "'[1]'"},
    "an event at infinity": {"event_time": "'infinity'"},
    "a long key": {"key": "repeat('k', 1025)"},
}
SQLITE_REFUSED: Mapping[str, Fault] = {
    "never due": {"waits": "'deferred'", "available_at": "9223372036854775807"},
    "due at no time": {"waits": "'retry'", "available_at": "'soon'"},
    "parked behind nothing": {"waits": "'parked'", "key": "null"},
    "a destination that no relay serves": {"destination": "'no such place'"},
    "a destination that is no UTF-8": {"destination": "cast(x'ff' as text)"},
    "a destination with a NUL": {"destination": "'or' || char(0) || 'ders'"},
    "a destination that ends with a NUL": {"destination": "'orders' || char(0)"},
    "a destination of bytes": {"destination": "x'6f72'"},
    "an id below all": {"id": "-7"},
    "the last id of all": {"id": "9223372036854775807"},
    "half a lane": {"partition": "1.5"},
    "headers that are a list": {"headers": "'[1]'"},
}
MARIADB_REFUSED: Mapping[str, Fault] = {
    "never due": {"waits": "'deferred'", "available_at": "9223372036854775807"},
    "due without a time": {"waits": "'retry'"},
    "fresh with a time": {"available_at": "5"},
    "parked behind nothing": {"waits": "'parked'", "key": "null"},
    "a destination that no relay serves": {"destination": "'no such place'"},
    "a destination with a NUL": {"destination": "concat('orders', char(0))"},
    "headers that are a list": {"headers": "'[1]'"},
}
"""Rows that the table itself refuses: no relay would ever read them, or the check is cheap."""


def _build_insert(table: str, fault: Fault, marks: Mapping[str, str], *, quote: str) -> str:
    values = {**marks, **fault}
    columns = ", ".join(f"{quote}{column}{quote}" for column in values)
    return f"insert into {table} ({columns}) values ({', '.join(values.values())})"


def _values(message: Message) -> dict[str, Any]:
    """The values that have no type of their own in SQLite and MariaDB."""
    values = {column: getattr(message, column) for column in COLUMNS}
    return values | {
        "message_id": str(message.message_id),
        "kind": message.kind.value,
        "headers": None,
        "event_time": to_microseconds(message.event_time),
    }


# --- PostgreSQL ---


class PostgresWriterRole:
    """A role with the rights of a writer on these tables, and no others."""

    def __init__(self, names: Names) -> None:
        self.name = f"pb_writer_{secrets.token_hex(4)}"
        self._names = names

    async def create(self, connection: Any) -> None:
        await connection.execute(f'create role "{self.name}"')
        await connection.execute(build_grants({"writer": self.name}, names=self._names))

    async def drop(self, connection: Any) -> None:
        await connection.execute(f'drop owned by "{self.name}"; drop role "{self.name}"')


async def insert_into_postgres(connection: Any, role: str, names: Names, message: Message, fault: Fault) -> bool:
    values = [getattr(message, column) for column in COLUMNS]
    values[COLUMNS.index("headers")] = None
    spoiled = {column: sql.replace("%(partition)s", str(message.partition)) for column, sql in fault.items()}
    kept = [column for column in COLUMNS if column not in spoiled]
    marks = {column: f"${number}" for number, column in enumerate(kept, start=1)}
    sql = _build_insert(names.table("outbox"), spoiled, marks, quote='"')
    try:
        async with connection.transaction():
            await connection.execute(f'set local role "{role}"')
            await connection.execute(sql, *(values[COLUMNS.index(column)] for column in kept))
    except asyncpg.PostgresError as error:
        if isinstance(error, asyncpg.SyntaxOrAccessError) and not isinstance(error, asyncpg.DatatypeMismatchError):
            raise
        return False
    return True


# --- SQLite ---


def insert_into_sqlite(connection: sqlite3.Connection, names: Names, message: Message, fault: Fault) -> bool:
    marks = {column: f":{column}" for column in COLUMNS}
    sql = _build_insert(names.table("outbox"), fault, marks, quote='"')
    try:
        connection.execute(sql, _values(message))
    except sqlite3.IntegrityError:
        return False
    return True


# --- MariaDB ---


class MariadbWriterRole:
    """A user with the rights of a writer on these tables, and no others."""

    def __init__(self, names: Names) -> None:
        self._name = f"pb_writer_{secrets.token_hex(4)}"
        self._names = names

    def create(self, cursor: Any) -> None:
        cursor.execute(f"create user '{self._name}'@'%' identified by 'canary'")
        for statement in _split(grants({"writer": f"{self._name}@%"}, names=self._names)):
            cursor.execute(statement)

    def drop(self, cursor: Any) -> None:
        cursor.execute(f"drop user '{self._name}'@'%'")

    def url(self, url: str) -> str:
        parts = urlsplit(url)
        return parts._replace(netloc=f"{self._name}:canary@{parts.hostname}:{parts.port}").geturl()


def _split(script: str) -> Sequence[str]:
    return [line for line in script.splitlines() if line and not line.startswith("--")]


def insert_into_mariadb(cursor: Any, names: Names, message: Message, fault: Fault) -> bool:
    marks = {column: f"%({column})s" for column in COLUMNS}
    sql = _build_insert(names.table("outbox", quote="`"), fault, marks, quote="`")
    with suppress(pymysql.IntegrityError, pymysql.OperationalError, pymysql.DataError):
        cursor.execute(sql, _values(message))
        return True
    return False


# --- random values ---

_TEXT_COLUMNS = ("type", "topic", "content_type", "source", "subject", "correlation_id", "causation_id", "key")
_NUMBERS = (-(2**63), 2**63 - 1, -1, 0, 1, 64, 2**31, 2**53, 253_402_300_800_000_000, -62_135_596_800_000_001)
_TIMES = (
    "infinity", "-infinity", "4713-01-01 BC", "0001-01-01 BC", "0001-01-01", "10000-01-01", "294276-12-31",
    "2026-01-01",
)  # fmt: skip
_BYTES = (
    b"", b"\x00", b"a\x00b", b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x1b[2J", b"\r\n",
    "\u202e\u2028".encode(), "\U0001f4ee".encode(), b" ", b"' or 1=1 --", b"%s{}\\", b"orders",
)  # fmt: skip
_DOCUMENTS: Sequence[Any] = (
    None, 1, "a", [], [1], {"a": 1}, {"a": None}, {"a": {"b": []}}, {"a": "b"}, {"": ""}, {"a": "\n"}, {"ce-id": "x"},
    {"A": "1", "a": "2"}, {"a": "\ud800"}, {"a": 1e308}, [[[[]]]], True, {"x" * 101: "y"}, {"a": "y" * 9000},
)  # fmt: skip


def _draw_bytes(dice: random.Random) -> bytes:
    drawn = dice.choice(_BYTES) * dice.choice((1, 1, 1, 2, 256, 1025))
    return drawn if dice.random() < 0.7 else dice.randbytes(dice.choice((1, 16, 255, 1024)))


def _draw_document(dice: random.Random) -> bytes:
    if dice.random() < 0.2:
        return _draw_bytes(dice)
    text = json.dumps(dice.choice(_DOCUMENTS)).encode()
    return text if dice.random() < 0.9 else text[: dice.randrange(len(text) + 1)]


def _draw_columns(dice: random.Random, others: Sequence[str]) -> list[str]:
    return dice.sample([*_TEXT_COLUMNS, *others], dice.choice((1, 1, 1, 2, 3)))


def _draw_waits(dice: random.Random, *, past: str, never: str) -> dict[str, str]:
    waits = dice.choice((None, None, "deferred", "retry", "parked"))
    if waits is None:
        return {}
    return {"waits": f"'{waits}'", "available_at": never if waits == "parked" else past}


def draw_for_postgres(dice: random.Random) -> Fault:
    """Draw values for some columns. Many of them PostgreSQL refuses by itself."""

    def literal(drawn: bytes) -> str:
        return "E'" + "".join(f"\\x{byte:02x}" for byte in drawn) + "'"

    def draw(column: str) -> str:
        match column:
            case "headers":
                return literal(_draw_document(dice))
            case "event_time":
                return f"'{dice.choice(_TIMES)}'"
            case "partition":
                return str(dice.randint(-1, 64))
            case "message_id":
                return dice.choice(("gen_random_uuid()", "'00000000-0000-0000-0000-000000000000'", "'abc'", "null"))
            case "payload":
                return dice.choice(("null", "''", "'\\xff00'", "decode(repeat('00', 100000), 'hex')"))
            case "kind":
                return dice.choice(("'event'", "'command'", "'Event'", "''", "null"))
        return "null" if dice.random() < 0.1 else literal(_draw_bytes(dice))

    others = ("headers", "event_time", "partition", "message_id", "payload", "kind")
    past = dice.choice(("'2020-01-01'", "'-infinity'", "'0001-01-01 BC'"))
    waits = _draw_waits(dice, past=past, never="'infinity'")
    return {column: draw(column) for column in _draw_columns(dice, others)} | waits


def draw_for_sqlite(dice: random.Random) -> Fault:
    """Draw values of any type for any column: SQLite has no types."""

    def draw(column: str) -> str:
        drawn = _draw_document(dice) if column == "headers" else _draw_bytes(dice)
        return dice.choice((
            f"cast(x'{drawn.hex()}' as text)", f"cast(x'{drawn.hex()}' as text)", f"x'{drawn.hex()}'", "null",
            str(dice.choice(_NUMBERS)), dice.choice(("9e999", "-9e999", "1.5", "1e300", "0.0")),
            str(dice.randint(0, 63)),
        ))  # fmt: skip

    others = (
        "headers", "event_time", "partition", "message_id", "payload", "kind", "attempts", "created_at", "status_at",
        "last_error", "id",
    )  # fmt: skip
    waits = _draw_waits(dice, past=dice.choice(("0", "-1", str(-(2**63)), "1e300")), never=str(2**63 - 1))
    return {column: draw(column) for column in _draw_columns(dice, others)} | waits


def draw_for_mariadb(dice: random.Random) -> Fault:
    """Draw values for some columns. Many of them MariaDB refuses by itself."""

    def draw(column: str) -> str:
        match column:
            case "event_time" | "partition":
                return str(dice.choice((*_NUMBERS, dice.randint(0, 63))))
            case "headers":
                return f"convert(x'{_draw_document(dice).hex()}' using utf8mb4)"
            case "payload":
                return dice.choice(("''", "x'ff00'", "repeat('x', 100000)", "5"))
        drawn = _draw_bytes(dice).hex()
        return dice.choice(("null", f"convert(x'{drawn}' using utf8mb4)", f"_latin1 x'{drawn}'", f"x'{drawn}'", "7"))

    others = ("headers", "event_time", "partition", "message_id", "payload", "kind")
    waits = _draw_waits(dice, past=dice.choice(("0", "-1", str(-(2**63)))), never=str(2**63 - 1))
    return {column: draw(column) for column in _draw_columns(dice, others)} | waits
