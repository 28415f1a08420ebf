"""SQL of the inbox: the steps that execute each inbox command, for every dialect. Pure.

`SqlSteps` is a generator that knows no driver. It yields statements and is sent the result of each; it returns the
result of its command. `run_steps` and `run_steps_async` drive it on a connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar, cast

from pillarbox.contracts.writer import Accept, Fail, Forget, InboxCommand, ListOpen, Start, TakeRedriven
from pillarbox.durations import LONGEST
from pillarbox.errors import DecodeError
from pillarbox.message import MAX_TEXT, Names
from pillarbox.writers.insert_sql import Dialect, Statement, now_sql, placeholders

__all__ = ["SqlSteps", "StatementResult", "build_steps", "run_steps", "run_steps_async"]

R = TypeVar("R")


class StatementResult(NamedTuple):
    """Result of one statement."""

    changed: int
    """Number of rows that it changed."""
    rows: Sequence[Sequence[Any]] = ()


SqlSteps = Generator[Statement, StatementResult, R]


def build_steps(command: InboxCommand[R], dialect: Dialect) -> SqlSteps[R]:
    """Build the statements that execute a command."""
    build = (_MYSQL_STEPS if dialect is Dialect.MYSQL else _CONFLICT_STEPS)[type(command)]
    # Each table pairs a command with steps of the same result; mypy cannot follow that through a lookup.
    return cast("SqlSteps[R]", build(command, dialect))


def run_steps(steps: SqlSteps[R], execute: Callable[[Statement], StatementResult]) -> R:
    """Run the steps on a synchronous handle and return their result."""
    statement = next(steps)
    while True:
        try:
            statement = steps.send(execute(statement))
        except StopIteration as end:
            result: R = end.value
            return result


async def run_steps_async(steps: SqlSteps[R], execute: Callable[[Statement], Awaitable[StatementResult]]) -> R:
    """Run the steps on a handle that must be awaited."""
    statement = next(steps)
    while True:
        try:
            statement = steps.send(await execute(statement))
        except StopIteration as end:
            result: R = end.value
            return result


_StepsTable = dict[type[InboxCommand[Any]], Callable[[Any, Dialect], SqlSteps[Any]]]
_MICROSECOND: Final = timedelta(microseconds=1)


# --- PostgreSQL and SQLite: insert … on conflict -------------------------------------------------

_KEY: Final = "(consumer, source, message_id)"


def _identity(command: Accept | Start | Fail) -> tuple[str, str, str]:
    return command.consumer, command.source, command.message_id


def _accept(command: Accept, dialect: Dialect) -> SqlSteps[bool]:
    # It changes one row when the message is new or unfinished, and none when it is done.
    result = yield Statement(_accept_sql(command.names, dialect), _identity(command))
    if result.changed:
        return True
    yield Statement(_count_duplicate_sql(command.names, dialect), _identity(command))
    return False


@lru_cache
def _accept_sql(names: Names, dialect: Dialect) -> str:
    return (
        f"insert into {names.table('inbox')} as seen (consumer, source, message_id, status) "
        f"values ({', '.join(placeholders(dialect, 3))}, 'done') on conflict {_KEY} "
        f"do update set status = 'done', message = null, status_at = {now_sql(dialect)} where seen.status <> 'done'"
    )


@lru_cache
def _count_duplicate_sql(names: Names, dialect: Dialect) -> str:
    consumer, source, message_id = placeholders(dialect, 3)
    return (
        f"update {names.table('inbox')} set duplicates = duplicates + 1 "
        f"where consumer = {consumer} and source = {source} and message_id = {message_id}"
    )


def _start(command: Start, dialect: Dialect) -> SqlSteps[int]:
    result = yield Statement(_start_sql(command.names, dialect), _identity(command), has_rows=True)
    return result.rows[0][0] if result.rows else 0


@lru_cache
def _start_sql(names: Names, dialect: Dialect) -> str:
    # A failed message that comes again counts from one; its stored content stays until it is done.
    return (
        f"insert into {names.table('inbox')} as seen (consumer, source, message_id, status, attempts) "
        f"values ({', '.join(placeholders(dialect, 3))}, 'started', 1) on conflict {_KEY} "
        f"do update set attempts = case when seen.status = 'started' then seen.attempts + 1 else 1 end, "
        f"status = 'started', status_at = {now_sql(dialect)} where seen.status <> 'done' returning attempts"
    )


def _fail(command: Fail, dialect: Dialect) -> SqlSteps[None]:
    values = (*_identity(command), command.attempts, command.error, command.message)
    yield Statement(_fail_sql(command.names, dialect), values)


@lru_cache
def _fail_sql(names: Names, dialect: Dialect) -> str:
    return (
        f"insert into {names.table('inbox')} as seen "
        f"(consumer, source, message_id, attempts, last_error, message, status) "
        f"values ({', '.join(placeholders(dialect, 6))}, 'failed') on conflict {_KEY} "
        f"do update set status = 'failed', attempts = excluded.attempts, last_error = excluded.last_error, "
        f"message = excluded.message, status_at = {now_sql(dialect)} where seen.status <> 'done'"
    )


def _take_redriven(command: TakeRedriven, dialect: Dialect) -> SqlSteps[Sequence[bytes]]:
    sql = _take_redriven_sql(command.names, dialect)
    result = yield Statement(sql, (command.consumer, command.limit), has_rows=True)
    return [bytes(row[0]) for row in result.rows]


@lru_cache
def _take_redriven_sql(names: Names, dialect: Dialect) -> str:
    consumer, limit = placeholders(dialect, 2)
    return (
        f"select message from {names.table('inbox')} where status = 'started' and consumer = {consumer} "
        f"and message is not null order by status, status_at limit {limit}"
    )


def _forget(command: Forget, dialect: Dialect) -> SqlSteps[int]:
    deleted = 0
    for condition, older_than in _list_forgotten(command):
        age = older_than // _MICROSECOND if dialect is Dialect.SQLITE else older_than
        sql = _forget_sql(command.names, dialect, condition)
        result = yield Statement(sql, (command.consumer, age, command.limit))
        deleted += result.changed
    return deleted


def _list_forgotten(command: Forget) -> list[tuple[str, timedelta]]:
    """List what is deleted, and how old it must be. Each walks its own part of the index."""
    kinds = [("status = 'done'", command.older_than), (f"{_STARTED} is null", command.older_than)]
    if command.failed_older_than is not None:
        kinds += [
            ("status = 'failed'", command.failed_older_than),
            (f"{_STARTED} is not null", command.failed_older_than),
        ]
    return [(condition, min(older_than, LONGEST)) for condition, older_than in kinds]


_STARTED: Final = "status = 'started' and message"


@lru_cache
def _forget_sql(names: Names, dialect: Dialect, condition: str) -> str:
    consumer, age, limit = placeholders(dialect, 3)
    inbox = names.table("inbox")
    age = age if dialect is Dialect.SQLITE else f"{age}::interval"
    return (
        f"delete from {inbox} where {_KEY} in (select consumer, source, message_id from {inbox} "
        f"where {condition} and consumer = {consumer} and status_at <= {now_sql(dialect)} - {age} "
        f"order by status, status_at limit {limit})"
    )


def _list_open(command: ListOpen, dialect: Dialect) -> SqlSteps[Sequence[Sequence[Any]]]:
    result = yield Statement(_list_open_sql(command.names, dialect), (), has_rows=True)
    return result.rows


@lru_cache
def _list_open_sql(names: Names, dialect: Dialect) -> str:
    if dialect is Dialect.MYSQL:
        columns = ", ".join(f"`{name}`" for name in _OPEN_COLUMNS)
        return f"select {columns} from {names.table('outbox', quote='`')} order by id"
    if dialect is Dialect.SQLITE:
        return f"select {', '.join(_OPEN_COLUMNS)} from {names.table('outbox')} order by id"
    # Each driver gives ids, JSON and times in types of its own.
    columns = ", ".join(_POSTGRES_COLUMNS.get(name, name) for name in _OPEN_COLUMNS)
    return f"select {columns} from {names.table('outbox')} order by id"


_OPEN_COLUMNS: Final = [
    "id", "message_id", "destination", "partition", "kind", "type", "topic", "key", "payload", "content_type",
    "headers", "source", "subject", "correlation_id", "causation_id", "event_time", "created_at", "available_at",
    "waits", "attempts", "last_error", "status_at",
]  # fmt: skip
_POSTGRES_COLUMNS: Final = {"message_id": "message_id::text", "headers": "headers::text"} | {
    name: f"(extract(epoch from {name}) * 1000000)::bigint"
    for name in ("event_time", "created_at", "available_at", "status_at")
}

_CONFLICT_STEPS: Final[_StepsTable] = {
    ListOpen: _list_open,
    Accept: _accept,
    Start: _start,
    Fail: _fail,
    TakeRedriven: _take_redriven,
    Forget: _forget,
}


# --- MariaDB and MySQL: insert … on duplicate key ------------------------------------------------
# Texts go as hexadecimal digits, for the reason given in `insert_sql`.

_MYSQL_NOW: Final = now_sql(Dialect.MYSQL)
_MYSQL_CHUNK: Final = 256 * 1024
"""Bytes of a content that a statement carries on any server. None is set to take less than twice of it and some."""
_MYSQL_REST: Final = 64 * 1024
"""Bytes for all but the content of a row."""
_MYSQL_MATCH: Final = "consumer = unhex(%s) and source = unhex(%s) and message_id = unhex(%s)"
_MYSQL_NEW: Final = "(consumer, source, message_id, status, attempts) values (unhex(%s), unhex(%s), unhex(%s), "


def _mysql_identity(command: Accept | Start | Fail) -> tuple[str, str, str]:
    for what, text in (("source", command.source), ("message id", command.message_id)):
        if len(text.encode()) > MAX_TEXT:  # without strict mode it would be cut, and match another message
            raise DecodeError(
                f"The {what} of this message is {len(text.encode())} bytes long, and the inbox of MariaDB and MySQL "
                f"holds {MAX_TEXT}: have its producer shorten it."
            )
    return _to_hex(command.consumer), _to_hex(command.source), _to_hex(command.message_id)


def _to_hex(text: str) -> str:
    return text.encode().hex()


def _mysql_table(names: Names) -> str:
    """Return the view of the inbox: an account with rights on the table could change every consumer's rows."""
    return names.table("own_inbox", quote="`")


