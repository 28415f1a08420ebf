"""What only PostgreSQL has: a role that may insert and nothing else, key locks, two-phase commit, codecs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.orm import Session

from pillarbox import writers
from pillarbox.contracts.writer import Insert
from pillarbox.message import Names
from pillarbox.writers.insert_sql import COLUMNS
from tests.support.private_postgres import PrivatePostgres
from tests.support.writers.handles import Handle, insert, resolve, write_staged
from tests.support.writers.kinds import STORES
from tests.support.writers.places import Place, PostgresPlace, batch, message, orders, outbox, subjects
from tests.support.writers.sqlalchemy_handles import Order, create_engine_for

POSTGRES = [kind for kind, store in STORES.items() if store == "postgres"]


@pytest.fixture(params=POSTGRES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- rights --------------------------------------------------------------------------------------


@pytest.fixture
def writer_role(place: Place) -> Iterator[str]:
    """May insert into the columns that a writer fills, and nothing else."""
    assert isinstance(place, PostgresPlace)
    role = f"writer_{place.names.schema}"
    grants = f"""
        create role {role} nologin;
        grant usage on schema {place.names.schema} to {role};
        grant insert on {place.orders} to {role};
        grant insert ({", ".join(COLUMNS)}, available_at, waits) on {place.names.table("outbox")} to {role}
    """
    with psycopg.connect(place.url) as connection:
        connection.execute(grants.encode())
    yield role
    with psycopg.connect(place.url) as connection:
        connection.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_inserting_columns_is_all_the_right_it_takes(handle: Handle, place: Place, writer_role: str) -> None:
    await handle.begin()
    await _execute(handle, f"set local role {writer_role}")
    await insert(handle, batch(place, "one"))
    await insert(handle, batch(place, "two", "three", serialize_keys=True))
    await handle.commit()
    assert subjects(place) == ["one", "two", "three"]
    may_not = ["tx", "id", "attempts", "last_error", "status_at", "created_at"]
    rights = [f"has_column_privilege('{writer_role}', 'pillarbox_outbox', '{column}', 'insert')" for column in may_not]
    rights.append(f"has_any_column_privilege('{writer_role}', 'pillarbox_outbox', 'select, update')")
    assert place.query(f"select {' or '.join(rights)} as too_much") == [{"too_much": False}]


async def _execute(handle: Handle, sql: str) -> None:
    tx = handle.tx
    if hasattr(tx, "flush"):
        tx = await resolve(tx.connection())
    await resolve(tx.exec_driver_sql(sql) if hasattr(tx, "exec_driver_sql") else tx.execute(sql))


# --- keys ----------------------------------------------------------------------------------------


async def test_second_writer_of_a_key_waits_for_the_first(
    handle: Handle, place: Place, keyed: Callable[..., Insert]
) -> None:
    assert isinstance(place, PostgresPlace)
    await handle.begin()
    await insert(handle, keyed("k", None, "other"))
    await handle.flush_written()
    await write_staged(handle)
    with psycopg.connect(place.url) as second:
        second.execute("set lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable), second.transaction():
            writers.insert(second, keyed("k"))
        with second.transaction():
            writers.insert(second, keyed("free", None))
        await handle.commit()
        with second.transaction():
            writers.insert(second, keyed("k"))
        second.commit()
    assert sorted(subjects(place), key=str) == sorted(["k", "None", "other", "free", "None", "k"])


# --- two phases ----------------------------------------------------------------------------------


def test_two_phase_session(private_postgres: Callable[[], PrivatePostgres]) -> None:
    server = private_postgres()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("alter system set max_prepared_transactions = 5")
        connection.execute("create schema shop")
    server.stop()
    server.start()
    place = PostgresPlace(server.url, Names(schema="shop"))
    place.install()
    engine = create_engine_for(place, "psycopg")
    with Session(engine, twophase=True) as session:
        writers.insert(session, batch(place, "a"))
        session.add(Order(id=1))
        session.prepare()
        assert subjects(place) == []
        with pytest.raises(Exception, match="prepared"):
            writers.insert(session, batch(place, "late"))
        session.commit()
        writers.insert(session, batch(place, "b"))
        session.prepare()
        session.rollback()
        writers.insert(session, batch(place, "c"))
        session.commit()
    engine.dispose()
    assert (orders(place), subjects(place)) == ([1], ["a", "c"])


# --- what applications set on their connections --------------------------------------------------


async def test_asyncpg_codecs_for_json_do_not_matter(postgres_place: PostgresPlace) -> None:
    connection = await asyncpg.connect(postgres_place.url)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    given = [message("a", headers={"h": "1"}), message("b", headers={"h": "2"})]
    async with connection.transaction():
        await resolve(writers.insert(connection, Insert(names=postgres_place.names, messages=given[:1])))
        await resolve(writers.insert(connection, Insert(names=postgres_place.names, messages=given)))
    await connection.close()
    assert [one.headers for one in outbox(postgres_place)] == [{"h": "1"}, {"h": "1"}, {"h": "2"}]


@pytest.mark.parametrize("factory", [psycopg.ClientCursor, psycopg.RawCursor, psycopg.Cursor])
def test_psycopg_cursor_and_row_factories_do_not_matter(postgres_place: PostgresPlace, factory: Any) -> None:
    def rows(cursor: Any) -> Any:
        raise AssertionError("no row is wanted")

    with psycopg.connect(postgres_place.url, cursor_factory=factory, row_factory=rows) as connection:
        writers.insert(connection, batch(postgres_place, "a", "b", serialize_keys=True))
        writers.insert(connection, batch(postgres_place, "c"))
    assert subjects(postgres_place) == ["a", "b", "c"]
