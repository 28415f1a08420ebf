"""The Redis transport against real servers: each way in which a message is not taken, and each way back."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import redis

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.redis import RedisTransport
from pillarbox.brokers.redis import connection as connection_module
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.redis_server import PrivateRedis, PrivateValkey, RedisServer, private_redis, private_valkey
from tests.support.servers import found

DELIVERED = Outcome(delivered=True)
PATIENCE = 30.0
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateRedis]:
    with closing(private_redis("--proto-max-bulk-len", "1mb")) as server:
        yield server


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    with closing(private_valkey()) as server:
        yield server


@pytest.fixture
def client(server: PrivateRedis) -> Iterator[Any]:
    with closing(server.client()) as client:
        client.flushall()
        yield client


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[RedisTransport]:
    transport = transport_from_url(url, options={"timeout": "5s"} | options)
    assert isinstance(transport, RedisTransport)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def proxied(server: PrivateRedis, **options: object) -> AsyncIterator[tuple[RedisTransport, FaultProxy]]:
    async with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        opened(f"redis://{proxy.host}:{proxy.port}", **options) as transport,
    ):
        yield transport, proxy


async def sent(url: str, *messages: Message, **options: object) -> Sequence[Outcome]:
    async with opened(url, **options) as transport:
        return await transport.send(messages or [sample()])


async def outage(url: str, *messages: Message, **options: object) -> str:
    with pytest.raises(TransportUnavailable) as away:
        await sent(url, *messages, **options)
    assert not away.value.mid_send
    return str(away.value)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# --- topology and the state of the server ---


async def test_a_key_that_holds_something_else_is_waited_for(server: PrivateRedis, client: Any) -> None:
    client.set("orders", "x")
    (outcome,) = await sent(server.url, key="orders")
    assert outcome.missing
    assert "'orders'" in (outcome.error or "")
    assert "WRONGTYPE" in (outcome.error or "")


async def test_a_topic_whose_key_holds_something_else_is_blocked_alone(server: PrivateRedis, client: Any) -> None:
    client.set("orders", "x")
    good, bad = await sent(server.url, sample(topic="other"), sample())
    assert good == DELIVERED
    assert (bad.rejected, bad.not_now, bad.missing) == (False, True, True)
    assert "'orders'" in (bad.error or "")
    assert "WRONGTYPE" in (bad.error or "")


async def test_a_stream_can_be_wanted_to_be_there(server: PrivateRedis, client: Any) -> None:
    (outcome,) = await sent(server.url, create=False)
    assert outcome.missing
    assert "no stream 'orders'" in (outcome.error or "")
    assert client.exists("orders") == 0
    client.xgroup_create("orders", "mail", mkstream=True)
    assert await sent(server.url, create=False) == [DELIVERED]


async def test_a_full_memory_does_not_take_a_message_now(server: PrivateRedis, client: Any) -> None:
    client.config_set("maxmemory", "1")
    (refused,) = await sent(server.url)
    client.config_set("maxmemory", "0")
    assert (refused.delivered, refused.rejected, refused.lost) == (False, False, False)
    assert "OOM" in (refused.error or "")
    assert await sent(server.url) == [DELIVERED]


async def test_a_replica_is_an_outage(server: PrivateRedis) -> None:
    with closing(private_redis("--replicaof", "127.0.0.1", str(server.port))) as replica:
        assert "READONLY" in await outage(replica.url)


async def test_a_server_that_loads_its_data_is_an_outage() -> None:
    with closing(private_redis("--appendonly", "no", "--save", "3600 1", "--rdbcompression", "no")) as server:
        with closing(server.client()) as client:
            client.mset({f"key-{number}": "x" * 2_000 for number in range(400)})
            client.save()
        await asyncio.to_thread(server.kill)
        server.settings += ("--key-load-delay", "50000", "--loading-process-events-interval-bytes", "1024")
        await asyncio.to_thread(server.launch)
        await until(lambda: server.is_listening)
        assert "is loading its data" in await outage(server.url)


# --- sizes ---


async def test_what_is_too_large_is_rejected_and_breaks_nothing(server: PrivateRedis, client: Any) -> None:
    async with opened(server.url) as transport:
        assert transport.features.max_payload == MIB
        payloads = [b"x", b"x" * (MIB + 1), b"x" * MIB]
        outcomes = await transport.send([sample(key=None, payload=payload) for payload in payloads])
    assert [(outcome.delivered, outcome.rejected) for outcome in outcomes] == [
        (True, False),
        (False, True),
        (True, False),
    ]


async def test_a_limit_that_cannot_be_seen_can_be_told(server: PrivateRedis, client: Any) -> None:
    client.execute_command("ACL", "SETUSER", "blind", "on", ">p", "~*", "+@all", "-config")
    messages = [sample(key=None), sample(key=None, payload=b"x" * (MIB + 1)), sample(key=None)]
    outcomes = await sent(f"redis://blind:p@127.0.0.1:{server.port}", *messages, max_payload=MIB)
    assert [outcome.rejected for outcome in outcomes] == [False, True, False]


async def test_large_batches_go_through(server: PrivateRedis, client: Any) -> None:
    messages = [sample(payload=b"x" * 900_000) for _ in range(30)]
    assert await sent(server.url, *messages, timeout="60s") == [DELIVERED] * 30
    assert [fields[b"ce-id"].decode() for _, fields in client.xrange("orders")] == [str(m.message_id) for m in messages]


# --- addresses and options ---


async def test_a_template_makes_the_key(server: PrivateRedis, client: Any) -> None:
    keyed, keyless = await sent(server.url, sample(key="k"), sample(key=None), key="shop:{topic}:{key}")
    assert keyed == DELIVERED
    assert keyless.rejected
    assert client.keys() == [b"shop:orders:k"]


async def test_a_database_has_a_number(server: PrivateRedis, client: Any) -> None:
    assert await sent(f"{server.url}/5") == [DELIVERED]
    with closing(redis.Redis(port=server.port, db=5, protocol=2)) as fifth:
        assert (client.exists("orders"), fifth.exists("orders")) == (0, 1)


async def test_old_entries_are_dropped_only_if_that_is_wanted(server: PrivateRedis, client: Any) -> None:
    messages = [sample() for _ in range(1_000)]
    await sent(server.url, *messages)
    assert client.xlen("orders") == 1_000
    await sent(server.url, *messages, maxlen=200)
    assert client.xlen("orders") < 500


async def test_the_server_that_is_found() -> None:
    key = f"pillarbox-test-{secrets.token_hex(6)}"
    with found(RedisServer(), environ=os.environ) as url, closing(redis.Redis.from_url(url, protocol=2)) as client:
        assert await sent(url, key=key) == [DELIVERED]
        assert client.xlen(key) == 1
        client.delete(key)


# --- durability ---


async def test_too_few_replicas_are_not_delivered(server: PrivateRedis) -> None:
    (short,) = await sent(server.url, durability="wait:1", timeout="2s")
    assert (short.delivered, short.rejected, short.lost) == (False, False, False)
    assert "0 of 1 replicas" in (short.error or "")


async def test_replicas_that_have_it(server: PrivateRedis, client: Any) -> None:
    with closing(private_redis("--replicaof", "127.0.0.1", str(server.port))) as replica:
        await until(lambda: client.info("replication")["connected_slaves"])
        assert await sent(server.url, durability="wait:1", timeout="20s") == [DELIVERED]
        with closing(replica.client()) as reading:
            assert reading.xlen("orders") == 1


async def test_a_disk_that_has_it(valkey: PrivateValkey) -> None:
    assert await sent(valkey.url, *(sample() for _ in range(10)), durability="waitaof") == [DELIVERED] * 10
    (short,) = await sent(valkey.url, durability="waitaof:1", timeout="2s")
    assert "0 of 1 replicas" in (short.error or "")


async def test_a_server_that_cannot_say_is_an_outage(server: PrivateRedis) -> None:
    with closing(private_valkey("--appendonly", "no")) as forgetful:
        assert "appendonly yes" in await outage(forgetful.url, durability="waitaof")
    with closing(server.client()) as client:
        knows = str(client.info("server")["redis_version"]) >= "7.2"
    if not knows:
        assert "unknown command" in await outage(server.url, durability="waitaof")


# --- the connection ---


async def test_a_lost_acknowledgement_is_a_repeat_and_not_a_loss(server: PrivateRedis, client: Any) -> None:
    message = sample()
    async with proxied(server) as (transport, proxy):
        proxy.drop_answers()
        proxy.answered.clear()
        sending = asyncio.create_task(_sent(transport, message))
        await asyncio.wait_for(proxy.answered.wait(), PATIENCE)
        proxy.cut()
        with pytest.raises(TransportUnavailable) as cut:
            await sending
        assert cut.value.mid_send
        proxy.heal()
        assert client.xlen("orders") == 1  # the client did not repeat it by itself
        assert await transport.send([message]) == [DELIVERED]
    assert [fields[b"ce-id"].decode() for _, fields in client.xrange("orders")] == [str(message.message_id)] * 2


async def _sent(transport: RedisTransport, *messages: Message) -> list[Outcome]:
    return list(await transport.send(messages))


async def test_a_hung_server_is_given_up_in_time_and_found_again(server: PrivateRedis, client: Any) -> None:
    async with proxied(server, timeout="300ms") as (transport, proxy):
        proxy.hang()
        (late,) = await transport.send([sample()])
        assert "no answer within 0.3 s" in (late.error or "")
        with pytest.raises(TransportUnavailable) as away:
            await transport.send([sample()])
        assert not away.value.mid_send
        proxy.heal()
        assert await transport.send([sample()]) == [DELIVERED]


async def test_an_idle_connection_that_died_is_nobodys_fault(
    server: PrivateRedis, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_IDLE", 0.0)
    async with proxied(server) as (transport, proxy):
        await asyncio.gather(*(transport.send([sample()]) for _ in range(3)))
        proxy.cut()
        assert await transport.send([sample()]) == [DELIVERED]


async def test_a_broken_connection_takes_the_idle_ones_with_it(server: PrivateRedis, client: Any) -> None:
    async with proxied(server) as (transport, proxy):
        await asyncio.gather(*(transport.send([sample()]) for _ in range(5)))
        proxy.cut()
        with pytest.raises(TransportUnavailable):
            await transport.send([sample()])
        assert await transport.send([sample()]) == [DELIVERED]


async def test_no_more_connections_than_allowed(server: PrivateRedis, client: Any) -> None:
    async with proxied(server, connections=2) as (transport, proxy):
        outcomes = await asyncio.gather(*(transport.send([sample(), sample()]) for _ in range(20)))
        assert outcomes == [[DELIVERED] * 2] * 20
        assert proxy.connections <= 2


@pytest.mark.parametrize(
    ("make", "settings", "durability"),
    [(private_redis, ("--appendfsync", "always"), "none"), (private_valkey, (), "waitaof")],
    ids=["always", "waitaof"],
)
async def test_a_killed_server_is_found_again_and_has_everything(
    make: Callable[..., PrivateRedis], settings: tuple[str, ...], durability: str
) -> None:
    """With `appendfsync everysec` alone it need not: what was acknowledged may still be in the process's memory."""
    with closing(make(*settings)) as server, closing(server.client()) as client:
        async with opened(server.url, durability=durability) as transport:
            assert await transport.send([sample() for _ in range(100)]) == [DELIVERED] * 100
            await asyncio.to_thread(server.kill)
            with pytest.raises(TransportUnavailable):
                await transport.ping()
            await asyncio.to_thread(server.start)
            assert await transport.send([sample()]) == [DELIVERED]
            assert client.xlen("orders") == 101