def _accept_mysql(command: Accept, _: Dialect) -> SqlSteps[bool]:
    # An existing row is counted as a duplicate first; when it turns out to be unfinished, that is taken back.
    identity = _mysql_identity(command)
    result = yield Statement(_accept_mysql_sql(command.names), identity)
    if result.changed == 1:
        return True
    result = yield Statement(_take_over_mysql_sql(command.names), identity)
    return result.changed > 0


@lru_cache
def _accept_mysql_sql(names: Names) -> str:
    return (
        f"insert into {_mysql_table(names)} {_MYSQL_NEW}'done', 0) on duplicate key update duplicates = duplicates + 1"
    )


@lru_cache
def _take_over_mysql_sql(names: Names) -> str:
    return (
        f"update {_mysql_table(names)} set status = 'done', message = null, status_at = {_MYSQL_NOW}, "
        f"duplicates = duplicates - 1 where {_MYSQL_MATCH} and status <> 'done'"
    )


def _start_mysql(command: Start, _: Dialect) -> SqlSteps[int]:
    identity = _mysql_identity(command)
    yield Statement(_start_mysql_sql(command.names), identity)
    result = yield Statement(_read_attempts_mysql_sql(command.names), identity, has_rows=True)
    return result.rows[0][0] if result.rows else 0


