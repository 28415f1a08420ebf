"""The RabbitMQ receiver: its queue, what comes of properties, and what it says when there is no way."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import aiormq
import pytest
from aiormq.abc import ChannelFrame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from pillarbox.brokers.factory import receiver_from_url
from pillarbox.brokers.rabbitmq import RabbitmqReceiver, RabbitmqReceiverSettings
from pillarbox.brokers.rabbitmq.receiver import build_queue_arguments
from pillarbox.decoding import decode_incoming, encode_incoming, to_cloudevent
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.receiver_contract import assert_nothing_more, list_ids, take
from tests.support.private_rabbitmq import PrivateRabbitmq
from tests.support.rabbitmq_topology import Topology, proxied


def receiver_at(url: str, /, **options: object) -> RabbitmqReceiver:
    receiver = receiver_from_url(url, options=options)
    assert isinstance(receiver, RabbitmqReceiver)
    return receiver


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[RabbitmqReceiver]:
    receiver = receiver_at(url, **options)
    await receiver.open()
    try:
        yield receiver
    finally:
        await receiver.close()


async def refusal(url: str, **options: object) -> str:
    with pytest.raises(TransportUnavailable) as error:
        await receiver_at(url, **options).open()
    return str(error.value)


@pytest.fixture
async def topology(rabbitmq_url: str) -> AsyncIterator[Topology]:
    async with Topology.declared(rabbitmq_url) as topology, AsyncExitStack() as removing:
        removing.push_async_callback(topology.channel.queue_delete, f"{topology.queue}-own")
        yield topology


async def put(topology: Topology, body: bytes, *, key: str = "plain", **properties: Any) -> None:
    exchange = await topology.channel.get_exchange(topology.exchange)
    await exchange.publish(aio_pika.Message(body, **properties), key)


async def put_without_id(topology: Topology, body: bytes) -> None:
    """As other producers do: this client would make one up."""
    await put_raw(topology, body, header=ContentHeader(body_size=len(body)).marshal())


async def put_raw(topology: Topology, body: bytes, *, header: bytes) -> None:
    """With a header of these very bytes, which no client would write."""
    async with aiormq.connect(topology.url) as connection:
        channel = await connection.channel(publisher_confirms=False)
        assert isinstance(channel, aiormq.Channel)
        publish = marshal(Basic.Publish(exchange=topology.exchange, routing_key="plain"), channel.number)
        frame = struct.pack(">BHL", 2, channel.number, len(header)) + header + b"\xce"
        content = marshal(ContentBody(body), channel.number)
        await channel.write_queue.put(ChannelFrame(payload=publish + frame + content, should_close=False))
        await channel.close()


# --- the queue -------------------------------------------------------------------------------------------


async def test_a_queue_that_is_not_there_is_named(rabbitmq_url: str) -> None:
    said = await refusal(rabbitmq_url, queue="pillarbox-test-nowhere")
    assert "has no queue 'pillarbox-test-nowhere': declare it, or set declare=true" in said


async def test_a_declared_queue_is_bound_by_its_keys(topology: Topology) -> None:
    own = f"{topology.queue}-own"
    async with opened(topology.url, queue=own, declare=True, exchange=topology.exchange, bind="eu.#,us.orders") as one:
        for key in ("eu.a", "us.orders", "us.other", "eu.b.c"):
            await put(topology, key.encode(), key=key)
        assert [received.body for received in await take(one, 3)] == [b"eu.a", b"us.orders", b"eu.b.c"]
        await assert_nothing_more(one)


async def test_a_declared_queue_is_durable_and_a_quorum_queue(topology: Topology) -> None:
    own = f"{topology.queue}-own"
    async with opened(topology.url, queue=own, declare=True, exchange=topology.exchange):
        # Declaring the same again is fine, and anything else is not.
        version = await read_version(topology)
        arguments = build_queue_arguments(RabbitmqReceiverSettings(url=topology.url, queue=own), version=version)
        assert arguments["x-queue-type"] == "quorum"
        assert ("x-delivery-limit" in arguments) == (int(version.partition(".")[0]) >= 4)
        await topology.channel.declare_queue(own, durable=True, arguments=arguments)


async def read_version(topology: Topology) -> str:
    async with aiormq.connect(topology.url) as connection:
        assert isinstance(connection, aiormq.Connection)
        return str(connection.server_properties["version"])


async def test_a_message_that_is_returned_often_stays(topology: Topology) -> None:
    """RabbitMQ 4 drops it after 20 deliveries, unless the queue was declared otherwise."""
    own = f"{topology.queue}-own"
    async with opened(topology.url, queue=own, declare=True, exchange=topology.exchange) as one:
        await put(topology, b"again and again")
        for _ in range(25):
            (received,) = await take(one, 1)
            await one.give_back(received)
        (received,) = await take(one, 1)

    assert received.body == b"again and again"


async def test_given_back_latest_first_they_come_in_the_queues_order(topology: Topology) -> None:
    own = f"{topology.queue}-own"
    async with opened(topology.url, queue=own, declare=True, exchange=topology.exchange) as one:
        bodies = [b"1", b"2", b"3", b"4"]
        for body in bodies:
            await put(topology, body)
        for received in reversed(await take(one, 4)):
            await one.give_back(received)
        assert [received.body for received in await take(one, 4)] == bodies


async def test_the_exchange_is_made_too(topology: Topology) -> None:
    own = f"{topology.queue}-own"
    async with opened(topology.url, queue=own, declare=True, exchange=own):
        exchange = await topology.channel.declare_exchange(own, aio_pika.ExchangeType.TOPIC, durable=True)
        await exchange.delete()


async def test_a_queue_that_is_there_stays_as_it_is(topology: Topology) -> None:
    """Declaring a quorum queue of this name would be refused: it is a classic one."""
    async with opened(topology.url, queue=topology.queue, declare=True, exchange=topology.exchange) as one:
        await put(topology, b"through the new binding")
        (received,) = await take(one, 1)
        assert received.body == b"through the new binding"


async def test_a_queue_that_is_deleted_ends_the_wait_and_is_made_again(topology: Topology) -> None:
    own = f"{topology.queue}-own"
    async with opened(topology.url, queue=own, declare=True, exchange=topology.exchange) as one:
        waiting = asyncio.create_task(one.receive(limit=1))
        await asyncio.sleep(0.1)
        await topology.channel.queue_delete(own)
        with pytest.raises(TransportUnavailable, match="the queue was deleted"):
            async with asyncio.timeout(40):
                await waiting
        await one.ping()
        await put(topology, b"again")
        assert [received.body for received in await take(one, 1)] == [b"again"]


async def test_no_more_are_handed_out_than_prefetch_says(topology: Topology) -> None:
    """The others are free for another consumer."""
    await topology.bind("#")
    async with opened(topology.url, queue=topology.queue, prefetch=3) as first:
        for number in range(5):
            await put(topology, b"%d" % number)
        mine = await take(first, 3)
        await assert_nothing_more(first)
        async with opened(topology.url, queue=topology.queue) as second:
            assert [one.body for one in await take(second, 2)] == [b"3", b"4"]
        await first.acknowledge(mine[0])
        assert len(await take(first, 1)) == 1


# --- what comes ------------------------------------------------------------------------------------------


async def test_properties_of_a_plain_message_are_headers(topology: Topology) -> None:
    await topology.bind("#")
    at = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    async with opened(topology.url, queue=topology.queue) as one:
        await put(
            topology, b"{}", key="orders.eu", headers={"tenant": "shop-1", "type": "mine"}, message_id="m-1",
            correlation_id="c-1", type="order", timestamp=at, content_type="application/json", app_id="legacy",
        )  # fmt: skip
        (received,) = await take(one, 1)
    event = to_cloudevent(received)
    assert (event.message_id, event.type, event.topic) == ("m-1", "order", "orders.eu")
    assert (event.correlation_id, event.content_type) == ("c-1", "application/json")
    assert event.source == f"rabbitmq:{topology.queue}"
    assert event.headers == {
        "tenant": "shop-1",
        "type": "mine",
        "message-id": "m-1",
        "correlation-id": "c-1",
        "timestamp": at.isoformat(),
        "app-id": "legacy",
    }


async def test_a_plain_message_without_an_id_has_another_at_each_delivery(topology: Topology) -> None:
    """AMQP has none to offer, and two messages with the same body are two messages."""
    await topology.bind("#")
    async with opened(topology.url, queue=topology.queue) as one:
        await put_without_id(topology, b"same")
        await put_without_id(topology, b"same")
        first, second = await take(one, 2)
        await one.give_back(first)
        (again,) = await take(one, 1)
        assert again.redelivered
        assert len(set(list_ids([first, second, again]))) == 3


async def test_an_id_that_no_inbox_can_keep_is_a_digest(topology: Topology) -> None:
    await topology.bind("#")
    async with opened(topology.url, queue=topology.queue) as one:
        await put(topology, b"1", message_id="a\x00b")
        await put(topology, b"2", message_id="a\x00c")
        first, second = await take(one, 2)
        assert first.fallback.message_id.startswith("sha256:")
        assert first.fallback.message_id != second.fallback.message_id


def odd_header(size: int, flags: int, *properties: bytes) -> bytes:
    return struct.pack(">HHQH", 60, 0, size, flags) + b"".join(properties)


_MESSAGE_ID, _TIMESTAMP, _TYPE, _HEADERS = 1 << 7, 1 << 6, 1 << 5, 1 << 13
ODD = {
    "an id that is not UTF-8": odd_header(3, _MESSAGE_ID | _TYPE, b"\x05id-\xff\xfe", b"\x05order"),
    "a type that is not UTF-8": odd_header(3, _MESSAGE_ID | _TYPE, b"\x03m-1", b"\x04caf\xe9"),
    "a header that is not UTF-8": odd_header(3, _HEADERS, b"\x00\x00\x00\x09\x02x\xe9S\x00\x00\x00\x01\xff"),
    "an impossible time": odd_header(3, _MESSAGE_ID | _TIMESTAMP, b"\x03m-1", b"\xff" * 8),
    "an impossible time in a header": odd_header(3, _HEADERS, b"\x00\x00\x00\x0b\x01tT" + b"\x7f" + b"\xff" * 7),
}


@pytest.mark.parametrize("header", ODD.values(), ids=ODD.keys())
async def test_an_odd_message_arrives_and_so_do_its_neighbours_over_the_same_connection(
    topology: Topology, header: bytes
) -> None:
    """A client that cannot read it drops the connection, and the broker delivers it again, and again."""
    await topology.bind("#")
    async with opened(topology.url, queue=topology.queue) as one:
        await put(topology, b"before", message_id="m-before")
        await put_raw(topology, b"odd", header=header)
        await put(topology, b"after", message_id="m-after")
        received = await take(one, 3)
        assert [message.body for message in received] == [b"before", b"odd", b"after"]
        assert [message.redelivered for message in received] == [False] * 3
        assert len({message.token[0] for message in received}) == 1
        first, odd, last = (to_cloudevent(decode_incoming(encode_incoming(message))) for message in received)
        assert (first.message_id, last.message_id) == ("m-before", "m-after")
        assert odd.message_id
        assert "timestamp" not in odd.headers
        for message in received:
            await one.acknowledge(message)
        await assert_nothing_more(one)
        assert received[0].token[0].reason is None
    assert not await topology.taken(topology.queue)


# --- no way there ----------------------------------------------------------------------------------------


async def test_a_login_that_is_refused_is_said_without_it(rabbitmq_url: str) -> None:
    parts = urlsplit(rabbitmq_url)
    said = await refusal(f"amqp://nobody:canary-1234@{parts.hostname}:{parts.port}/", queue="q")
    assert "refuses the login" in said
    assert "canary-1234" not in said


async def test_a_virtual_host_that_is_not_there_is_said(rabbitmq_url: str) -> None:
    assert "refuses the virtual host" in await refusal(f"{rabbitmq_url}no%2Fsuch", queue="q")


async def test_a_broker_that_says_nothing_is_not_waited_for(topology: Topology) -> None:
    async with FaultProxy(*topology.address) as proxy:
        proxy.hang()
        said = await refusal(proxied(topology.url, proxy), queue=topology.queue, timeout="300ms")
    assert "cannot be reached (no answer in time)" in said


async def test_nobody_is_at_the_port(topology: Topology) -> None:
    async with FaultProxy(*topology.address) as proxy:
        await proxy.down()
        assert "cannot be reached (Connection refused)" in await refusal(proxied(topology.url, proxy), queue="q")


async def test_the_second_server_is_tried(topology: Topology) -> None:
    async with FaultProxy(*topology.address) as proxy:
        await proxy.down()
        url = topology.url.replace("@", f"@{proxy.host}:{proxy.port},")
        async with opened(url, queue=topology.queue) as one:
            await one.ping()


async def test_certificates_are_checked(private_rabbitmq: PrivateRabbitmq) -> None:
    server = f"amqps://guest:guest@127.0.0.1:{private_rabbitmq.tls_port}/"
    assert "cannot be trusted" in await refusal(server, queue="tls")
    ca = str(private_rabbitmq.authority)
    async with opened(server, queue="tls", ca=ca, declare=True, queue_type="classic", exchange="tls") as one:
        await one.ping()
    async with await aio_pika.connect(private_rabbitmq.url) as connection:
        channel = await connection.channel()
        await channel.queue_delete("tls")
        await channel.exchange_delete("tls")


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs the name of a queue"),
        ({"queue": ""}, "needs the name of a queue"),
        ({"queue": "q", "prefetch": 0}, "prefetch"),
        ({"queue": "q", "prefetch": "many"}, "prefetch"),
        ({"queue": "q", "queue_type": "stream"}, "one of quorum or classic"),
        ({"queue": "q" * 256}, "over 255 bytes"),
        ({"queue": "amq.q", "declare": True}, "keeps those names"),
        ({"queue": "q", "declare": True, "exchange": ""}, "exchange=NAME"),
        ({"queue": "q", "auth": "external"}, "client_certificate"),
        ({"queue": "q", "verify": False}, "insecure=true"),
        ({"queue": "q", "colour": "red"}, "no option 'colour'"),
        ({"queue": "q", "url": "amqp://x"}, "twice"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        receiver_at("amqp://broker.example", **options)


def test_nothing_shows_a_secret() -> None:
    one = receiver_at("amqp://shop:canary-1234@broker.example/path", queue="q")
    assert "canary" not in f"{one!r} {one.settings!r} {one.settings}"


# --- what a dead consumer had ---


async def test_what_a_dead_consumer_had_comes_before_what_is_newer_to_one_that_waits(topology: Topology) -> None:
    """Both are there when messages come: a queue without the option would give some of them to each."""
    options = {
        "queue": f"{topology.queue}-own", "exchange": topology.exchange, "declare": True, "single_active": True,
    }  # fmt: skip
    server = urlsplit(topology.url)
    async with FaultProxy(server.hostname or "127.0.0.1", server.port or 5672) as proxy:
        dead = receiver_at(proxied(topology.url, proxy), **options)
        other = receiver_at(topology.url, **options)
        await dead.open()
        await other.open()
        try:
            for number in range(1, 6):
                await put(topology, str(number).encode())
            await take(dead, 5)
            await proxy.down()
            for number in range(6, 11):
                await put(topology, str(number).encode())
            came = await take(other, 10)
        finally:
            await other.close()
            await dead.close()
    assert [int(received.body) for received in came] == list(range(1, 11))
