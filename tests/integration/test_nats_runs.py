"""Runs of a key to JetStream: what a stream has of a run is its beginning, on servers with and without batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import nats
import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.nats import NatsTransport, connection
from pillarbox.brokers.nats import transport as transport_module
from pillarbox.brokers.nats.transport import Publisher
from pillarbox.brokers.send_batch import DELIVERED, UNSENT
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.nats_server import PrivateNats, private_nats


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateNats]:
    with closing(private_nats()) as server:
        yield server


class Streams:
    """Makes streams and reads them, with a plain client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def make(self, name: str = "orders", *, atomic: bool = True, **config: object) -> None:
        with suppress(AssertionError):
            await self._ask(f"STREAM.DELETE.{name}", {})
        subjects = [name, f"{name}.>"]
        await self._ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, "allow_atomic": atomic, **config})

    async def change(self, name: str = "orders", **config: object) -> None:
        info = await self._ask(f"STREAM.INFO.{name}", {})
        await self._ask(f"STREAM.UPDATE.{name}", {**info["config"], **config})

    async def taken(self, name: str = "orders", *, key: str = "a") -> list[str]:
        """The ids of the messages of one key, in order."""
        info = await self._ask(f"STREAM.INFO.{name}", {})
        found = []
        for number in range(info["state"]["first_seq"] or 1, info["state"]["last_seq"] + 1):
            stored = await self._client.jetstream().get_msg(name, seq=number)
            if stored.headers.get("ce-partitionkey") == key:
                found.append(stored.headers["ce-id"])
        return found

    async def _ask(self, what: str, body: object) -> dict[str, Any]:
        reply = await self._client.request(f"$JS.API.{what}", json.dumps(body).encode(), timeout=10)
        answer: dict[str, Any] = json.loads(reply.data)
        assert "error" not in answer, answer
        return answer


@pytest.fixture
async def streams(server: PrivateNats) -> AsyncIterator[Streams]:
    client = await nats.connect(server.url)
    streams = Streams(client)
    await streams.make()
    yield streams
    await client.close()


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[NatsTransport]:
    transport = transport_from_url(url, options={"timeout": "5s"} | options)
    assert isinstance(transport, NatsTransport)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