@lru_cache
def _start_mysql_sql(names: Names) -> str:
    # As in `_start_sql`. The status is assigned last: MySQL assigns from left to right, and the others read its old
    # value.
    return (
        f"insert into {_mysql_table(names)} {_MYSQL_NEW}'started', 1) on duplicate key update "
        f"attempts = case status when 'started' then attempts + 1 when 'failed' then 1 else attempts end, "
        f"status_at = case status when 'done' then status_at else {_MYSQL_NOW} end, "
        f"status = case status when 'done' then 'done' else 'started' end"
    )


@lru_cache
def _read_attempts_mysql_sql(names: Names) -> str:
    # No snapshot hides a started row: this transaction has just written it.
    return f"select attempts from {_mysql_table(names)} where {_MYSQL_MATCH} and status = 'started'"


def _fail_mysql(command: Fail, _: Dialect) -> SqlSteps[None]:
    identity = _mysql_identity(command)
    # The row is created or locked first, so that the update finds it whatever other transactions do.
    yield Statement(_lock_mysql_sql(command.names), identity)
    message, error = command.message, command.error
    chunk = _MYSQL_CHUNK
    if message is not None and len(message) > _MYSQL_CHUNK:
        # The server ends the connection of a larger packet, without saying why. Neither the content nor a statement
        # with a part of it, in hexadecimal digits, may be larger.
        result = yield Statement("select @@max_allowed_packet", (), has_rows=True)
        most = int(result.rows[0][0])
        # Each part writes the whole content again, to the undo log, the redo log and twice to the binary log: so a few
        # large parts, as many for every size.
        chunk = most // 4
        if len(message) > most - _MYSQL_REST:
            error = (
                f"{error} (its {len(message)} bytes are not kept, because the server's max_allowed_packet is {most})"
            )
            message = None
    first = None if message is None else message[:chunk].hex()
    yield Statement(_fail_mysql_sql(command.names), (command.attempts, _to_hex(error), first, *identity))
    for start in range(chunk, len(message or b""), chunk):
        part = (message or b"")[start : start + chunk].hex()
        yield Statement(_append_mysql_sql(command.names), (part, *identity))


