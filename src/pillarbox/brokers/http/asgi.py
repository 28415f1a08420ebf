"""ASGI app of the HTTP receiver: verifies each request, hands it to the receiver and answers when it is handled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec

from pillarbox.brokers.http.signing import ID, SIGNATURE, TIMESTAMP, check_time, verify
from pillarbox.clock import Clock
from pillarbox.cloudevents import HTTP, STRUCTURED
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.decoding import to_usable_id
from pillarbox.errors import DecodeError

__all__ = ["HttpApp", "Limits", "MessageSink", "PlainIdentity"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_MESSAGE_METHODS: Final = ("POST", "PUT", "PATCH")
_PROBE_METHODS: Final = ("HEAD", "GET", "OPTIONS")
_CLOUDEVENT: Final = "application/cloudevents"
_BATCH: Final = "application/cloudevents-batch"
_JSON_BATCH: Final = "application/cloudevents-batch+json"
_MAX_EVENTS: Final = 1_000
"""Events of a batch. Each takes memory beyond its bytes."""
_PRIVATE_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization", SIGNATURE})
"""Headers for the web service and for verification. They are no part of the message, which may be stored."""
_RETRY_SOON: Final = {"retry-after": "1"}
_CLOSE: Final = {"connection": "close"}
"""The rest of a body that was not read would be taken for the next request."""
_UNIQUE_HEADERS: Final = frozenset({"content-length", "content-type", ID, TIMESTAMP, SIGNATURE, "ce-id", "ce-type"})
"""Headers that decide on what a message is. Of two, a proxy might look at the one and we at the other."""
_REQUEST_OVERHEAD: Final = 8 * 1024
"""Bytes that a request takes beside its headers and its body: tasks, buffers and the like."""


class MessageSink(Protocol):
    """The receiver, as the app uses it."""

    def put(self, received: IncomingMessage) -> str | None:
        """Take a message whose token is a future for the answer; return a sentence if it cannot be taken."""

    def drop(self, received: IncomingMessage) -> None:
        """Forget a message: its request is over."""

    def set_serving(self, is_serving: bool) -> None:
        """Note that the web server has started or shuts down."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What requests may take."""

    answer_seconds: float
    """From a complete request to its answer."""
    body_seconds: float
    """For a body to come, all of it."""
    body_bytes: int
    """Of one body."""
    buffered_bytes: int
    """Of all requests that are not answered yet."""


class PlainIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Source and topic of messages that are no CloudEvents."""

    source: str
    topic: str | None = None
    """None: the path, or `http` where requests are signed, because a signature does not cover the path."""


class HttpApp:
    """Answers requests at any path. An object with `__call__`, because servers take a bound method for ASGI 2."""

    def __init__(
        self, sink: MessageSink, *, keys: Sequence[bytes], identity: PlainIdentity, limits: Limits, clock: Clock
    ) -> None:
        self._sink = sink
        self._keys = keys
        self._identity = identity
        self._limits = limits
        self._buffer = _ByteBudget(limits.buffered_bytes)
        self._clock = clock

    @property
    def buffered_bytes(self) -> int:
        """Bytes of all requests that are not answered yet."""
        return self._buffer.limit

    @buffered_bytes.setter
    def buffered_bytes(self, limit: int) -> None:
        self._buffer.limit = limit

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
        # What costs nothing is checked first: most of what should not come is refused before a byte of it is read.
        if request.method not in _MESSAGE_METHODS:
            allowed = ", ".join((*_MESSAGE_METHODS, *_PROBE_METHODS))
            raise _RequestRefused(405, "Send messages by POST.", headers={"allow": allowed})
        self._check_headers(request)
        with self._buffer.reserve() as share:
            share.take(request.size)
            body = await self._read_body(receive, share)
            if self._keys:
                self._verify(request, body)
                _check_content(request)
            events = self._read_batch(request, body)
            if events is None:
                await self._deliver([self._decode(request, body)], receive)
            else:
                share.take(len(body))  # the events are copies
                await self._deliver([self._decode_event(request, *one) for one in enumerate(events)], receive)

    def _check_headers(self, request: _Request) -> None:
        """Raise `_RequestRefused` for what the headers alone tell."""
        if self._keys:
            if not {ID, TIMESTAMP, SIGNATURE} <= request.headers.keys():
                raise _RequestRefused(401, "A message must be signed here, as Standard Webhooks says; this one is not.")
            try:
                check_time(request.headers[TIMESTAMP], now=self._clock.now())
            except DecodeError as error:
                raise _RequestRefused(401, str(error)) from None
            if any(name.startswith(HTTP.prefix) for name in request.headers):
                # 401, which senders take for an outage: the sender's settings are wrong, and no message is.
                raise _RequestRefused(
                    401,
                    "A signature does not cover the ce-… headers, so they cannot be trusted; send the event in "
                    "structured mode, as application/cloudevents+json.",
                )
        if repeated := _UNIQUE_HEADERS & request.repeated:
            raise _RequestRefused(400, f"The header {min(repeated)} came twice; send it once.")
        length = request.headers.get("content-length")
        if length is not None and not (length.isascii() and length.isdigit()):
            raise _RequestRefused(400, "The content-length is no number.")
        # Converting a very long number would take long, so its digits are counted first.
        if length is not None and (len(length) > 18 or int(length) > self._limits.body_bytes):
            raise self._too_large()
        if not self._keys:  # whoever cannot sign learns nothing beyond that
            _check_content(request)

    def _too_large(self) -> _RequestRefused:
        return _RequestRefused(413, f"A message may have at most {self._limits.body_bytes} bytes.", headers=_CLOSE)

    async def _read_body(self, receive: Receive, share: _Share) -> bytes:
        """Read the body; raise `_RequestRefused` as soon as it is too large, too slow, or one too many."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        raise _RequestRefused(400, "The request ended before its body did.")
                    piece = event.get("body", b"")
                    share.take(len(piece))
                    body += piece
                    if len(body) > self._limits.body_bytes:
                        raise self._too_large()
                    if not event.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise _RequestRefused(408, "The body did not come in time; send it again.", headers=_CLOSE) from None

    def _verify(self, request: _Request, body: bytes) -> None:
        try:
            verify(self._keys, headers=request.headers, body=body, now=self._clock.now())
        except DecodeError as error:
            raise _RequestRefused(401, str(error)) from None

    def _decode(self, request: _Request, body: bytes) -> IncomingMessage:
        headers = {name: value for name, value in request.headers.items() if name not in _PRIVATE_HEADERS}
        if self._keys:
            own_id: str | None = request.headers[ID]
            # Only the body is signed, so only the body decides on what it is: as a document that is sent under another
            # content type, the same event would have another identity, and be handled twice.
            document = _read_document(body)
            if document is not None:
                headers["content-type"] = STRUCTURED
                # One without an id is no event, and is kept as what it is under the id that was signed.
                if document.id not in (None, own_id):
                    raise _RequestRefused(400, "The id of the CloudEvent is not the webhook-id; make them the same.")
            elif headers.get("content-type", "").lower().startswith(_CLOUDEVENT):
                # Kept, it would be a failed message under an id by which the real one is then taken for a repeat.
                raise _RequestRefused(400, "The content-type is that of a CloudEvent, and the body is none.")
        else:
            own_id = headers.get(ID) or headers.get("idempotency-key") or headers.get("ce-id")
        fallback = FallbackIdentity(
            message_id=to_usable_id(own_id or str(uuid4())),
            source=self._identity.source,
            type=headers.get("ce-type") or "http",
            topic=self._identity.topic or ("http" if self._keys else request.path),
        )
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return IncomingMessage(headers=headers, body=body, binding=HTTP, fallback=fallback, token=future)

    def _read_batch(self, request: _Request, body: bytes) -> Sequence[bytes] | None:
        """Return the events of a batch; None if the request is not one. Raise `_RequestRefused` for a broken one."""
        content_type = request.headers.get("content-type", "").lower()
        is_declared = content_type.startswith(_BATCH)
        # Only the body is signed, so there the body decides on what it is, unless it is said to be a single event.
        may_be_one = self._keys and body.lstrip()[:1] == b"[" and not content_type.startswith(_CLOUDEVENT)
        if not (is_declared or may_be_one):
            return None
        try:
            events = [bytes(event) for event in _batch_decoder.decode(body)]
        except (ValueError, RecursionError):
            events = None
        if is_declared and events is None:
            raise _RequestRefused(400, "The content-type is that of a batch of CloudEvents, and the body is none.")
        if events is None or not (is_declared or (events and all(map(_read_document, events)))):
            return None
        if len(events) > _MAX_EVENTS:
            raise _RequestRefused(413, f"A batch may have at most {_MAX_EVENTS} events.")
        return events

    def _decode_event(self, request: _Request, number: int, event: bytes) -> IncomingMessage:
        """Return one event of a batch. What is no event is kept as what it is, under the id of the request."""
        document = _read_document(event)
        own_id = request.headers.get(ID) or request.headers.get("idempotency-key") or str(uuid4())
        is_known = document is not None and isinstance(document.id, str)
        message_id = str(document.id) if document is not None and is_known else f"{own_id}-{number}"
        fallback = FallbackIdentity(
            message_id=to_usable_id(message_id),
            source=self._identity.source,
            type="http",
            topic=self._identity.topic or ("http" if self._keys else request.path),
        )
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        headers = {"content-type": STRUCTURED}
        return IncomingMessage(headers=headers, body=event, binding=HTTP, fallback=fallback, token=future)

    async def _deliver(self, messages: Sequence[IncomingMessage], receive: Receive) -> None:
        """Wait until the consumer has handled the messages; raise `_RequestRefused` at the first that it did not.

        Each is handed over after the one before was handled: so what is handled of a batch is its beginning.
        """
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        ends_at = asyncio.get_running_loop().time() + self._limits.answer_seconds
        try:
            for received in messages:
                await self._hand_over(received, disconnected, ends_at=ends_at)
        finally:
            disconnected.cancel()

    async def _hand_over(
        self, received: IncomingMessage, disconnected: asyncio.Future[None], *, ends_at: float
    ) -> None:
        handled: asyncio.Future[bool] = received.token
        try:
            if refusal := self._sink.put(received):
                raise _RequestRefused(503, refusal, headers=_RETRY_SOON)
            either: set[asyncio.Future[Any]] = {handled, disconnected}
            seconds = max(ends_at - asyncio.get_running_loop().time(), 0.0)
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not handled.done():
                raise _RequestRefused(503, "The message was not handled in time; send it again.", headers=_RETRY_SOON)
            if not handled.result():
                raise _RequestRefused(503, "The message was not handled; send it again.", headers=_RETRY_SOON)
        finally:
            handled.cancel()
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
    repeated: frozenset[str]
    """Names of headers that came more than once."""
    size: int
    """Bytes that it takes before its body, roughly."""

    def __repr__(self) -> str:
        return f"_Request({self.method!r}, {self.path!r}, {', '.join(self.headers)})"

    @classmethod
    def from_scope(cls, scope: Scope) -> _Request:
        pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = dict(pairs)
        counts = Counter(name for name, _ in pairs) if len(headers) < len(pairs) else {}
        return cls(
            scope["method"],
            scope.get("path", "/"),
            headers,
            frozenset(name for name, count in counts.items() if count > 1),
            _REQUEST_OVERHEAD + sum(len(name) + len(value) for name, value in pairs),
        )


