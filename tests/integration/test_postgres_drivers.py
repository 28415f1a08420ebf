"""What the PostgreSQL store asks of a driver, kept by both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from urllib.parse import quote, urlsplit
from uuid import UUID

import asyncpg
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pillarbox.errors import ConfigError, SchemaMissing, StoreBusy, StoreError, StoreForbidden, StoreUnavailable
from pillarbox.stores.factory import open_store
from pillarbox.stores.postgres.connection import Database, map_errors
from pillarbox.stores.postgres.driver import Connection, Driver, DriverName, load_driver
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.pooler import forgetful_pooler
from tests.support.private_postgres import PrivatePostgres
from tests.support.relay_behaviour.scene import until

CANARY = "c4nary-s3cret"
PATIENCE = 40.0
NAMES: tuple[DriverName, ...] = get_args(DriverName)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> DriverName:
    found: DriverName = request.param
    return found


@pytest.fixture
def driver(name: DriverName) -> Driver:
    return load_driver(name)


@asynccontextmanager
async def connected(driver: Driver, url: str, *, size: int = 1, timeout: float = PATIENCE) -> AsyncIterator[Connection]:
    pool = await driver.create_pool(url, size=size, timeout=timeout)
    try:
        async with pool.acquire(timeout=PATIENCE) as connection:
            yield connection
    finally:
        await pool.close()


@asynccontextmanager
async def database(
    name: DriverName, url: str, *, connections: int = 1, timeout: float = PATIENCE
) -> AsyncIterator[Database]:
    opened = Database(url, driver=name, connections=connections, timeout=timedelta(seconds=timeout))
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[str, FaultProxy]]:
    parts = urlsplit(url)
    async with FaultProxy(parts.hostname or "127.0.0.1", parts.port or 5432) as proxy:
        netloc = f"{parts.username or 'postgres'}@{proxy.host}:{proxy.port}"
        yield parts._replace(netloc=netloc, query="sslmode=disable").geturl(), proxy


async def pid_of(opened: Database) -> int:
    async with opened.quick() as connection:
        return int(await connection.fetchval("select pg_backend_pid()"))


def run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def terminate(url: str, pid: int) -> None:
    """End that session, and come back when it is gone."""
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("select pg_terminate_backend(%s, 30000)", [pid]).fetchone() == (True,)


# --- values --------------------------------------------------------------------------------------

ROUND = """
    select $1::text, $2::bigint, $3::smallint[], $4::text[], $5::uuid, $6::timestamptz, $7::interval, $8::boolean,
           $9::uuid[], $10::interval[], $11::xid8[]::text, $12::text, convert_to($1, 'utf8')
"""


async def test_values_arrive_as_what_the_statement_expects(driver: Driver, postgres_url: str) -> None:
    at, long, relay = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), timedelta(days=2, microseconds=3), UUID(int=5)
    strange = ['a"b', "c\\d", "", "null", None, "e,f", "{g}", "ü✉", " h\n"]
    values = ("it's $1 %s", 2**62, [1, 2], strange, relay, at, long, True, [relay], [None, -long], [7, 2**40], None)

    async with connected(driver, postgres_url) as connection:
        row = await connection.fetchrow(ROUND, *values)

    assert tuple(row) == (*values[:10], "{7,1099511627776}", None, b"it's $1 %s")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_any_list_of_texts_arrives(postgres_url: str, texts: list[str | None]) -> None:
    async def there_and_back() -> Any:
        async with connected(load_driver("psycopg"), postgres_url) as connection:
            return await connection.fetchval("select $1::text[]", texts)

    assert asyncio.run(there_and_back()) == texts


async def test_json_comes_as_it_stands(driver: Driver, postgres_url: str) -> None:
    async with connected(driver, postgres_url) as connection:
        told = await connection.fetchval("""select '{"a": "b"}'::jsonb""")

    assert (told if isinstance(told, str) else told.decode()) == '{"a": "b"}'


async def test_times_are_told_in_utc_wherever_the_server_is(name: DriverName, postgres_url: str) -> None:
    abroad = f"options={quote('-c timezone=Asia/Tokyo')}"
    async with database(name, f"{postgres_url}?{abroad}") as direct, forgetful_pooler(postgres_url) as url:
        patience = timedelta(seconds=PATIENCE)
        pooled = Database(f"{url}&{abroad}", driver=name, pooler="transaction", connections=1, timeout=patience)
        await pooled.open()
        for opened in (direct, pooled):
            for way in (opened.quick, opened.durable, opened.unpinned, opened.snapshot):
                async with way() as connection:
                    told = await connection.fetchval("select statement_timestamp()")
                assert told.utcoffset() == timedelta(0)
        await pooled.close()


async def test_what_the_server_says_of_a_statement(driver: Driver, postgres_url: str) -> None:
    async with connected(driver, postgres_url) as connection:
        assert await connection.execute("create temp table t (a int); insert into t values (1), (2)")
        assert await connection.execute("delete from t where a = any($1::int[])", [2, 3]) == "DELETE 1"
        assert await connection.fetchval("select a from t where a = $1", 9) is None
        assert await connection.fetchrow("select a from t where a = $1", 9) is None
        assert [tuple(row) for row in await connection.fetch("select a, a from t")] == [(1, 1)]


async def test_asyncpg_has_nothing_in_between(postgres_url: str) -> None:
    """The connections that the store uses are asyncpg's own: the seam costs nothing there."""
    driver = load_driver("asyncpg")
    pool: Any = await driver.create_pool(postgres_url, size=1, timeout=PATIENCE)
    async with pool.acquire(timeout=PATIENCE) as connection:
        assert type(connection).__module__ == "asyncpg.pool"
        assert driver.unwrap(connection) is connection
    await pool.close()


