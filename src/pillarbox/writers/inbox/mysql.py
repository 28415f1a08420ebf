"""The inbox of MariaDB and MySQL, which share ON DUPLICATE KEY UPDATE but no RETURNING. Pure.

That statement waits for whoever handles the same message, sees what that one committed whatever the isolation level,
and locks the row for the statements after it. It says 1 for a new row and 2 for one that it changed; for one that it
left as it was, drivers differ, so it always changes something where its answer matters.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Final

from pillarbox.errors import DecodeError
from pillarbox.limits import MAX_TEXT
from pillarbox.names import Names
from pillarbox.protocols import Accept, Fail, Forget, InboxAsk, Redriven, Start
from pillarbox.writers.inbox.did import Program
from pillarbox.writers.statements import Statement, Style, now

__all__ = ["program"]

_NOW: Final = now(Style.MYSQL)
_IDENTITY: Final = "consumer = unhex(%s) and source = unhex(%s) and message_id = unhex(%s)"
_NEW: Final = "(consumer, source, message_id, status, attempts) values (unhex(%s), unhex(%s), unhex(%s), "


def program(ask: InboxAsk) -> Program:
    """The statements that do what is asked."""
    match ask:
        case Start():
            return _start(ask)
        case Fail():
            return _fail(ask)
        case Accept():
            return _accept(ask)
        case Redriven():
            return _redriven(ask)
        case Forget():
            return _forget(ask)


def _accept(ask: Accept) -> Program:
    """A row that was there is counted as a duplicate first; if it turns out to be unfinished, that is taken back."""
    identity = _identity(ask)
    did = yield Statement(_accept_sql(ask.names), identity)
    if did.changed == 1:
        return True
    did = yield Statement(_take_over_sql(ask.names), identity)
    return did.changed > 0


def _start(ask: Start) -> Program:
    identity = _identity(ask)
    yield Statement(_start_sql(ask.names), identity)
    did = yield Statement(_started_sql(ask.names), identity, has_rows=True)
    return did.rows[0][0] if did.rows else 0


def _fail(ask: Fail) -> Program:
    identity = _identity(ask)
    yield Statement(_lock_sql(ask.names), identity)
    told = (ask.attempts, _hex(ask.error), ask.message.hex())
    yield Statement(_fail_sql(ask.names), (*told, *identity))


def _redriven(ask: Redriven) -> Program:
    did = yield Statement(_redriven_sql(ask.names), (_hex(ask.consumer), ask.limit), has_rows=True)
    return [bytes(row[0]) for row in did.rows]


def _forget(ask: Forget) -> Program:
    age = ask.older_than // timedelta(microseconds=1)
    did = yield Statement(_forget_sql(ask.names), (_hex(ask.consumer), age, ask.limit))
    return did.changed


def _identity(ask: Accept) -> tuple[str, str, str]:
    for what, text in (("source", ask.source), ("message id", ask.message_id)):
        if len(text.encode()) > MAX_TEXT:  # without strict mode it would be cut, and taken for another's
            raise DecodeError(
                f"The {what} of this message is {len(text.encode())} bytes long, and the inbox of MariaDB and MySQL "
                f"holds {MAX_TEXT}: have its producer shorten it."
            )
    return _hex(ask.consumer), _hex(ask.source), _hex(ask.message_id)


def _hex(text: str) -> str:
    return text.encode().hex()


# --- their texts ---------------------------------------------------------------------------------


def _inbox(names: Names) -> str:
    return names.table("inbox", quote="`")


@lru_cache
def _accept_sql(names: Names) -> str:
    return f"insert into {_inbox(names)} {_NEW}'done', 0) on duplicate key update duplicates = duplicates + 1"


@lru_cache
def _take_over_sql(names: Names) -> str:
    return (
        f"update {_inbox(names)} set status = 'done', message = null, status_at = {_NOW}, "
        f"duplicates = duplicates - 1 where {_IDENTITY} and status <> 'done'"
    )


@lru_cache
def _start_sql(names: Names) -> str:
    # A failed one that comes again is as good as new; what was kept of it stays until it is done. The status comes
    # last: what stands before it is told by the status that was.
    return (
        f"insert into {_inbox(names)} {_NEW}'started', 1) on duplicate key update "
        f"attempts = case status when 'started' then attempts + 1 when 'failed' then 1 else attempts end, "
        f"status_at = case status when 'done' then status_at else {_NOW} end, "
        f"status = case status when 'done' then 'done' else 'started' end"
    )


@lru_cache
def _started_sql(names: Names) -> str:
    # No snapshot hides it: what is started has just been written by this transaction.
    return f"select attempts from {_inbox(names)} where {_IDENTITY} and status = 'started'"


@lru_cache
def _lock_sql(names: Names) -> str:
    return f"insert into {_inbox(names)} {_NEW}'started', 0) on duplicate key update duplicates = duplicates"


@lru_cache
def _fail_sql(names: Names) -> str:
    return (
        f"update {_inbox(names)} set status = 'failed', attempts = %s, last_error = unhex(%s), message = unhex(%s), "
        f"status_at = {_NOW} where {_IDENTITY} and status <> 'done'"
    )


@lru_cache
def _redriven_sql(names: Names) -> str:
    return (
        f"select message from {_inbox(names)} where status = 'started' and consumer = unhex(%s) "
        f"and message is not null order by status, status_at limit %s"
    )


@lru_cache
def _forget_sql(names: Names) -> str:
    return (
        f"delete from {_inbox(names)} where status = 'done' and consumer = unhex(%s) and status_at <= {_NOW} - %s "
        f"order by status, status_at limit %s"
    )
