"""What aggregates raise is published once, in order, with their data, or not at all."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, update
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from pillarbox import Outbox, decode
from pillarbox.errors import ConfigError, UnknownType
from tests.support.writers.places import Place, orders, outbox, subjects
from tests.support.writers.shop_models import MODELS, TYPES, Declared, OrderNoted, build_outbox, raise_words
from tests.support.writers.sqlalchemy_handles import (
    ASYNC,
    create_async_engine_for,
    create_engine_for,
    record_statements,
)


@pytest.fixture(params=["psycopg", "pysqlite", "pymysql"])
def kind(request: pytest.FixtureRequest) -> str:
    return f"SessionHandle-{request.param}"


@pytest.fixture
def engine(kind: str, place: Place) -> Iterator[Engine]:
    engine = create_engine_for(place, kind.partition("-")[2])
    yield engine
    engine.dispose()


@pytest.fixture
def box(place: Place) -> Outbox:
    return build_outbox(place)


@pytest.fixture
def sessions(engine: Engine, box: Outbox) -> sessionmaker[Session]:
    maker = sessionmaker(engine)
    box.attach(maker)
    return maker


@pytest.fixture
def session(sessions: sessionmaker[Session]) -> Iterator[Session]:
    with sessions() as session:
        yield session


def stored(session: Session, *notes: str) -> list[Declared]:
    """Orders that the database has already."""
    found = [Declared(note=note) for note in notes]
    session.add_all(found)
    session.commit()
    return found


# --- once, in order ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_new_aggregate_tells_with_the_key_that_the_flush_made(model: Any, session: Session, place: Place) -> None:
    order = model(note="new")
    raise_words(order, "placed")
    session.add(order)
    assert subjects(place) == []
    session.commit()
    (message,) = outbox(place)
    assert decode(message, types=TYPES) == OrderNoted(order.id, "placed")
    assert orders(place) == [order.id]
    assert order.raised_events == ()


@pytest.mark.parametrize("model", MODELS)
def test_changed_and_deleted_aggregates_tell_too(model: Any, session: Session, place: Place) -> None:
    changed, deleted = model(note="a"), model(note="b")
    session.add_all([changed, deleted])
    session.commit()
    changed.note = "c"
    raise_words(changed, "changed")
    session.delete(deleted)
    raise_words(deleted, "deleted")
    session.commit()
    assert subjects(place) == ["changed", "deleted"]


async def test_an_aggregate_without_a_changed_column_tells_even_if_nobody_holds_it(
    session: Session, engine: Engine, place: Place
) -> None:
    (order,) = stored(session, "a")
    number = order.id
    del order
    async with record_statements(engine) as seen:
        raise_words(session.get_one(Declared, number), "seen")
        gc.collect()
        session.commit()
    assert subjects(place) == ["seen"]
    assert not [sql for sql in seen if "update" in sql.lower()]


def test_events_of_several_aggregates_keep_the_order_they_were_raised_in(session: Session, place: Place) -> None:
    one, two = stored(session, "a", "b")
    new = Declared(note="c")
    raise_words(two, "1")
    raise_words(new, "2")
    raise_words(one, "3")
    raise_words(two, "4")
    session.add(new)
    one.note = "changed"
    session.commit()
    assert subjects(place) == ["1", "2", "3", "4"]


def test_options_of_publish_hold_for_that_event(session: Session, place: Place) -> None:
    order = Declared(note="a")
    order.raise_event(OrderNoted(1, "a"), topic="special", headers={"a": "b"}, key="mine")
    order.raise_event(OrderNoted(1, "b"))
    session.add(order)
    session.commit()
    first, second = outbox(place)
    assert (first.topic, first.headers, first.key) == ("special", {"a": "b"}, "mine")
    assert (second.topic, second.headers or {}, second.key) == ("orders.told", {}, "1")


def test_each_event_is_published_once_whatever_flushes(session: Session, place: Place) -> None:
    order = Declared(note="a")
    session.add(order)
    raise_words(order, "1")
    session.flush()
    session.scalars(select(Declared)).all()
    raise_words(order, "2")
    order.note = "b"
    session.scalars(select(Declared)).all()  # flushes by itself
    raise_words(order, "3")
    session.flush()
    session.commit()
    session.commit()
    raise_words(order, "4")
    session.commit()
    assert subjects(place) == ["1", "2", "3", "4"]


def test_what_is_published_by_hand_and_raised_goes_out_together(session: Session, box: Outbox, place: Place) -> None:
    order = Declared(note="a")
    session.add(order)
    raise_words(order, "raised")
    box.publish(session, OrderNoted(0, "by hand"))
    session.commit()
    assert sorted(str(subject) for subject in subjects(place)) == ["by hand", "raised"]


# --- raised while it flushes ---------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["before_flush", "after_flush", "after_flush_postexec"])
def test_an_event_that_a_session_listener_raises_is_not_lost(hook: str, session: Session, place: Place) -> None:
    order = Declared(note="a")
    told: list[str] = []

    def listener(*_: object) -> None:
        if not told:
            told.append(hook)
            raise_words(order, hook)

    event.listen(session, hook, listener)
    session.add(order)
    session.flush()
    session.commit()
    assert subjects(place) == [hook]


@pytest.mark.parametrize("hook", ["before_insert", "after_insert"])
def test_an_event_that_a_mapper_listener_raises_is_not_lost(hook: str, session: Session, place: Place) -> None:
    def listener(_mapper: object, _connection: object, order: Declared) -> None:
        raise_words(order, hook)

    event.listen(Declared, hook, listener)
    try:
        session.add(Declared(note="a"))
        session.commit()
    finally:
        event.remove(Declared, hook, listener)
    assert subjects(place) == [hook]


def test_an_event_that_making_an_event_raises_is_not_lost(session: Session, place: Place) -> None:
    order = Declared(note="a")

    def first() -> OrderNoted:
        raise_words(order, "second")
        return OrderNoted(order.id, "first")

    order.raise_event(first)
    session.add(order)
    session.commit()
    assert subjects(place) == ["first", "second"]


def test_an_event_raised_after_the_commit_belongs_to_the_next(session: Session, place: Place) -> None:
    order = Declared(note="a")
    session.add(order)
    event.listen(session, "after_commit", lambda _: raise_words(order, "after"), once=True)
    session.commit()
    assert subjects(place) == []
    session.commit()
    assert subjects(place) == ["after"]


# --- rolled back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("end", ["rollback", "close"])
def test_after_a_rollback_the_aggregate_is_clean(flushed: bool, end: str, session: Session, place: Place) -> None:
    (order,) = stored(session, "a")
    order.note = "b"
    raise_words(order, "1")
    if flushed:
        session.flush()
        raise_words(order, "2")
    getattr(session, end)()
    assert order.raised_events == ()
    session.add(order)
    order.note = "c"
    raise_words(order, "3")
    session.commit()
    assert subjects(place) == ["3"]


def test_a_savepoint_takes_its_own_events_with_it_and_no_others(session: Session, place: Place) -> None:
    one, two = stored(session, "a", "b")
    raise_words(one, "before, unchanged")
    with suppress(LookupError), session.begin_nested():
        raise LookupError
    two.note = "c"
    raise_words(two, "before, changed")
    savepoint = session.begin_nested()
    raise_words(one, "inside, unchanged")
    two.note = "d"
    raise_words(two, "inside, flushed")
    session.flush()
    raise_words(two, "inside, not flushed")
    savepoint.rollback()
    assert (one.raised_events, two.raised_events) == ((), ())
    raise_words(one, "after")
    session.commit()
    assert subjects(place) == ["before, unchanged", "before, changed", "after"]


def test_a_released_savepoint_keeps_its_events(session: Session, place: Place) -> None:
    (order,) = stored(session, "a")
    with session.begin_nested():
        raise_words(order, "1")
        with session.begin_nested():
            raise_words(order, "2")
    raise_words(order, "3")
    session.commit()
    assert subjects(place) == ["1", "2", "3"]


def test_a_flush_that_fails_leaves_nothing_behind(session: Session, place: Place) -> None:
    (order,) = stored(session, "a")
    raise_words(order, "1")
    session.add(Declared(id=order.id, note="the same key"))
    with pytest.raises(Exception, match=r"(?i)unique|duplicate|conflicts"):
        session.flush()
    session.rollback()
    assert order.raised_events == ()
    raise_words(order, "2")
    session.commit()
    assert subjects(place) == ["2"]


def test_an_event_that_cannot_be_published_stops_every_commit(session: Session, place: Place) -> None:
    """A second commit must not leave it behind, as it would when the first had forgotten it."""
    (order,) = stored(session, "a")
    order.raise_event(object())
    for error in (UnknownType, PendingRollbackError):
        with pytest.raises(error):
            session.commit()
    session.rollback()
    session.commit()
    assert subjects(place) == []


def test_an_expunged_aggregate_takes_its_events_along(
    session: Session, sessions: sessionmaker[Session], place: Place
) -> None:
    (order,) = stored(session, "a")
    raise_words(order, "1")
    session.expunge(order)
    session.commit()
    assert subjects(place) == []
    with sessions() as other:
        other.add(order)
        other.commit()
    assert subjects(place) == ["1"]


def test_a_statement_past_the_unit_of_work_raises_nothing(session: Session, place: Place) -> None:
    stored(session, "a")
    session.execute(update(Declared).values(note="b"))
    session.commit()
    assert subjects(place) == []


# --- attaching -----------------------------------------------------------------------------------


def test_sessions_that_are_not_attached_leave_events_where_they_are(engine: Engine, place: Place) -> None:
    order = Declared(note="a")
    raise_words(order, "1")
    with Session(engine) as session:
        session.add(order)
        session.commit()
        assert subjects(place) == []
        assert order.take_events() == [OrderNoted(order.id, "1")]
        assert order.raised_events == ()


@pytest.mark.parametrize("of", ["class", "session", "scoped"])
def test_a_class_a_session_or_a_scoped_session_can_be_attached(
    of: str, engine: Engine, box: Outbox, place: Place
) -> None:
    class Own(Session):
        pass

    scoped = scoped_session(sessionmaker(engine))
    session = scoped() if of == "scoped" else Own(engine)
    box.attach({"class": Own, "session": session, "scoped": scoped}[of])
    with session:
        order = Declared(note="a")
        raise_words(order, "1")
        session.add(order)
        session.commit()
    assert subjects(place) == ["1"]


def test_attaching_twice_is_harmless_and_to_two_outboxes_refused(
    sessions: sessionmaker[Session], box: Outbox, place: Place
) -> None:
    box.attach(sessions)
    with sessions() as session:
        order = Declared(note="a")
        raise_words(order, "1")
        session.add(order)
        session.commit()
    assert subjects(place) == ["1"]
    with pytest.raises(ConfigError, match="another outbox already"):
        build_outbox(place).attach(sessions)
    with pytest.raises(ConfigError, match="Cannot attach to 'sessions'"):
        box.attach("sessions")


@pytest.mark.parametrize("of", ["maker", "session", "scoped"])
async def test_async_sessions_publish_what_their_aggregates_raise(
    of: str, kind: str, place: Place, box: Outbox
) -> None:
    engine = create_async_engine_for(place, ASYNC[kind.partition("-")[2]])
    maker = async_sessionmaker(engine)
    scoped = async_scoped_session(maker, scopefunc=lambda: 1)
    session = maker() if of == "session" else None
    box.attach({"maker": maker, "session": session, "scoped": scoped}[of])
    session = session or maker()
    async with session:
        order = Declared(note="a")
        raise_words(order, "1")
        session.add(order)
        await session.commit()
        raise_words(order, "2")
        await session.rollback()
        await session.refresh(order)
        raise_words(order, "3")
        await session.commit()
    plain = AsyncSession(engine)
    order = Declared(note="b")
    raise_words(order, "of a session that is not attached")
    plain.add(order)
    await plain.commit()
    await plain.close()
    await engine.dispose()
    assert subjects(place) == ["1", "3"]
