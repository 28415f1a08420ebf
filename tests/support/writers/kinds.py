"""The catalogue: every kind of handle over every store and driver that it can have."""

from __future__ import annotations

import importlib.util
from typing import Final

from tests.support.writers import mysql_handles as mysql
from tests.support.writers import raw_handles as raw
from tests.support.writers import sqlalchemy_handles as sa
from tests.support.writers.handles import Handle

_SYNC: Final = {
    "psycopg": "postgres", "psycopg2": "postgres", "pysqlite": "sqlite", "pymysql": "mariadb", "MySQLdb": "mariadb",
}  # fmt: skip
_ASYNC: Final = {
    "asyncpg": "postgres", "psycopg": "postgres", "aiosqlite": "sqlite", "asyncmy": "mariadb", "aiomysql": "mariadb",
}  # fmt: skip

_BESIDES: Final = (sa.MadeSessionHandle, sa.ScopedSessionHandle, sa.AsyncScopedSessionHandle)
"""How they differ from a plain session is no matter of the database: two databases show it."""


def _kinds() -> dict[str, tuple[str, type[Handle]]]:
    kinds: dict[str, tuple[str, type[Handle]]] = {
        "sqlite3": ("sqlite", raw.Sqlite3Handle),
        "aiosqlite": ("sqlite", raw.AiosqliteHandle),
        "psycopg": ("postgres", raw.PsycopgHandle),
        "psycopg-async": ("postgres", raw.AsyncPsycopgHandle),
        "asyncpg": ("postgres", raw.AsyncpgHandle),
        "asyncpg-pool": ("postgres", raw.AsyncpgPoolHandle),
        "pymysql": ("mariadb", mysql.PymysqlHandle),
        "asyncmy": ("mariadb", mysql.AsyncmyHandle),
        "asyncmy-pool": ("mariadb", mysql.AsyncmyPoolHandle),
        "aiomysql": ("mariadb", mysql.AiomysqlHandle),
        "aiomysql-pool": ("mariadb", mysql.AiomysqlPoolHandle),
    }
    for driver, store in _SYNC.items():
        if driver == "pysqlite" or importlib.util.find_spec(driver) is not None:
            for base in (sa.ConnectionHandle, sa.SessionHandle, sa.MadeSessionHandle, sa.ScopedSessionHandle):
                if store == "mariadb" and base in _BESIDES:
                    continue
                kinds[f"{base.__name__}-{driver}"] = (store, type(base.__name__, (base,), {"driver": driver.lower()}))
    for driver, store in _ASYNC.items():
        for async_base in (sa.AsyncConnectionHandle, sa.AsyncSessionHandle, sa.AsyncScopedSessionHandle):
            if store == "mariadb" and async_base in _BESIDES:
                continue
            make = type(async_base.__name__, (async_base,), {"driver": driver})
            kinds[f"{async_base.__name__}-{driver}"] = (store, make)
    return kinds


KINDS: Final = _kinds()
STORES: Final = {name: store for name, (store, _) in KINDS.items()}
SESSIONS: Final = [name for name in KINDS if "Session" in name]
