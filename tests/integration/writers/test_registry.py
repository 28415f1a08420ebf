"""From a handle to its writer, and what people are told who give something else."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

import aiomysql
import asyncpg
import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from pillarbox import writers
from pillarbox.contracts.writer import Insert
from pillarbox.errors import UnsupportedHandle
from pillarbox.message import Names
from pillarbox.writers.registry import find_writer_class
from tests.support.writers.handles import Handle
from tests.support.writers.kinds import KINDS

ASYNC = ("async", "Async", "aiosqlite", "aiomysql")


async def test_every_kind_knows_whether_it_is_awaited(handle: Handle, kind: str) -> None:
    assert writers.is_async(handle.tx) is any(word in kind for word in ASYNC)


async def test_heirs_are_handles_too(handle: Handle, kind: str) -> None:
    heir = type("Heir", (_Between, type(handle.tx)), {}) if kind != "asyncpg-pool" else type(handle.tx)
    assert find_writer_class(heir).is_async is any(word in kind for word in ASYNC)


class _Between:
    """A mixin, as applications have."""


class _Shouting(sqlite3.Connection):
    pass


def test_heir_of_a_connection_writes(sqlite_place: Any) -> None:
    with closing(sqlite3.connect(sqlite_place.path, factory=_Shouting)) as connection:
        writers.insert(connection, Insert(names=sqlite_place.names, messages=[]))


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda: create_engine("sqlite://"), "it is an engine"),
        (lambda: create_async_engine("sqlite+aiosqlite://"), "it is an engine"),
        (lambda: sessionmaker(create_engine("sqlite://")), "it makes sessions"),
        (async_sessionmaker, "it makes sessions"),
        (lambda: asyncpg.create_pool("postgresql://nowhere"), "it is a pool"),
        (lambda: aiomysql.Pool(0, 1, False, -1, asyncio.get_running_loop()), "it is a pool"),
        (lambda: sqlite3.connect(":memory:").cursor(), "it is a cursor"),
        (lambda: pymysql.cursors.DictCursor(None), "it is a cursor"),
        (lambda: create_engine("sqlite://").connect().begin(), "it is a transaction"),
        (lambda: "postgresql://user:secret@host/db", "not a connection or session"),
        (lambda: None, "not a connection or session"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_other_things_are_refused_with_advice(wrong: Any, hint: str) -> None:
    _ask(wrong(), hint)
    # What was not closed is found now, and not in a later test that minds: Python 3.13 warns of SQLite's connections.
    gc.collect()


def _ask(given: Any, hint: str) -> None:
    for ask in (writers.is_async, lambda tx: writers.insert(tx, Insert(names=Names(), messages=[]))):
        with pytest.raises(UnsupportedHandle, match=hint) as refusal:
            ask(given)
        assert "secret" not in str(refusal.value)
        assert "asyncpg" in str(refusal.value)


def test_no_driver_is_imported_that_the_caller_does_not_use() -> None:
    program = """
import sqlite3, sys
from pillarbox import writers
from pillarbox.message import Names
from pillarbox.contracts.writer import Insert
from pillarbox.writers.registry import find_writer_class
writers.insert(sqlite3.connect(":memory:"), Insert(names=Names(), messages=[]))
drivers = {"asyncpg", "psycopg", "aiosqlite", "pymysql", "asyncmy", "aiomysql"}
print(sorted({"sqlalchemy", *drivers} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_catalogue_is_complete() -> None:
    assert {"sqlite3", "aiosqlite", "psycopg", "psycopg-async", "asyncpg", "asyncpg-pool"} < set(KINDS)
    assert {"pymysql", "asyncmy", "asyncmy-pool", "aiomysql", "aiomysql-pool", "SessionHandle-pymysql"} < set(KINDS)
