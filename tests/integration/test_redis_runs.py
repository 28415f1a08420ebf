"""Runs of a key on real Redis and Valkey servers: what the server has of a run is its beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.redis import RedisTransport
from pillarbox.brokers.redis.encoding import EncodedMessage, encode_command, encode_run
from pillarbox.brokers.send_batch import DELIVERED, UNSENT
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.redis_server import PrivateRedis, private_redis, private_valkey

MIB = 1024 * 1024
LAST_BUT_TWO = "18446744073709551615-18446744073709551613"


@pytest.fixture(scope="module", params=[private_redis, private_valkey], ids=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[PrivateRedis]:
    make: Callable[..., PrivateRedis] = request.param
    with closing(make("--proto-max-bulk-len", "1mb", "--save", "")) as server:
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


async def sent(url: str, messages: Sequence[Message], **options: object) -> list[Outcome]:
    async with opened(url, **options) as transport:
        return list(await transport.send(messages))


def run(count: int, **values: Any) -> list[Message]:
    return [sample(**{"key": "a", "topic": "orders", **values}) for _ in range(count)]


def ids(messages: Sequence[Message]) -> list[str]:
    return [str(message.message_id) for message in messages]


def taken(client: Any, stream: str = "orders") -> list[str]:
    """The ids of the messages in a stream, in order."""
    return [fields[b"ce-id"].decode() for _, fields in client.xrange(stream) if b"ce-id" in fields]


async def test_a_run_is_added_in_order_beside_other_messages(server: PrivateRedis, client: Any) -> None:
    first, second = run(5), run(3, key="b")
    single, keyless = sample(key="c", topic="orders"), run(2, key=None)
    mixed = [first[0], single, second[0], *first[1:3], keyless[0], *second[1:], *first[3:], keyless[1]]
    async with opened(server.url) as transport:
        assert transport.features.runs
        assert await transport.send(mixed) == [DELIVERED] * len(mixed)
    found = taken(client)
    assert sorted(found) == sorted(ids(mixed))
    for messages in (first, second):
        assert [one for one in found if one in ids(messages)] == ids(messages)


async def test_entries_of_a_run_are_those_of_single_messages(server: PrivateRedis, client: Any) -> None:
    values = {"headers": {"tenant": "ä"}, "subject": "s", "payload": b"\r\n\x00", "topic": "ströme"}
    messages = run(2, **values)
    await sent(server.url, messages)
    in_run = client.xrange("ströme")
    client.flushall()
    for message in messages:
        await sent(server.url, [message])
    assert [fields for _, fields in client.xrange("ströme")] == [fields for _, fields in in_run]


async def test_a_message_that_the_server_does_not_take_ends_its_run(server: PrivateRedis, client: Any) -> None:
    client.xadd("orders", {"in": "the way"}, id=LAST_BUT_TWO)
    messages = run(5)
    outcomes = await sent(server.url, [*messages, sample(key="b", topic="other")])
    assert outcomes[:2] == [DELIVERED] * 2
    assert not outcomes[2].delivered
    assert not outcomes[2].unsent
    assert outcomes[3:] == [UNSENT, UNSENT, DELIVERED]
    assert taken(client) == ids(messages[:2])


async def test_the_script_stops_at_a_command_that_fails(server: PrivateRedis, client: Any) -> None:
    """Of commands of a transaction, one that fails does not stop the next."""

    def add(*words: str) -> EncodedMessage:
        command = encode_command("XADD", "orders", "*", *words, "data", "")
        return EncodedMessage("orders", 5 + len(words), command[: -len(b"\r\n")], b"")

    packed = b"".join(encode_run([add("n", "1"), add("odd"), add("n", "3")]))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(packed + encode_command("PING"))
    assert "wrong number of arguments" in (await reader.readuntil(b"+PONG")).decode()
    writer.close()
    await writer.wait_closed()
    assert [fields[b"n"] for _, fields in client.xrange("orders")] == [b"1"]


async def test_a_run_that_changes_its_stream_ends_at_the_first_failure_too(server: PrivateRedis, client: Any) -> None:
    client.set("wrong", "x")
    messages = [*run(2), *run(1, topic="wrong"), *run(2)]
    outcomes = await sent(server.url, messages)
    assert outcomes[:2] == [DELIVERED] * 2
    assert outcomes[2].missing
    assert not outcomes[2].rejected
    assert outcomes[3:] == [UNSENT] * 2
    assert taken(client) == ids(messages[:2])
    assert await sent(server.url, [*run(1), *run(1, topic="other"), *run(1)]) == [DELIVERED] * 3


async def test_what_is_rejected_before_it_is_sent_ends_its_run(server: PrivateRedis, client: Any) -> None:
    messages = [*run(2), *run(1, payload=b"x" * (MIB + 1)), *run(2)]
    outcomes = await sent(server.url, messages)
    assert [outcome.rejected for outcome in outcomes] == [False, False, True, False, False]
    assert outcomes[3:] == [UNSENT] * 2
    assert taken(client) == ids(messages[:2])


async def test_a_run_without_its_first_message_is_not_sent(server: PrivateRedis, client: Any) -> None:
    outcomes = await sent(server.url, [*run(1, payload=b"x" * (MIB + 1)), *run(2), sample(key="b", topic="orders")])
    assert outcomes[0].rejected
    assert outcomes[1:] == [UNSENT, UNSENT, DELIVERED]
    assert client.xlen("orders") == 1


async def test_a_limit_that_cannot_be_seen_ends_the_run_at_its_message(server: PrivateRedis, client: Any) -> None:
    client.execute_command("ACL", "SETUSER", "blind", "on", ">p", "~*", "+@all", "-config")
    messages = [*run(2), *run(1, payload=b"x" * (MIB + 1)), *run(2)]
    outcomes = await sent(f"redis://blind:p@127.0.0.1:{server.port}", messages)
    assert [outcome.rejected for outcome in outcomes] == [False, False, True, False, False]
    assert outcomes[3:] == [UNSENT] * 2
    assert taken(client) == ids(messages[:2])


async def test_a_long_run_stops_between_its_commands(server: PrivateRedis, client: Any) -> None:
    messages = run(8, payload=b"x" * 400_000)
    assert await sent(server.url, messages) == [DELIVERED] * 8
    assert taken(client) == ids(messages)
    client.flushall()
    client.xadd("orders", {"in": "the way"}, id="18446744073709551615-18446744073709551610")
    outcomes = await sent(server.url, messages)
    assert [outcome.delivered for outcome in outcomes] == [True] * 5 + [False] * 3
    assert outcomes[6:] == [UNSENT] * 2
    assert taken(client) == ids(messages[:5])


async def test_a_message_with_very_many_headers_goes_alone(server: PrivateRedis, client: Any) -> None:
    messages = [*run(2), *run(1, headers={f"h{number}": "v" for number in range(5_000)}), *run(2)]
    assert await sent(server.url, messages) == [DELIVERED] * 5
    assert taken(client) == ids(messages)


async def test_a_missing_stream_and_a_full_memory_cost_the_whole_run(server: PrivateRedis, client: Any) -> None:
    first, *others = await sent(server.url, run(3), create=False)
    assert first.missing
    assert others == [UNSENT] * 2
    client.config_set("maxmemory", "1")
    first, *others = await sent(server.url, run(3))
    client.config_set("maxmemory", "0")
    assert first.not_now
    assert "OOM" in (first.error or "")
    assert others == [UNSENT] * 2
    assert client.exists("orders") == 0


async def test_too_few_replicas_deliver_nothing_of_the_run(server: PrivateRedis, client: Any) -> None:
    messages = run(3)
    first, *others = await sent(server.url, messages, durability="wait:1", timeout="1s")
    assert first.not_now
    assert "0 of 1 replicas" in (first.error or "")
    assert others == [UNSENT] * 2
    assert taken(client) == ids(messages)


async def test_without_scripts_a_run_goes_message_by_message(server: PrivateRedis, client: Any) -> None:
    client.execute_command("ACL", "SETUSER", "plain", "on", ">p", "~*", "+@all", "-eval")
    async with opened(f"redis://plain:p@127.0.0.1:{server.port}") as transport:
        messages = run(5)
        assert await transport.send([*messages, *run(1, key="b")]) == [DELIVERED] * 6
        assert [one for one in taken(client) if one in ids(messages)] == ids(messages)
        assert transport.features.runs
        client.flushall()
        client.xadd("orders", {"in": "the way"}, id=LAST_BUT_TWO)
        outcomes = await transport.send(messages)
    assert [outcome.delivered for outcome in outcomes] == [True, True, False, False, False]
    assert outcomes[3:] == [UNSENT] * 2
    assert taken(client) == ids(messages[:2])


@pytest.mark.parametrize("place", range(1, 12))
async def test_a_connection_that_is_cut_leaves_a_beginning(server: PrivateRedis, client: Any, place: int) -> None:
    messages = run(20, payload=b"x" * 200_000)
    async with FaultProxy("127.0.0.1", server.port) as proxy, opened(f"redis://{proxy.host}:{proxy.port}") as transport:
        proxy.cut_after(place * 400_000)
        try:
            outcomes = list(await transport.send(messages))
        except TransportUnavailable:
            outcomes = [UNSENT] * 20
        proxy.heal()
        delivered = sum(outcome.delivered for outcome in outcomes)
        assert [outcome.delivered for outcome in outcomes] == [True] * delivered + [False] * (20 - delivered)
        assert all(outcome.unsent for outcome in outcomes[delivered + 1 :])
        found = taken(client)
        assert found == ids(messages[: len(found)])
        assert len(found) >= delivered
        assert await transport.send(messages[delivered:]) == [DELIVERED] * (20 - delivered)


async def test_a_state_that_changes_all_the_time_leaves_beginnings(server: PrivateRedis, client: Any) -> None:
    """The memory is full at one moment and not at the next. Between two commands of a pipeline it would show."""

    def flicker() -> None:
        with closing(server.client()) as other:
            for number in range(4_000):
                other.config_set("maxmemory", "1" if number % 2 else "0")
            other.config_set("maxmemory", "0")

    flickering = asyncio.create_task(asyncio.to_thread(flicker))
    refused = 0
    async with opened(server.url) as transport:
        number = 0
        while not flickering.done() or number < 20:
            number += 1
            messages = run(50, topic=f"s{number}")
            outcomes = await transport.send(messages)
            delivered = sum(outcome.delivered for outcome in outcomes)
            assert taken(client, f"s{number}") == ids(messages[:delivered])
            assert outcomes[delivered + 1 :] == [UNSENT] * len(outcomes[delivered + 1 :])
            refused += delivered < len(messages)
    await flickering
    assert refused
