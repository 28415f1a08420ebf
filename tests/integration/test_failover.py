"""Several hosts in one URL, and the way to the new leader: frozen servers, standbys, replicas, sentinels."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from pillarbox.brokers.factory import receiver_from_url, transport_from_url
from pillarbox.contracts.receiver import IncomingMessage
from pillarbox.contracts.transport import Inspector, Outcome, Transport
from pillarbox.errors import StoreUnavailable, TransportUnavailable
from pillarbox.message import Names
from pillarbox.stores.mariadb.connection import Database as MariadbDatabase
from pillarbox.stores.mariadb.connection import connect as connect_mariadb
from pillarbox.stores.postgres.connection import Database as PostgresDatabase
from pillarbox.stores.postgres.driver import DriverName, load_driver
from pillarbox.testing.samples import sample
from tests.support.mariadb_server import MariadbServer, PrivateMariadb, connected
from tests.support.mqtt_server import private_mosquitto
from tests.support.nats_server import private_nats
from tests.support.private_postgres import PrivatePostgres
from tests.support.private_program import PrivateProgram
from tests.support.redis_server import PrivateRedis, private_redis
from tests.support.servers import ServerMissing, missing
from tests.support.standby_postgres import standby_of

PATIENCE = 60.0
DRIVERS: Sequence[DriverName] = ("asyncpg", "psycopg")


@pytest.fixture
def frozen() -> Iterator[str]:
    """The address of a server that is frozen: the kernel accepts connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def at(url: str) -> str:
    """Host and port of a URL."""
    return url.partition("://")[2].rpartition("@")[2].partition("/")[0]


async def until(holds: Callable[[], object]) -> None:
    """Ask until it holds."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - a server of its own, which tells nobody
            await asyncio.sleep(0.05)


async def deliver(transport: Transport) -> None:
    """Send a message as a relay does: again and again, until it is delivered."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                outcomes = await transport.send([sample(topic="orders")])
            except TransportUnavailable:
                outcomes = [Outcome(False, "unavailable")]
            if outcomes[0].delivered:
                return
            assert not outcomes[0].rejected, outcomes[0].error
            await asyncio.sleep(0.05)


# --- frozen servers ---


@pytest.mark.parametrize("name", DRIVERS)
async def test_a_frozen_postgresql_does_not_keep_us_from_the_next(
    name: DriverName, postgres_url: str, frozen: str
) -> None:
    url = postgres_url.replace(at(postgres_url), f"{frozen},{at(postgres_url)}")
    driver = load_driver(name)
    connection = await driver.connect(url, timeout=2)
    assert await connection.fetchval("select 1") == 1
    await connection.close()
    pool = await driver.create_pool(url, size=1, timeout=2)
    async with pool.acquire(timeout=5) as pooled:
        assert await pooled.fetchval("select 1") == 1
    await pool.close()


def test_a_frozen_mariadb_does_not_keep_us_from_the_next(mariadb_url: str, frozen: str) -> None:
    url = mariadb_url.replace(at(mariadb_url), f"{frozen},{at(mariadb_url)}")
    with closing(connect_mariadb(url, timeout=4)) as connection:
        assert connection.server.name == at(mariadb_url)


async def test_a_frozen_nats_server_does_not_keep_us_from_the_next(frozen: str) -> None:
    with closing(private_nats()) as server:
        url = f"nats://{frozen},{at(server.url)}?declare=true&stream=S&subject=s.orders&timeout=4s"
        transport = transport_from_url(url)
        await transport.open()
        await deliver(transport)
        await transport.close()


async def test_a_frozen_mqtt_broker_does_not_keep_us_from_the_next(frozen: str) -> None:
    with closing(private_mosquitto()) as server:
        transport = transport_from_url(f"mqtt://{frozen},{at(server.url)}?timeout=4s&no_subscribers=accept")
        await transport.open()
        await deliver(transport)
        await transport.close()


async def test_a_frozen_rabbitmq_does_not_keep_us_from_the_next(rabbitmq_url: str, frozen: str) -> None:
    url = rabbitmq_url.replace(at(rabbitmq_url), f"{frozen},{at(rabbitmq_url)}")
    transport = transport_from_url(f"{url}?exchange=amq.topic&timeout=4s")
    await transport.open()
    await transport.ping()
    await transport.close()


# --- PostgreSQL ---


@pytest.mark.parametrize("name", DRIVERS)
async def test_the_primary_is_found_behind_a_standby(
    name: DriverName, private_postgres: Callable[[], PrivatePostgres]
) -> None:
    primary = private_postgres()
    with standby_of(primary) as standby:
        url = f"postgresql://postgres@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/postgres"
        connection = await load_driver(name).connect(url, timeout=10)
        assert await connection.fetchval("select not pg_is_in_recovery()")
        await connection.close()


