"""What the contract does not ask of the MariaDB store: plans, lost connections, conflicts, clocks."""

from __future__ import annotations

import re
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from pillarbox import Outbox
from pillarbox.errors import ConfigError, MissingExtra, SchemaMissing, SchemaNewer, StoreUnavailable
from pillarbox.message import Names
from pillarbox.stores.mariadb.connection import Transaction, _parse_dsn, build_statements, map_errors
from pillarbox.stores.mariadb.schema import MariadbSchema
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.testing.store_contract.arrange import read_due
from tests.support.mariadb_server import connected

STATEMENTS = sorted(build_statements(Names()))
FEW = 400


@pytest.fixture
async def store(mariadb_url: str) -> AsyncIterator[MariadbStore]:
    await MariadbSchema(parse_store_url(mariadb_url), names=Names()).install()
    store = MariadbStore(mariadb_url)
    await store.open()
    yield store
    await store.close()


def publish(url: str, *, count: int = 1, session: str | None = None) -> None:
    with closing(connected(url)) as connection, connection.cursor() as cursor:
        if session is not None:
            cursor.execute(session)
        for number in range(count):
            Outbox(routes="orders", source="/shop").publish(
                connection, {"n": number}, type="orders.placed", topic="orders", key=f"k{number}"
            )
        connection.commit()


def fetched(url: str, sql: str) -> list[Any]:
    with closing(connected(url, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


# --- plans ---------------------------------------------------------------------------------------


def plan(url: str, name: str) -> list[tuple[str | None, str | None]]:
    """The tables and indexes that the server would use, in order."""
    sql = build_statements(Names())[name]
    values: dict[str, object] = dict.fromkeys(re.findall(r"%\((\w+)\)s", sql), 3)
    values |= {
        name: [3, 5] for name in ("ids", "partitions", "skip", "keys", "numbers", "message_ids") if name in values
    }
    values |= {"destination": "orders", "waits": "retry", "key": "k3", "last": 300}
    with closing(connected(url)) as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(f"explain format=traditional {sql}", values)
        return [(row["table"], row["key"]) for row in cursor.fetchall()]


@pytest.mark.parametrize("name", ["find_pending", "find_delivered", "find_ended"])
async def test_a_correlation_id_is_found_by_its_index(store: MariadbStore, mariadb_url: str, name: str) -> None:
    publish(mariadb_url, count=FEW)
    kept = (
        "id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, "
        "subject, correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at"
    )
    fetched(
        mariadb_url,
        f"insert into pillarbox_history ({kept}, status) select {kept}, if(id % 2, 'delivered', 'failed') "
        "from pillarbox_outbox",
    )
    fetched(mariadb_url, "analyze table pillarbox_outbox, pillarbox_history")
    statements = build_statements(Names())
    sql = statements.fill(name, "correlation_id = :correlation_id")
    values: dict[str, object] = dict.fromkeys(re.findall(r"%\((\w+)\)s", sql), 3)
    values |= {"states": ["failed"], "correlation_id": "c"}
    with closing(connected(mariadb_url)) as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(f"explain format=traditional {sql}", values)
        keys = [row["key"] for row in cursor.fetchall()]
    assert any(key is not None and key.endswith("_corr_idx") for key in keys), keys


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("read_ahead", "pillarbox_outbox_waiting_idx"),
        ("find_skipped", "pillarbox_outbox_waiting_idx"),
        ("check_block", "pillarbox_outbox_waiting_idx"),
        ("read_block", "pillarbox_outbox_waiting_idx"),
        ("find_due", "pillarbox_outbox_waiting_idx"),
        ("due_kinds", "pillarbox_outbox_waiting_idx"),
        ("find_few_blocked", "pillarbox_outbox_blocked_idx"),
        ("walk_blocked", "pillarbox_outbox_blocked_idx"),
        ("fronts", "PRIMARY"),
        ("find_blocked", "pillarbox_outbox_blocked_idx"),
        ("read_due", "PRIMARY"),
        ("read", "PRIMARY"),
        ("keep_delivered", "PRIMARY"),
        ("close_delivered", "PRIMARY"),
        ("park", "PRIMARY"),
        ("failure_wait", "PRIMARY"),
        ("claimed_messages", "PRIMARY"),
    ],
)
async def test_a_hot_statement_goes_through_its_index(
    mariadb_url: str, store: MariadbStore, name: str, index: str
) -> None:
    publish(mariadb_url, count=FEW)
    fetched(mariadb_url, "update pillarbox_outbox set waits = 'retry', available_at = id where id % 3 = 0")
    fetched(mariadb_url, "analyze table pillarbox_outbox")

    used = [key for table, key in plan(mariadb_url, name) if table == "pillarbox_outbox"]

    assert set(used) == {index}


