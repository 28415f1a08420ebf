"""Any sequence of raising, changing, flushing and ending leaves the rows that a simple model expects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, sessionmaker

from tests.support.writers.places import Place, subjects
from tests.support.writers.shop_models import Declared, build_outbox, raise_words
from tests.support.writers.sqlalchemy_handles import create_engine_for

STEPS: Final = [
    "raise",
    "raise on a new one",
    "change",
    "delete",
    "flush",
    "savepoint",
    "release",
    "undo",
    "rollback",
    "commit",
]


@pytest.fixture(params=["psycopg", "pysqlite", "pymysql"])
def kind(request: pytest.FixtureRequest) -> str:
    return f"SessionHandle-{request.param}"


@pytest.fixture
def engine(kind: str, place: Place) -> Iterator[Engine]:
    engine = create_engine_for(place, kind.partition("-")[2])
    if engine.dialect.name == "sqlite":
        _begin_properly(engine)
    yield engine
    engine.dispose()


def _begin_properly(engine: Engine) -> None:
    """Left alone, sqlite3 begins no transaction for a savepoint, and its release would commit."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("begin")


class Model:
    """Words committed, and the words of each open transaction or savepoint."""

    def __init__(self) -> None:
        self.committed: list[str] = []
        self.open: list[list[str]] = [[]]

    def savepoint(self) -> None:
        self.open.append([])

    def release(self) -> None:
        kept = self.open.pop()
        self.open[-1] += kept

    def undo(self) -> None:
        self.open.pop()

    def end(self, *, kept: bool) -> None:
        if kept:
            self.committed += [word for words in self.open for word in words]
        self.open = [[]]


class Run:
    """A session that takes steps, with the model beside it."""

    def __init__(self, session: Session, words: Iterator[int]) -> None:
        self.session = session
        self.model = Model()
        self._words = words
        self._savepoints: list[Callable[[], object]] = []
        self._orders = [Declared(note="old") for _ in range(2)]
        session.add_all(self._orders)
        session.commit()
        self._ids = [order.id for order in self._orders]

    def take(self, step: str, which: int) -> None:
        getattr(self, "_" + step.replace(" ", "_"))(which)

    def _order(self, which: int) -> Declared | None:
        return self.session.get(Declared, self._ids[which])

    def _execute_beneath(self, order: Declared) -> None:
        word = str(next(self._words))
        raise_words(order, word)
        self.model.open[-1].append(word)

    def _raise(self, which: int) -> None:
        if (order := self._order(which)) is not None:
            self._execute_beneath(order)

    def _raise_on_a_new_one(self, which: int) -> None:
        order = Declared(note="new")
        if which:
            self._execute_beneath(order)
        self.session.add(order)
        self._execute_beneath(order)

    def _change(self, which: int) -> None:
        if (order := self._order(which)) is not None:
            order.note = str(next(self._words))

    def _delete(self, which: int) -> None:
        if (order := self._order(which)) is not None:
            self._execute_beneath(order)
            self.session.delete(order)

    def _flush(self, _: int) -> None:
        self.session.flush()

    def _savepoint(self, _: int) -> None:
        self.session.begin_nested()
        self.model.savepoint()

    def _release(self, _: int) -> None:
        if (savepoint := self.session.get_nested_transaction()) is not None:
            savepoint.commit()
            self.model.release()

    def _undo(self, _: int) -> None:
        if (savepoint := self.session.get_nested_transaction()) is not None:
            savepoint.rollback()
            self.model.undo()

    def _rollback(self, _: int) -> None:
        self.session.rollback()
        self.model.end(kept=False)

    def _commit(self, _: int) -> None:
        self.session.commit()
        self.model.end(kept=True)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(steps=[("savepoint", 0), ("raise on a new one", 0), ("release", 0), ("rollback", 0)])
@example(steps=[("raise", 0), ("savepoint", 0), ("undo", 0)])
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1)), max_size=25))
def test_the_rows_are_those_of_the_model(steps: list[tuple[str, int]], engine: Engine, place: Place) -> None:
    before = len(subjects(place))
    maker = sessionmaker(engine)
    build_outbox(place).attach(maker)
    with maker() as session:
        run = Run(session, count())
        for step, which in steps:
            run.take(step, which)
        run.take("commit", 0)
    assert subjects(place)[before:] == run.model.committed
