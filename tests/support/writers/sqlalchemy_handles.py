"""SQLAlchemy's connections and sessions, over each driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from tests.support.writers.handles import Undo
from tests.support.writers.places import MariadbPlace, Place, PostgresPlace, SqlitePlace

ASYNC: Final = {"psycopg": "asyncpg", "pysqlite": "aiosqlite", "pymysql": "asyncmy"}
"""A driver that is awaited, for the same database."""


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    note: Mapped[str | None]


class Derived(Session):
    """While it exists, the plain `Session` has heirs, and our hooks go to each of its instances."""


def build_url(place: Place, driver: str) -> str:
    if isinstance(place, SqlitePlace):
        return f"sqlite+{driver}:///{place.path}"
    assert isinstance(place, PostgresPlace | MariadbPlace)
    dialect = "postgresql" if isinstance(place, PostgresPlace) else "mysql"
    return make_url(place.url).set(drivername=f"{dialect}+{driver}").render_as_string(hide_password=False)


def create_engine_for(place: Place, driver: str, **options: Any) -> Engine:
    return create_engine(build_url(place, driver), **options).execution_options(
        schema_translate_map={None: place.names.schema}
    )


def create_async_engine_for(place: Place, driver: str, **options: Any) -> AsyncEngine:
    return create_async_engine(build_url(place, driver), **options).execution_options(
        schema_translate_map={None: place.names.schema}
    )


@asynccontextmanager
async def record_statements(engine: Engine) -> AsyncIterator[list[str]]:
    seen: list[str] = []

    def note(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


class _Sync:
    driver: ClassVar[str]
    tx: Any

    async def open(self, place: Place) -> None:
        self.place = place
        self.engine = create_engine_for(place, self.driver)
        self.tx = self._make()

    def _make(self) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        self.tx.close()
        self.engine.dispose()

    async def begin(self) -> None: ...

    async def commit(self) -> None:
        self.tx.commit()

    async def rollback(self) -> None:
        self.tx.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        try:
            with self.tx.begin_nested():
                yield
        except Undo:
            pass

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[list[str]]:
        async with record_statements(self.engine) as seen:
            yield seen


class ConnectionHandle(_Sync):
    def _make(self) -> Any:
        return self.engine.connect()

    async def order(self, number: int) -> None:
        self.tx.execute(text(f"insert into {self.place.orders} (id) values (:id)"), {"id": number})

    async def flush_written(self) -> None: ...


class SessionHandle(_Sync):
    def _make(self) -> Any:
        return Session(self.engine)

    async def order(self, number: int) -> None:
        self.tx.add(Order(id=number))

    async def flush_written(self) -> None:
        self.tx.flush()


class MadeSessionHandle(SessionHandle):
    """From a sessionmaker, which makes a class of its own."""

    def _make(self) -> Any:
        return sessionmaker(self.engine)()


class ScopedSessionHandle(SessionHandle):
    def _make(self) -> Any:
        return scoped_session(sessionmaker(self.engine))

    async def close(self) -> None:
        self.tx.remove()
        self.engine.dispose()


class _Async:
    driver: ClassVar[str]
    tx: Any

    async def open(self, place: Place) -> None:
        self.place = place
        self.engine = create_async_engine_for(place, self.driver)
        self.tx = await self._make()

    async def _make(self) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        await self.tx.close()
        await self.engine.dispose()

    async def begin(self) -> None: ...

    async def commit(self) -> None:
        await self.tx.commit()

    async def rollback(self) -> None:
        await self.tx.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        try:
            async with self.tx.begin_nested():
                yield
        except Undo:
            pass

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[list[str]]:
        async with record_statements(self.engine.sync_engine) as seen:
            yield seen


class AsyncConnectionHandle(_Async):
    async def _make(self) -> Any:
        return await self.engine.connect()

    async def order(self, number: int) -> None:
        await self.tx.execute(text(f"insert into {self.place.orders} (id) values (:id)"), {"id": number})

    async def flush_written(self) -> None: ...


class AsyncSessionHandle(_Async):
    async def _make(self) -> Any:
        return AsyncSession(self.engine)

    async def order(self, number: int) -> None:
        self.tx.add(Order(id=number))

    async def flush_written(self) -> None:
        await self.tx.flush()


class AsyncScopedSessionHandle(AsyncSessionHandle):
    async def _make(self) -> Any:
        return async_scoped_session(async_sessionmaker(self.engine), scopefunc=lambda: None)

    async def close(self) -> None:
        await self.tx.remove()
        await self.engine.dispose()
