"""The NATS receiver: its durable consumer, messages in hand, and what it says when there is no way."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from pillarbox.brokers.factory import receiver_from_url
from pillarbox.brokers.nats import NatsReceiver
from pillarbox.brokers.nats import receiver as receiver_module
from pillarbox.brokers.nats.streams import ensure_consumer
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.receiver_contract import assert_nothing_more, list_ids, take
from tests.support.nats_server import NatsServer, Stream, private_nats, stream_at
from tests.support.servers import found


@pytest.fixture(scope="module")
def nats_url() -> Iterator[str]:
    with found(NatsServer(), environ=os.environ) as url:
        yield url


@pytest.fixture
async def stream(nats_url: str) -> AsyncIterator[Stream]:
    async with stream_at(nats_url) as stream:
        yield stream


def receiver_at(url: str, /, **options: object) -> NatsReceiver:
    receiver = receiver_from_url(url, options=options)
    assert isinstance(receiver, NatsReceiver)
    return receiver


@asynccontextmanager
async def opened(url: str, stream: Stream, **options: object) -> AsyncIterator[NatsReceiver]:
    receiver = receiver_at(url, **{"stream": stream.name, "durable": "billing", "declare": True, **options})
    await receiver.open()
    try:
        yield receiver
    finally:
        await receiver.close()


async def refusal(url: str, **options: object) -> str:
    with pytest.raises(TransportUnavailable) as error:
        await receiver_at(url, **{"durable": "billing", **options}).open()
    return str(error.value)


# --- the durable consumer --------------------------------------------------------------------------------


async def test_what_is_not_there_is_named(nats_url: str, stream: Stream) -> None:
    assert "has no stream 'NOWHERE'" in await refusal(nats_url, stream="NOWHERE", declare=True)
    said = await refusal(nats_url, stream=stream.name)
    assert f"has no consumer 'billing' of the stream '{stream.name}': create it, or set declare=true" in said


async def test_a_declared_consumer_reads_from_the_start_for_ever(nats_url: str, stream: Stream) -> None:
    await stream.put(f"{stream.name}.before")
    async with opened(nats_url, stream, ack_wait="7s") as one:
        assert [received.fallback.topic for received in await take(one, 1)] == [f"{stream.name}.before"]
        config = (await stream.js.consumer_info(stream.name, "billing")).config
        assert (config.ack_policy, config.ack_wait, config.max_deliver) == (AckPolicy.EXPLICIT, 7, -1)


async def test_only_the_subjects_asked_for_come(nats_url: str, stream: Stream) -> None:
    async with opened(nats_url, stream, subject=f"{stream.name}.eu.>") as one:
        for subject in ("eu.a", "us.a", "eu.b"):
            await stream.put(f"{stream.name}.{subject}")
        assert [received.fallback.topic for received in await take(one, 2)] == [
            f"{stream.name}.eu.a",
            f"{stream.name}.eu.b",
        ]
        await assert_nothing_more(one)


async def test_a_consumer_that_is_there_stays_as_it_is(nats_url: str, stream: Stream) -> None:
    config = ConsumerConfig(durable_name="billing", ack_policy=AckPolicy.EXPLICIT, ack_wait=42)
    await stream.js.add_consumer(stream.name, config)
    async with opened(nats_url, stream, ack_wait="7s"):
        assert (await stream.js.consumer_info(stream.name, "billing")).config.ack_wait == 42


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"deliver_subject": "somewhere", "ack_policy": AckPolicy.EXPLICIT}, "which is pushed to"),
        ({"ack_policy": AckPolicy.NONE}, "not acknowledged one by one"),
        ({"ack_policy": AckPolicy.ALL}, "not acknowledged one by one"),
        ({"ack_policy": AckPolicy.EXPLICIT, "filter_subject": "NAME.other"}, "reads other subjects"),
    ],
)
async def test_a_consumer_that_cannot_be_used_is_refused(
    nats_url: str, stream: Stream, config: dict[str, str], said: str
) -> None:
    known = {name: value.replace("NAME", stream.name) if name == "filter_subject" else value
             for name, value in config.items()}  # fmt: skip
    await stream.js.add_consumer(stream.name, ConsumerConfig(durable_name="billing", **known))  # type: ignore[arg-type]
    assert said in await refusal(nats_url, stream=stream.name, subject=f"{stream.name}.eu.>")


async def test_a_consumer_that_is_deleted_ends_the_wait_and_is_made_again(nats_url: str, stream: Stream) -> None:
    async with opened(nats_url, stream) as one:
        waiting = asyncio.create_task(one.receive(limit=1))
        await asyncio.sleep(0.1)
        await stream.js.delete_consumer(stream.name, "billing")
        with pytest.raises(TransportUnavailable, match="Consumer Deleted"):
            async with asyncio.timeout(40):
                await waiting
        await stream.put(f"{stream.name}.again")
        assert len(await take(one, 1)) == 1


async def test_the_horizon_is_how_long_the_stream_keeps(nats_url: str) -> None:
    async with stream_at(nats_url, max_age=3600) as stream, opened(nats_url, stream) as one:
        assert one.features.horizon == timedelta(hours=1)
    async with stream_at(nats_url) as stream, opened(nats_url, stream) as one:
        assert one.features.horizon is None


# --- messages in hand ------------------------------------------------------------------------------------


async def test_what_is_in_hand_does_not_come_again_however_long_it_takes(nats_url: str, stream: Stream) -> None:
    async with opened(nats_url, stream, ack_wait="3s") as one, opened(nats_url, stream) as other:
        await stream.put(f"{stream.name}.slow")
        (received,) = await take(one, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):
                await other.receive(limit=1)
        await one.acknowledge(received)


async def test_a_wait_is_longer_than_a_request(nats_url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_module, "_EXPIRES", 0.2)
    async with opened(nats_url, stream) as one:
        waiting = asyncio.create_task(one.receive(limit=5))
        made = one._subscription.current
        assert made is not None
        async with asyncio.timeout(40):
            while made._request < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await stream.put(f"{stream.name}.late")
        assert len(await waiting) == 1


async def test_who_waits_hears_at_once_that_the_server_went(
    nats_url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when its request for messages ends, which is later than the test may take."""
    monkeypatch.setattr(receiver_module, "_EXPIRES", 600.0)
    async with (
        FaultProxy("127.0.0.1", int(nats_url.rpartition(":")[2])) as proxy,
        opened(f"nats://{proxy.host}:{proxy.port}", stream) as one,
    ):
        waiting = asyncio.create_task(one.receive(limit=1))
        await asyncio.sleep(0.1)
        await proxy.down()
        with pytest.raises(TransportUnavailable):
            async with asyncio.timeout(40):
                await waiting