async def test_every_statement_is_used() -> None:
    package = files("pillarbox.stores")
    texts = [
        file.read_text() for part in ("sync_sql", "mariadb") for file in (package / part).iterdir() if file.is_file()
    ]

    assert [name for name in STATEMENTS if not any(f'"{name}"' in text for text in texts)] == []


# --- connections ---------------------------------------------------------------------------------


async def test_a_connection_that_was_killed_is_told_and_replaced(mariadb_url: str, store: MariadbStore) -> None:
    publish(mariadb_url)
    cursor = (await store.read("orders", partitions=range(64), cursor=None, limit=10)).cursor
    with closing(connected(mariadb_url, autocommit=True)) as connection, connection.cursor() as asking:
        asking.execute("select id from information_schema.processlist where db = database() and id <> connection_id()")
        for (number,) in asking.fetchall():
            connection.kill(number)

    for _ in range(4):
        with pytest.raises(StoreUnavailable):
            await store.pauses()

    assert await store.pauses() == []
    again = await store.read("orders", partitions=range(64), cursor=cursor, limit=10)
    assert len(again.messages) == 1, "the cursor of a connection that is gone starts over"


_SETTINGS = """
    show session variables where variable_name in
    ('tx_isolation', 'transaction_isolation', 'innodb_lock_wait_timeout', 'idle_transaction_timeout')
"""


async def test_sessions_read_what_is_committed_and_wait_shortly_for_locks(store: MariadbStore) -> None:
    def asked(tx: Transaction) -> dict[str, str]:
        return dict(tx._fetch(_SETTINGS, None))

    told = await store._database.read_committed(asked)

    assert told.pop("idle_transaction_timeout", "10") == "10", "MariaDB has it, MySQL has not"
    assert told.pop("innodb_lock_wait_timeout") == "2"
    assert set(told.values()) == {"READ-COMMITTED"}


