"""Connections that a firewall drops silently, and relays that freeze in a transaction, cost at most a lease."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
import pytest

from pillarbox.contracts.store import Claim, Fence, Store
from pillarbox.errors import StoreError, StoreUnavailable
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.postgres.connection import Database
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample_relay
from tests.support.granted import Logins
from tests.support.mariadb_server import connected
from tests.support.relay_behaviour.scene import Scene, Script, mariadb_scene, postgres_scene, until

LEASE: Final = timedelta(seconds=9)
SHORT: Final = timedelta(milliseconds=400)


class DroppingProxy(FaultProxy):
    """Forgets the connections it has: not a byte passes, and nobody is told. New ones work."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._forgotten: set[asyncio.StreamWriter] = set()

    def forget(self) -> int:
        self._forgotten.update(self._writers)
        return len(self._forgotten)

    async def _forward(self, direction: Any, chunk: bytes, sink: asyncio.StreamWriter) -> None:
        if sink not in self._forgotten:
            await super()._forward(direction, chunk, sink)


@pytest.fixture(params=["asyncpg", "psycopg", "mariadb"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Scene, DroppingProxy]]:
    """A scene whose relays connect through the proxy."""
    if request.param == "mariadb":
        url = request.getfixturevalue("mariadb_url")
        async with (
            mariadb_scene(url, request.getfixturevalue("mariadb_logins")) as scene,
            _proxy_to(url) as (proxy, through),
        ):
            scene.open_store = lambda: MariadbStore(through)
            yield scene, proxy
        return
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    logins = request.getfixturevalue("postgres_logins")
    async with postgres_scene(url, schema, logins, driver=request.param) as scene, _proxy_to(url) as (proxy, through):
        scene.open_store = lambda: PostgresStore(through, schema=schema, driver=request.param)
        yield scene, proxy


@asynccontextmanager
async def _proxy_to(url: str) -> AsyncIterator[tuple[DroppingProxy, str]]:
    parts = urlsplit(url)
    async with DroppingProxy(parts.hostname or "", parts.port or 0) as proxy:
        login = parts.netloc.rpartition("@")[0]
        yield proxy, parts._replace(netloc=f"{login}@{proxy.host}:{proxy.port}").geturl()


async def test_connections_that_were_dropped_silently_are_replaced_within_a_lease(
    place: tuple[Scene, DroppingProxy],
) -> None:
    scene, proxy = place
    sink, clock = Script(), asyncio.get_running_loop().time
    relay = scene.relay(sink, settings=scene.quick(lease=LEASE))
    async with relay:
        await scene.put((1, "a"))
        await until(lambda: sink.numbers() == [1])
        relay_id = relay.relay_id
        assert proxy.forget()
        dropped_at = clock()
        await scene.put((2, "a"))
        await until(lambda: sink.numbers()[-1:] == [2])
        took = clock() - dropped_at
    assert took < LEASE.total_seconds()
    assert relay.relay_id == relay_id, "the lease was lost"


async def test_a_relay_stops_while_its_connections_are_dropped(place: tuple[Scene, DroppingProxy]) -> None:
    scene, proxy = place
    sink = Script()
    async with asyncio.timeout(60), scene.relay(sink, settings=scene.quick(lease=timedelta(seconds=1))):
        await scene.put((1, "a"))
        await until(lambda: sink.numbers() == [1])
        proxy.hang()


# --- a relay that is frozen in a transaction ---


@contextmanager
def frozen_in_a_settlement(scene: Scene, fence: Fence, lane: int) -> Iterator[None]:
    """Hold the locks that a relay has in the middle of a settlement and of a heartbeat: lane, claim and registry."""
    relay, lanes, claims = (scene.names.table(name, quote="") for name in ("relay", "lane", "claim"))
    shared = "lock in share mode" if scene.url.startswith("mysql") else "for share"
    partition = "`partition`" if scene.url.startswith("mysql") else "partition"
    opened: Any = connected(scene.url) if scene.url.startswith("mysql") else psycopg.connect(scene.url)
    with closing(opened) as connection, connection.cursor() as cursor:
        if scene.url.startswith("mysql"):
            cursor.execute("set session transaction isolation level read committed")
        where = f"where relay_id = '{fence.relay_id}'"
        cursor.execute(f"select * from {lanes} where destination = 'sink' and {partition} = {lane} {shared}")
        cursor.execute(f"update {claims} set strikes = 0 {where}")
        cursor.execute(f"update {relay} set host = 'frozen' {where}")
        yield
        connection.rollback()  # and awaits that: a server notices a closed connection when it likes


@pytest.fixture(params=["postgres", "mariadb"])
async def server_scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    if request.param == "mariadb":
        logins = request.getfixturevalue("mariadb_logins")
        async with mariadb_scene(request.getfixturevalue("mariadb_url"), logins) as scene:
            yield scene
        return
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    async with postgres_scene(url, schema, request.getfixturevalue("postgres_logins"), driver="asyncpg") as scene:
        yield scene


