"""The doctor at a PostgreSQL store: each finding, with a server, a role or a session of which it is true."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import psycopg
import pytest

from pillarbox.contracts.finding import Severity
from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.stores.migrations import build_script
from pillarbox.stores.postgres.checks import PostgresFacts, build_findings
from pillarbox.stores.postgres.driver import DriverName
from pillarbox.stores.postgres.grants import list_rights
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.granted import Granted, granted_roles
from tests.support.operations.doctor import codes, diagnose, finding, install, severities
from tests.support.private_postgres import PrivatePostgres
from tests.support.standby_postgres import standby_of

CRITICAL = Severity.CRITICAL
CANARY = "c4nary-s3cret"


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


async def facts_of(url: str, *, schema: str | None = None) -> PostgresFacts:
    store = PostgresStore(url, schema=schema)
    await store.open()
    try:
        return await store.read_facts()
    finally:
        await store.close()


async def test_a_new_store_is_fine_on_a_server_that_keeps_its_word(postgres_url: str, postgres_schema: str) -> None:
    """What the server at hand is set to is its owner's business; the rest must be well."""
    await install(postgres_url, schema=postgres_schema)

    found = codes(await diagnose(postgres_url, schema=postgres_schema))

    assert [code for code in found if not code.endswith("-off")] == []


def test_facts_that_nobody_minds() -> None:
    facts = PostgresFacts(
        login="app", standbys=2, synchronous_standbys="any 1 (*)", role_commits={"app": "on", "x": "local"},
        pins={"session 1 of app (active)": timedelta(minutes=14)},
    )  # fmt: skip

    assert build_findings(facts) == []


# --- reaching it ---------------------------------------------------------------------------------


async def test_nobody_there() -> None:
    report = await diagnose(f"postgresql://app:{CANARY}@127.0.0.1:1/shop")

    assert severities(report) == {"store.unreachable": CRITICAL}
    assert CANARY not in str(report)


async def test_no_such_role_and_no_such_database(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    stranger = parts._replace(netloc=f"pillarbox_nobody:{CANARY}@{parts.hostname}:{parts.port}").geturl()
    for url in (stranger, parts._replace(path="/pillarbox_nowhere").geturl()):
        report = await diagnose(url)
        assert severities(report) == {"store.unreachable": CRITICAL}
        assert CANARY not in str(report)


async def test_a_server_that_hangs_is_given_up(postgres_url: str, postgres_schema: str) -> None:
    await install(postgres_url, schema=postgres_schema)
    parts = urlsplit(postgres_url)
    async with FaultProxy(parts.hostname or "", parts.port or 5432) as proxy:
        proxy.hang()
        netloc = f"{parts.username}@{proxy.host}:{proxy.port}"
        url = parts._replace(netloc=netloc).geturl()
        report = await diagnose(url, schema=postgres_schema, within=timedelta(milliseconds=300))

    assert severities(report) == {"store.unreachable": CRITICAL}
    assert "no answer within 0.3 s" in finding(report, "store.unreachable").what


async def test_no_tables(postgres_url: str, postgres_schema: str) -> None:
    assert severities(await diagnose(postgres_url, schema=postgres_schema)) == {"store.schema-missing": CRITICAL}


async def test_tables_that_are_not_what_their_version_should_have(postgres_url: str, postgres_schema: str) -> None:
    await install(postgres_url, schema=postgres_schema)
    run(postgres_url, f"drop index {postgres_schema}.pillarbox_outbox_late_idx")
    report = await diagnose(postgres_url, schema=postgres_schema)

    assert severities(report)["store.schema-mixed"] is CRITICAL
    assert "pillarbox_outbox_late_idx" in finding(report, "store.schema-mixed").what


# --- clocks --------------------------------------------------------------------------------------


class Wrong:
    """A machine's clock that somebody set wrong."""

    def __init__(self, by: timedelta) -> None:
        self._by = by

    def now(self) -> datetime:
        return datetime.now(UTC) + self._by

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("by", "told"), [(timedelta(hours=1), "s behind this"), (timedelta(hours=-1), "s ahead of this")]
)
async def test_clocks_that_differ(postgres_url: str, postgres_schema: str, by: timedelta, told: str) -> None:
    await install(postgres_url, schema=postgres_schema)
    report = await diagnose(postgres_url, schema=postgres_schema, clock=Wrong(by))

    assert severities(report)["store.clock-skew"] is Severity.WARNING
    assert told in finding(report, "store.clock-skew").what


