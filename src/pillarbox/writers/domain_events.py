"""Domain events of aggregates in a SQLAlchemy session: published when it flushes, dropped when it rolls back.

Each session holds its aggregates that have raised events. They take part in its next flush even if no column has
changed; events raised too late for that are published before the commit.
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

from pillarbox.domain_events import Aggregate, RaisedEvent, add_listener, discard_events, get_raised_events
from pillarbox.errors import ConfigError
from pillarbox.writers.sqlalchemy import listen

__all__ = ["Publish", "attach"]

_INFO_KEY: Final = "pillarbox.harvest"

Publish = Callable[[Session, Sequence[object], Mapping[str, Any]], object]
"""Publishes events in a session, with options."""


def attach(sessions: object, publish: Publish) -> None:
    """Publish the events of aggregates in the sessions of a maker, in those of a class, or in one session."""
    target = _find_target(sessions)
    if isinstance(target, type):
        if _PUBLISHERS.get(target) == publish:
            return
        if any(known in _PUBLISHERS for known in target.__mro__):
            raise _attached_twice(target.__name__)
        _PUBLISHERS[target] = publish
    else:
        found = _find_events(target)
        if found is not None and found.publish == publish:
            return
        if found is not None:
            raise _attached_twice("this session")
        target.info[_INFO_KEY] = _SessionEvents(target, publish)
    add_listener(_on_raise)
    listen(target)
    for name, hook in _HOOKS.items():
        event.listen(target, name, hook, insert=True)


def _attached_twice(what: str) -> ConfigError:
    return ConfigError(
        f"{what} publishes its domain events through another outbox already, and would publish each twice: attach "
        "one outbox, and let its routes decide where events go."
    )


def _find_target(sessions: Any) -> type[Session] | Session:
    if isinstance(sessions, scoped_session | async_scoped_session):
        sessions = sessions.session_factory
    if isinstance(sessions, sessionmaker):
        return cast("type[Session]", sessions.class_)
    if isinstance(sessions, async_sessionmaker):
        return _give_own_class(sessions)
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


def _give_own_class(maker: async_sessionmaker[Any]) -> type[Session]:
    """Give an async maker a class of sync sessions of its own: by default it shares the plain one with everybody."""
    used: type[Session] = maker.kw.get("sync_session_class") or maker.class_.sync_session_class
    if used in _PUBLISHERS:
        return used
    own = type(used.__name__, (used,), {})
    maker.configure(sync_session_class=own)
    return own


class _SessionEvents:
    """The aggregates of one session that have raised events. Stored in `Session.info`."""

    __slots__ = ("aggregates", "is_committed", "is_publishing", "publish", "session")

    def __init__(self, session: Session, publish: Publish) -> None:
        self.session = ref(session)
        self.publish = publish
        self.aggregates: dict[int, Aggregate] = {}
        self.is_publishing = False
        self.is_committed = False

    def publish_all(self, session: Session) -> None:
        """Publish the raised events in the order they were raised, and those that are raised meanwhile.

        An event stays until it is published: when that fails, a second commit must not leave it behind.
        """
        if self.is_publishing or not self.aggregates:
            return
        self.is_publishing = True
        try:
            while raised := self._sort_raised(session):
                run = _take_run(raised)
                self.publish(session, [one.build() for one, _ in run], run[0][0].options)
                for one, aggregate in run:
                    discard_events(aggregate, [one])
            self.aggregates.clear()
        finally:
            self.is_publishing = False

    def discard_all(self) -> None:
        """Drop all raised events: their transaction was rolled back."""
        for aggregate in self.aggregates.values():
            discard_events(aggregate)
        self.aggregates.clear()

    def _sort_raised(self, session: Session) -> list[tuple[RaisedEvent, Aggregate]]:
        # Aggregates that were expunged since are left out: they belong to their next session.
        here = [aggregate for aggregate in self.aggregates.values() if object_session(aggregate) is session]
        raised = [(one, aggregate) for aggregate in here for one in get_raised_events(aggregate)]
        return sorted(raised, key=lambda pair: pair[0].number)


def _take_run(raised: list[tuple[RaisedEvent, Aggregate]]) -> list[tuple[RaisedEvent, Aggregate]]:
    """Return the first events that share their options, and so can be published by one call."""
    options = raised[0][0].options
    return list(takewhile(lambda pair: pair[0].options == options, raised))


def _find_events(session: Session) -> _SessionEvents | None:
    events: _SessionEvents | None = session.info.get(_INFO_KEY)
    # One session's info may have been handed to another.
    return events if events is not None and events.session() is session else None


def _get_events(session: Session) -> _SessionEvents | None:
    events = _find_events(session)
    if events is None:
        publish = next((_PUBLISHERS[kind] for kind in type(session).__mro__ if kind in _PUBLISHERS), None)
        if publish is not None:
            events = session.info[_INFO_KEY] = _SessionEvents(session, publish)
    return events


def _on_raise(aggregate: object) -> None:
    """Note an aggregate that has raised an event, if it is in a session."""
    state = vars(aggregate).get("_sa_instance_state")
    session = None if state is None else state.session
    if session is not None:
        _remember(session, aggregate)


def _remember(session: Session, aggregate: object) -> None:
    events = _get_events(session)
    if events is not None:
        # So that it begins a transaction and takes part in the next flush, as with a changed column. None is updated.
        flag_dirty(aggregate)
        events.aggregates[id(aggregate)] = cast("Aggregate", aggregate)


# --- hooks of the session ------------------------------------------------------------------------


def _after_attach(session: Session, instance: object) -> None:
    if isinstance(instance, Aggregate) and get_raised_events(instance):
        _remember(session, instance)


def _after_flush(session: Session, *_: object) -> None:
    events = _find_events(session)
    if events is not None:
        events.publish_all(session)


def _before_commit(session: Session) -> None:
    """Publish what is left. Runs before a prepare and before the release of a savepoint too."""
    events = _find_events(session)
    if events is not None and events.aggregates:
        if not session._flushing:
            session.flush()  # first, so that events know the primary keys that it makes
        events.publish_all(session)


def _after_commit(session: Session) -> None:
    """Note the commit: events that are raised from now on belong to the next transaction."""
    events = _get_events(session)
    if events is not None:
        events.is_committed = True


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    # Without a commit it was rolled back, or closed; closing calls no hook for a rollback.
    events = _find_events(session)
    if events is None or not (transaction.nested or transaction.parent is None):
        return
    if not events.is_committed:
        events.discard_all()
    events.is_committed = False


_HOOKS: Final[dict[str, Callable[..., None]]] = {
    "after_attach": _after_attach,
    "after_flush": _after_flush,
    "after_flush_postexec": _after_flush,
    "before_commit": _before_commit,
    "after_commit": _after_commit,
    "after_transaction_end": _after_transaction_end,
}
_PUBLISHERS: Final[WeakKeyDictionary[type[Session], Publish]] = WeakKeyDictionary()