async def test_a_takeover_waits_for_no_lock_of_a_frozen_relay(server_scene: Scene) -> None:
    store: Store = server_scene.store
    dead, heir = sample_relay(destination="sink"), sample_relay(destination="sink")
    await server_scene.put((1, "a"), (2, "b"), (3, "c"))
    messages = await server_scene.find()
    await store.register(dead, lease=SHORT)
    everything = list(range(64))
    lanes, _ = await store.take(dead.relay_id, "sink", partitions=everything, lease=SHORT, claim_number=1)
    fence = Fence(dead.relay_id, "sink", {lane.partition: lane.epoch for lane in lanes})
    await store.claim(fence, Claim(7, [message.id for message in messages]))
    locked = messages[0].partition
    with frozen_in_a_settlement(server_scene, fence, locked):
        await store.register(heir, lease=timedelta(minutes=1))

        async def is_expired() -> bool:
            registry = await store.registry(lease=SHORT)
            return all(relay.relay_id != dead.relay_id for relay in registry.relays)

        await until(is_expired)
        async with asyncio.timeout(30):
            taken, recovered = await store.take(
                heir.relay_id, "sink", partitions=everything, lease=SHORT, claim_number=1
            )
        assert {lane.partition for lane in taken} == {*everything} - {locked}
        assert list(recovered) == []
    taken, recovered = await store.take(heir.relay_id, "sink", partitions=[locked], lease=SHORT, claim_number=2_000)
    assert [lane.partition for lane in taken] == [locked]
    assert [message.id for one in recovered for message in one.messages] == [messages[0].id]


WAYS: Final = [(driver, pooler) for driver in ("asyncpg", "psycopg") for pooler in ("none", "transaction")]


@asynccontextmanager
async def owners_database(
    url: str, schema: str, logins: Logins, *, driver: Any, pooler: Any
) -> AsyncIterator[Database]:
    """The connections of an open store, with the login of the tables' owner."""
    async with postgres_scene(url, schema, logins, driver=driver):
        store = PostgresStore(url, schema=schema, driver=driver, pooler=pooler)
        await store.open()
        try:
            yield store._database
        finally:
            await store.close()


@pytest.mark.parametrize(("driver", "pooler"), WAYS)
async def test_every_transaction_is_bounded_on_the_servers_side(
    postgres_url: str, postgres_schema: str, postgres_logins: Logins, pooler: Any, driver: Any
) -> None:
    names = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")
    async with owners_database(
        postgres_url, postgres_schema, postgres_logins, driver=driver, pooler=pooler
    ) as database:
        for way in (database.quick, database.durable, database.unpinned, database.snapshot):
            async with way() as connection:
                for name in names:
                    assert await connection.fetchval(f"select current_setting('{name}')") != "0"


@pytest.mark.parametrize(("driver", "pooler"), WAYS)
async def test_what_a_relay_relaxes_for_itself_is_not_relaxed_where_it_must_be_durable(
    postgres_url: str, postgres_schema: str, postgres_logins: Logins, pooler: Any, driver: Any
) -> None:
    """A setting that goes with the login would be the session's default, and stay when the default is asked for."""
    settings = "select current_setting('synchronous_commit'), current_setting('enable_seqscan')"
    found = []
    async with owners_database(
        postgres_url, postgres_schema, postgres_logins, driver=driver, pooler=pooler
    ) as database:
        for way in (database.quick, database.durable, database.unpinned):
            async with way() as connection:
                found.append(tuple(await connection.fetchrow(settings)))
    assert found == [("off", "off"), ("on", "off"), ("on", "on")]


async def test_the_server_ends_what_a_frozen_relay_has_begun(
    postgres_url: str, postgres_schema: str, postgres_logins: Logins, mariadb_url: str, mariadb_logins: Logins
) -> None:
    """A relay that is stopped in the middle of a settlement sends nothing more. Its locks go, its error passes."""
    async with (
        postgres_scene(postgres_url, postgres_schema, postgres_logins, driver="asyncpg") as scene,
        mariadb_scene(mariadb_url, mariadb_logins) as other,
    ):
        ways: Any = WAYS
        stores = [
            PostgresStore(postgres_url, schema=postgres_schema, driver=driver, pooler=pooler) for driver, pooler in ways
        ]
        frozen = [asyncio.create_task(freeze_postgres(store, lane)) for lane, store in enumerate(stores)]
        frozen.append(asyncio.create_task(freeze_mariadb(other.store)))
        for number, ended in enumerate(await asyncio.gather(*frozen)):
            assert isinstance(ended, StoreUnavailable), (number, ended)
        heir = sample_relay(destination="sink")
        await scene.store.register(heir, lease=SHORT)
        lanes, _ = await scene.store.take(heir.relay_id, "sink", partitions=range(64), lease=SHORT, claim_number=1)
        assert len(lanes) == 64


