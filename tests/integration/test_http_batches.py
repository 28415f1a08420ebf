"""Webhooks with several messages of one key in a request: what is sent, and how the receiver takes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
import standardwebhooks
from aiohttp import web

from pillarbox.brokers.http import HttpReceiver, HttpSettings, HttpTransport, signing
from pillarbox.brokers.send_batch import DELIVERED, UNSENT
from pillarbox.cloudevents import from_structured, to_structured
from pillarbox.contracts.receiver import IncomingMessage
from pillarbox.decoding import to_cloudevent
from pillarbox.errors import DecodeError, TransportUnavailable
from pillarbox.message import Message
from pillarbox.redaction import Secret
from pillarbox.testing.receiver_contract import assert_nothing_more, take
from pillarbox.testing.samples import sample
from tests.support.http_endpoint import Arrival, Endpoint

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BATCH = {"content-type": "application/cloudevents-batch+json"}
PATIENCE = 30.0


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    await endpoint.start()
    yield endpoint
    await endpoint.stop()


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(HttpSettings(url=url, batch=True, allow_private=True, **options))
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


def run(count: int, **values: Any) -> list[Message]:
    return [sample(**{"key": "a", **values}) for _ in range(count)]


def ids(messages: Sequence[Message]) -> list[str]:
    return [str(message.message_id) for message in messages]


def read_ids(arrival: Arrival) -> list[str]:
    if arrival.headers["content-type"] != BATCH["content-type"]:
        return [arrival.headers["webhook-id"]]
    return [from_structured(bytes(event)).message_id for event in json_array(arrival.body)]


def json_array(body: bytes) -> list[msgspec.Raw]:
    return msgspec.json.decode(body, type=list[msgspec.Raw])


# --- the transport ---


async def test_without_the_option_there_are_no_runs(endpoint: Endpoint) -> None:
    features = HttpTransport(HttpSettings(url=endpoint.url, allow_private=True)).features
    assert (features.runs, features.batch) == (False, 1)


async def test_a_run_is_one_request_signed_as_a_whole(endpoint: Endpoint) -> None:
    messages = run(5)
    async with opened(endpoint.url, secret=(Secret(SECRET),)) as transport:
        assert (transport.features.runs, transport.features.one_key) == (True, True)
        assert await transport.send(messages) == [DELIVERED] * 5
    (arrival,) = endpoint.taken
    assert read_ids(arrival) == ids(messages)
    assert arrival.headers["content-type"] == BATCH["content-type"]
    assert len(standardwebhooks.Webhook(SECRET).verify(arrival.body, arrival.headers)) == 5


async def test_the_id_of_a_batch_is_that_of_its_messages(endpoint: Endpoint) -> None:
    """With the id of the first, an endpoint that remembers ids would take a longer batch for a repeat."""
    messages = run(3)
    async with opened(endpoint.url) as transport:
        for batch in (messages, messages, messages[:2]):
            await transport.send(batch)
    first, again, shorter = (arrival.headers["webhook-id"] for arrival in endpoint.taken)
    assert first == again
    assert len({first, shorter, *ids(messages)}) == 5


async def test_only_messages_of_one_key_share_a_request(endpoint: Endpoint) -> None:
    first, second, others = run(2), run(2, key="b"), run(2, key=None)
    async with opened(endpoint.url) as transport:
        assert await transport.send([first[0], second[0], others[0], first[1], second[1], others[1]]) == [DELIVERED] * 6
    assert sorted(read_ids(arrival) for arrival in endpoint.taken) == sorted(
        [ids(first), ids(second), *([one] for one in ids(others))]
    )


async def test_large_runs_go_in_several_requests_one_after_the_other(endpoint: Endpoint) -> None:
    messages = run(7, payload=json.dumps("x" * 400_000).encode())
    async with opened(endpoint.url) as transport:
        assert await transport.send(messages) == [DELIVERED] * 7
        assert [len(read_ids(arrival)) for arrival in endpoint.taken] == [2, 2, 2, 1]
        endpoint.answers = [web.Response(status=204), web.Response(status=500), web.Response(status=500)]
        outcomes = await transport.send(messages)
    assert [outcome.delivered for outcome in outcomes] == [True, True, False, False, False, False, False]
    assert outcomes[3:] == [UNSENT] * 4


@pytest.mark.parametrize("status", [422, 500, 503, 429])
async def test_of_a_refused_batch_the_guilty_message_is_found(endpoint: Endpoint, status: int) -> None:
    messages = run(5)
    guilty = str(messages[2].message_id)
    endpoint.judge = lambda arrival: web.Response(status=status) if guilty in read_ids(arrival) else None
    async with opened(endpoint.url) as transport:
        outcomes = await transport.send(messages)
    assert outcomes[:2] == [DELIVERED] * 2
    assert outcomes[2].rejected is (status == 422)
    assert not outcomes[2].unsent
    assert outcomes[3:] == [UNSENT] * 2
    assert [one for arrival in endpoint.taken for one in read_ids(arrival)] == ids(messages[:2])


async def test_a_batch_without_an_answer_is_not_held_against_its_first_message(endpoint: Endpoint) -> None:
    messages = run(3)
    async with opened(endpoint.url, timeout=timedelta(seconds=0.5)) as transport:
        endpoint.moves.clear()
        first, *rest = await transport.send(messages)
        assert first.unanswered
        assert rest == [UNSENT] * 2
        endpoint.moves.set()
        endpoint.arrivals.clear()
        assert await transport.send(messages) == [DELIVERED] * 3
    assert [read_ids(arrival) for arrival in endpoint.arrivals] == [ids(messages[:1]), ids(messages[1:])]


def _stop_soon(endpoint: Endpoint) -> None:
    """Let the endpoint break every connection after this request."""
    endpoint.judge = lambda _: None
    endpoint.cuts = 10


async def test_a_refusal_or_an_outage_between_two_requests_leaves_the_beginning(endpoint: Endpoint) -> None:
    messages = run(4, payload=json.dumps("x" * 400_000).encode())
    async with opened(endpoint.url) as transport:
        endpoint.answers = [web.Response(status=status) for status in (204, 401, 401)]
        outcomes = await transport.send(messages)
        assert outcomes[:2] == [DELIVERED] * 2
        assert outcomes[2].not_now
        assert outcomes[3] == UNSENT
        endpoint.judge = lambda _: _stop_soon(endpoint)
        outcomes = await transport.send(messages)
        assert outcomes[:2] == [DELIVERED] * 2
        assert outcomes[2].lost
        assert outcomes[3] == UNSENT
        with pytest.raises(TransportUnavailable):
            await transport.send(messages)


# --- the receiver ---


@asynccontextmanager
async def receiving(**options: Any) -> AsyncIterator[tuple[HttpReceiver, httpx.AsyncClient]]:
    receiver = HttpReceiver(**options)
    await receiver.open()
    transport = httpx.ASGITransport(app=receiver.app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example", timeout=PATIENCE) as client:
            yield receiver, client
    finally:
        await receiver.close()


def pack(*events: bytes) -> bytes:
    return b"[" + b", ".join(events) + b"]"


def signed(body: bytes, *, message_id: str = "batch_1") -> dict[str, str]:
    now = datetime.now(UTC)
    signature = signing.sign([signing.signing_key(SECRET)], message_id=message_id, at=now, body=body)
    return {signing.ID: message_id, signing.TIMESTAMP: str(int(now.timestamp())), signing.SIGNATURE: signature}


async def handle_all(receiver: HttpReceiver, count: int) -> list[IncomingMessage]:
    handled = []
    for _ in range(count):
        (received,) = await take(receiver, 1)
        await receiver.acknowledge(received)
        handled.append(received)
    return handled


@pytest.mark.parametrize("is_signed", [False, True])
async def test_the_events_of_a_batch_are_messages_of_their_own(is_signed: bool) -> None:
    messages = run(3)
    body = pack(*(to_structured(message) for message in messages))
    headers = BATCH | (signed(body) if is_signed else {})
    async with receiving(secrets=[SECRET] if is_signed else []) as (receiver, client):
        asking = asyncio.create_task(client.post("/", content=body, headers=headers))
        handled = await handle_all(receiver, 3)
        assert (await asking).status_code == 204
    assert [to_cloudevent(one).message_id for one in handled] == ids(messages)
    assert [one.fallback.message_id for one in handled] == ids(messages)


async def test_a_batch_ends_at_the_first_event_that_is_not_handled() -> None:
    messages = run(3)
    body = pack(*(to_structured(message) for message in messages))
    async with receiving() as (receiver, client):
        asking = asyncio.create_task(client.post("/", content=body, headers=BATCH))
        await handle_all(receiver, 1)
        (second,) = await take(receiver, 1)
        assert not asking.done()
        await receiver.give_back(second)
        assert (await asking).status_code == 503
        await assert_nothing_more(receiver)


async def test_a_batch_has_one_time_limit() -> None:
    body = pack(*(to_structured(message) for message in run(3)))
    async with receiving(timeout=timedelta(seconds=0.2)) as (receiver, client):
        asking = asyncio.create_task(client.post("/", content=body, headers=BATCH))
        await handle_all(receiver, 1)
        await take(receiver, 1)
        assert (await asking).status_code == 503
        await assert_nothing_more(receiver)


async def test_what_is_no_event_in_a_batch_hurts_no_other() -> None:
    good = run(2)
    body = pack(to_structured(good[0]), b'{"specversion": "1.0"}', b"5", to_structured(good[1]))
    async with receiving() as (receiver, client):
        asking = asyncio.create_task(client.post("/", content=body, headers=BATCH | {"idempotency-key": "k"}))
        handled = await handle_all(receiver, 4)
        assert (await asking).status_code == 204
    assert [to_cloudevent(handled[place]).message_id for place in (0, 3)] == ids(good)
    for broken in handled[1:3]:
        with pytest.raises(DecodeError):
            to_cloudevent(broken)
    assert [one.fallback.message_id for one in handled[1:3]] == ["k-1", "k-2"]


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"5", b"[", b"[1,]", b'[{"a": }]', b"[" * 100_000, b"null", b"\xff\xfe[]"]
)
async def test_what_is_no_batch_is_refused(body: bytes) -> None:
    async with receiving() as (receiver, client):
        assert (await client.post("/", content=body, headers=BATCH)).status_code == 400
        await assert_nothing_more(receiver)


async def test_an_empty_batch_is_taken_and_one_that_is_too_long_is_not() -> None:
    async with receiving() as (receiver, client):
        assert (await client.post("/", content=b" [] ", headers=BATCH)).status_code == 204
        assert (await client.post("/", content=pack(*[b"1"] * 1_001), headers=BATCH)).status_code == 413
        await assert_nothing_more(receiver)


async def test_a_signed_batch_stays_one_under_another_content_type() -> None:
    """The header is not signed: as a plain message it would have another identity, and be handled once more."""
    messages = run(2)
    body = pack(*(to_structured(message) for message in messages))
    async with receiving(secrets=[SECRET]) as (receiver, client):
        headers = {"content-type": "text/plain", **signed(body)}
        asking = asyncio.create_task(client.post("/", content=body, headers=headers))
        handled = await handle_all(receiver, 2)
        assert (await asking).status_code == 204
        assert [to_cloudevent(one).message_id for one in handled] == ids(messages)
        single = {"content-type": "application/cloudevents+json", **signed(body)}
        assert (await client.post("/", content=body, headers=single)).status_code == 400


@pytest.mark.parametrize("body", [b"[1, 2]", b"[]", b'[{"specversion": "1.0"}, 5]'])
async def test_a_signed_array_of_something_else_is_a_plain_message(body: bytes) -> None:
    async with receiving(secrets=[SECRET]) as (receiver, client):
        asking = asyncio.create_task(client.post("/", content=body, headers=signed(body)))
        (received,) = await handle_all(receiver, 1)
        assert (await asking).status_code == 204
    assert (received.body, received.fallback.message_id) == (body, "batch_1")