# --- transactions --------------------------------------------------------------------------------


class Oops(Exception): ...


async def fail_after(opened: Database, statement: str) -> None:
    async with opened.durable() as connection:
        await connection.execute(statement)
        raise Oops


async def test_an_error_rolls_back_and_the_connection_goes_on(name: DriverName, postgres_url: str) -> None:
    async with database(name, postgres_url) as opened:
        pid = await pid_of(opened)
        with pytest.raises(Oops):
            await fail_after(opened, "create table never_made (a int)")
        with pytest.raises(StoreError, match="division by zero"):
            async with opened.durable() as connection:
                await connection.execute("select 1 / 0")
        async with opened.unpinned() as connection:
            assert await connection.fetchval("select to_regclass('never_made')") is None
        assert await pid_of(opened) == pid


async def test_a_transaction_is_what_was_asked_for(driver: Driver, postgres_url: str) -> None:
    asked = "select current_setting('transaction_isolation'), current_setting('transaction_read_only')"
    async with connected(driver, postgres_url) as connection:
        async with connection.transaction(isolation="read_committed"):
            assert tuple(await connection.fetchrow(asked)) == ("read committed", "off")
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            assert tuple(await connection.fetchrow(asked)) == ("repeatable read", "on")


# --- what goes wrong -----------------------------------------------------------------------------


async def ask(driver: Driver, url: str, statement: str) -> None:
    with map_errors(driver):
        connection = await driver.connect(url, timeout=PATIENCE)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


async def told_by(driver: Driver, url: str, statement: str = "select 1") -> StoreError:
    with pytest.raises(StoreError) as told:
        await ask(driver, url, statement)
    assert CANARY not in str(told.value)
    assert "\n" not in str(told.value)
    return told.value


@pytest.mark.parametrize(
    ("statement", "kind", "said"),
    [
        ("select * from not_there", SchemaMissing, 'A table is missing (relation "not_there" does not exist)'),
        ("select * from pg_authid", StoreForbidden, "see `pillarbox schema grants`"),
        ("selekt", StoreError, '42601: syntax error at or near "selekt"'),
        ("do 'begin raise lock_not_available; end'", StoreBusy, "it will be tried again"),
        ("set transaction read only; create table t (a int)", StoreUnavailable, "read-only transaction"),
    ],
)
async def test_refusals_are_told_alike(
    driver: Driver, postgres_url: str, statement: str, kind: type[StoreError], said: str
) -> None:
    error = await told_by(driver, postgres_url, f"set role pg_monitor; {statement}")

    assert type(error) is kind
    assert said in str(error)