async def freeze_postgres(store: PostgresStore, lane: int) -> Exception:
    """Hold a lane until the server has had enough, and return how that is told."""
    await store.open()
    try:
        relay = sample_relay(destination="sink")
        await store.register(relay, lease=timedelta(milliseconds=1))
        await store.take(relay.relay_id, "sink", partitions=[lane], lease=SHORT, claim_number=1)
        async with store._database.durable() as connection:
            pid = await connection.fetchval("select pg_backend_pid()")
            assert await connection.fetch(store._sql["lanes_lock"], "sink", [lane])
            await asyncio.to_thread(wait_for_end, store._url, pid)
            await connection.fetchval("select 1")
    except StoreError as error:
        return error
    finally:
        await store.close()
    raise AssertionError("the transaction was not ended")


def wait_for_end(url: str, pid: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        deadline = time.monotonic() + 60
        while connection.execute("select from pg_stat_activity where pid = %s", [pid]).fetchone() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.05)


async def freeze_mariadb(store: Any) -> Exception:
    def work(tx: Any) -> None:
        tx.execute("lanes_create", {"destination": "sink", "partitions": [1]})
        # The end of the connection is the end of what it holds: nothing else reaches a client that reads nothing.
        assert select.select([tx._connection._sock], [], [], 60)[0]
        tx.query("lanes_owned")

    try:
        await store._database.write(work)
    except StoreError as error:
        return error
    raise AssertionError("the transaction was not ended")


class CountingProxy(FaultProxy):
    """Counts the bytes of answers before the first commit since `count` was set to 0."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.count = 0
        self.commits: list[int] = []

    async def _forward(self, direction: Any, chunk: bytes, sink: asyncio.StreamWriter) -> None:
        if direction.value == "answers":
            self.count += len(chunk)
            if b"COMMIT\0" in chunk:
                self.commits.append(self.count)
        await super()._forward(direction, chunk, sink)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_no_message_is_received_while_a_takeover_holds_its_locks(
    postgres_url: str, postgres_schema: str, postgres_logins: Logins, driver: Any
) -> None:
    """The server would wait for a relay that freezes then, and no bound on idle transactions ends that."""
    many = 3_000
    parts = urlsplit(postgres_url)
    async with (
        postgres_scene(postgres_url, postgres_schema, postgres_logins, driver=driver) as scene,
        CountingProxy(parts.hostname or "", parts.port or 0) as proxy,
    ):
        await scene.put(*((number, f"key {number}") for number in range(many)))
        ids = [message.id for message in await scene.find()]
        dead, heir = sample_relay(destination="sink"), sample_relay(destination="sink")
        await scene.store.register(dead, lease=timedelta(milliseconds=1))
        lanes, _ = await scene.store.take(dead.relay_id, "sink", partitions=range(64), lease=SHORT, claim_number=1)
        fence = Fence(dead.relay_id, "sink", {lane.partition: lane.epoch for lane in lanes})
        await scene.store.claim(fence, Claim(7, ids))
        login = parts.netloc.rpartition("@")[0]
        url = parts._replace(netloc=f"{login}@{proxy.host}:{proxy.port}").geturl()
        store = PostgresStore(url, schema=postgres_schema, driver=driver, connections=1)
        await store.open()
        try:
            await store.register(heir, lease=SHORT)
            proxy.count, proxy.commits = 0, []
            _, recovered = await store.take(heir.relay_id, "sink", partitions=range(64), lease=SHORT, claim_number=1)
        finally:
            await store.close()
        assert [message.id for one in recovered for message in one.messages] == ids
        assert proxy.commits[0] < 5 * many < proxy.count, "the ids alone are 8 bytes each"


async def test_waiting_in_a_takeover_does_not_stop_the_heartbeat(server_scene: Scene) -> None:
    sink, lease = Script(), timedelta(seconds=5)  # a busy machine may stand still for seconds
    held, renewals = asyncio.Event(), [0]
    store: Any = server_scene.open_store()
    take, renew = store.take, store.renew

    async def take_late(*values: Any, **options: Any) -> Any:
        if options["partitions"]:
            await held.wait()
        return await take(*values, **options)

    async def count_renewals(*values: Any, **options: Any) -> Any:
        renewals[0] += 1
        return await renew(*values, **options)

    store.take, store.renew = take_late, count_renewals
    server_scene.open_store = lambda: store
    relay = server_scene.relay(sink, settings=server_scene.quick(lease=lease))
    async with relay:
        await until(lambda: renewals[0] > 0)
        relay_id = relay.relay_id
        await until(lambda: renewals[0] > 6)  # two leases
        held.set()
        await server_scene.put((1, "a"))
        await until(lambda: sink.numbers() == [1])
        assert relay.relay_id == relay_id
