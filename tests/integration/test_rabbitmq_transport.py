"""RabbitMQ, the real one: what is made of each of its answers, and what is promised when it gives none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aio_pika
import msgspec
import pytest
from faststream.rabbit import RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue

from pillarbox.brokers.rabbitmq import RabbitmqTransport, connection
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.private_rabbitmq import MAX_MESSAGE, PrivateRabbitmq
from tests.support.rabbitmq_topology import Topology, opened, proxied, refusal, transport_at

DELIVERED = Outcome(delivered=True)
PATIENCE = 60.0


@pytest.fixture
async def topology(rabbitmq_url: str) -> AsyncIterator[Topology]:
    """A queue that gets everything."""
    async with Topology.declared(rabbitmq_url) as topology:
        await topology.bind("#")
        yield topology


@pytest.fixture
async def own(private_rabbitmq: PrivateRabbitmq) -> AsyncIterator[Topology]:
    """The same on a server of our own."""
    async with Topology.declared(private_rabbitmq.url) as topology:
        await topology.bind("#")
        yield topology


@asynccontextmanager
async def over_proxy(topology: Topology, **options: object) -> AsyncIterator[tuple[RabbitmqTransport, FaultProxy]]:
    async with (
        FaultProxy(*topology.address) as proxy,
        opened(proxied(topology.url, proxy), exchange=topology.exchange, **options) as transport,
    ):
        yield transport, proxy


def messages(count: int) -> list[Message]:
    return [sample(key=f"key-{number}", payload=b"%d" % number) for number in range(count)]


async def unavailable(transport: RabbitmqTransport, *sent: Message) -> TransportUnavailable:
    with pytest.raises(TransportUnavailable) as error:
        await transport.send(sent)
    return error.value


async def bodies(topology: Topology) -> Sequence[bytes]:
    return [message.body for message in await topology.taken(topology.queue)]


# --- what a consumer sees ------------------------------------------------------------------------


async def test_a_consumer_that_knows_nothing_of_us_reads_it(topology: Topology) -> None:
    broker, arrived = RabbitBroker(topology.url, logger=None), asyncio.get_running_loop().create_future()
    exchange = RabbitExchange(topology.exchange, declare=False)

    @broker.subscriber(RabbitQueue(topology.queue, declare=False), exchange)
    async def handle(body: dict[str, int], message: RabbitMessage) -> None:
        arrived.set_result((body, message))

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    message = sample(
        payload=b'{"order_id": 7}', key="customer-1", correlation_id="request-1", causation_id="message-0",
        headers={"tenant": "shop", "traceparent": trace},
    )  # fmt: skip
    async with broker, opened(topology.url, exchange=topology.exchange) as transport, asyncio.timeout(PATIENCE):
        await broker.start()
        assert await transport.send([message]) == [DELIVERED]
        body, got = await arrived
    assert body == {"order_id": 7}
    assert got.message_id == got.headers["cloudEvents:id"] == str(message.message_id)
    assert got.correlation_id == got.headers["cloudEvents:correlationid"] == "request-1"
    assert got.headers["cloudEvents:partitionkey"] == "customer-1"
    assert got.headers["cloudEvents:causationid"] == "message-0"
    assert got.headers["traceparent"] == trace
    assert got.headers["tenant"] == "shop"
    assert got.raw_message.type == got.headers["cloudEvents:type"] == "orders.placed"
    assert got.content_type == "application/json"
    assert got.raw_message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert got.raw_message.timestamp == message.event_time.replace(microsecond=0)


async def test_texts_that_are_too_long_for_a_property_arrive_as_headers(topology: Topology) -> None:
    message = sample(correlation_id="ž" * 200)
    async with opened(topology.url, exchange=topology.exchange) as transport:
        assert await transport.send([message]) == [DELIVERED]
    (got,) = await topology.taken()
    assert got.correlation_id is None
    assert got.headers["cloudEvents:correlationid"] == "ž" * 200


# --- addresses -----------------------------------------------------------------------------------


async def test_exchange_and_routing_key_are_templates(topology: Topology) -> None:
    shop = topology.exchange.removeprefix("pillarbox-test-")
    options = {"exchange": "pillarbox-test-{source}", "routing_key": "{topic}.{key}"}
    async with opened(topology.url, **options) as transport:
        good = sample(source=shop, topic="orders", key="k7")
        without_key = sample(source=shop, key=None)
        assert (await transport.send([good, without_key]))[0] == DELIVERED
        (outcome,) = await transport.send([without_key])
    assert outcome.rejected
    assert "no key" in (outcome.error or "")
    assert [got.routing_key for got in await topology.taken()] == ["orders.k7"]


async def test_an_empty_exchange_is_the_default_one(topology: Topology) -> None:
    async with opened(topology.url, exchange="", routing_key="{topic}") as transport:
        outcomes = await transport.send([sample(topic=topology.queue), sample(topic="no-such-queue")])
    assert outcomes[0] == DELIVERED
    assert outcomes[1].missing
    assert "default exchange" in (outcomes[1].error or "")
    assert len(await topology.taken()) == 1


async def test_a_virtual_host_is_in_the_path(private_rabbitmq: PrivateRabbitmq) -> None:
    async with Topology.declared(f"{private_rabbitmq.url}shop") as topology:
        await topology.bind("#")
        async with opened(f"{private_rabbitmq.url}shop", exchange=topology.exchange) as transport:
            assert await transport.send([sample()]) == [DELIVERED]
        assert len(await topology.taken()) == 1


async def test_a_routing_key_that_amqp_cannot_carry_rejects_only_its_message(topology: Topology) -> None:
    async with opened(topology.url, exchange=topology.exchange, routing_key="{key}") as transport:
        outcomes = await transport.send([sample(key="ž" * 200), sample(key="short")])
    assert [outcome.rejected for outcome in outcomes] == [True, False]
    assert outcomes[1] == DELIVERED


@pytest.mark.parametrize("kind", ["quorum", "stream"])
async def test_other_kinds_of_queues_confirm_too(own: Topology, kind: str) -> None:
    await own.declare_queue(f"{own.queue}-{kind}", {"x-queue-type": kind})
    await own.move("#", to=f"{own.queue}-{kind}")
    async with opened(own.url, exchange=own.exchange) as transport:
        assert await transport.send(messages(50)) == [DELIVERED] * 50


# --- missing topology ----------------------------------------------------------------------------


async def test_a_missing_exchange_is_an_outage_that_says_what_to_do(rabbitmq_url: str) -> None:
    text = await refusal(rabbitmq_url, exchange="no-such-exchange")
    assert "'no-such-exchange'" in text
    assert "declare=true" in text


async def test_an_exchange_that_goes_is_waited_for(topology: Topology) -> None:
    async with opened(topology.url, exchange=topology.exchange) as transport:
        await topology.channel.exchange_delete(topology.exchange)
        outcomes = [(await transport.send([message]))[0] for message in messages(3)]
        assert {(outcome.not_now, outcome.missing) for outcome in outcomes} == {(True, True)}
        assert topology.exchange in (outcomes[0].error or "")
        assert "declare=true" in (outcomes[0].error or "")
        with pytest.raises(TransportUnavailable, match="declare=true"):
            await transport.ping()
        await topology.declare_exchange()
        await topology.bind("#")
        await transport.ping()
        assert await transport.send(messages(1)) == [DELIVERED]


async def test_declared_exchanges_are_durable_and_come_back(topology: Topology) -> None:
    async with opened(topology.url, exchange=topology.exchange, declare="true") as transport:
        await topology.channel.exchange_delete(topology.exchange)
        (gone,) = await transport.send(messages(1))
        assert gone.missing
        await transport.ping()
        await topology.declare_exchange()  # refused if it were not durable, or not of this type
        await topology.bind("#")
        assert await transport.send(messages(1)) == [DELIVERED]


async def test_exchanges_of_a_template_are_declared_when_they_are_met(topology: Topology) -> None:
    names = [f"{topology.exchange}-{kind}" for kind in ("a", "b")]
    async with opened(topology.url, exchange=f"{topology.exchange}-{{topic}}", declare="true") as transport:
        try:
            outcomes = await transport.send([sample(topic="a"), sample(topic="b")])
            assert all("312" in (outcome.error or "") for outcome in outcomes)  # nothing is bound to them
            for name in names:
                await topology.channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
            await topology.channel.exchange_delete(names[0])
            (outcome,) = await transport.send([sample(topic="a")])
            assert "404" in (outcome.error or "")
            (outcome,) = await transport.send([sample(topic="a")])  # declared again
            assert "312" in (outcome.error or "")
        finally:
            for name in names:
                await topology.channel.exchange_delete(name)


async def test_an_exchange_of_another_type_is_said(topology: Topology) -> None:
    text = await refusal(topology.url, exchange=topology.exchange, declare="true", exchange_type="fanout")
    assert "exchange_type" in text


async def test_one_missing_exchange_of_a_template_is_the_trouble_of_its_messages(topology: Topology) -> None:
    async with opened(topology.url, exchange="{topic}") as transport:
        good, bad = sample(topic=topology.exchange), sample(topic="no-such-exchange")
        first, second = await transport.send([bad, good])
        assert (first.delivered, first.rejected, first.lost) == (False, False, False)
        assert "no-such-exchange" in (first.error or "")
        assert second == DELIVERED or second.lost
        assert await transport.send([good]) == [DELIVERED]


# --- too large -----------------------------------------------------------------------------------


async def test_a_message_that_is_too_large_is_found_and_then_known(own: Topology) -> None:
    """The broker closes the channel over it. Once; from then on it is rejected before it is sent."""
    large = sample(payload=b"x" * (MAX_MESSAGE + 1))
    first, *others = messages(3)
    async with opened(own.url, exchange=own.exchange) as transport:
        outcomes = await transport.send([first, large, *others])
        assert [outcome.rejected for outcome in outcomes] == [False, True, False, False]
        assert str(MAX_MESSAGE) in (outcomes[1].error or "")
        assert all(outcome.delivered or outcome.lost for outcome in (outcomes[0], *outcomes[2:]))
        publisher = await transport._connection.get_publisher()
        again = await transport.send([first, large, *others])
        assert [outcome.rejected for outcome in again] == [False, True, False, False]
        assert [outcome.delivered for outcome in again] == [True, False, True, True]
        assert await transport._connection.get_publisher() is publisher


async def test_the_largest_payload_can_be_told(own: Topology) -> None:
    async with opened(own.url, exchange=own.exchange, max_payload=1000) as transport:
        publisher = await transport._connection.get_publisher()
        outcomes = await transport.send([sample(payload=b"x" * 1001), sample(payload=b"x" * 1000)])
        assert [outcome.rejected for outcome in outcomes] == [True, False]
        assert outcomes[1].delivered
        assert await transport._connection.get_publisher() is publisher


async def test_large_messages_are_sent_in_many_frames(own: Topology) -> None:
    payload = bytes(range(256)) * (MAX_MESSAGE // 256)
    async with opened(own.url, exchange=own.exchange) as transport:
        assert await transport.send([sample(payload=payload), *messages(1)]) == [DELIVERED] * 2
    assert (await bodies(own))[0] == payload


# --- silence -------------------------------------------------------------------------------------


async def test_no_answer_in_time_is_not_delivered_and_the_way_back_is_found(topology: Topology) -> None:
    async with over_proxy(topology, timeout="1s") as (transport, proxy):
        publisher = await transport._connection.get_publisher()
        proxy.hang()
        outcomes = await transport.send(messages(2))
        assert [(outcome.delivered, outcome.rejected, outcome.lost) for outcome in outcomes] == [(False,) * 3] * 2
        assert "no answer within 1 s" in (outcomes[0].error or "")
        with pytest.raises(TransportUnavailable):
            await transport.ping()
        assert publisher.connection.reason is not None  # a line on which nobody answers is given up
        proxy.heal()
        await transport.ping()
        assert await transport.send(messages(1)) == [DELIVERED]


async def test_a_connection_that_is_silent_is_given_up(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_HEARTBEAT", 1)
    async with over_proxy(topology) as (transport, proxy):
        publisher = await transport._connection.get_publisher()
        proxy.hang()
        sending = asyncio.create_task(transport.send(messages(2)))
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(TransportUnavailable, match="sent nothing for 2 s") as error:
                await sending
        assert error.value.mid_send
        assert publisher.connection.reason is not None


@pytest.mark.parametrize("declare", [False, True], ids=["found", "declared"])
async def test_one_channel_is_enough(topology: Topology, monkeypatch: pytest.MonkeyPatch, declare: bool) -> None:
    """The lower of the two limits counts, so the broker refuses a second channel."""
    monkeypatch.setattr(connection, "_MAX_CHANNELS", 1)
    async with opened(topology.url, exchange=topology.exchange, declare=declare) as transport:
        await transport.ping()
        assert await transport.send(messages(2)) == [DELIVERED] * 2
        assert not (await transport._connection.get_publisher()).connection.has_free_channel
        await transport.inspect(topics=["orders"])
        assert await transport.send(messages(1)) == [DELIVERED]


async def test_a_connection_that_is_idle_is_kept(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_HEARTBEAT", 1)
    async with opened(topology.url, exchange=topology.exchange) as transport:
        publisher = await transport._connection.get_publisher()
        heard_at, beats = publisher.connection._received_at, 0
        async with asyncio.timeout(PATIENCE):
            while beats < 8:  # the broker hangs up after two intervals without a sign from us
                if publisher.connection._received_at > heard_at:
                    heard_at, beats = publisher.connection._received_at, beats + 1
                await asyncio.sleep(0.02)
        assert publisher.reason is None
        assert await transport.send(messages(1)) == [DELIVERED]


async def test_a_message_that_is_sent_again_before_it_was_answered_goes_only_once(topology: Topology) -> None:
    """A return is told from others by the message id alone, so one id is never under way twice."""
    message, other = messages(2)
    async with over_proxy(topology) as (transport, proxy):
        proxy.hold_answers()
        sends = [asyncio.create_task(transport.send([message])) for _ in range(2)]
        sends.append(asyncio.create_task(transport.send([message, other, message])))
        await asyncio.sleep(0)
        changed = msgspec.structs.replace(message, payload=b"changed")
        (outcome,) = await transport.send([changed])
        proxy.heal()
        assert await asyncio.gather(*sends) == [[DELIVERED], [DELIVERED], [DELIVERED] * 3]
        assert (outcome.delivered, outcome.rejected) == (False, False)
        assert await transport.send([changed]) == [DELIVERED]
    assert await bodies(topology) == [b"0", b"1", b"changed"]


async def test_an_answer_that_is_lost_is_a_repeat_and_no_loss(topology: Topology) -> None:
    async with over_proxy(topology) as (transport, proxy):
        sent = messages(3)
        proxy.answered.clear()
        proxy.drop_answers()
        sending = asyncio.create_task(transport.send(sent))
        async with asyncio.timeout(PATIENCE):
            await proxy.answered.wait()
        proxy.cut()
        proxy.heal()
        with pytest.raises(TransportUnavailable) as error:
            await sending
        assert error.value.mid_send
        assert await transport.send(sent) == [DELIVERED] * 3
    assert sorted(await bodies(topology)) == [b"0", b"0", b"1", b"1", b"2", b"2"]


async def test_the_next_server_is_asked_when_one_is_away(topology: Topology) -> None:
    host, port = topology.address
    async with FaultProxy(host, port) as proxy:
        away = proxy.port
    url = proxied(topology.url, proxy).replace(f":{away}/", f":{away},{host}:{port}/")
    async with opened(url, exchange=topology.exchange) as transport:
        assert await transport.send(messages(1)) == [DELIVERED]


async def test_a_broker_that_is_short_of_memory_takes_nothing_and_costs_nothing(
    private_rabbitmq: PrivateRabbitmq, own: Topology
) -> None:
    async with opened(own.url, exchange=own.exchange, timeout="2s") as transport:
        await asyncio.to_thread(private_rabbitmq.control, "set_vm_memory_high_watermark", "0.0000001")
        try:
            for _ in range(2):  # the first finds out, the second is not even sent
                error = await unavailable(transport, *messages(2))
                assert "takes no messages at present" in str(error)
                assert not error.mid_send
            with pytest.raises(TransportUnavailable, match="takes no messages"):
                await transport.ping()
        finally:
            await asyncio.to_thread(private_rabbitmq.control, "set_vm_memory_high_watermark", "0.6")
        async with asyncio.timeout(PATIENCE):
            while not await _pinged(transport):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await transport.send(messages(1)) == [DELIVERED]


async def _pinged(transport: RabbitmqTransport) -> bool:
    try:
        await transport.ping()
    except TransportUnavailable:
        return False
    return True


async def test_closing_ends_what_is_under_way(topology: Topology) -> None:
    async with FaultProxy(*topology.address) as proxy:
        transport = transport_at(proxied(topology.url, proxy), exchange=topology.exchange)
        await transport.open()
        proxy.hang()
        proxy.requested.clear()
        sending = asyncio.create_task(transport.send(messages(1)))
        async with asyncio.timeout(PATIENCE):
            await proxy.requested.wait()
            await transport.close()
            with pytest.raises(TransportUnavailable):
                await sending


async def test_questions_that_are_given_up_leave_no_channels_behind(topology: Topology) -> None:
    async with over_proxy(topology) as (transport, proxy):
        proxy.hold_answers()
        for _ in range(3):
            proxy.requested.clear()
            ping = asyncio.create_task(transport.ping())
            async with asyncio.timeout(PATIENCE):
                await proxy.requested.wait()
            ping.cancel()
            await asyncio.gather(ping, return_exceptions=True)
        proxy.heal()
        await transport.ping()
        channels = (await transport._connection.get_publisher()).connection._channels
        async with asyncio.timeout(PATIENCE):
            while set(channels) != {1}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