# --- rights --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def granted(postgres_url: str) -> Iterator[Granted]:
    with granted_roles(postgres_url) as roles:
        yield roles


async def test_a_relay_has_the_rights_that_a_relay_needs(granted: Granted) -> None:
    found = codes(await diagnose(granted.url_as("relay"), schema=granted.names.schema))

    assert "postgresql.missing-rights" not in found


async def test_a_viewer_lacks_rights(granted: Granted) -> None:
    report = await diagnose(granted.url_as("viewer"), schema=granted.names.schema)
    found = finding(report, "postgresql.missing-rights")

    assert found.severity is CRITICAL
    assert 'delete on "grants_' in found.what
    assert "update (waits) on" in found.what
    assert f"--relay '{granted.roles['viewer']}'" in found.fix


async def test_a_writer_cannot_even_see_the_version(granted: Granted) -> None:
    report = await diagnose(granted.url_as("writer"), schema=granted.names.schema)

    assert severities(report) == {"store.unusable": CRITICAL}
    assert "permission denied" in finding(report, "store.unusable").what


async def test_each_right_is_missed(granted: Granted) -> None:
    role = '"' + granted.roles["relay"].replace('"', '""') + '"'
    store = PostgresStore(granted.url_as("relay"), schema=granted.names.schema)
    await store.open()
    needed = list(list_rights("relay", names=granted.names))
    for right in needed:
        what = right.privilege if right.column is None else f"{right.privilege} ({right.column})"
        place = f"function {right.table}" if right.privilege == "execute" else right.table
        run(granted.url, f"revoke {what} on {place} from {role}")
        assert list((await store.read_facts()).missing_rights) == [str(right)]
        run(granted.url, f"grant {what} on {place} to {role}")
    await store.close()

    assert len(needed) > 30


async def test_sessions_that_the_login_may_not_look_into(granted: Granted) -> None:
    with psycopg.connect(granted.url):
        report = await diagnose(granted.url_as("relay"), schema=granted.names.schema)
        openly = codes(await diagnose(granted.url, schema=granted.names.schema))

    assert severities(report)["postgresql.sessions-hidden"] is Severity.INFO
    assert "postgresql.sessions-hidden" not in openly


async def test_a_role_whose_sessions_are_read_only(granted: Granted) -> None:
    url = f"{granted.url}?options=-c%20default_transaction_read_only%3Don"
    report = await diagnose(url, schema=granted.names.schema)

    assert severities(report)["postgresql.read-only"] is CRITICAL


# --- long transactions -----------------------------------------------------------------------------


@pytest.mark.parametrize("begin", ["begin isolation level repeatable read; select 1", "create temporary table t ()"])
async def test_a_transaction_that_keeps_dead_rows_alive(postgres_url: str, postgres_schema: str, begin: str) -> None:
    """It really is open; what is long is said here."""
    await install(postgres_url, schema=postgres_schema)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(begin.encode())
        pid = connection.info.backend_pid
        facts = await facts_of(postgres_url, schema=postgres_schema)
    (found,) = [one for one in build_findings(facts, long=timedelta(0)) if one.code == "postgresql.long-transaction"]

    assert found.severity is Severity.WARNING
    assert f"session {pid} of " in found.what
    assert not [one for one in build_findings(facts) if one.code == "postgresql.long-transaction"]


# --- the server itself -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    """A server whose settings may be changed. It runs with fsync off."""
    with closing(PrivatePostgres.started()) as started:
        yield started


@pytest.fixture
def settings(server: PrivatePostgres) -> Iterator[Callable[..., None]]:
    """Changes settings until the end of the test."""

    def change(*statements: str, restart: bool = False) -> None:
        run(server.url, *statements, "select pg_reload_conf()")
        if restart:
            server.stop()
            server.start()

    yield change
    change("alter system reset all", restart=True)


async def test_a_server_that_does_not_wait_for_its_disk(server: PrivatePostgres) -> None:
    await install(server.url)

    assert severities(await diagnose(server.url)) == {"postgresql.fsync-off": Severity.WARNING}


async def test_torn_pages(server: PrivatePostgres, settings: Callable[..., None]) -> None:
    await install(server.url)
    settings("alter system set full_page_writes = off", restart=True)

    found = severities(await diagnose(server.url))

    assert found["postgresql.full-page-writes-off"] is Severity.WARNING


