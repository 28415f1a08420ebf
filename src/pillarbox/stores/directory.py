"""Directory of tenants: the names that a query returns, from any database that a store URL can name."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pillarbox.errors import ConfigError, StoreError
from pillarbox.redaction import redact_line
from pillarbox.stores.urls import StoreUrl

__all__ = ["MOST_TENANTS", "query_column"]

MOST_TENANTS: Final = 10_000
"""Rows of a directory that are read."""
_TIMEOUT: Final = 10.0


async def query_column(url: StoreUrl, query: str) -> Sequence[object]:
    """Return the first column of a query that only reads; `StoreError` in a sentence if it cannot be asked.

    It runs in a transaction that cannot write, for at most ten seconds. `ConfigError` if it has too many rows.
    """
    match url.scheme:
        case "postgresql":
            rows = await _query_postgres(url, query)
        case "sqlite":
            rows = await asyncio.to_thread(_query_sqlite, url, query)
        case "mysql":
            rows = await asyncio.to_thread(_query_mysql, url, query)
        case _:
            raise ConfigError(
                f"A {url.scheme} store cannot be asked for tenants: name a database in tenants.directory."
            )
    if len(rows) > MOST_TENANTS:
        raise ConfigError(f"The query for tenants returns more than {MOST_TENANTS} rows: narrow it.")
    return rows


async def _query_postgres(url: StoreUrl, query: str) -> Sequence[object]:
    from pillarbox.stores.postgres.connection import map_errors
    from pillarbox.stores.postgres.driver import load_driver

    driver = load_driver(url.driver)
    with map_errors(driver):
        async with asyncio.timeout(2 * _TIMEOUT):
            connection = await driver.connect(url.dsn, timeout=_TIMEOUT, command_timeout=_TIMEOUT)
            try:
                async with connection.transaction(isolation="read_committed", readonly=True):
                    await connection.execute(f"set local statement_timeout = {int(_TIMEOUT * 1000)}")
                    if url.schema is not None:
                        await connection.execute(f'set local search_path = "{url.schema}", public')
                    return [row[0] for row in (await connection.fetch(query))[: MOST_TENANTS + 1]]
            finally:
                with contextlib.suppress(*driver.errors):
                    await connection.close(timeout=2)


def _query_sqlite(url: StoreUrl, query: str) -> Sequence[object]:
    path = Path(url.path)
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as opened:
            return [row[0] for row in opened.execute(query).fetchmany(MOST_TENANTS + 1)]
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be asked for tenants ({redact_line(str(error))}): check the query.") from error


def _query_mysql(url: StoreUrl, query: str) -> Sequence[object]:
    from pillarbox.stores.mariadb.connection import connect, map_errors

    with map_errors():
        connection: Any = connect(url.dsn, timeout=_TIMEOUT)
        try:
            connection.query("start transaction read only")
            with connection.cursor() as cursor:
                cursor.execute(query)
                return [row[0] for row in cursor.fetchmany(MOST_TENANTS + 1)]
        finally:
            connection.close()