@pytest.mark.parametrize("name", DRIVERS)
async def test_a_connection_to_a_server_that_became_read_only_is_not_used_again(
    name: DriverName, postgres_url: str
) -> None:
    database = PostgresDatabase(postgres_url, driver=name, connections=1, timeout=timedelta(seconds=10))
    await database.open()
    try:
        async with database.quick() as connection:
            before = await connection.fetchval("select pg_backend_pid()")
            await connection.execute("set default_transaction_read_only = on")
        with pytest.raises(StoreUnavailable, match="read-only"):
            async with database.durable() as connection:
                await connection.execute("create table pillarbox_never (id int)")
        async with database.quick() as connection:
            assert await connection.fetchval("select pg_backend_pid()") != before
    finally:
        await database.close()


# --- MariaDB ---


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PrivateMariadb, PrivateMariadb]]:
    """Two servers with the same table, and a user whom read_only concerns."""
    try:
        program = PrivateMariadb.found()
    except ServerMissing as reason:
        missing(MariadbServer(), reason=str(reason), environ=os.environ)
    with closing(PrivateMariadb(program).started()) as first, closing(PrivateMariadb(program).started()) as second:
        for server in (first, second):
            run(server, "create database shop", "create table shop.t (id int primary key)")
            run(server, "create user shop@localhost", "grant all on shop.* to shop@localhost")
        yield first, second


def run(server: PrivateMariadb, *statements: str) -> list[Any]:
    with closing(connected(server.url, autocommit=True)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


@pytest.fixture
def writable(pair: tuple[PrivateMariadb, PrivateMariadb]) -> Iterator[Callable[[PrivateMariadb | None], None]]:
    """Makes one of the two servers the only one that takes writes."""

    def choose(chosen: PrivateMariadb | None) -> None:
        for server in pair:
            run(server, f"set global read_only = {'off' if server is chosen else 'on'}")

    yield choose
    for server in pair:
        run(server, "set global read_only = off", "truncate table shop.t")


def name_both(pair: tuple[PrivateMariadb, PrivateMariadb]) -> str:
    return f"mysql://shop@{','.join(f'127.0.0.1:{server.port}' for server in pair)}/shop"


def test_a_replica_is_passed_over(
    pair: tuple[PrivateMariadb, PrivateMariadb], writable: Callable[[PrivateMariadb | None], None]
) -> None:
    writable(pair[1])
    with closing(connect_mariadb(name_both(pair), timeout=10)) as connection:
        assert connection.server.name == f"127.0.0.1:{pair[1].port}"
    alone = f"mysql://shop@127.0.0.1:{pair[0].port}/shop"
    connect_mariadb(alone, timeout=10).close()  # a replica that is named alone can be looked at


def test_each_server_that_takes_no_writes_is_named(
    pair: tuple[PrivateMariadb, PrivateMariadb], writable: Callable[[PrivateMariadb | None], None]
) -> None:
    writable(None)
    with pytest.raises(StoreUnavailable, match="No server of the store URL takes writes") as raised:
        connect_mariadb(name_both(pair), timeout=10)
    for server in pair:
        assert f"127.0.0.1:{server.port}: It is read-only" in str(raised.value)


async def test_writes_go_on_at_the_new_primary(
    pair: tuple[PrivateMariadb, PrivateMariadb], writable: Callable[[PrivateMariadb | None], None]
) -> None:
    first, second = pair
    writable(first)
    database = MariadbDatabase(name_both(pair), names=Names(), clock=None, connections=2, timeout=timedelta(seconds=10))
    await database.open()

    def insert(number: int) -> Callable[[Any], None]:
        return lambda tx: tx._connection.query(f"insert into shop.t values ({number})")

    try:
        await database.write(insert(1))
        writable(second)
        with pytest.raises(StoreUnavailable):  # an outage, and nothing about the row: it is repeated
            await database.write(insert(2))
        await database.write(insert(2))
    finally:
        await database.close()
    assert run(first, "select id from shop.t") == [(1,)]
    assert run(second, "select id from shop.t") == [(2,)]


# --- Redis with sentinels ---


class Sentinel(PrivateProgram):
    """A sentinel that decides alone, and soon."""

    def __init__(self, program: Path, master: int, *settings: str) -> None:
        super().__init__(program)
        lines = [
            f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}",
            f"sentinel monitor shop 127.0.0.1 {master} 1", "sentinel down-after-milliseconds shop 500",
            "sentinel failover-timeout shop 3000", *settings,
        ]  # fmt: skip
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def arguments(self) -> Sequence[str]:
        return str(self.folder / "sentinel.conf"), "--sentinel"

    def client(self, **options: Any) -> Any:
        return redis.Redis(port=self.port, protocol=2, **options)


class Watched:
    """A master, a replica and a sentinel."""

    def __init__(self, master: PrivateRedis, replica: PrivateRedis, sentinel: Sentinel) -> None:
        self.master, self.replica, self.sentinel = master, replica, sentinel

    def url(self, **options: str) -> str:
        words = "&".join(f"{name}={value}" for name, value in options.items())
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/shop?timeout=2s&{words}"

    def knows_replica(self) -> bool:
        known = self.sentinel.client().sentinel_slaves("shop")
        return any(one["master-link-status"] == "ok" for one in known)


