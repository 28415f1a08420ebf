"""MQTT answers that no real broker gives on demand, from a broker of a few lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Literal

import pytest

from pillarbox.brokers.mqtt import MqttSettings, MqttTransport
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.testing.samples import sample
from tests.support.mqtt_script import ScriptedBroker, mid_of, scripted
from tests.support.relay_behaviour.scene import until

DELIVERED = Outcome(delivered=True)
SOON = timedelta(milliseconds=300)


def taken(_broker: ScriptedBroker, _count: int) -> bytes:
    return b""


def silence(_broker: ScriptedBroker, _count: int) -> None:
    return None


@asynccontextmanager
async def opened(
    broker: ScriptedBroker,
    *,
    qos: Literal[1, 2] = 1,
    retain: bool = False,
    timeout: timedelta = timedelta(seconds=30),
    keepalive: timedelta = timedelta(seconds=30),
) -> AsyncIterator[MqttTransport]:
    url = f"mqtt://127.0.0.1:{broker.port}"
    settings = MqttSettings(url=url, qos=qos, retain=retain, timeout=timeout, keepalive=keepalive)
    transport = MqttTransport(settings)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


async def refused(connack: bytes, *, qos: Literal[1, 2] = 1, retain: bool = False) -> str:
    async with scripted(taken, connack=connack) as broker:
        with pytest.raises(TransportUnavailable) as away:
            async with opened(broker, qos=qos, retain=retain):
                pass
    assert not away.value.mid_send
    return str(away.value)


# --- acknowledgements --------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("code", [0x80, 0x87, 0x97, 0xA2])
async def test_a_refusal_of_one_of_three(qos: Literal[1, 2], code: int) -> None:
    async with scripted(lambda _, count: bytes((code,)) if count == 1 else b"") as broker:
        async with opened(broker, qos=qos) as transport:
            answers = await transport.send([sample(), sample(), sample()])
            assert [answer.delivered for answer in answers] == [True, False, True]
            assert not answers[1].rejected
            assert f"0x{code:02x}" in (answers[1].error or "")
            assert await transport.send([sample()]) == [DELIVERED]
        assert broker.connections == 1
        taken_over = [mid_of(body) for count, body in enumerate(broker.published) if count != 1]
        assert broker.released == (taken_over if qos == 2 else [])


async def test_what_the_broker_says_to_it() -> None:
    said = b"no more today"
    answer = b"\x97" + bytes((len(said) + 3,)) + b"\x1f" + len(said).to_bytes(2) + said
    async with scripted(lambda *_: answer) as broker, opened(broker) as transport:
        (outcome,) = await transport.send([sample()])
    assert (outcome.error or "").endswith("(0x97). It said: no more today")


async def test_an_acknowledgement_of_the_wrong_kind_is_none() -> None:
    """A PUBACK, or a PUBCOMP without a PUBREC, says nothing about a QoS 2 message."""
    async with scripted(silence) as broker, opened(broker, qos=2, timeout=SOON) as transport:
        sending = asyncio.create_task(transport.send([sample()]))
        await until(lambda: broker.published)
        broker.say(b"\x40\x02" + mid_of(broker.published[0]))
        broker.say(b"\x70\x02" + mid_of(broker.published[0]))
        (outcome,) = await sending
        assert not outcome.delivered


async def test_the_brokers_receive_maximum_is_kept_to() -> None:
    """3 under way at most, though 10 are sent: more would be a reason to hang up."""
    async with scripted(silence, connack=b"\x00\x00\x03\x21\x00\x03") as broker, opened(broker) as transport:
        messages = [sample() for _ in range(10)]
        sending = asyncio.create_task(transport.send(messages))
        for answered in range(10):
            expected = min(answered + 3, 10)
            await until(partial(broker.has, expected))
            await transport.ping()  # had it written more, it would have arrived by now
            assert len(broker.published) == expected
            broker.say(b"\x40\x02" + mid_of(broker.published[answered]))
        assert await sending == [DELIVERED] * 10


# --- silence and breaks ------------------------------------------------------------------------------


async def test_what_is_not_answered_is_not_delivered_and_the_others_are() -> None:
    async with scripted(lambda _, count: None if count == 1 else b"") as broker:
        async with opened(broker, timeout=SOON) as transport:
            answers = await transport.send([sample(), sample(), sample()])
            assert [answer.delivered for answer in answers] == [True, False, True]
            assert (answers[1].error or "").startswith("no answer within 0.3 s")
            assert not answers[1].lost
            assert await transport.send([sample()]) == [DELIVERED]
        assert broker.connections == 2  # the place that the silent one took is not given back otherwise


async def test_what_was_never_written_is_lost_and_not_late() -> None:
    """It waited for a place in the window, which is nobody's answer."""
    one = b"\x00\x00\x03\x21\x00\x01"
    async with scripted(silence, connack=one) as broker, opened(broker, timeout=SOON) as transport:
        answers = await transport.send([sample(), sample()])
    assert [answer.lost for answer in answers] == [False, True]
    assert len(broker.published) == 1