def has_batches(transport: NatsTransport) -> bool:
    assert transport._publisher.current is not None
    return transport._publisher.current.has_batches


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes message by message goes to its end, however slow the machine is."""
    monkeypatch.setattr(transport_module, "_MAX_ROUNDS_SECONDS", 60.0)


def run(count: int, **values: Any) -> list[Message]:
    return [sample(**{"key": "a", "topic": "orders", **values}) for _ in range(count)]


def ids(messages: Sequence[Message]) -> list[str]:
    return [str(message.message_id) for message in messages]


async def test_a_run_is_stored_in_order_beside_other_messages(server: PrivateNats, streams: Streams) -> None:
    await streams.make("other")
    first, second, third = run(30), run(10, key="b"), run(10, key="c", topic="other")
    mixed = [*first[:10], *second[:5], *run(3, key=None), *third, *first[10:], *run(1, key="d"), *second[5:]]
    async with opened(server.url) as transport:
        assert transport.features.runs
        assert await transport.send(mixed) == [DELIVERED] * 54
        assert has_batches(transport)
    assert await streams.taken() == ids(first)
    assert await streams.taken(key="b") == ids(second)
    assert await streams.taken("other", key="c") == ids(third)


async def test_a_batch_is_all_or_nothing_and_then_message_by_message(server: PrivateNats, streams: Streams) -> None:
    await streams.change(max_msgs=5, discard="new")
    messages, other = run(8), run(1, key="b")
    async with opened(server.url) as transport:
        await transport.send(other)
        outcomes = await transport.send(messages)
        assert outcomes[:4] == [DELIVERED] * 4
        assert outcomes[4].not_now
        assert outcomes[5:] == [UNSENT] * 3
        assert has_batches(transport)
        await streams.change(max_msgs=-1)
        assert await transport.send(messages[4:]) == [DELIVERED] * 4
    assert await streams.taken() == ids(messages)


async def test_a_message_that_the_stream_does_not_take_ends_its_run_alone(
    server: PrivateNats, streams: Streams
) -> None:
    await streams.change(max_msg_size=2_000)
    messages, others = [*run(2), *run(1, payload=b"x" * 2_001), *run(2)], run(3, key="b")
    async with opened(server.url) as transport:
        outcomes = await transport.send([*messages, *others])
    assert outcomes[:2] == [DELIVERED] * 2
    assert outcomes[2].rejected
    assert outcomes[3:] == [UNSENT, UNSENT, *[DELIVERED] * 3]
    assert await streams.taken() == ids(messages[:2])
    assert await streams.taken(key="b") == ids(others)


async def test_what_cannot_be_encoded_ends_the_run(server: PrivateNats, streams: Streams) -> None:
    messages = [*run(2), *run(1, topic="no topic"), *run(2)]
    async with opened(server.url) as transport:
        outcomes = await transport.send(messages)
    assert outcomes[2].rejected
    assert [outcomes[0], outcomes[1], *outcomes[3:]] == [DELIVERED, DELIVERED, UNSENT, UNSENT]
    assert await streams.taken() == ids(messages[:2])


async def test_a_repeated_run_is_recognised(server: PrivateNats, streams: Streams) -> None:
    """A batch with a repeat in it is refused as a whole. Message by message the stream knows what it has."""
    messages = run(6)
    async with opened(server.url) as transport:
        assert await transport.send(messages[:3]) == [DELIVERED] * 3
        assert await transport.send(messages) == [DELIVERED] * 6
        assert has_batches(transport)
    assert await streams.taken() == ids(messages)


async def test_a_stream_without_batches_is_noticed_and_the_run_goes_on(server: PrivateNats, streams: Streams) -> None:
    await streams.change(allow_atomic=False)
    messages = run(5)
    async with opened(server.url) as transport:
        assert await transport.send(messages) == [DELIVERED] * 5
        assert not has_batches(transport)
        assert await transport.send(more := run(3)) == [DELIVERED] * 3
    assert await streams.taken() == ids([*messages, *more])


async def test_a_server_that_knows_no_batches_stores_the_first_message_and_no_more(
    server: PrivateNats, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a server leads the stream in a cluster that is being upgraded. It would store each message for itself."""

    def without_batch(message: Any, *, reply: str | None, **_: object) -> bytes:
        assert reply is not None, "the rest of a batch was sent to a server that knows none"
        frame: bytes = message.build_frame(reply)
        return frame

    monkeypatch.setattr(transport_module, "build_batch_frame", without_batch)
    messages = run(5)
    async with opened(server.url) as transport:
        assert await transport.send(messages) == [DELIVERED] * 5
        assert not has_batches(transport)
    assert await streams.taken() == ids(messages)


