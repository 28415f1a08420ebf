"""When a session writes its messages: after its flush, before its savepoints, and never without its commit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, exc, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from pillarbox import writers
from pillarbox.contracts.writer import Insert
from pillarbox.errors import UnsupportedHandle
from pillarbox.writers.sqlalchemy import _get_buffer
from tests.support.writers.places import Place, batch, message, orders, outbox, subjects
from tests.support.writers.sqlalchemy_handles import (
    ASYNC,
    Order,
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


@pytest.fixture(params=["plain", "made"])
def session(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(engine) if request.param == "plain" else sessionmaker(engine)() as session:
        yield session


def publish(session: Session, place: Place, *names: str) -> None:
    writers.insert(session, batch(place, *names))


def tables(seen: list[str]) -> list[str]:
    """The statements by what they touch."""
    words = ["savepoint", "release", "rollback to", "outbox", "orders"]
    return [next((word for word in words if word in sql.lower()), sql) for sql in seen]


# --- when the rows are written -------------------------------------------------------------------


async def test_business_rows_come_before_message_ids(session: Session, engine: Engine, place: Place) -> None:
    async with record_statements(engine) as seen:
        publish(session, place, "a")
        session.add(Order(id=1))
        session.commit()
    assert tables(seen) == ["orders", "outbox"]


async def test_explicit_flush_writes(session: Session, engine: Engine, place: Place) -> None:
    publish(session, place, "a")
    session.add(Order(id=1))
    async with record_statements(engine) as seen:
        session.flush()
    assert tables(seen) == ["orders", "outbox"]
    session.commit()
    assert subjects(place) == ["a"]


async def test_autoflush_writes(session: Session, engine: Engine, place: Place) -> None:
    publish(session, place, "a")
    session.add(Order(id=1))
    async with record_statements(engine) as seen:
        assert session.scalars(select(Order.id)).all() == [1]
    assert tables(seen) == ["orders", "outbox", "orders"]


async def test_statements_of_ones_own_come_before_the_message(session: Session, engine: Engine, place: Place) -> None:
    async with record_statements(engine) as seen:
        publish(session, place, "a")
        session.execute(insert(Order).values(id=1))
        session.execute(update(Order).values(note="x"))
        session.commit()
    assert tables(seen) == ["orders", "orders", "outbox"]
    assert (orders(place), subjects(place)) == ([1], ["a"])


async def test_bulk_methods_do_not_lose_the_message(session: Session, place: Place) -> None:
    publish(session, place, "a")
    session.bulk_save_objects([Order(id=1)])
    session.commit()
    assert (orders(place), subjects(place)) == ([1], ["a"])


async def test_several_publishes_are_one_statement_in_order(session: Session, engine: Engine, place: Place) -> None:
    async with record_statements(engine) as seen:
        for name in "abc":
            publish(session, place, name)
        session.commit()
    assert tables(seen) == ["outbox"]
    assert subjects(place) == ["a", "b", "c"]


async def test_publishes_with_other_options_keep_theirs(session: Session, place: Place) -> None:
    writers.insert(session, batch(place, "a"))
    writers.insert(session, batch(place, "b", delay=timedelta(hours=1)))
    writers.insert(session, batch(place, "c", serialize_keys=True))
    session.commit()
    assert [(one.subject, one.waits) for one in outbox(place)] == [("a", None), ("b", "deferred"), ("c", None)]


async def test_explicit_begin(session: Session, place: Place) -> None:
    with session.begin():
        publish(session, place, "a")
    with suppress(ZeroDivisionError), session.begin():
        publish(session, place, "b")
        raise ZeroDivisionError
    assert subjects(place) == ["a"]


# --- savepoints ----------------------------------------------------------------------------------


async def test_message_before_a_savepoint_survives_it_without_a_flush(session: Session, place: Place) -> None:
    publish(session, place, "before")
    savepoint = session.begin_nested()
    session.add(Order(id=1))
    publish(session, place, "inside")
    session.flush()
    savepoint.rollback()
    session.commit()
    assert (orders(place), subjects(place)) == ([], ["before"])


async def test_unflushed_message_inside_a_savepoint_goes_with_it(session: Session, place: Place) -> None:
    session.add(Order(id=1))
    session.flush()
    with session.begin_nested() as savepoint:
        publish(session, place, "inside")
        savepoint.rollback()
    session.commit()
    assert (orders(place), subjects(place)) == ([1], [])


async def test_savepoints_in_savepoints(session: Session, place: Place) -> None:
    publish(session, place, "0")
    with session.begin_nested():
        publish(session, place, "1")
        with session.begin_nested() as inner:
            publish(session, place, "1.1")
            inner.rollback()
        publish(session, place, "2")
        with session.begin_nested():
            publish(session, place, "2.1")
            session.add(Order(id=1))
    outer = session.begin_nested()
    publish(session, place, "3")
    with session.begin_nested():
        publish(session, place, "3.1")
    outer.rollback()
    publish(session, place, "4")
    session.commit()
    assert (orders(place), subjects(place)) == ([1], ["0", "1", "2", "2.1", "4"])


async def test_outer_rollback_takes_released_savepoints(session: Session, place: Place) -> None:
    session.execute(insert(Order).values(id=1))  # or pysqlite would set the savepoint outside a transaction
    with session.begin_nested():
        publish(session, place, "inside")
    session.rollback()
    session.commit()
    assert (orders(place), subjects(place)) == ([], [])


async def test_commit_of_the_whole_with_savepoints_open(session: Session, place: Place) -> None:
    with session.begin() as whole:
        publish(session, place, "0")
        session.begin_nested()
        publish(session, place, "1")
        session.begin_nested()
        session.add(Order(id=1))
        publish(session, place, "2")
        whole.commit()
    assert (orders(place), subjects(place)) == ([1], ["0", "1", "2"])


async def test_rollback_of_the_whole_with_savepoints_open(session: Session, place: Place) -> None:
    publish(session, place, "0")
    session.begin_nested()
    publish(session, place, "1")
    session.rollback()
    session.add(Order(id=1))
    session.commit()
    assert (orders(place), subjects(place)) == ([1], [])


# --- what must not be left over ------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["close", "reset", "invalidate", "rollback"])
async def test_a_message_does_not_outlive_its_transaction(session: Session, place: Place, ends: str) -> None:
    publish(session, place, "old")
    getattr(session, ends)()
    session.add(Order(id=1))
    publish(session, place, "new")
    session.commit()
    assert (orders(place), subjects(place)) == ([1], ["new"])


async def test_failed_flush_takes_the_message(session: Session, place: Place) -> None:
    session.add(Order(id=1))
    session.commit()
    session.expunge_all()
    publish(session, place, "old")
    session.add(Order(id=1))
    with pytest.raises(exc.IntegrityError):
        session.commit()
    with pytest.raises(exc.PendingRollbackError):
        publish(session, place, "refused")
    session.rollback()
    publish(session, place, "new")
    session.commit()
    assert subjects(place) == ["new"]


async def test_failed_write_cannot_be_committed_around(session: Session, place: Place) -> None:
    session.add(Order(id=1))
    session.flush()
    writers.insert(session, Insert(names=place.names, messages=[message("good")]))
    writers.insert(session, Insert(names=place.names, messages=[message("bad", partition=99)], serialize_keys=True))
    for _ in range(2):
        with pytest.raises(exc.DBAPIError):
            session.commit()
    session.rollback()
    assert (orders(place), subjects(place)) == ([], [])


async def test_dropped_session_is_collected_with_its_messages(engine: Engine, place: Place) -> None:
    session = Session(engine)
    publish(session, place, "a")
    publish(session, place, "b")
    gone = weakref.ref(session)
    session.connection().close()
    del session
    gc.collect()
    assert gone() is None
    assert subjects(place) == []


async def test_closed_for_good_is_refused(engine: Engine, place: Place) -> None:
    session = Session(engine, close_resets_only=False)
    session.close()
    with pytest.raises(exc.InvalidRequestError):
        publish(session, place, "a")


async def test_session_without_autobegin_must_be_begun(engine: Engine, place: Place) -> None:
    with Session(engine, autobegin=False) as session:
        with pytest.raises(exc.InvalidRequestError):
            publish(session, place, "a")
        with session.begin():
            publish(session, place, "b")
    assert subjects(place) == ["b"]


async def test_info_handed_to_another_session_carries_nothing_over(engine: Engine, place: Place) -> None:
    with Session(engine) as first, Session(engine, info=first.info) as unused:
        publish(first, place, "a")
        with Session(engine, info=first.info | unused.info) as second:
            publish(second, place, "b")
            second.commit()
        assert subjects(place) == ["b"]
        first.commit()
    assert subjects(place) == ["b", "a"]


async def test_sessions_of_one_class_share_the_hooks(engine: Engine, place: Place) -> None:
    make = sessionmaker(engine)
    for name in "ab":
        with make() as session:
            publish(session, place, name)
            assert not session.dispatch.before_commit.listeners
            session.commit()
    assert subjects(place) == ["a", "b"]


# --- hooks that publish --------------------------------------------------------------------------

HOOKS = ["before_commit", "before_flush", "after_flush", "after_flush_postexec"]


@pytest.mark.parametrize("level", ["class", "session"])
@pytest.mark.parametrize("first", ["hook", "publish", "earlier transaction"])
@pytest.mark.parametrize("hook", HOOKS)
async def test_hook_publishes_during_commit(engine: Engine, place: Place, hook: str, first: str, level: str) -> None:
    """Whichever hook publishes, and whether ours were there before it or not, nothing is lost and nothing doubled."""
    make = sessionmaker(engine)
    with make() as session:
        if first != "hook":
            publish(session, place, "early")
        if first == "earlier transaction":
            session.commit()
        once: list[int] = []

        def publishes(session: Session, *_: Any) -> None:
            if not once:
                once.append(1)
                publish(session, place, "a")
                publish(session, place, "b")

        event.listen(make if level == "class" else session, hook, publishes)
        session.add(Order(id=1))
        session.commit()
    assert orders(place) == [1]
    assert subjects(place) == ["early", "a", "b"][1 if first == "hook" else 0 :]


async def test_harvest_before_flush_still_puts_business_rows_first(engine: Engine, place: Place) -> None:
    make = sessionmaker(engine)
    event.listen(make, "before_flush", lambda session, *_: publish(session, place, "a"))
    with make() as session:
        publish(session, place, "first")
        session.commit()
    async with record_statements(engine) as seen:
        with make() as session:
            session.add(Order(id=1))
            session.commit()
    assert tables(seen) == ["orders", "outbox"]
    assert subjects(place) == ["first", "a"]


async def test_loss_would_not_be_silent(engine: Engine, place: Place) -> None:
    """Should a coming SQLAlchemy call its events in another order, a commit that left a message behind raises."""
    with Session(engine) as session:
        publish(session, place, "a")
        session.commit()

        def left_behind(session: Session, _: object) -> None:
            _get_buffer(session).staged.append((session.connection(), batch(place, "b")))

        event.listen(session, "after_flush_postexec", left_behind)
        session.add(Order(id=1))
        with pytest.raises(RuntimeError, match="without 1 message"):
            session.commit()


@pytest.mark.parametrize("hook", ["after_commit", "after_rollback"])
async def test_publishing_after_the_end_is_refused(engine: Engine, place: Place, hook: str) -> None:
    with Session(engine) as session:
        refused: list[str] = []

        def publishes(session: Session) -> None:
            with pytest.raises(exc.InvalidRequestError) as error:
                publish(session, place, "late")
            refused.append(str(error.value))

        event.listen(session, hook, publishes)
        session.add(Order(id=1))
        session.flush()
        (session.commit if hook == "after_commit" else session.rollback)()
    assert len(refused) == 1
    assert subjects(place) == []


# --- connections of the caller's -----------------------------------------------------------------


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_session_in_a_savepoint_of_a_test_fixture(engine: Engine, place: Place, ends: str) -> None:
    with engine.connect() as connection:
        outer = connection.begin()
        connection.execute(insert(Order).values(id=1))
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            publish(session, place, "a")
            session.add(Order(id=2))
            getattr(session, ends)()
            publish(session, place, "b")
            session.commit()
        sql = f"select subject from {place.names.table('outbox', quote=place.quote)} order by id"
        inside = connection.exec_driver_sql(sql)
        assert inside.scalars().all() == (["a", "b"] if ends == "commit" else ["b"])
        outer.rollback()
    assert (orders(place), subjects(place)) == ([], [])


async def test_owner_of_the_connection_commits_without_the_session(engine: Engine, place: Place) -> None:
    with engine.connect() as connection, connection.begin():
        session = Session(connection)
        publish(session, place, "first")
        session.add(Order(id=1))
        publish(session, place, "second")
        session.flush()
        publish(session, place, "third")
        session.close()
    assert (orders(place), subjects(place)) == ([1], ["first", "second", "third"])


async def test_objects_and_messages_that_were_never_flushed_are_left_together(engine: Engine, place: Place) -> None:
    with engine.connect() as connection, connection.begin():
        session = Session(connection)
        session.add(Order(id=1))
        publish(session, place, "a")
    assert (orders(place), subjects(place)) == ([], [])


# --- several databases ---------------------------------------------------------------------------


async def test_default_bind_takes_the_message(engine: Engine, place: Place) -> None:
    with closing(_Elsewhere(engine, place)) as other, Session(bind=engine, binds={Order: other.engine}) as session:
        publish(session, place, "a")
        session.commit()
    assert subjects(place) == ["a"]


async def test_without_default_bind_the_connection_must_be_named(engine: Engine, place: Place) -> None:
    with Session(binds={Order: engine}) as session:
        with pytest.raises(UnsupportedHandle, match="default bind"):
            publish(session, place, "a")
        session.add(Order(id=1))
        writers.insert(session.connection(bind_arguments={"mapper": Order}), batch(place, "b"))
        session.commit()
    assert (orders(place), subjects(place)) == ([1], ["b"])


async def test_session_that_routes_is_asked_for_an_insert(engine: Engine, place: Place) -> None:
    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **more: Any) -> Engine:
            if self._flushing or getattr(clause, "is_dml", False):
                return engine
            raise AssertionError("the replica")

    with Routing() as session:
        publish(session, place, "a")
        session.commit()
    assert subjects(place) == ["a"]


class _Elsewhere:
    """Another database of the same kind, which has none of our tables."""

    def __init__(self, engine: Engine, place: Place) -> None:
        self.engine = create_engine_for(place, engine.dialect.driver).execution_options(
            schema_translate_map={None: "elsewhere"}
        )

    def close(self) -> None:
        self.engine.dispose()


# --- async ---------------------------------------------------------------------------------------


async def test_async_session_stages_alike(place: Place, kind: str) -> None:
    engine = create_async_engine_for(place, ASYNC[kind.partition("-")[2]])
    async with record_statements(engine.sync_engine) as seen, AsyncSession(engine) as session, session.begin():
        answer = writers.insert(session, batch(place, "a"))
        assert answer is not None
        await answer
        session.add(Order(id=1))
        async with session.begin_nested() as savepoint:
            inside = writers.insert(session, batch(place, "b"))
            assert inside is not None
            await inside
            await savepoint.rollback()
    await engine.dispose()
    assert tables(seen)[:2] == ["orders", "outbox"]
    assert (orders(place), subjects(place)) == ([1], ["a"])