async def test_a_refusal_keeps_what_is_in_the_row_to_itself(driver: Driver, postgres_url: str) -> None:
    statement = f"create temp table t (a text check (a = '')); insert into t values ('{CANARY}')"

    assert "violates check constraint" in str(await told_by(driver, postgres_url, statement))


async def test_nobody_there(driver: Driver, postgres_url: str) -> None:
    error = await told_by(driver, f"postgresql://app:{CANARY}@127.0.0.1:1/shop")

    assert type(error) is StoreUnavailable
    assert "PostgreSQL cannot be reached" in str(error)


async def test_no_such_database_and_no_such_role(driver: Driver, postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    nowhere = await told_by(driver, parts._replace(path="/pillarbox_nowhere").geturl())
    stranger = await told_by(
        driver, parts._replace(netloc=f"pillarbox_nobody:{CANARY}@{parts.hostname}:{parts.port}").geturl()
    )

    assert 'PostgreSQL is there, but database "pillarbox_nowhere" does not exist: create it' in str(nowhere)
    assert "PostgreSQL refused the login" in str(stranger)
    assert {type(nowhere), type(stranger)} == {StoreUnavailable}


async def test_a_wrong_password(driver: Driver, private_postgres: Callable[[], PrivatePostgres]) -> None:
    server = private_postgres()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create role app login password 'right'")
        (server.data / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n")
        connection.execute("select pg_reload_conf()")

    for login in (f"app:{CANARY}", "app"):
        error = await told_by(driver, f"postgresql://{login}@127.0.0.1:{server.port}/postgres?passfile=/not/there")
        assert type(error) is StoreUnavailable
        assert "refused the login" in str(error)


async def test_a_url_that_libpq_cannot_read_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="as %XX") as told:
        await load_driver("psycopg").connect(f"postgresql://app:{CANARY}%zz@127.0.0.1/shop", timeout=PATIENCE)

    assert (
        CANARY not in f"{told.value} {told.value.__cause__} {told.value.__suppress_context__ or told.value.__context__}"
    )


async def test_settings_and_a_search_path_in_the_url(driver: Driver, postgres_url: str) -> None:
    options, path = quote("-c statement_timeout=12345"), '"a b", pg_catalog'
    url = f"{postgres_url}?options={options}&search_path={quote(path)}&application_name=till"
    connection = await driver.connect(url, timeout=PATIENCE)
    shown = [await connection.fetchval(f"show {what}") for what in ("statement_timeout", "search_path")]
    name = await connection.fetchval("show application_name")
    await connection.close()

    assert (*shown, name) == ("12345ms", path, "till")


# --- being cut off -------------------------------------------------------------------------------


async def test_a_connection_lost_while_idle_is_replaced_unnoticed(name: DriverName, postgres_url: str) -> None:
    async with database(name, postgres_url) as opened:
        before, session = await pid_of(opened), opened.session
        await asyncio.to_thread(terminate, postgres_url, before)
        await asyncio.sleep(0)
        assert await pid_of(opened) != before
        assert opened.session is not session


async def use_after(opened: Database, event: Callable[[], None]) -> None:
    async with opened.durable() as connection:
        await asyncio.to_thread(event)
        await connection.fetchval("select 1")


async def test_a_connection_lost_in_a_transaction_is_told_and_replaced(name: DriverName, postgres_url: str) -> None:
    async with database(name, postgres_url) as opened:
        pid = await pid_of(opened)
        with pytest.raises(StoreUnavailable):
            await use_after(opened, lambda: terminate(postgres_url, pid))
        assert await pid_of(opened) != pid


async def test_an_outage_is_told_and_passes(name: DriverName, postgres_url: str) -> None:
    async with proxied(postgres_url) as (url, proxy), database(name, url, connections=3) as opened:
        await proxy.down()
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await pid_of(opened)
        await proxy.up()
        assert len({*await asyncio.gather(*(pid_of(opened) for _ in range(30)))}) <= 3


async def test_a_server_that_does_not_answer_is_given_up(name: DriverName, postgres_url: str) -> None:
    async with proxied(postgres_url) as (url, proxy), database(name, url, timeout=1.0) as opened:
        pid = await pid_of(opened)
        proxy.hang()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreUnavailable, match=r"cannot be reached \((no answer|TimeoutError)"):
                await pid_of(opened)
            with pytest.raises(StoreUnavailable):
                await pid_of(opened)
        proxy.heal()
        assert await pid_of(opened) != pid