async def test_a_connection_that_breaks_after_some_answers() -> None:
    def two(broker: ScriptedBroker, count: int) -> bytes | None:
        return b"" if count < 2 else None

    async with scripted(two) as broker, opened(broker) as transport:
        messages = [sample() for _ in range(4)]
        sending = asyncio.create_task(transport.send(messages))
        await until(lambda: len(broker.published) == 4)
        broker.writers[-1].transport.close()
        answers = await sending
    assert [(answer.delivered, answer.lost) for answer in answers] == [(True, False)] * 2 + [(False, True)] * 2


async def test_the_brokers_last_word_is_told() -> None:
    async with scripted(silence) as broker, opened(broker) as transport:
        sending = asyncio.create_task(transport.send([sample()]))
        await until(lambda: broker.published)
        broker.say(b"\xe0\x08\x8b\x06\x1f\x00\x03bye")
        with pytest.raises(TransportUnavailable, match="the broker said: Server shutting down, bye") as away:
            await sending
    assert away.value.mid_send


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00", b"\x40\x00", b"\x40\x01\x00", b"\xf0\xff\xff\xff\xff\xff", b"\xe0\x01\x42"]
)
async def test_garbage_ends_the_connection_and_nothing_else(garbage: bytes) -> None:
    async with scripted(silence) as broker, opened(broker, timeout=timedelta(seconds=2)) as transport:
        sending = asyncio.create_task(transport.send([sample()]))
        await until(lambda: broker.published)
        broker.say(garbage)
        broker.writers[-1].transport.close()
        with pytest.raises(TransportUnavailable):
            await sending
        broker.answer = taken
        assert await transport.send([sample()]) == [DELIVERED]


async def test_a_cancelled_send_leaves_its_place_to_others() -> None:
    async with scripted(silence, connack=b"\x00\x00\x03\x21\x00\x01") as broker, opened(broker) as transport:
        stopped = asyncio.create_task(transport.send([sample(), sample()]))
        await until(lambda: broker.published)
        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)
        waiting = asyncio.create_task(transport.send([sample()]))
        broker.answer = taken
        broker.say(b"\x40\x02" + mid_of(broker.published[0]))
        assert await waiting == [DELIVERED]
        assert len(broker.published) == 2


async def test_a_dead_connection_is_found_by_its_silence() -> None:
    """Half-open while nothing is sent: the keep-alive finds it, so that the next message does not pay for it."""
    async with scripted(taken) as broker, opened(broker, keepalive=timedelta(seconds=1)) as transport:
        broker.answers_pings = False
        await until(lambda: not transport._connections[-1].is_open)
        assert await transport.send([sample()]) == [DELIVERED]
        assert broker.connections == 2


async def test_closing_answers_what_is_under_way() -> None:
    async with scripted(silence) as broker, opened(broker) as transport:
        sending = asyncio.create_task(transport.send([sample()]))
        await until(lambda: broker.published)
        await transport.close()
        with pytest.raises(TransportUnavailable, match="we closed it"):
            await sending


# --- greetings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connack", "says"),
    [
        (b"\x00\x87\x00", "check user, password"),
        (b"\x00\x84\x00", "it must speak MQTT 5"),
        (b"\x00\x01", "MQTT 5"),
        (b"\x00\x88\x00", "ask whoever runs the broker"),
    ],
)
async def test_a_refused_connection(connack: bytes, says: str) -> None:
    assert says in await refused(connack)


async def test_a_broker_that_cannot_acknowledge() -> None:
    assert "takes no messages of QoS 1" in await refused(b"\x00\x00\x02\x24\x00")
    assert "takes no messages of QoS 2" in await refused(b"\x00\x00\x02\x24\x01", qos=2)


async def test_a_broker_that_retains_nothing() -> None:
    assert "retains no messages" in await refused(b"\x00\x00\x02\x25\x00", retain=True)


async def test_a_server_that_does_not_greet() -> None:
    async with scripted(taken) as broker:
        broker.greets = False
        with pytest.raises(TransportUnavailable, match="did not answer within"):
            async with opened(broker, timeout=SOON):
                pass
