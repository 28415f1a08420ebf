"""Domain events of aggregates in a SQLAlchemy session: published when it flushes, forgotten when it rolls back.

Each session knows its aggregates that have events waiting, and holds on to them. They take part in its next flush
even if no column has changed; what is raised too late for that is published before the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, cast
from weakref import WeakKeyDictionary, ref

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction, object_session, scoped_session, sessionmaker
from sqlalchemy.orm.attributes import flag_dirty

from pillarbox.aggregates import Aggregate, Raised, forget, hear, raised_by
from pillarbox.errors import ConfigError
from pillarbox.writers import staging

__all__ = ["Publish", "attach"]

_KEY: Final = "pillarbox.harvest"

Publish = Callable[[Session, Sequence[object], Mapping[str, Any]], object]
"""Publishes events in a session, with options."""


class _Harvest:
    """The aggregates of one session that have events waiting. Kept in `Session.info`."""

    __slots__ = ("aggregates", "gathering", "is_committed", "publish", "session")

    def __init__(self, session: Session, publish: Publish) -> None:
        self.session = ref(session)
        self.publish = publish
        self.aggregates: dict[int, Aggregate] = {}
        self.gathering = False
        self.is_committed = False

    def gather(self, session: Session) -> None:
        """Publish what waits in the order it was raised, and what is raised meanwhile.

        An event waits until it is published: when that fails, a second commit must not leave it behind.
        """
        if self.gathering or not self.aggregates:
            return
        self.gathering = True
        try:
            while waiting := self._waiting(session):
                run = _first_run(waiting)
                self.publish(session, [raised.made() for raised, _ in run], run[0][0].options)
                for raised, aggregate in run:
                    forget(aggregate, [raised])
            self.aggregates.clear()
        finally:
            self.gathering = False

    def clear(self) -> None:
        """Forget what waits: it happened in a transaction that did not."""
        for aggregate in self.aggregates.values():
            forget(aggregate)
        self.aggregates.clear()

    def _waiting(self, session: Session) -> list[tuple[Raised, Aggregate]]:
        """Of aggregates that were expunged since, nothing: they wait for the next session."""
        here = [aggregate for aggregate in self.aggregates.values() if object_session(aggregate) is session]
        return sorted(((raised, one) for one in here for raised in raised_by(one)), key=_by_number)


def attach(sessions: object, publish: Publish) -> None:
    """Have the sessions of a maker, a class, or one session publish their aggregates' events."""
    target = _target(sessions)
    if isinstance(target, type):
        if _PUBLISHERS.get(target) == publish:
            return
        _refuse(target.__name__, any(known in _PUBLISHERS for known in target.__mro__))
        _PUBLISHERS[target] = publish
    else:
        found = _found(target)
        if found is not None and found.publish == publish:
            return
        _refuse("this session", found is not None)
        target.info[_KEY] = _Harvest(target, publish)
    hear(_raised)
    staging.listen(target)
    for name, hook in _HOOKS.items():
        event.listen(target, name, hook, insert=True)


def _refuse(what: str, is_attached: bool) -> None:
    if is_attached:
        raise ConfigError(
            f"{what} publishes its domain events through another outbox already, and would publish each twice: attach "
            "one outbox, and let its routes decide where events go."
        )


def _target(sessions: Any) -> type[Session] | Session:
    if isinstance(sessions, scoped_session | async_scoped_session):
        sessions = sessions.session_factory
    if isinstance(sessions, sessionmaker):
        return cast("type[Session]", sessions.class_)
    if isinstance(sessions, async_sessionmaker):
        return _class_of_its_own(sessions)
    if isinstance(sessions, AsyncSession):
        return sessions.sync_session
    if isinstance(sessions, type) and issubclass(sessions, AsyncSession):
        return sessions.sync_session_class
    if isinstance(sessions, Session) or (isinstance(sessions, type) and issubclass(sessions, Session)):
        return sessions
    raise ConfigError(
        f"Cannot attach to {sessions!r}: give a sessionmaker, an async_sessionmaker, a scoped session, a class of "
        "sessions, or a session."
    )


def _class_of_its_own(maker: async_sessionmaker[Any]) -> type[Session]:
    """The sessions that an async maker works with are plain ones, shared with everybody: give it others."""
    used: type[Session] = maker.kw.get("sync_session_class") or maker.class_.sync_session_class
    if used in _PUBLISHERS:
        return used
    own = type(used.__name__, (used,), {})
    maker.configure(sync_session_class=own)
    return own


def _first_run(waiting: list[tuple[Raised, Aggregate]]) -> list[tuple[Raised, Aggregate]]:
    options = waiting[0][0].options
    return list(takewhile(lambda one: one[0].options == options, waiting))


def _by_number(one: tuple[Raised, Aggregate]) -> int:
    return one[0].number


# --- which session -------------------------------------------------------------------------------


def _found(session: Session) -> _Harvest | None:
    harvest: _Harvest | None = session.info.get(_KEY)
    # One session's info may have been handed to another.
    return harvest if harvest is not None and harvest.session() is session else None


def _harvest(session: Session) -> _Harvest | None:
    harvest = _found(session)
    if harvest is None:
        publish = next((_PUBLISHERS[kind] for kind in type(session).__mro__ if kind in _PUBLISHERS), None)
        if publish is not None:
            harvest = session.info[_KEY] = _Harvest(session, publish)
    return harvest


def _raised(aggregate: object) -> None:
    """An aggregate has raised an event, in a session or not."""
    state = vars(aggregate).get("_sa_instance_state")
    session = None if state is None else state.session
    if session is not None:
        _remember(session, aggregate)


def _remember(session: Session, aggregate: object) -> None:
    harvest = _harvest(session)
    if harvest is not None:
        # So that it begins a transaction and takes part in the next flush, as with a changed column. None is updated.
        flag_dirty(aggregate)
        harvest.aggregates[id(aggregate)] = cast("Aggregate", aggregate)


# --- hooks ---------------------------------------------------------------------------------------


def _after_attach(session: Session, instance: object) -> None:
    if isinstance(instance, Aggregate) and raised_by(instance):
        _remember(session, instance)


def _gather(session: Session, *_: object) -> None:
    harvest = _found(session)
    if harvest is not None:
        harvest.gather(session)


def _before_commit(session: Session) -> None:
    """Also before a prepare, and before a savepoint is released. Keys that the flush makes come first."""
    harvest = _found(session)
    if harvest is not None and harvest.aggregates:
        if not session._flushing:
            session.flush()
        harvest.gather(session)


def _after_commit(session: Session) -> None:
    """What is raised from now on belongs to the next transaction."""
    harvest = _harvest(session)
    if harvest is not None:
        harvest.is_committed = True


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    """Without a commit it was rolled back, or closed, which says nothing of a rollback."""
    harvest = _found(session)
    if harvest is None or not (transaction.nested or transaction.parent is None):
        return
    if not harvest.is_committed:
        harvest.clear()
    harvest.is_committed = False


_HOOKS: Final[dict[str, Callable[..., None]]] = {
    "after_attach": _after_attach,
    "after_flush": _gather,
    "after_flush_postexec": _gather,
    "before_commit": _before_commit,
    "after_commit": _after_commit,
    "after_transaction_end": _after_transaction_end,
}
_PUBLISHERS: Final[WeakKeyDictionary[type[Session], Publish]] = WeakKeyDictionary()