@lru_cache
def _append_mysql_sql(names: Names) -> str:
    return (
        f"update {_mysql_table(names)} set message = concat(message, unhex(%s)) "
        f"where {_MYSQL_MATCH} and status = 'failed'"
    )


@lru_cache
def _lock_mysql_sql(names: Names) -> str:
    return (
        f"insert into {_mysql_table(names)} {_MYSQL_NEW}'started', 0) on duplicate key update duplicates = duplicates"
    )


@lru_cache
def _fail_mysql_sql(names: Names) -> str:
    return (
        f"update {_mysql_table(names)} set status = 'failed', attempts = %s, last_error = unhex(%s), "
        f"message = unhex(%s), status_at = {_MYSQL_NOW} where {_MYSQL_MATCH} and status <> 'done'"
    )


def _take_redriven_mysql(command: TakeRedriven, _: Dialect) -> SqlSteps[Sequence[bytes]]:
    sql = _take_redriven_mysql_sql(command.names)
    result = yield Statement(sql, (_to_hex(command.consumer), command.limit), has_rows=True)
    return [bytes(row[0]) for row in result.rows]


@lru_cache
def _take_redriven_mysql_sql(names: Names) -> str:
    return (
        f"select message from {_mysql_table(names)} where status = 'started' and consumer = unhex(%s) "
        f"and message is not null order by status, status_at limit %s"
    )


def _forget_mysql(command: Forget, _: Dialect) -> SqlSteps[int]:
    deleted = 0
    for condition, older_than in _list_forgotten(command):
        values = (_to_hex(command.consumer), older_than // _MICROSECOND, command.limit)
        result = yield Statement(_forget_mysql_sql(command.names, condition), values)
        deleted += result.changed
    return deleted


@lru_cache
def _forget_mysql_sql(names: Names, condition: str) -> str:
    return (
        f"delete from {_mysql_table(names)} where {condition} and consumer = unhex(%s) "
        f"and status_at <= {_MYSQL_NOW} - %s order by status, status_at limit %s"
    )


_MYSQL_STEPS: Final[_StepsTable] = {
    ListOpen: _list_open,
    Accept: _accept_mysql,
    Start: _start_mysql,
    Fail: _fail_mysql,
    TakeRedriven: _take_redriven_mysql,
    Forget: _forget_mysql,
}