async def test_many_that_wait_for_one_destination_hide_no_other(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.stores.mariadb.store._OLDEST_LOOKED_UP", 2)
    publish(mariadb_url, count=6)
    fetched(
        mariadb_url, "update pillarbox_outbox set waits = 'retry', available_at = 9000000000000000, due_at = 1000000"
    )
    fetched(mariadb_url, "update pillarbox_outbox set destination = 'mail', due_at = 2000000 order by id desc limit 1")
    second = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert dict(await store.oldest_due()) == {"orders": second, "mail": second + timedelta(seconds=1)}


async def test_a_conflict_begins_the_transaction_again(mariadb_url: str, store: MariadbStore) -> None:
    tries: list[int] = []

    def work(tx: Transaction) -> int:
        tx.execute("pause", {"destination": "orders", "by": "ann", "reason": f"try {len(tries)}"})
        tries.append(len(tries))
        if len(tries) < 3:
            raise pymysql.OperationalError(1213, "Deadlock found when trying to get lock")
        return len(tries)

    assert await store._database.write(work) == 3
    assert fetched(mariadb_url, "select reason from pillarbox_destination") == [("try 2",)]


async def test_a_conflict_that_does_not_end_is_told(store: MariadbStore) -> None:
    def work(_: Transaction) -> None:
        raise pymysql.OperationalError(1213, "Deadlock found when trying to get lock")

    with pytest.raises(StoreUnavailable, match="it will be tried again"):
        await store._database.write(work)


async def test_a_lock_that_is_held_is_waited_for_no_longer_than_allowed(mariadb_url: str, store: MariadbStore) -> None:
    await store.pause("orders", by="ann", reason="stock")
    with closing(connected(mariadb_url)) as connection, connection.cursor() as cursor:
        cursor.execute("select * from pillarbox_destination for update")
        with pytest.raises(StoreUnavailable, match="Lock wait timeout"):
            await store.resume("orders", by="bob")
    assert await store.resume("orders", by="bob")


async def test_closed_it_says_so(mariadb_url: str, store: MariadbStore) -> None:
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.pauses()
    assert fetched(
        mariadb_url,
        "select count(*) from information_schema.processlist where db = database() and id <> connection_id()",
    ) == [(0,)]


async def test_tables_that_are_not_there_or_newer_are_told(mariadb_url: str) -> None:
    with pytest.raises(SchemaMissing, match="schema install"):
        await MariadbStore(mariadb_url).open()
    await MariadbSchema(parse_store_url(mariadb_url), names=Names()).install()
    fetched(mariadb_url, "insert into pillarbox_schema (version) values (99)")
    with pytest.raises(SchemaNewer):
        await MariadbStore(mariadb_url).open()


async def test_what_a_person_puts_off_between_two_looks_is_not_fresh(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(mariadb_url, count=2)
    union = Transaction.union

    def put_off(tx: Transaction, name: str, each: list[dict[str, object]]) -> list[Any]:
        ids = union(tx, name, each)
        fetched(mariadb_url, "update pillarbox_outbox set waits = 'retry', available_at = 1 order by id limit 1")
        return ids

    monkeypatch.setattr(Transaction, "union", put_off)
    reading = await store.read("orders", partitions=range(64), cursor=None, limit=10)
    monkeypatch.undo()

    assert [message.payload for message in reading.messages] == [b'{"n":1}']
    assert len(await read_due(store, *range(64), limit=10)) == 1


# --- clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["+00:00", "+05:30", "-11:00"])
async def test_the_time_zone_of_a_writer_does_not_matter(mariadb_url: str, store: MariadbStore, zone: str) -> None:
    before = await store.now()
    publish(mariadb_url, session=f"set time_zone = '{zone}'")

    (message,) = (await store.read("orders", partitions=range(64), cursor=None, limit=10)).messages

    assert message.created_at is not None
    assert before <= message.created_at <= await store.now()
    assert abs(datetime.now(UTC) - message.created_at) < timedelta(minutes=5)


# --- URLs ----------------------------------------------------------------------------------------


def test_tls_is_verified_unless_told_otherwise() -> None:
    def tls(options: str) -> ssl.SSLContext | None:
        context: ssl.SSLContext | None = _parse_dsn(f"mysql://u:p%40ss@h:3307/db{options}")["ssl"]
        return context

    assert tls("") is not None, "another machine must prove itself"
    assert tls("?ssl=off") is None
    verified = tls("?ssl=on")
    assert verified is not None
    assert (verified.verify_mode, verified.check_hostname) == (ssl.CERT_REQUIRED, True)
    unverified = tls("?ssl=unverified")
    assert unverified is not None
    assert unverified.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("options", ["ssl_ca=%2Fno%2Fsuch.pem", "ssl_cert=%2Fno%2Fsuch.pem"])
def test_a_certificate_that_cannot_be_read_is_told(options: str) -> None:
    with pytest.raises(ConfigError, match="check the files after ssl_ca"):
        _parse_dsn(f"mysql://u@h/db?{options}")


def test_a_url_is_taken_apart() -> None:
    arguments = _parse_dsn("mysql://u:p%40ss@h:3307/db")

    assert (arguments["host"], arguments["port"], arguments["user"], arguments["password"]) == ("h", 3307, "u", "p@ss")
    assert _parse_dsn("mysql://u@h/db?unix_socket=%2Frun%2Fm.sock")["unix_socket"] == "/run/m.sock"


# --- logins --------------------------------------------------------------------------------------


async def test_a_login_by_password_works_by_each_method_that_the_server_has(mariadb_url: str) -> None:
    """MySQL's own method, caching_sha2_password, encrypts the password by the server's key."""
    user = f"u_{secrets.token_hex(6)}"
    fetched(mariadb_url, f"create user '{user}'@'%' identified by 'canary word'")
    try:
        fetched(mariadb_url, f"grant all on `{urlsplit(mariadb_url).path[1:]}`.* to '{user}'@'%'")
        url = mariadb_url.replace("root@", f"{user}:canary%20word@")

        await MariadbSchema(parse_store_url(url), names=Names()).install()

        assert await MariadbSchema(parse_store_url(url), names=Names()).verify() == ()
    finally:
        fetched(mariadb_url, f"drop user '{user}'@'%'")


def test_a_login_that_needs_a_missing_package_names_it() -> None:
    with pytest.raises(MissingExtra, match=r"pillarbox\[mariadb\]"), map_errors():
        raise RuntimeError("'cryptography' package is required for sha256_password or caching_sha2_password")
    with pytest.raises(RuntimeError, match="another"), map_errors():
        raise RuntimeError("another")