async def test_given_back_latest_first_they_come_in_the_streams_order(nats_url: str, stream: Stream) -> None:
    async with opened(nats_url, stream) as one:
        for number in range(5):
            await stream.put(f"{stream.name}.{number}")
        taken = await take(one, 5)
        for received in reversed(taken):
            await one.give_back(received)
        again = await take(one, 5)
        assert list_ids(again) == list_ids(taken)
        assert all(received.redelivered for received in again)


async def test_given_back_they_come_to_another_who_waits(nats_url: str, stream: Stream) -> None:
    """Also when this one asks for nothing more, and long before the ack_wait."""
    async with opened(nats_url, stream, ack_wait="10m") as one, opened(nats_url, stream) as other:
        await stream.put(f"{stream.name}.1")
        (received,) = await take(one, 1)
        waiting = asyncio.create_task(take(other, 1))
        await one.give_back(received)
        assert list_ids(await waiting) == list_ids([received])


async def test_closing_gives_back_at_once_in_order(nats_url: str, stream: Stream) -> None:
    """Not after the ack_wait, which is longer than the test may take."""
    async with opened(nats_url, stream, ack_wait="10m") as one:
        for number in range(5):
            await stream.put(f"{stream.name}.{number}")
        taken = await take(one, 3)  # the others came too, and wait
    async with opened(nats_url, stream) as other:
        again = await take(other, 5)
    assert list_ids(again)[:3] == list_ids(taken)
    assert [received.fallback.topic for received in again] == [f"{stream.name}.{number}" for number in range(5)]


