"""The HTTP receiver: what it answers, what it never looks at, where it can be mounted."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import fastapi
import httpx
import pytest
import starlette.applications
import starlette.routing

from pillarbox.brokers.http import HttpReceiver, signing
from pillarbox.brokers.http.receiver import RedeliveryMemory
from pillarbox.cloudevents import HTTP, to_binary
from pillarbox.contracts.receiver import IncomingMessage
from pillarbox.decoding import encode_incoming, to_cloudevent
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.testing.receiver_contract import assert_nothing_more, take
from pillarbox.testing.samples import sample
from tests.support.web_server import WebServer

SECRET, OTHER = "whsec_" + "c2VjcmV0" * 6, "whsec_" + "b3RoZXIh" * 6
PATIENCE = 40.0


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[HttpReceiver]:
    receiver = HttpReceiver(**options)
    await receiver.open()
    try:
        yield receiver
    finally:
        await receiver.close()


def client_of(app: Any) -> httpx.AsyncClient:
    """Speaks to an app in this very loop."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://shop.example", timeout=PATIENCE)


def signed(body: bytes, *, secret: str = SECRET, at: datetime | None = None, message_id: str = "m-1") -> dict[str, str]:
    now = at or datetime.now(UTC)
    return {
        signing.ID: message_id,
        signing.TIMESTAMP: str(int(now.timestamp())),
        signing.SIGNATURE: signing.sign([signing.signing_key(secret)], message_id=message_id, at=now, body=body),
    }


async def handle(receiver: HttpReceiver) -> IncomingMessage:
    (received,) = await take(receiver, 1)
    await receiver.acknowledge(received)
    return received


# --- the signature comes first ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"webhook-id": "m-1", "webhook-timestamp": "1"},
        {"content-type": "application/cloudevents-batch+json"},
        {"content-encoding": "gzip"},
        {"content-length": "999999999999"},
    ],
)
async def test_without_a_signature_a_request_is_not_even_read(headers: Mapping[str, str]) -> None:
    async def receive() -> Any:
        raise AssertionError("the body was asked for")

    async with opened(secrets=[SECRET]) as receiver:
        assert await _status(receiver, receive, headers) == 401
        await assert_nothing_more(receiver)


async def _status(receiver: HttpReceiver, receive: Callable[[], Any], headers: Mapping[str, str]) -> int:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    await receiver.app({"type": "http", "method": "POST", "path": "/", "headers": lines}, receive, send)
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize(
    "headers",
    [
        signed(b"body", secret=OTHER),
        signed(b"another body"),
        signed(b"body", at=datetime.now(UTC) - timedelta(hours=1)),
        {**signed(b"body"), signing.ID: "m-2"},
    ],
)
async def test_a_wrong_signature_reaches_nobody(headers: dict[str, str]) -> None:
    """Whatever else it is: the answer tells nothing of that."""
    batch = {"content-type": "application/cloudevents-batch+json", "content-encoding": "gzip"}
    async with opened(secrets=[SECRET]) as receiver, client_of(receiver.app) as client:
        assert (await client.post("/", content=b"body", headers={**headers, **batch})).status_code == 401
        await assert_nothing_more(receiver)


async def test_secrets_can_be_changed_without_a_gap() -> None:
    async with opened(secrets=[SECRET, OTHER]) as receiver, client_of(receiver.app) as client:
        for secret in (SECRET, OTHER):
            handling = asyncio.create_task(handle(receiver))
            assert (await client.post("/", content=b"{}", headers=signed(b"{}", secret=secret))).status_code == 204
            await handling


def test_a_secret_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigError):
        HttpReceiver(secrets=["short"])


@pytest.mark.parametrize("options", [{"waiting": 0}, {"largest": 0}, {"timeout": timedelta(0)}])
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="over 0"):
        HttpReceiver(**options)


# --- only what is signed identifies and selects ----------------------------------------------------------


def document(**attributes: object) -> bytes:
    event = {"specversion": "1.0", "id": "m-1", "source": "/shop", "type": "orders.placed", "data": {"n": 1}}
    return json.dumps({**event, **attributes}).encode()