async def test_an_old_server_is_known_by_its_version(
    server: PrivateNats, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old:
        major, minor = 2, 11

    monkeypatch.setattr(connection.Client, "connected_server_version", Old)
    monkeypatch.setattr(Publisher, "_publish_atomically", None)
    async with opened(server.url) as transport:
        assert not has_batches(transport)
        assert await transport.send(messages := run(4)) == [DELIVERED] * 4
    assert await streams.taken() == ids(messages)


async def test_a_subject_without_a_stream_is_told_of_the_first_message(server: PrivateNats, streams: Streams) -> None:
    async with opened(server.url) as transport:
        first, *rest = await transport.send(run(3, topic="nowhere"))
    assert first.missing
    assert rest == [UNSENT] * 2


async def test_a_run_that_changes_its_subject_goes_on_after_the_acknowledgement(
    server: PrivateNats, streams: Streams
) -> None:
    messages = [*run(2), *run(2, topic="orders.eu"), *run(1), *run(1, topic="nowhere"), *run(1)]
    async with opened(server.url) as transport:
        outcomes = await transport.send(messages)
    assert outcomes[:5] == [DELIVERED] * 5
    assert outcomes[5].missing
    assert outcomes[6] == UNSENT
    assert await streams.taken() == ids(messages[:5])


async def test_large_runs_go_in_several_batches(server: PrivateNats, streams: Streams) -> None:
    messages = run(30, payload=b"x" * 900_000)
    limit = run(1, payload=b"x" * (1_048_576 - 500))
    async with opened(server.url, timeout="30s") as transport:
        assert await transport.send([*messages, *limit]) == [DELIVERED] * 31
    assert await streams.taken() == ids([*messages, *limit])


async def test_a_declared_stream_has_batches(server: PrivateNats, streams: Streams) -> None:
    options: dict[str, object] = {"stream": "made", "declare": True, "subject": "made.{topic}"}
    async with opened(server.url, **options) as transport:
        assert await transport.send(messages := run(4)) == [DELIVERED] * 4
        assert has_batches(transport)
    assert await streams.taken("made") == ids(messages)


@pytest.mark.parametrize("size", [1, 700, 5_000, 60_000, 300_000])
async def test_a_connection_that_is_cut_leaves_a_beginning(server: PrivateNats, streams: Streams, size: int) -> None:
    messages = run(40, payload=b"x" * 10_000)
    async with FaultProxy("127.0.0.1", server.port) as proxy, opened(f"nats://{proxy.host}:{proxy.port}") as transport:
        proxy.cut_after(size)
        outcomes = await _send(transport, messages)
        proxy.heal()
        delivered = sum(outcome.delivered for outcome in outcomes)
        assert [outcome.delivered for outcome in outcomes] == [True] * delivered + [False] * (40 - delivered)
        found = await streams.taken()
        assert found == ids(messages[: len(found)])
        assert len(found) >= delivered
        assert await transport.send(messages[delivered:]) == [DELIVERED] * (40 - delivered)
        assert await streams.taken() == ids(messages)


async def test_a_lost_answer_to_the_commit_is_a_repeat_and_not_a_loss(server: PrivateNats, streams: Streams) -> None:
    messages = run(5)
    async with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        opened(f"nats://{proxy.host}:{proxy.port}", timeout="1s") as transport,
    ):
        proxy.hold_answers()
        first, *rest = await transport.send(messages)
        assert first.unanswered
        assert rest == [UNSENT] * 4
        proxy.heal()
        assert await transport.send(messages) == [DELIVERED] * 5
    assert await streams.taken() == ids(messages)


async def test_many_batches_at_once(server: PrivateNats, streams: Streams) -> None:
    """A server takes 50 batches of a stream at a time. What it does not take as a batch goes message by message."""
    groups = [[*run(3, key=f"k{number}", topic=f"orders.{number}")] for number in range(120)]
    async with opened(server.url) as transport:
        sends = await asyncio.gather(*(transport.send(group) for group in groups))
        assert sends == [[DELIVERED] * 3] * 120
    for number, group in enumerate(groups[:5]):
        assert await streams.taken(key=f"k{number}") == ids(group)


async def _send(transport: NatsTransport, messages: Sequence[Message]) -> list[Outcome]:
    with suppress(TransportUnavailable):
        return list(await transport.send(messages))
    return [UNSENT] * len(messages)


async def test_what_goes_message_by_message_does_not_keep_the_others_waiting(
    server: PrivateNats, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first message of a run is sent in any case, so that a key goes on however slow the server is."""
    monkeypatch.setattr(transport_module, "_MAX_ROUNDS_SECONDS", 0.0)
    await streams.change(allow_atomic=False)
    messages = run(5)
    async with opened(server.url) as transport:
        assert await transport.send(messages) == [DELIVERED, *[UNSENT] * 4]
        assert await transport.send(messages[1:]) == [DELIVERED, *[UNSENT] * 3]
    assert await streams.taken() == ids(messages[:2])