async def test_closing_gives_back_at_once_while_it_waits_for_more(nats_url: str, stream: Stream) -> None:
    """Its waiting request gets none of what it gives back. The ack_wait is longer than the test may take."""
    async with opened(nats_url, stream, ack_wait="10m") as one:
        for number in range(5):
            await stream.put(f"{stream.name}.{number}")
        taken = await take(one, 5)
        waiting = asyncio.create_task(one.receive(limit=10))
        while not (await stream.js.consumer_info(stream.name, "billing")).num_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(TransportUnavailable):
        await waiting
    async with opened(nats_url, stream) as other:
        again = await take(other, 5)
    assert list_ids(again) == list_ids(taken)


async def test_a_plain_message_is_known_by_its_own_id_or_its_place(nats_url: str, stream: Stream) -> None:
    async with opened(nats_url, stream) as one:
        await stream.js.publish(f"{stream.name}.a", b"1", headers={"Nats-Msg-Id": "m-1"})
        await stream.js.publish(f"{stream.name}.b", b"2")
        own, place = [received.fallback for received in await take(one, 2)]
    assert (own.source, own.message_id, own.topic) == (f"nats:{stream.name}", "m-1", f"{stream.name}.a")
    assert (place.source, place.message_id) == (f"nats:{stream.name}", f"{stream.name}/2")


# --- no way there ----------------------------------------------------------------------------------------


async def test_a_server_that_says_nothing_is_not_waited_for(nats_url: str) -> None:
    async with FaultProxy("127.0.0.1", int(nats_url.rpartition(":")[2])) as proxy:
        proxy.hang()
        said = await refusal(f"nats://{proxy.host}:{proxy.port}", stream="S", timeout="300ms")
    assert "cannot be reached" in said


async def test_the_second_server_is_tried(nats_url: str, stream: Stream) -> None:
    async with FaultProxy("127.0.0.1", int(nats_url.rpartition(":")[2])) as proxy:
        await proxy.down()
        url = nats_url.replace("nats://", f"nats://{proxy.host}:{proxy.port},")
        async with opened(url, stream) as one:
            await one.ping()


async def test_after_a_server_that_refuses_the_login_the_next_one_brings_messages(
    nats_url: str, stream: Stream
) -> None:
    """The client of the first attempt is closed, and its end is not the end of the second."""
    settings = 'authorization { user: "shop", password: "right-password" }'
    with closing(await asyncio.to_thread(private_nats, settings)) as refuses:
        url = nats_url.replace("nats://", f"nats://{refuses.url.removeprefix('nats://')},")
        async with opened(url, stream) as one:
            first = one._subscription.current
            await stream.put(f"{stream.name}.1")
            (received,) = await take(one, 1)
            await one.acknowledge(received)
            assert first is not None
            assert first is one._subscription.current
    assert received.fallback.topic == f"{stream.name}.1"


async def test_a_login_that_is_refused_is_said_without_it() -> None:
    settings = 'authorization { user: "shop", password: "right-password" }'
    with closing(await asyncio.to_thread(private_nats, settings)) as server:
        place = server.url.removeprefix("nats://")
        said = await refusal(f"nats://shop:canary-1234@{place}", stream="S")
        assert "refuses the login" in said
        assert "canary-1234" not in said
        allowed = f"nats://shop:right-password@{place}"
        assert "has no stream 'S'" in await refusal(allowed, stream="S")