class _ByteBudget:
    """Bytes that all requests together may hold. For several threads, because each mount may have a server."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def reserve(self) -> Iterator[_Share]:
        """Return the share of one request; it is given back when the block ends."""
        share = _Share(self)
        try:
            yield share
        finally:
            self.add(-share.held)

    def add(self, count: int, *, own: int = 0) -> bool:
        """Take so many bytes beside the `own`; return False if there are not as many. A negative count gives back.

        A request that is alone is never refused: the limit of one body holds for it.
        """
        with self._lock:
            if count > 0 and self._held + count > self.limit and self._held > own:
                return False
            self._held += count
            return True


class _Share:
    """Bytes of one request."""

    def __init__(self, budget: _ByteBudget) -> None:
        self._budget = budget
        self.held = 0

    def take(self, count: int) -> None:
        """Raise `_RequestRefused` if all requests together would hold too much."""
        if not self._budget.add(count, own=self.held):
            headers = {**_RETRY_SOON, **_CLOSE}
            raise _RequestRefused(503, "Too many messages are being sent here; send it again.", headers=headers)
        self.held += count


class _Document(msgspec.Struct):
    """The members of a CloudEvent in JSON by which it is known."""

    specversion: object
    id: object = None


def _read_document(body: bytes) -> _Document | None:
    """Return the CloudEvent that a body is; None if it is none."""
    try:
        return _document_decoder.decode(body)
    except (ValueError, RecursionError):
        return None


_document_decoder: Final = msgspec.json.Decoder(_Document)
_batch_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])


def _check_content(request: _Request) -> None:
    content_type = request.headers.get("content-type", "").lower()
    if content_type.startswith(_BATCH) and not content_type.startswith(_JSON_BATCH):
        raise _RequestRefused(415, "A batch of CloudEvents is taken in JSON only; send it so, or each event by itself.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise _RequestRefused(415, "Compressed messages are not taken; send them as they are.")


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
