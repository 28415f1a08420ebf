"""Messages of a SQLAlchemy session wait for its flush: row locks of the business data come before message ids.

What waits is written after a flush's own statements, before a savepoint is set, and before a commit or prepare.
It belongs to the innermost transaction or savepoint of its session, and is forgotten when that rolls back.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, ref

import msgspec
from sqlalchemy import event

from pillarbox.protocols import Insert
from pillarbox.writers.sqlalchemy import insert

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, SessionTransaction

__all__ = ["listen", "put"]

_KEY: Final = "pillarbox.stage"


class _Stage:
    """What waits in one session. Kept in `Session.info`, so it lives and dies with the session."""

    __slots__ = ("flushed", "owner", "session", "waiting")

    def __init__(self, session: Session) -> None:
        self.session = ref(session)
        self.waiting: list[tuple[Connection, Insert]] = []
        self.owner: SessionTransaction | None = None
        self.flushed = False
        """The flush under way has been through `_after_flush`."""

    def write(self) -> None:
        """Write what waits, in order. What fails stays, so that a second commit cannot leave it behind."""
        while self.waiting:
            run = _first_run(self.waiting)
            insert(run[0][0], _united([batch for _, batch in run]))
            del self.waiting[: len(run)]


def put(session: Session, tx: Connection, batch: Insert, *, joined: bool) -> None:
    """Let the batch wait for the session, or write it now where no later moment is certain to come.

    `joined`: the connection is the caller's, who may commit it without asking the session. Then a batch waits
    only for objects that wait as well.
    """
    if (joined and _is_clean(session)) or not _hears(session) or _too_late(session):
        _write_now(session, tx, batch)
        return
    stage = _stage(session)
    stage.waiting.append((tx, batch))
    stage.owner = session.get_nested_transaction() or session.get_transaction()


def listen(target: type[Session] | Session) -> None:
    """Hear what the sessions of a class, or one session, do. Hearing it twice is harmless."""
    for name, hook in _HOOKS.items():
        event.listen(target, name, hook)
    if isinstance(target, type):
        _HEARD.add(target)


# --- when ----------------------------------------------------------------------------------------


def _hears(session: Session) -> bool:
    """Our hooks are, or can now safely be, in place for this session."""
    kind = type(session)
    if _found(session) is not None or not _HEARD.isdisjoint(kind.__mro__):
        return True
    # A list of hooks must not grow while it is called, by whatever thread: so the class gets ours only if it has no
    # others, and otherwise each session its own, but not in the middle of something.
    if not kind.__subclasses__() and not any(getattr(session.dispatch, name) for name in _HOOKS):
        listen(kind)
    elif session._flushing or _is_changing(session):
        return False
    else:
        listen(session)
    _stage(session).flushed = session._flushing
    return True


def _too_late(session: Session) -> bool:
    """A commit is under way and has passed the last hook that would write what waits."""
    return _is_changing(session) and (not session._flushing or _stage(session).flushed)


def _is_changing(session: Session) -> bool:
    """Called from inside a commit, or another method that ends or begins a transaction of the session."""
    frame = session._transaction
    while frame is not None:
        if frame._current_fn is not None:
            return True
        frame = frame.parent
    return False


def _is_clean(session: Session) -> bool:
    return not (session.new or session.dirty or session.deleted)


# --- writing -------------------------------------------------------------------------------------


def _found(session: Session) -> _Stage | None:
    stage: _Stage | None = session.info.get(_KEY)
    # One session's info may have been handed to another.
    return stage if stage is not None and stage.session() is session else None


def _stage(session: Session) -> _Stage:
    stage = _found(session)
    if stage is None:
        stage = session.info[_KEY] = _Stage(session)
    return stage


def _write_now(session: Session, tx: Connection, batch: Insert) -> None:
    if not session._flushing:
        session.flush()
    _write_waiting(session)
    insert(tx, batch)


def _write_waiting(session: Session) -> None:
    stage = _found(session)
    if stage is not None:
        stage.write()


def _first_run(waiting: list[tuple[Connection, Insert]]) -> list[tuple[Connection, Insert]]:
    tx, first = waiting[0]
    return list(takewhile(lambda other: other[0] is tx and _alike(first, other[1]), waiting))


def _alike(one: Insert, other: Insert) -> bool:
    return (one.names, one.delay, one.serialize_keys) == (other.names, other.delay, other.serialize_keys)


def _united(batches: list[Insert]) -> Insert:
    if len(batches) == 1:
        return batches[0]
    return msgspec.structs.replace(batches[0], messages=[m for batch in batches for m in batch.messages])


# --- hooks ---------------------------------------------------------------------------------------


def _before_commit(session: Session) -> None:
    """Also before a prepare, and before a savepoint is released."""
    stage = _found(session)
    if stage is not None and stage.waiting:
        if not session._flushing:
            session.flush()
        stage.write()


def _after_flush(session: Session, _: object) -> None:
    stage = _stage(session)
    stage.flushed = True
    stage.write()


def _after_commit(session: Session) -> None:
    """Nothing can wait here. Should it ever, a loss must not be silent."""
    stage = _found(session)
    if stage is not None and stage.waiting:
        raise RuntimeError(f"The session was committed without {len(stage.waiting)} message(s) that it was given.")


def _after_transaction_create(session: Session, transaction: SessionTransaction) -> None:
    # The SAVEPOINT itself comes with the first statement inside: what waited until now is still written before it.
    if transaction.nested:
        _write_waiting(session)


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    stage = _found(session)
    if stage is None:
        return
    if transaction is stage.owner:
        stage.waiting.clear()
        stage.owner = None
    if not transaction.nested:
        stage.flushed = False


_HOOKS: Final[dict[str, Callable[..., None]]] = {
    "before_commit": _before_commit,
    "after_flush": _after_flush,
    "after_commit": _after_commit,
    "after_transaction_create": _after_transaction_create,
    "after_transaction_end": _after_transaction_end,
}
_HEARD: Final[WeakSet[type[Session]]] = WeakSet()