async def test_who_is_cancelled_stops_although_the_server_hangs(name: DriverName, postgres_url: str) -> None:
    async with proxied(postgres_url) as (url, proxy), database(name, url, timeout=2.0) as opened:
        await pid_of(opened)
        proxy.hang()
        proxy.requested.clear()
        task = asyncio.create_task(pid_of(opened))
        async with asyncio.timeout(PATIENCE):
            await proxy.requested.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        proxy.heal()


async def test_a_cancelled_statement_leaves_nothing_behind(
    name: DriverName, postgres_url: str, postgres_schema: str
) -> None:
    """Neither its work nor its locks."""
    table = f'"{postgres_schema}".locked'
    async with database(name, postgres_url) as opened:

        async def sleep() -> None:
            async with opened.durable() as connection:
                await connection.execute(f"create table {table} (a int)")
                begun.set()
                await connection.fetchval("select pg_sleep($1::int)", 600)

        begun = asyncio.Event()
        task = asyncio.create_task(sleep())
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(run, postgres_url, f"create table {table} (a int)")


async def test_a_pool_that_cannot_be_filled_leaves_no_connection_open(postgres_url: str) -> None:
    made: list[Any] = []

    async def init(connection: Connection) -> None:
        made.append(connection)
        await connection.execute("select 1" if len(made) == 1 else "select 1 / 0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        await load_driver("psycopg").create_pool(postgres_url, size=3, timeout=PATIENCE, on_connect=init)

    assert [connection.raw.closed for connection in made] == [True, True]


async def test_who_waits_too_long_for_a_connection_is_told(name: DriverName, postgres_url: str) -> None:
    async with database(name, postgres_url, timeout=0.3) as opened, opened.quick():
        with pytest.raises(StoreUnavailable):
            await pid_of(opened)


async def test_a_table_that_changes_does_not_spoil_what_was_prepared(
    name: DriverName, postgres_url: str, postgres_schema: str
) -> None:
    table = f'"{postgres_schema}".changing'
    async with database(name, postgres_url) as opened:

        async def read() -> Any:
            async with opened.quick() as connection:
                return await connection.fetchval(f"select a from {table}")

        async with opened.durable() as connection:
            await connection.execute(f"create table {table} (a int); insert into {table} values (1)")
        assert [await read(), await read()] == [1, 1]
        run(postgres_url, f"alter table {table} alter a type text")
        try:
            first = await read()
        except StoreError as error:
            assert "cached plan" in str(error)  # noqa: PT017 - a driver may tell of it once
            first = await read()
        assert (first, await read()) == ("1", "1")


# --- listening -----------------------------------------------------------------------------------


async def test_who_listens_hears_at_once_and_goes_on_hearing(driver: Driver, postgres_url: str) -> None:
    heard: asyncio.Queue[tuple[str, object]] = asyncio.Queue()
    ear = await driver.connect(postgres_url, timeout=PATIENCE, command_timeout=PATIENCE)
    await ear.add_listener("post", lambda _, __, channel, payload: heard.put_nowait((channel, payload)))
    with psycopg.connect(postgres_url, autocommit=True) as speaker:
        async with asyncio.timeout(PATIENCE):
            for word in ("one", "two"):
                speaker.execute("select pg_notify('post', %s)", [word])
                assert await heard.get() == ("post", word)
                assert await ear.fetchval("select 1") == 1
            await ear.execute("select pg_notify($1, $2)", "post", "to myself")
            assert await heard.get() == ("post", "to myself")
    assert heard.empty()
    await ear.close(timeout=2)


async def test_what_comes_in_one_piece_with_an_answer_is_heard(driver: Driver, postgres_url: str) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()
    async with proxied(postgres_url) as (url, proxy), asyncio.timeout(PATIENCE):
        ear = await driver.connect(url, timeout=PATIENCE, command_timeout=PATIENCE)
        await ear.add_listener("post", lambda *told: heard.put_nowait(told[3]))
        proxy.hold_answers()
        proxy.answered.clear()
        asking = asyncio.create_task(ear.fetchval("select 1"))
        await proxy.answered.wait()
        await asyncio.to_thread(run, postgres_url, "select pg_notify('post', 'one')")
        await asyncio.sleep(0.2)  # for the word to reach the proxy: if it comes later, this shows less
        proxy.heal()
        assert (await asking, await heard.get()) == (1, "one")
        await ear.close(timeout=2)


async def test_an_ear_that_was_cut_off_says_so_when_it_speaks(driver: Driver, postgres_url: str) -> None:
    ear = await driver.connect(postgres_url, timeout=PATIENCE, command_timeout=PATIENCE)
    await ear.add_listener("post", lambda *_: None)
    await asyncio.to_thread(terminate, postgres_url, await ear.fetchval("select pg_backend_pid()"))
    await asyncio.sleep(0.05)
    with pytest.raises(StoreUnavailable), map_errors(driver):
        await ear.execute("select pg_notify($1, $2)", "post", "anybody?")
    await ear.close(timeout=2)


async def test_a_lost_ear_is_not_asked_again_and_again(postgres_url: str) -> None:
    """A line that was hung up can always be read from: a loop that looks at it does nothing else."""
    ear: Any = await load_driver("psycopg").connect(postgres_url, timeout=PATIENCE)
    await ear.add_listener("post", lambda *_: None)
    line = ear.raw.fileno()
    await asyncio.to_thread(terminate, postgres_url, await ear.fetchval("select pg_backend_pid()"))
    await until(lambda: ear.raw.closed)
    assert asyncio.get_running_loop().remove_reader(line) is False
    await ear.close()


# --- which one -----------------------------------------------------------------------------------


def test_asyncpg_is_taken_where_it_is_installed() -> None:
    assert type(load_driver()).__name__ == "AsyncpgDriver"
    assert type(load_driver("psycopg")).__name__ == "PsycopgDriver"


def test_the_url_says_which() -> None:
    for scheme, driver in (("postgresql+psycopg", "PsycopgDriver"), ("postgresql+asyncpg", "AsyncpgDriver")):
        store: Any = open_store(f"{scheme}://127.0.0.1/shop")
        assert type(store._database.driver).__name__ == driver


async def test_a_connection_can_be_dropped_twice(driver: Driver, postgres_url: str) -> None:
    """Two silent connections are found at one moment, and the first drop takes all of them."""
    pool = await driver.create_pool(postgres_url, size=2, timeout=PATIENCE)
    async with pool.acquire(timeout=PATIENCE) as first, pool.acquire(timeout=PATIENCE) as second:
        driver.abort(first)
        pool.abort()
        driver.abort(second)
    await pool.close()


async def test_a_statement_on_a_connection_that_was_dropped_meets_an_absent_server(
    name: DriverName, postgres_url: str
) -> None:
    """asyncpg stumbles over its own connection when that is dropped between two steps of a statement."""
    async with database(name, postgres_url) as opened:

        async def fail(*, dropped: bool) -> None:
            async with opened.quick() as connection:
                if dropped:
                    assert opened._pool is not None
                    opened._pool._drop(connection, 0.0)
                raise AttributeError("'NoneType' object has no attribute 'bind_execute'")

        with pytest.raises(StoreUnavailable):
            await fail(dropped=True)
        with pytest.raises(AttributeError):
            await fail(dropped=False)


async def test_asyncpg_asks_for_array_types_once(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = load_driver("asyncpg")
    async with connected(driver, postgres_url) as connection:
        assert await connection.fetchval("select $1::bigint[]", [1, 2]) == [1, 2]
    asked: list[object] = []
    ask = asyncpg.Connection._introspect_types  # type: ignore[attr-defined]

    async def count(self: Any, oids: Any, timeout: Any) -> Any:
        asked.append(oids)
        return await ask(self, oids, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", count)
    async with connected(driver, postgres_url) as connection:
        assert await connection.fetchval("select $1::bigint[]", [3]) == [3]
        assert await connection.fetchval("select $1::uuid[]", [UUID(int=1)]) == [UUID(int=1)]
        assert not asked
        await connection.execute("create type pg_temp.mood as enum ('ok')")
        assert await connection.fetchval("select $1::pg_temp.mood[]", ["ok"]) == ["ok"]
        assert asked
