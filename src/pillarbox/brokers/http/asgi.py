"""ASGI app of the HTTP receiver: verifies each request, hands it to the receiver and answers when it is handled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec

from pillarbox.brokers.http.signing import ID, SIGNATURE, TIMESTAMP, verify
from pillarbox.clock import Clock
from pillarbox.cloudevents import HTTP
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.decoding import to_usable_id
from pillarbox.errors import DecodeError

__all__ = ["HttpApp", "MessageSink"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_MESSAGE_METHODS: Final = ("POST", "PUT", "PATCH")
_PROBE_METHODS: Final = ("HEAD", "GET", "OPTIONS")
_BATCH: Final = "application/cloudevents-batch"
_PRIVATE_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization", SIGNATURE})
"""Headers for the web service and for verification. They are no part of the message, which may be stored."""
_RETRY_SOON: Final = {"retry-after": "1"}


class MessageSink(Protocol):
    """The receiver, as the app uses it."""

    def put(self, received: IncomingMessage) -> str | None:
        """Take a message whose token is a future for the answer; return a sentence if it cannot be taken."""

    def drop(self, received: IncomingMessage) -> None:
        """Forget a message: its request is over."""

    def set_serving(self, is_serving: bool) -> None:
        """Note that the web server has started or shuts down."""


class HttpApp:
    """Answers requests at any path. An object with `__call__`, because servers take a bound method for ASGI 2."""

    def __init__(
        self,
        sink: MessageSink,
        *,
        keys: Sequence[bytes],
        source: str,
        timeout: float,
        largest: int,
        clock: Clock,
    ) -> None:
        self._sink = sink
        self._keys = keys
        self._source = source
        self._timeout = timeout
        self._largest = largest
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] != "http":
            await _refuse_websocket(receive, send)
        else:
            try:
                await self._handle(_Request.from_scope(scope), receive)
            except _RequestRefused as refused:
                await _respond(send, refused.status, str(refused), headers=refused.headers)
            else:
                await _respond(send, 204)

    async def _handle(self, request: _Request, receive: Receive) -> None:
        if request.method in _PROBE_METHODS:
            return
        if request.method not in _MESSAGE_METHODS:
            allowed = ", ".join((*_MESSAGE_METHODS, *_PROBE_METHODS))
            raise _RequestRefused(405, "Send messages by POST.", headers={"allow": allowed})
        body = await self._read_verified(request, receive)
        if request.headers.get("content-type", "").lower().startswith(_BATCH):
            raise _RequestRefused(415, "Batches of CloudEvents are not taken; send each event by itself.")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise _RequestRefused(415, "Compressed messages are not taken; send them as they are.")
        await self._deliver(self._decode(request, body), receive)

    async def _read_verified(self, request: _Request, receive: Receive) -> bytes:
        """Return the body; raise `_RequestRefused` if there are secrets and none of them has signed it."""
        # The body of a request without a signature is not even read.
        if self._keys and not {ID, TIMESTAMP, SIGNATURE} <= request.headers.keys():
            raise _RequestRefused(401, "A message must be signed here, as Standard Webhooks says; this one is not.")
        body = await _read_body(request, receive, largest=self._largest)
        if self._keys:
            try:
                verify(self._keys, headers=request.headers, body=body, now=self._clock.now())
            except DecodeError as error:
                raise _RequestRefused(401, str(error)) from None
        return body

    def _decode(self, request: _Request, body: bytes) -> IncomingMessage:
        headers = request.headers
        own_id = headers.get(ID) or headers.get("idempotency-key") or headers.get("ce-id")
        fallback = FallbackIdentity(
            message_id=to_usable_id(own_id or str(uuid4())),
            source=self._source,
            type=headers.get("ce-type") or "http",
            topic=request.path,
        )
        kept = {name: value for name, value in headers.items() if name not in _PRIVATE_HEADERS}
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return IncomingMessage(headers=kept, body=body, binding=HTTP, fallback=fallback, token=future)

    async def _deliver(self, received: IncomingMessage, receive: Receive) -> None:
        """Wait until the consumer has handled the message; raise `_RequestRefused` if it did not."""
        handled: asyncio.Future[bool] = received.token
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            if refusal := self._sink.put(received):
                raise _RequestRefused(503, refusal, headers=_RETRY_SOON)
            either: set[asyncio.Future[Any]] = {handled, disconnected}
            await asyncio.wait(either, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if not handled.done():
                raise _RequestRefused(503, "The message was not handled in time; send it again.", headers=_RETRY_SOON)
            if not handled.result():
                raise _RequestRefused(503, "The message was not handled; send it again.", headers=_RETRY_SOON)
        finally:
            handled.cancel()
            disconnected.cancel()
            self._sink.drop(received)

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        """Note when the server starts and stops.

        Only the outermost app gets these events. Where ours is mounted in a service, the service stops the consumer.
        """
        while True:
            event = await receive()
            is_serving = event["type"] == "lifespan.startup"
            self._sink.set_serving(is_serving)
            await send({"type": f"{event['type']}.complete"})
            if not is_serving:
                return


class _RequestRefused(Exception):
    """A request that is answered without the consumer."""

    def __init__(self, status: int, text: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


class _Request(msgspec.Struct, frozen=True):
    """A request without its body. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]

    @classmethod
    def from_scope(cls, scope: Scope) -> _Request:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        return cls(scope["method"], scope.get("path", "/"), headers)


async def _read_body(request: _Request, receive: Receive, *, largest: int) -> bytes:
    """Read the body; raise `_RequestRefused` as soon as it is known to be too large."""
    too_large = _RequestRefused(413, f"A message may have at most {largest} bytes.")
    length = request.headers.get("content-length", "")
    # Converting a very long number would take long, so its digits are counted first.
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > largest):
        raise too_large
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _RequestRefused(400, "The request ended before its body did.")
        body += event.get("body", b"")
        if len(body) > largest:
            raise too_large
        if not event.get("more_body"):
            return bytes(body)


async def _wait_for_disconnect(receive: Receive) -> None:
    with contextlib.suppress(Exception):
        while (await receive())["type"] != "http.disconnect":
            pass


async def _respond(send: Send, status: int, text: str = "", *, headers: Mapping[str, str] | None = None) -> None:
    content = text.encode()
    fields = {"content-length": str(len(content)), **(headers or {})}
    if text:
        fields["content-type"] = "text/plain; charset=utf-8"
    start = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": content})


async def _refuse_websocket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1003})
