"""Two-phase commit beside an idle relay: PREPARE TRANSACTION works, and a setting decides who is notified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg
import pytest
from msgspec.structs import replace

from pillarbox.contracts.finding import Severity
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.testing.samples import sample_relay
from tests.support.private_postgres import PrivatePostgres

INSERT = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, payload, content_type,
                                  source, correlation_id, event_time)
    values (gen_random_uuid(), 'shop', 3, 'event', 'orders.placed', 'orders', '', 'text/plain', '/shop', 'c', now())
"""
END = "the last notification"


class Listener:
    """Counts the notifications that the trigger sent."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self._connection = connection
        connection.execute("listen pillarbox")

    def count(self) -> int:
        """How many came since the last count. Notifications arrive in order, so one of our own ends the wait."""
        self._connection.execute("select pg_notify('pillarbox', %s)", [END])
        for found, note in enumerate(self._connection.notifies(timeout=30)):
            if note.payload == END:
                return found
        raise AssertionError("its own notification did not arrive")


@contextmanager
def listening(url: str) -> Iterator[Listener]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield Listener(connection)


async def put_a_relay_to_sleep(url: str, *, schema: str | None = None) -> None:
    store = PostgresStore(url, schema=schema)
    await store.open()
    try:
        await store.register(replace(sample_relay(), asleep=True), lease=timedelta(hours=1))
    finally:
        await store.close()


async def test_a_transaction_can_be_prepared_while_a_relay_sleeps(
    private_postgres: Callable[[], PrivatePostgres],
) -> None:
    server = private_postgres()
    server.stop()
    with (server.data / "postgresql.auto.conf").open("a") as settings:
        settings.write("max_prepared_transactions = 5\n")
    server.start()
    await open_schema(server.url).install()
    await put_a_relay_to_sleep(server.url)

    with psycopg.connect(server.url, autocommit=True) as writer, listening(server.url) as listener:
        for number, setting in enumerate(("", "set local pillarbox.notify = 'off'")):
            writer.execute(f"begin; {setting}; {INSERT}; prepare transaction 'order {number}'".encode())
            writer.execute(f"commit prepared 'order {number}'".encode())
            assert listener.count() == 0
        with writer.transaction():
            writer.execute("set local pillarbox.notify = 'on'")
            writer.execute(INSERT)
        assert listener.count() == 1
        # After its transaction the setting is an empty text, and not unset.
        writer.execute(INSERT)
        assert listener.count() == 0
        assert writer.execute("select count(*) from pillarbox_outbox").fetchone() == (4,)
    store = PostgresStore(server.url)
    await store.open()
    try:
        found = {finding.code: finding.severity for finding in await store.inspect()}
    finally:
        await store.close()
    assert found["postgresql.notifications-off"] is Severity.INFO


@pytest.mark.parametrize(
    ("setting", "notified"),
    [(None, 1), ("on", 1), ("ON", 1), ("off", 0), ("Off", 0), ("", 1), ("perhaps", 1)],
)
async def test_a_setting_of_the_session_decides(
    postgres_url: str, postgres_schema: str, setting: str | None, notified: int
) -> None:
    await open_schema(postgres_url, names=Names(postgres_schema)).install()
    await put_a_relay_to_sleep(postgres_url, schema=postgres_schema)

    with closing(psycopg.connect(postgres_url, autocommit=True)) as writer, listening(postgres_url) as listener:
        if writer.execute("show max_prepared_transactions").fetchone() != ("0",):
            pytest.skip("this server allows prepared transactions")
        writer.execute(f"set search_path = {postgres_schema}".encode())
        if setting is not None:
            writer.execute("select set_config('pillarbox.notify', %s, false)", [setting])
        listener.count()
        writer.execute(INSERT)

        assert listener.count() == notified
