"""The NATS transport against a real server: each way in which a message is not taken, and each way back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from urllib.parse import urlsplit

import pytest
from nats.js.api import DiscardPolicy

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.nats import NatsTransport
from pillarbox.brokers.nats.transport import PublishBatch
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.nats_server import NatsServer, Stream, private_nats, stream_at, stream_named
from tests.support.servers import found

DELIVERED = Outcome(delivered=True)
PATIENCE = 30.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with found(NatsServer(), environ=os.environ) as url:
        yield url


@pytest.fixture
async def stream(url: str) -> AsyncIterator[Stream]:
    async with stream_at(url) as stream:
        yield stream


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[NatsTransport]:
    transport = transport_from_url(url, options={"timeout": "5s"} | options)
    assert isinstance(transport, NatsTransport)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def proxied(url: str, **options: object) -> AsyncIterator[tuple[NatsTransport, FaultProxy]]:
    where = urlsplit(url)
    async with (
        FaultProxy(where.hostname or "", where.port or 4222) as proxy,
        opened(f"nats://{proxy.host}:{proxy.port}", **options) as transport,
    ):
        yield transport, proxy


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def to(stream: Stream, topic: str = "orders", **fields: object) -> Message:
    return sample(topic=f"{stream.name}.{topic}", **fields)  # type: ignore[arg-type]


# --- topology ---


async def test_a_subject_without_a_stream_is_waited_for(url: str) -> None:
    async with opened(url) as transport:
        outcomes = await transport.send([sample(topic="nobody.has.this", key=key) for key in ("a", "b")])
    assert all((one.not_now, one.missing) == (True, True) for one in outcomes)
    assert "No stream has the subject 'nobody.has.this'" in (outcomes[0].error or "")


async def test_a_subject_without_a_stream_hurts_no_other(url: str, stream: Stream) -> None:
    async with opened(url) as transport:
        good, bad = await transport.send([to(stream), sample(topic="nobody.has.this")])
    assert good == DELIVERED
    assert bad.missing
    assert "nobody.has.this" in (bad.error or "")


async def test_another_stream_than_expected_is_waited_for(url: str, stream: Stream) -> None:
    async with opened(url, stream="another") as transport:
        (outcome,) = await transport.send([to(stream)])
    assert outcome.missing
    assert "another stream has this subject" in (outcome.error or "")
    assert await stream.messages() == []


async def test_a_sealed_stream_is_waited_for(url: str, stream: Stream) -> None:
    await stream.change(sealed=True)
    async with opened(url) as transport:
        (outcome,) = await transport.send([to(stream)])
    assert outcome.missing
    assert "sealed" in (outcome.error or "")


async def test_a_stream_is_declared_once(url: str) -> None:
    async with stream_at(url) as other:
        name = f"{other.name}-declared"
        options = {"subject": f"{name}.{{topic}}", "stream": name, "declare": True, "duplicate_window": "1h"}
        async with opened(url, **options) as transport:
            assert await transport.send([sample(topic="a.b")]) == [DELIVERED]
        config = (await other.js.stream_info(name)).config
        assert (config.subjects, config.storage, config.discard) == ([f"{name}.>"], "file", "new")
        assert (config.retention, config.num_replicas, config.duplicate_window) == ("limits", 1, 3600)
        await Stream(other.js, name).change(max_msgs=7)
        async with opened(url, **options):
            assert (await other.js.stream_info(name)).config.max_msgs == 7
        await other.js.delete_stream(name)


async def test_a_stream_that_cannot_be_declared_is_an_outage(url: str, stream: Stream) -> None:
    with pytest.raises(TransportUnavailable, match=r"did not make the stream 'another': .*overlap"):
        async with opened(url, stream="another", declare=True, subjects=f"{stream.name}.>"):
            pass


async def test_a_declared_stream_that_somebody_removed_is_made_again(url: str) -> None:
    async with stream_at(url) as other:
        name = f"{other.name}-declared"
        async with opened(url, subject=f"{name}.{{topic}}", stream=name, declare=True) as transport:
            await other.js.delete_stream(name)
            (gone,) = await transport.send([sample()])
            assert gone.missing
            assert await transport.send([sample()]) == [DELIVERED]
        await other.js.delete_stream(name)


# --- refusals ---


async def test_a_full_stream_does_not_take_a_message_now(url: str) -> None:
    async with stream_at(url, max_msgs=1, discard=DiscardPolicy.NEW) as full, opened(url) as transport:
        first, second = await transport.send([to(full), to(full)])
    assert first == DELIVERED
    assert (second.delivered, second.rejected, second.lost) == (False, False, False)
    assert "maximum messages exceeded" in (second.error or "")


async def test_what_is_too_large_for_the_stream_is_rejected(url: str) -> None:
    async with stream_at(url, max_msg_size=600) as small, opened(url) as transport:
        large, fits = await transport.send([to(small, payload=b"x" * 600), to(small, payload=b"", key="b")])
    assert large.rejected
    assert fits == DELIVERED


async def test_what_is_too_large_for_the_server_is_rejected_and_breaks_nothing(url: str, stream: Stream) -> None:
    """The payload alone would fit. The server would close the connection over it, with all that is under way."""
    async with opened(url) as transport:
        most = transport.features.max_payload or 0
        outcomes = await transport.send(
            [to(stream, payload=payload, key=None) for payload in (b"", b"x" * (most - 100), b"")]
        )
    assert [(outcome.delivered, outcome.rejected) for outcome in outcomes] == [
        (True, False),
        (False, True),
        (True, False),
    ]


async def test_what_cannot_be_a_publish_is_rejected_and_breaks_nothing(url: str, stream: Stream) -> None:
    async with opened(url) as transport:
        bad = [
            sample(topic="two words", key="a"),
            to(stream, headers={"Nats-Rollup": "all"}, key="b"),
            to(stream, "*", key="c"),
        ]
        outcomes = await transport.send([to(stream, key=None), *bad, to(stream, key=None)])
    assert [outcome.rejected for outcome in outcomes] == [False, True, True, True, False]
    assert len(await stream.messages()) == 2


async def test_a_template_makes_the_subject(url: str, stream: Stream) -> None:
    async with opened(url, subject=f"{stream.name}.{{kind}}.{{topic}}.{{key}}") as transport:
        keyed, keyless = await transport.send([sample(key="k"), sample(key=None)])
    assert keyed == DELIVERED
    assert keyless.rejected
    assert [message.subject for message in await stream.messages()] == [f"{stream.name}.event.orders.k"]


# --- no answer ---


async def test_what_is_not_answered_in_time_does_not_hurt_what_is(url: str, stream: Stream) -> None:
    async with stream_at(url, no_ack=True) as silent, opened(url, timeout="500ms") as transport:
        answered, late = await transport.send([to(stream), to(silent)])
        assert answered == DELIVERED
        assert (late.delivered, late.rejected, late.lost) == (False, False, False)
        assert "no answer within 0.5 s" in (late.error or "")
        assert await transport.send([to(stream)]) == [DELIVERED]


async def test_what_is_cut_after_others_were_answered_is_lost(url: str, stream: Stream) -> None:
    async with stream_at(url, no_ack=True) as silent, proxied(url) as (transport, proxy):
        sending = asyncio.create_task(_sent(transport, to(stream), to(silent, key=None)))
        await until(lambda: _has_answers(transport))
        proxy.cut()
        answered, cut = await sending
    assert answered == DELIVERED
    assert cut.lost


async def _sent(transport: NatsTransport, *messages: Message) -> list[Outcome]:
    return list(await transport.send(messages))


async def _has_answers(transport: NatsTransport) -> bool:
    """Whether a message under way has its answer."""
    assert transport._publisher.current is not None
    batches = transport._publisher.current._pending._by_number.values()
    return any(answer is not None for batch in batches if isinstance(batch, PublishBatch) for answer in batch.answers)


async def test_a_lost_acknowledgement_is_a_repeat_and_not_a_loss(url: str, stream: Stream) -> None:
    message = to(stream)
    async with proxied(url) as (transport, proxy):
        proxy.drop_answers()
        proxy.answered.clear()
        sending = asyncio.create_task(_sent(transport, message))
        await asyncio.wait_for(proxy.answered.wait(), PATIENCE)
        proxy.cut()
        with pytest.raises(TransportUnavailable) as cut:
            await sending
        assert cut.value.mid_send
        proxy.heal()
        assert await transport.send([message]) == [DELIVERED]
    (stored,) = await stream.messages()
    assert (stored.headers or {})["Nats-Msg-Id"] == str(message.message_id)


async def test_a_hung_server_is_given_up_in_time_and_found_again(url: str, stream: Stream) -> None:
    async with proxied(url, timeout="300ms") as (transport, proxy):
        proxy.hang()
        (late,) = await transport.send([to(stream)])
        assert "no answer within 0.3 s" in (late.error or "")
        with pytest.raises(TransportUnavailable) as away:
            await transport.send([to(stream)])
        assert not away.value.mid_send
        proxy.heal()
        assert await transport.send([to(stream)]) == [DELIVERED]


async def test_a_cancelled_ping_leaves_the_connection_whole(url: str, stream: Stream) -> None:
    """The client itself dies of an answer that nobody waits for any more."""
    async with proxied(url) as (transport, proxy):
        proxy.hold_answers()
        pinging = asyncio.create_task(transport.ping())
        proxy.requested.clear()
        await asyncio.wait_for(proxy.requested.wait(), PATIENCE)
        pinging.cancel()
        await asyncio.gather(pinging, return_exceptions=True)
        proxy.heal()
        assert await transport.send([to(stream)]) == [DELIVERED]
        assert proxy.connections == 1


# --- the window ---


async def test_no_more_is_under_way_than_the_window_allows(url: str, stream: Stream) -> None:
    async with proxied(url, window=10) as (transport, proxy):
        proxy.hold_answers()
        sending = asyncio.create_task(_sent(transport, *(to(stream, key=str(number)) for number in range(200))))
        await until(lambda: _holds(stream, 10))
        proxy.requested.clear()
        with pytest.raises(TimeoutError):  # nothing more comes
            await asyncio.wait_for(proxy.requested.wait(), 0.2)
        assert await _holds(stream, 10)
        proxy.heal()
        assert await sending == [DELIVERED] * 200


async def _holds(stream: Stream, count: int) -> bool:
    return bool((await stream.js.stream_info(stream.name)).state.messages == count)


async def test_what_is_cancelled_makes_room(url: str, stream: Stream) -> None:
    async with proxied(url, window=5) as (transport, proxy):
        proxy.hang()
        proxy.requested.clear()
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(_sent(transport, *(to(stream) for _ in range(20))))
            await asyncio.wait_for(proxy.requested.wait(), PATIENCE)
            sending.cancel()
        proxy.heal()
        assert await transport.send([to(stream) for _ in range(20)]) == [DELIVERED] * 20


async def test_large_messages_go_through_a_window_of_bytes(url: str, stream: Stream) -> None:
    async with opened(url, timeout="60s") as transport:
        outcomes = await transport.send([to(stream, key=None, payload=b"x" * 1_000_000) for _ in range(50)])
    assert outcomes == [DELIVERED] * 50


# --- servers ---


async def test_those_who_wait_for_one_attempt_do_not_each_make_another() -> None:
    attempts: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: attempts.append(writer), "127.0.0.1", 0)
    transport = transport_from_url(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}?timeout=300ms")
    assert isinstance(transport, NatsTransport)
    transport._publisher._is_open = True
    sends = await asyncio.gather(*(transport.send([sample()]) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(error, TransportUnavailable) for error in sends)
    assert len(attempts) == 1
    for writer in attempts:
        writer.close()
    server.close()


async def test_the_next_server_is_tried() -> None:
    with closing(private_nats()) as first, closing(private_nats()) as second:
        url = f"nats://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        for server in (first, second):
            async with stream_named(server.url, "S"):
                pass
        async with opened(url, subject="S.{topic}") as transport:
            assert await transport.send([sample()]) == [DELIVERED]
            await asyncio.to_thread(first.kill)
            await _delivered(transport, sample())
        async with stream_named(second.url, "S") as stream:
            assert len(await stream.messages()) == 1


async def test_a_restarted_server_is_found_again_and_has_everything() -> None:
    with closing(private_nats()) as server:
        async with stream_named(server.url, "S"):
            pass
        async with opened(server.url, subject="S.{topic}") as transport:
            assert await transport.send([sample(key=None) for _ in range(100)]) == [DELIVERED] * 100
            await asyncio.to_thread(server.kill)
            with pytest.raises(TransportUnavailable):
                await transport.ping()
            await asyncio.to_thread(server.start)
            await _delivered(transport, sample())
        async with stream_named(server.url, "S") as stream:
            assert len(await stream.messages()) == 101


async def _delivered(transport: NatsTransport, message: Message) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                assert await transport.send([message]) == [DELIVERED]
                return
            except TransportUnavailable:
                await asyncio.sleep(0.05)