@pytest.mark.parametrize(
    ("change", "whose"),
    [
        ("alter system set synchronous_commit = off", "postgres (by default of the database or server)"),
        ("alter database postgres set synchronous_commit = off", "every role"),
        ("alter role shopkeeper set synchronous_commit = off", "shopkeeper"),
        ("alter role shopkeeper in database postgres set synchronous_commit = 'no'", "shopkeeper"),
        ("alter role shopkeeper set synchronous_commit = local", None),
        ("alter role shopkeeper in database template1 set synchronous_commit = off", None),
    ],
)
async def test_commits_that_do_not_wait(
    server: PrivatePostgres, settings: Callable[..., None], change: str, whose: str | None
) -> None:
    await install(server.url)
    settings("create role shopkeeper", change, restart=True)
    try:
        report = await diagnose(server.url)
    finally:
        run(server.url, "drop role shopkeeper", "alter database postgres reset synchronous_commit")

    if whose is None:
        assert "postgresql.commits-not-awaited" not in codes(report)
        return
    assert severities(report)["postgresql.commits-not-awaited"] is Severity.WARNING
    assert f"synchronous_commit is off for {whose}" in finding(report, "postgresql.commits-not-awaited").what


async def test_a_prepared_transaction_that_was_forgotten(
    server: PrivatePostgres, settings: Callable[..., None]
) -> None:
    await install(server.url)
    settings("alter system set max_prepared_transactions = 5", restart=True)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("begin")
        connection.execute("create table left_over ()")
        connection.execute("prepare transaction 'half done'")
        facts = await facts_of(server.url)
        connection.execute("rollback prepared 'half done'")
    found = {one.code: one for one in build_findings(facts, long=timedelta(0))}

    assert "prepared transaction 'half done' of postgres" in found["postgresql.long-transaction"].what


async def test_a_standby_and_its_primary(server: PrivatePostgres) -> None:
    await install(server.url)
    with standby_of(server) as standby:
        at_the_standby = await diagnose(standby.url)
        await until_followed(server)
        at_the_primary = await diagnose(server.url)

    assert severities(at_the_standby)["postgresql.standby"] is CRITICAL
    assert codes(at_the_standby).count("postgresql.standby") == 1
    assert severities(at_the_primary)["postgresql.standbys-not-awaited"] is Severity.INFO


async def until_followed(primary: PrivatePostgres) -> None:
    store = PostgresStore(primary.url)
    await store.open()
    while not (await store.read_facts()).standbys:
        pass
    await store.close()


async def test_messages_restored_from_a_server_with_higher_transaction_ids(
    postgres_url: str, postgres_schema: str
) -> None:
    await install(postgres_url, schema=postgres_schema)
    table = f'"{postgres_schema}".pillarbox_outbox'
    run(
        postgres_url,
        f"""insert into {table} (tx, message_id, destination, partition, kind, type, topic, payload, content_type,
                                 source, correlation_id, event_time)
            select '9000000000000', gen_random_uuid(), 'a', 1, 'event', 't', 't', '', 'c', 's', 'c', now()""",
    )
    found = finding(await diagnose(postgres_url, schema=postgres_schema), "postgresql.foreign-transactions")
    statement = found.fix.partition("run: ")[2].removesuffix(".").replace("pillarbox_outbox", table)
    run(postgres_url, statement)
    assert "postgresql.foreign-transactions" not in codes(await diagnose(postgres_url, schema=postgres_schema))


@pytest.fixture
def sql_ascii_url(postgres_url: str) -> Iterator[str]:
    """A database whose texts have no encoding, with the tables."""
    name = f"ascii_{secrets.token_hex(4)}"
    run(postgres_url, f"create database {name} encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0")
    url = urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    try:
        run(url, build_script("postgresql", names=Names()))
        yield url
    finally:
        run(postgres_url, f"drop database {name} with (force)")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_database_without_an_encoding_is_refused_in_one_sentence(
    sql_ascii_url: str, driver: DriverName
) -> None:
    with pytest.raises(ConfigError, match="has the encoding SQL_ASCII"):
        await PostgresStore(sql_ascii_url, driver=driver).open()
    report = await diagnose(sql_ascii_url.replace("postgresql:", f"postgresql+{driver}:"))
    (code,) = codes(report)
    assert (severities(report), "SQL_ASCII" in finding(report, code).what) == ({code: CRITICAL}, True)