@pytest.fixture
async def watched() -> Any:
    with (
        closing(private_redis()) as master,
        closing(private_redis("--replicaof", f"127.0.0.1 {master.port}")) as replica,
        closing(Sentinel(master.program, master.port).started()) as sentinel,
    ):
        servers = Watched(master, replica, sentinel)
        await until(servers.knows_replica)
        yield servers


async def test_messages_go_to_the_new_master_when_the_old_one_is_killed(watched: Watched) -> None:
    transport = transport_from_url(watched.url(key="orders"))
    await transport.open()
    await deliver(transport)
    before = watched.replica.client().xlen("orders")
    watched.master.kill()
    await deliver(transport)
    assert watched.replica.client().xlen("orders") > before
    await transport.close()


async def test_a_master_that_became_a_replica_is_left(watched: Watched) -> None:
    """It keeps its connections, and answers each message with READONLY. A sentinel would cut them, an operator not."""
    transport = transport_from_url(watched.url(key="orders"))
    await transport.open()
    await deliver(transport)
    sentinel = watched.sentinel.client()
    sentinel.sentinel_remove("shop")
    watched.replica.client().replicaof("NO", "ONE")
    watched.master.client().replicaof("127.0.0.1", watched.replica.port)
    sentinel.sentinel_monitor("shop", "127.0.0.1", watched.replica.port, 1)
    before = watched.replica.client().xlen("orders")
    await deliver(transport)
    assert watched.replica.client().xlen("orders") > before
    await transport.close()


async def test_messages_go_to_the_new_master_when_a_sentinel_changes_it(watched: Watched) -> None:
    transport = transport_from_url(watched.url(key="orders"))
    await transport.open()
    await deliver(transport)
    watched.sentinel.client().execute_command("SENTINEL", "FAILOVER", "shop")
    await until(lambda: watched.master.client().role()[0] == b"slave")
    await deliver(transport)
    assert watched.replica.client().role()[0] == b"master"
    await transport.close()


async def test_a_receiver_goes_on_at_the_new_master(watched: Watched) -> None:
    receiver = receiver_from_url(watched.url(stream="orders", group="billing", declare="true"))
    transport = transport_from_url(watched.url(key="orders"))
    await receiver.open()
    await transport.open()
    watched.master.kill()
    await deliver(transport)
    received: list[IncomingMessage] = []
    async with asyncio.timeout(PATIENCE):
        while not received:
            try:
                received += await receiver.receive(limit=1)
            except TransportUnavailable:
                await asyncio.sleep(0.05)
    await receiver.acknowledge(received[0])
    await receiver.close()
    await transport.close()


async def test_a_master_that_no_sentinel_knows(watched: Watched) -> None:
    url = f"redis+sentinel://127.0.0.1:{watched.sentinel.port}/nothing"
    with pytest.raises(TransportUnavailable, match="knows no master 'nothing'"):
        await transport_from_url(url).open()
    with pytest.raises(TransportUnavailable, match="check that it is a sentinel"):
        await transport_from_url(f"redis+sentinel://127.0.0.1:{watched.master.port}/shop").open()


async def test_sentinels_have_a_login_of_their_own(watched: Watched) -> None:
    guarded = Sentinel(watched.master.program, watched.master.port, 'requirepass "of the sentinels"')
    with closing(guarded.started()):
        url = f"redis+sentinel://127.0.0.1:{guarded.port}/shop"
        with pytest.raises(TransportUnavailable):
            await transport_from_url(url).open()
        transport = transport_from_url(url, options={"key": "orders", "sentinel_password": "of the sentinels"})
        await transport.open()
        await deliver(transport)
        await transport.close()


async def test_the_doctor_looks_at_what_could_take_over(watched: Watched) -> None:
    async def inspect(url: str) -> set[str]:
        transport = transport_from_url(url)
        assert isinstance(transport, Inspector)
        await transport.open()
        try:
            return {finding.code for finding in await transport.inspect(topics=["orders"])}
        finally:
            await transport.close()

    one = watched.url(key="orders")
    codes = await inspect(one)
    assert {"redis.few-sentinels", "redis.min-replicas"} <= codes
    assert "redis.no-replica" not in codes
    sentinel = f"127.0.0.1:{watched.sentinel.port}"
    assert "redis.few-sentinels" not in await inspect(one.replace(sentinel, f"{sentinel},{sentinel},{sentinel}"))
    watched.replica.kill()
    await until(lambda: not watched.master.client().info("replication")["connected_slaves"])
    assert "redis.no-replica" in await inspect(one)


async def test_sentinels_that_are_away_are_passed_over(watched: Watched, frozen: str) -> None:
    url = f"redis+sentinel://127.0.0.1:1,{frozen},127.0.0.1:{watched.sentinel.port}/shop?key=orders&timeout=6s"
    transport = transport_from_url(url)
    await transport.open()
    await deliver(transport)
    await transport.close()
