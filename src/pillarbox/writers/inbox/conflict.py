"""The inbox of PostgreSQL and SQLite, which both know ON CONFLICT and RETURNING. Pure."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache

from pillarbox.names import Names
from pillarbox.protocols import Accept, Fail, Forget, InboxAsk, Redriven, Start
from pillarbox.writers.inbox.did import Program
from pillarbox.writers.statements import Statement, Style, marks, now

__all__ = ["program"]


def program(ask: InboxAsk, style: Style) -> Program:
    """The statements that do what is asked."""
    match ask:
        case Start():
            return _start(ask, style)
        case Fail():
            return _fail(ask, style)
        case Accept():
            return _accept(ask, style)
        case Redriven():
            return _redriven(ask, style)
        case Forget():
            return _forget(ask, style)


def _accept(ask: Accept, style: Style) -> Program:
    """Changes one row when the message is new or unfinished, none when it was done already."""
    did = yield Statement(_accept_sql(ask.names, style), _identity(ask))
    if did.changed:
        return True
    yield Statement(_duplicate_sql(ask.names, style), _identity(ask))
    return False


def _start(ask: Start, style: Style) -> Program:
    did = yield Statement(_start_sql(ask.names, style), _identity(ask), has_rows=True)
    return did.rows[0][0] if did.rows else 0


def _fail(ask: Fail, style: Style) -> Program:
    yield Statement(_fail_sql(ask.names, style), (*_identity(ask), ask.attempts, ask.error, ask.message))


def _redriven(ask: Redriven, style: Style) -> Program:
    did = yield Statement(_redriven_sql(ask.names, style), (ask.consumer, ask.limit), has_rows=True)
    return [bytes(row[0]) for row in did.rows]


def _forget(ask: Forget, style: Style) -> Program:
    age = ask.older_than // timedelta(microseconds=1) if style is Style.QMARK else ask.older_than
    did = yield Statement(_forget_sql(ask.names, style), (ask.consumer, age, ask.limit))
    return did.changed


def _identity(ask: Accept) -> tuple[str, str, str]:
    return ask.consumer, ask.source, ask.message_id


# --- their texts ---------------------------------------------------------------------------------

_KEY = "(consumer, source, message_id)"


@lru_cache
def _accept_sql(names: Names, style: Style) -> str:
    return (
        f"insert into {names.table('inbox')} as seen (consumer, source, message_id, status) "
        f"values ({', '.join(marks(style, 3))}, 'done') on conflict {_KEY} "
        f"do update set status = 'done', message = null, status_at = {now(style)} where seen.status <> 'done'"
    )


@lru_cache
def _duplicate_sql(names: Names, style: Style) -> str:
    consumer, source, message_id = marks(style, 3)
    return (
        f"update {names.table('inbox')} set duplicates = duplicates + 1 "
        f"where consumer = {consumer} and source = {source} and message_id = {message_id}"
    )


@lru_cache
def _start_sql(names: Names, style: Style) -> str:
    # A failed one that comes again is as good as new; what was kept of it stays until it is done.
    return (
        f"insert into {names.table('inbox')} as seen (consumer, source, message_id, status, attempts) "
        f"values ({', '.join(marks(style, 3))}, 'started', 1) on conflict {_KEY} "
        f"do update set attempts = case when seen.status = 'started' then seen.attempts + 1 else 1 end, "
        f"status = 'started', status_at = {now(style)} where seen.status <> 'done' returning attempts"
    )


@lru_cache
def _fail_sql(names: Names, style: Style) -> str:
    return (
        f"insert into {names.table('inbox')} as seen "
        f"(consumer, source, message_id, attempts, last_error, message, status) "
        f"values ({', '.join(marks(style, 6))}, 'failed') on conflict {_KEY} "
        f"do update set status = 'failed', attempts = excluded.attempts, last_error = excluded.last_error, "
        f"message = excluded.message, status_at = {now(style)} where seen.status <> 'done'"
    )


@lru_cache
def _redriven_sql(names: Names, style: Style) -> str:
    consumer, limit = marks(style, 2)
    return (
        f"select message from {names.table('inbox')} where status = 'started' and consumer = {consumer} "
        f"and message is not null order by status, status_at limit {limit}"
    )


@lru_cache
def _forget_sql(names: Names, style: Style) -> str:
    consumer, age, limit = marks(style, 3)
    inbox = names.table("inbox")
    age = age if style is Style.QMARK else f"{age}::interval"
    return (
        f"delete from {inbox} where {_KEY} in (select consumer, source, message_id from {inbox} "
        f"where status = 'done' and consumer = {consumer} and status_at <= {now(style)} - {age} "
        f"order by status, status_at limit {limit})"
    )