async def test_encryption_that_was_insisted_on_is_not_done_without(nats_url: str) -> None:
    assert await refusal(f"{nats_url}?tls=true&timeout=2s", stream="S")


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"durable": "d"}, "needs a stream"),
        ({"stream": "S"}, "needs a durable"),
        ({"stream": "a.b", "durable": "d"}, "option stream .* is no name"),
        ({"stream": "S", "durable": "a b"}, "option durable .* is no name"),
        ({"stream": "S", "durable": "d", "subject": "a..b"}, "option subject"),
        ({"stream": "S", "durable": "d", "inbox": "a.>"}, "option inbox"),
        ({"stream": "S", "durable": "d", "ack_wait": "0s"}, "ack_wait"),
        ({"stream": "S", "durable": "d", "user": "u"}, "no password"),
        ({"stream": "S", "durable": "d", "token": "t", "nkey": "SU"}, "leave one"),
        ({"stream": "S", "durable": "d", "verify": False}, "insecure=true"),
        ({"stream": "S", "durable": "d", "colour": "red"}, "no option 'colour'"),
        ({"stream": "S", "durable": "d", "url": "nats://x"}, "twice"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        receiver_at("nats://nats.example", **options)


def test_nothing_shows_a_secret() -> None:
    one = receiver_at("nats://shop:canary-1234@nats.example", stream="S", durable="d")
    assert "canary" not in f"{one!r} {one.settings!r} {one.settings}"


# --- what a dead consumer had ---


def impatient_receiver(url: str, stream: Stream) -> NatsReceiver:
    return receiver_at(url, stream=stream.name, durable="billing", declare=True, ack_wait="4s")


async def put(stream: Stream, *numbers: int) -> None:
    for number in numbers:
        await stream.put(f"{stream.name}.{number}")


async def test_what_a_dead_consumer_had_comes_before_what_is_newer(nats_url: str, stream: Stream) -> None:
    await put(stream, *range(1, 6))
    async with FaultProxy("127.0.0.1", int(nats_url.rpartition(":")[2])) as proxy:
        dead = impatient_receiver(f"nats://{proxy.host}:{proxy.port}", stream)
        await dead.open()
        await dead.acknowledge((await take(dead, 5))[0])
        await dead.ping()  # the acknowledgement was before it
        await proxy.down()
        await put(stream, *range(6, 11))
        other = impatient_receiver(nats_url, stream)
        await other.open()
        try:
            came: dict[str, None] = {}  # a busy machine may let one come again: the first time counts
            while len(came) < 9:
                came |= {received.fallback.topic: None for received in await other.receive(limit=2)}
        finally:
            await other.close()
            await dead.close()
    assert list(came) == [f"{stream.name}.{number}" for number in range(2, 11)]


async def test_what_comes_while_the_server_is_asked_is_not_taken_for_what_was_out(
    nats_url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says that one is out, and one is in hand: not the same one."""
    await put(stream, 1)
    async with FaultProxy("127.0.0.1", int(nats_url.rpartition(":")[2])) as proxy:
        dead = impatient_receiver(f"nats://{proxy.host}:{proxy.port}", stream)
        await dead.open()
        await take(dead, 1)
        await proxy.down()
        other = impatient_receiver(nats_url, stream)
        await other.open()
        made = other._subscription.current
        assert made is not None
        asked = 0

        async def answered_late(*given: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            answer = await ensure_consumer(*given, **options)
            if asked == 2:  # there is a request for messages since the first time
                await put(stream, 2)
                async with asyncio.timeout(40):
                    while not made._waiting:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            return answer

        monkeypatch.setattr(receiver_module, "ensure_consumer", answered_late)
        try:
            came: dict[str, None] = {}
            while len(came) < 2:
                came |= {received.fallback.topic: None for received in await other.receive(limit=10)}
        finally:
            await other.close()
            await dead.close()
    assert list(came) == [f"{stream.name}.1", f"{stream.name}.2"]


@pytest.mark.parametrize("block", [b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"NATS/1.0", b"NATS/1.0\r\n\xff: \xff\r\n\r\n"])
async def test_headers_that_cannot_be_read_stop_nobody(nats_url: str, stream: Stream, block: bytes) -> None:
    await asyncio.to_thread(publish_block, nats_url, f"{stream.name}.bad", block)
    await stream.put(f"{stream.name}.good")
    async with opened(nats_url, stream) as receiver:
        taken = await take(receiver, 2)
    assert [one.fallback.topic for one in taken] == [f"{stream.name}.bad", f"{stream.name}.good"]


def publish_block(url: str, subject: str, block: bytes) -> None:
    """Publish as no client would, and return when the server has stored it."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 4222)) as line:
        line.sendall(b'CONNECT {"verbose": false, "headers": true}\r\n')
        line.sendall(b"HPUB %b %d %d\r\n%bx\r\nPING\r\n" % (subject.encode(), len(block), len(block) + 1, block))
        answer = b""
        while b"PONG" not in answer:
            answer += line.recv(4_096)