STRUCTURED = {"content-type": "application/cloudevents+json"}


@pytest.mark.parametrize(
    "headers",
    [
        {"ce-id": "m-1"},
        {"ce-type": "payments.refunded"},
        {"CE-Specversion": "1.0", "ce-id": "m-1", "ce-source": "/shop", "ce-type": "orders.placed"},
        {"ce-id": "m-2", "ce-specversion": "1.0", "ce-source": "/shop", "ce-type": "orders.placed"},
    ],
)
async def test_attributes_that_nobody_signed_are_refused_before_the_body_is_read(headers: dict[str, str]) -> None:
    async def receive() -> Any:
        raise AssertionError("the body was asked for")

    async with opened(secrets=[SECRET]) as receiver:
        assert await _status(receiver, receive, {**headers, **signed(b"{}")}) == 401
        await assert_nothing_more(receiver)


async def post(receiver: HttpReceiver, body: bytes, headers: dict[str, str], path: str = "/") -> tuple[int, Any]:
    """Send a request; return its status, and the identity, type and topic of the message that came of it."""
    async with client_of(receiver.app) as client:
        sending = asyncio.create_task(client.post(path, content=body, headers={**signed(body), **headers}))
        taking = asyncio.create_task(handle(receiver))
        await asyncio.wait({sending, taking}, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        if not taking.done():
            taking.cancel()
            return (await sending).status_code, None
        event = to_cloudevent(await taking)
        return (await sending).status_code, (event.source, event.message_id, event.type, event.topic)


@pytest.mark.parametrize(
    "headers",
    [
        STRUCTURED,
        {"content-type": "application/json"},
        {"content-type": "text/plain"},
        {"content-type": "application/cloudevents+json; charset=utf-8"},
        {"idempotency-key": "another"},
    ],
)
async def test_a_replayed_event_is_the_same_whatever_its_headers_say(headers: dict[str, str]) -> None:
    async with opened(secrets=[SECRET]) as receiver:
        same = (204, ("/shop", "m-1", "orders.placed", "orders.placed"))
        assert await post(receiver, document(), headers) == same
        assert await post(receiver, document(), headers, path="/elsewhere") == same


async def test_a_replayed_plain_message_is_the_same_whatever_its_headers_say() -> None:
    async with opened(secrets=[SECRET], source="partner") as receiver:
        for headers in ({}, {"idempotency-key": "another"}, {"x-event": "refund"}):
            assert await post(receiver, b'{"n": 1}', headers, "/refunds") == (204, ("partner", "m-1", "http", "http"))
    async with opened(secrets=[SECRET], topic="payments") as receiver:
        assert await post(receiver, b"{}", {}, "/refunds") == (204, ("http:", "m-1", "http", "payments"))


@pytest.mark.parametrize(
    "kind", ["application/cloudevents+json", "application/cloudevents+xml", "Application/CloudEvents"]
)
@pytest.mark.parametrize("body", [b'{"n": 1}', b"[" + document() + b"]", b"\xef\xbb\xbf" + document(), b""])
async def test_a_plain_message_cannot_be_made_an_event_that_fails(body: bytes, kind: str) -> None:
    """Its failure would be kept under the id that was signed, and the real message be taken for a repeat."""
    async with opened(secrets=[SECRET]) as receiver:
        assert await post(receiver, body, {"content-type": kind}) == (400, None)


@pytest.mark.parametrize("body", [document(id="m-2"), document(id=1), document(id=["m-1"]), document(id="")])
async def test_the_id_of_a_signed_event_is_the_one_that_was_signed(body: bytes) -> None:
    async with opened(secrets=[SECRET]) as receiver:
        assert await post(receiver, body, STRUCTURED) == (400, None)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-signature", "content-type", "ce-id"])
async def test_a_header_that_comes_twice_is_refused(name: str) -> None:
    async with opened() as receiver, client_of(receiver.app) as client:
        answer = await client.post("/", content=b"{}", headers=[(name, "a"), (name, "b")])
        assert (answer.status_code, name in answer.text) == (400, True)


@pytest.mark.parametrize(
    "change", [{signing.TIMESTAMP: "1"}, {signing.TIMESTAMP: "now"}, {signing.TIMESTAMP: "9" * 5_000}]
)
async def test_an_old_request_is_refused_before_its_body_is_read(change: dict[str, str]) -> None:
    async def receive() -> Any:
        raise AssertionError("the body was asked for")

    async with opened(secrets=[SECRET]) as receiver:
        assert await _status(receiver, receive, {**signed(b"{}"), **change}) == 401


# --- what requests may take ------------------------------------------------------------------------------


class Slow:
    """A sender that sends pieces, and then nothing more and does not hang up."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.is_read = asyncio.Event()

    async def receive(self) -> Any:
        if self._pieces:
            return {"type": "http.request", "body": self._pieces.pop(0), "more_body": True}
        self.is_read.set()
        await asyncio.Event().wait()


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with opened(secrets=[SECRET], body_timeout=timedelta(milliseconds=50)) as receiver:
        assert await _status(receiver, Slow(b"{").receive, signed(b"{}")) == 408


@pytest.mark.parametrize("secrets", [[], [SECRET]])
async def test_all_requests_together_hold_so_many_bytes(secrets: list[str]) -> None:
    kib = 1024
    async with opened(secrets=secrets, largest=100 * kib, buffered=250 * kib) as receiver:
        slow = [Slow(b"x" * 90 * kib) for _ in range(2)]
        holding = [asyncio.create_task(_status(receiver, one.receive, signed(b""))) for one in slow]
        for one in slow:
            await one.is_read.wait()
        assert await _status(receiver, Slow(b"x" * 90 * kib).receive, signed(b"")) == 503
        # What was refused holds nothing any more, and what fits is taken.
        async with client_of(receiver.app) as client:
            handling = asyncio.create_task(handle(receiver))
            assert (await client.post("/", content=b"{}", headers=signed(b"{}"))).status_code == 204
            await handling
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        assert receiver.app._buffer._held == 0


async def test_a_request_that_is_alone_may_be_as_large_as_one_may_be() -> None:
    async with opened(largest=1_000, buffered=1_000) as receiver, client_of(receiver.app) as client:
        handling = asyncio.create_task(handle(receiver))
        assert (await client.post("/", content=b"x" * 1_000)).status_code == 204
        await handling


@pytest.mark.parametrize("length", ["-1", "1e3", "x", "0x10", "１"])
async def test_a_length_that_is_no_number_is_refused(length: str) -> None:
    async with opened() as receiver:
        assert await _status(receiver, Slow().receive, {"content-length": length}) == 400


def test_all_bodies_have_room_for_one() -> None:
    with pytest.raises(ConfigError, match="buffered"):
        HttpReceiver(largest=1_000, buffered=999)


# --- answers ---------------------------------------------------------------------------------------------


async def test_questions_are_answered_without_a_consumer() -> None:
    async with client_of(HttpReceiver().app) as client:
        assert [(await client.request(method, "/")).status_code for method in ("GET", "HEAD", "OPTIONS")] == [204] * 3


async def test_what_is_no_message_is_refused() -> None:
    async with opened(largest=10) as receiver, client_of(receiver.app) as client:
        deleting = await client.delete("/")
        assert (deleting.status_code, "POST" in deleting.headers["allow"]) == (405, True)
        assert (await client.post("/", content=b"x" * 11)).status_code == 413
        assert (await client.post("/", content=_pieces())).status_code == 413
        batch = {"content-type": "application/cloudevents-batch+avro"}
        assert (await client.post("/", content=b"[]", headers=batch)).status_code == 415
        assert (await client.post("/", content=b"", headers={"content-encoding": "gzip"})).status_code == 415
        await assert_nothing_more(receiver)


async def _pieces() -> AsyncIterator[bytes]:
    """Without a length before it."""
    for _ in range(3):
        yield b"xxxx"


async def test_a_message_of_just_the_size_is_taken() -> None:
    async with opened(largest=10) as receiver, client_of(receiver.app) as client:
        handling = asyncio.create_task(handle(receiver))
        assert (await client.post("/", content=b"x" * 10)).status_code == 204
        assert (await handling).body == b"x" * 10


async def test_without_a_consumer_the_sender_is_to_come_again() -> None:
    receiver = HttpReceiver()
    async with client_of(receiver.app) as client:
        answer = await client.post("/", content=b"{}")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        await receiver.open()
        await receiver.close()
        assert (await client.post("/", content=b"{}")).status_code == 503


async def test_what_is_given_back_is_to_be_sent_again() -> None:
    async with opened() as receiver, client_of(receiver.app) as client:
        sending = asyncio.create_task(client.post("/", content=b"{}"))
        (received,) = await take(receiver, 1)
        await receiver.give_back(received)
        assert (await sending).status_code == 503


async def test_closing_answers_those_who_wait() -> None:
    receiver = HttpReceiver(timeout=timedelta(hours=1))
    await receiver.open()
    async with client_of(receiver.app) as client:
        sending = [asyncio.create_task(client.post("/", content=b"%d" % number)) for number in range(3)]
        await take(receiver, 1, limit=1)
        await receiver.close()
        assert [(await one).status_code for one in sending] == [503] * 3


async def test_more_than_may_wait_are_to_come_again() -> None:
    async with opened(waiting=2) as receiver, client_of(receiver.app) as client:
        sending = [asyncio.create_task(client.post("/", content=b"%d" % number)) for number in range(3)]
        done, waiting = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        assert [one.result().status_code for one in done] == [503]
        for received in await take(receiver, 2):
            await receiver.acknowledge(received)
        assert [(await one).status_code for one in waiting] == [204, 204]


async def test_what_is_not_handled_in_time_is_to_come_again_and_is_not_handed_out() -> None:
    async with opened(timeout=timedelta(milliseconds=50)) as receiver, client_of(receiver.app) as client:
        assert (await client.post("/", content=b"late")).status_code == 503
        await assert_nothing_more(receiver)


async def test_a_message_whose_sender_hung_up_is_not_handed_out() -> None:
    """It will send it again, and here it would only be handled twice."""
    async with opened() as receiver:
        server = WebServer(receiver.app)
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
                sending = asyncio.create_task(client.post("/", content=b"first"))
                (first,) = await take(receiver, 1)
                await receiver.give_back(first)
                await sending
                gone = asyncio.create_task(client.post("/", content=b"gone"))
                await _until(lambda: receiver._mailbox is not None and len(receiver._mailbox) == 1)
                gone.cancel()
                await _until(lambda: receiver._mailbox is not None and len(receiver._mailbox) == 0)
                await assert_nothing_more(receiver)
        finally:
            await server.stop()


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_websocket_is_turned_away() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(event: Any) -> None:
        sent.append(event)

    await HttpReceiver().app({"type": "websocket", "path": "/"}, receive, send)
    assert [event["type"] for event in sent] == ["websocket.close"]


# --- what comes ------------------------------------------------------------------------------------------


async def test_a_plain_message_is_known_by_the_id_it_was_sent_with() -> None:
    async with opened(source="https://partner.example") as receiver, client_of(receiver.app) as client:
        for headers, known in (
            ({"webhook-id": "w", "idempotency-key": "i"}, "w"),
            ({"idempotency-key": "i"}, "i"),
            ({"ce-id": "c"}, "c"),
        ):
            sending = asyncio.create_task(client.post("/hooks/orders", content=b"{}", headers=headers))
            plain = (await handle(receiver)).fallback
            assert (plain.message_id, plain.source, plain.topic) == (known, "https://partner.example", "/hooks/orders")
            await sending


async def test_an_id_that_no_inbox_can_keep_is_a_digest() -> None:
    async with opened() as receiver, client_of(receiver.app) as client:
        sending = asyncio.create_task(client.post("/", content=b"{}", headers={"idempotency-key": "x" * 5_000}))
        assert (await handle(receiver)).fallback.message_id.startswith("sha256:")
        await sending


async def test_a_kept_message_keeps_no_login() -> None:
    login = {"authorization": "Bearer canary-1", "cookie": "session=canary-2", "proxy-authorization": "Basic canary-3"}
    async with opened(secrets=[SECRET]) as receiver, client_of(receiver.app) as client:
        headers = {**login, **signed(b"{}")}
        sending = asyncio.create_task(client.post("/", content=b"{}", headers=headers))
        content = encode_incoming(await handle(receiver))
        await sending
    assert b"canary" not in content
    assert headers[signing.SIGNATURE].encode() not in content


async def test_every_message_may_be_a_repeat() -> None:
    async with opened() as receiver, client_of(receiver.app) as client:
        sending = asyncio.create_task(client.post("/", content=b"{}"))
        assert (await handle(receiver)).redelivered
        await sending


async def test_only_what_was_in_hand_and_not_acknowledged_is_remembered() -> None:
    async with opened(repeats="remembered") as receiver, client_of(receiver.app) as client:
        for is_repeat in (False, True):
            sending = asyncio.create_task(client.post("/", content=b"{}", headers={"idempotency-key": "i"}))
            (received,) = await take(receiver, 1)
            assert received.redelivered is is_repeat
            await (receiver.acknowledge if is_repeat else receiver.give_back)(received)
            await sending
        sending = asyncio.create_task(client.post("/", content=b"{}", headers={"idempotency-key": "i"}))
        assert not (await handle(receiver)).redelivered
        await sending


# --- where it is mounted ---------------------------------------------------------------------------------


def under_starlette(app: Any) -> Any:
    return starlette.applications.Starlette(routes=[starlette.routing.Mount("/hooks", app=app)])


def under_fastapi(app: Any) -> Any:
    api = fastapi.FastAPI()
    api.mount("/hooks", app)
    return api


@pytest.mark.parametrize("mounted", [under_starlette, under_fastapi])
async def test_it_works_under_a_path(mounted: Callable[[Any], Any]) -> None:
    message = sample(headers={"tenant": "shop-1"})
    headers, body = to_binary(message, binding=HTTP)
    async with opened() as receiver:
        server = WebServer(mounted(receiver.app))
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
                for path in ("/hooks", "/hooks/", "/hooks/orders/eu"):
                    posting = client.post(path, content=body, headers=headers, follow_redirects=True)
                    sending = asyncio.create_task(posting)
                    assert to_cloudevent(await handle(receiver)).message_id == str(message.message_id)
                    assert (await sending).status_code == 204
                assert (await client.post("/elsewhere", content=body)).status_code == 404
        finally:
            await server.stop()


async def test_the_consumer_may_run_in_another_thread() -> None:
    """And when its loop is gone without a word, senders are told to come again."""
    receiver = HttpReceiver()
    ready = threading.Event()

    async def consume() -> None:
        await receiver.open()
        ready.set()
        for _ in range(3):
            await handle(receiver)

    thread = threading.Thread(target=lambda: asyncio.run(consume()))
    thread.start()
    await asyncio.to_thread(ready.wait)
    async with client_of(receiver.app) as client:
        assert [(await client.post("/", content=b"%d" % number)).status_code for number in range(3)] == [204] * 3
        await asyncio.to_thread(thread.join)
        assert (await client.post("/", content=b"4")).status_code == 503


async def test_it_can_be_opened_again_in_another_loop() -> None:
    receiver = HttpReceiver()

    async def open_and_close() -> None:
        await receiver.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await receiver.receive(limit=1)
        await receiver.close()

    await asyncio.to_thread(asyncio.run, open_and_close())
    await open_and_close()


async def test_a_web_server_that_shut_down_is_unavailable_until_it_starts_again() -> None:
    async with opened() as receiver:
        server = WebServer(receiver.app)
        await server.start()
        await server.stop()
        with pytest.raises(TransportUnavailable, match="has shut down"):
            await receiver.ping()
        await server.start()
        try:
            await receiver.ping()
        finally:
            await server.stop()


def test_what_is_remembered_is_bounded_and_the_latest() -> None:
    memory = RedeliveryMemory(limit=3)
    for number in (0, 1, 2, 0, 3):
        memory.add(str(number))
    assert len(memory) == 3
    assert [str(number) in memory for number in range(4)] == [True, False, True, True]
    memory.forget("2")
    memory.forget("never there")
    assert "2" not in memory
