"""Every kind of database that a consumer can be given, and handlers that are written once for all of them.

A handler here is a generator: it yields SQL, and gets errors thrown back in, as if it had called the driver itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from tests.consumer.scene import Ticked

__all__ = ["ON_POSTGRES", "Body", "Kind", "handler"]

Kind = Callable[[str, str], AbstractAsyncContextManager[object]]
"""From URL and schema to what `Consumer` takes as its database."""
Body = Callable[[Ticked], Generator[str, None, None]]


def handler(body: Body, *, is_async: bool) -> Callable[..., Any]:
    """The handler that does this."""

    def handle(event: Ticked, tx: Any) -> None:
        steps = body(event)
        sql = next(steps, None)
        while sql is not None:
            try:
                tx.execute(_said(tx, sql))
            except Exception as error:
                sql = _thrown(steps, error)
            else:
                sql = next(steps, None)

    async def handle_async(event: Ticked, tx: Any) -> None:
        steps = body(event)
        sql = next(steps, None)
        while sql is not None:
            try:
                await tx.execute(_said(tx, sql))
            except Exception as error:
                sql = _thrown(steps, error)
            else:
                sql = next(steps, None)

    return handle_async if is_async else handle


def _said(tx: Any, sql: str) -> Any:
    return sqlalchemy.text(sql) if type(tx).__module__.startswith("sqlalchemy") else sql


def _thrown(steps: Generator[str, None, None], error: Exception) -> str | None:
    try:
        return steps.throw(error)
    except StopIteration:
        return None


# --- PostgreSQL ------------------------------------------------------------------------------------------


def _at(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def _asyncpg(url: str, schema: str) -> AsyncIterator[object]:
    async with asyncpg.create_pool(url, min_size=1, max_size=4, server_settings={"search_path": schema}) as pool:
        yield pool


@asynccontextmanager
async def _psycopg(url: str, schema: str) -> AsyncIterator[object]:
    """A function that returns a context manager."""

    @contextmanager
    def begin() -> Any:
        with psycopg.connect(url, options=f"-c search_path={schema}") as connection:
            yield connection

    yield begin


@asynccontextmanager
async def _engine(url: str, schema: str) -> AsyncIterator[object]:
    options = {"options": f"-c search_path={schema}"}
    engine = sqlalchemy.create_engine(_at(url, "psycopg"), connect_args=options)
    try:
        yield engine
    finally:
        engine.dispose()


@asynccontextmanager
async def _sessions(url: str, schema: str) -> AsyncIterator[object]:
    async with _engine(url, schema) as engine:
        yield sessionmaker(engine)  # type: ignore[call-overload]


@asynccontextmanager
async def _async_engine(url: str, schema: str) -> AsyncIterator[object]:
    engine = create_async_engine(_at(url, "asyncpg"), connect_args={"server_settings": {"search_path": schema}})
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def _async_sessions(url: str, schema: str) -> AsyncIterator[object]:
    async with _async_engine(url, schema) as engine:
        yield async_sessionmaker(engine)  # type: ignore[call-overload]


@asynccontextmanager
async def _async_psycopg_sessions(url: str, schema: str) -> AsyncIterator[object]:
    options = {"options": f"-c search_path={schema}"}
    engine = create_async_engine(_at(url, "psycopg"), connect_args=options)
    try:
        yield async_sessionmaker(engine)
    finally:
        await engine.dispose()


ON_POSTGRES: Final[dict[str, tuple[Kind, bool]]] = {
    "asyncpg-pool": (_asyncpg, True),
    "psycopg": (_psycopg, False),
    "engine": (_engine, False),
    "sessions": (_sessions, False),
    "async-engine": (_async_engine, True),
    "async-sessions": (_async_sessions, True),
    "async-sessions-psycopg": (_async_psycopg_sessions, True),
}
"""By name; and whether its handlers are async."""
