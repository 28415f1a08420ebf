"""The ASGI app: a request is checked, handed over to the consumer, and answered when that is done with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from uuid import uuid4

from pillarbox.clock import Clock
from pillarbox.cloudevents import HTTP
from pillarbox.errors import DecodeError
from pillarbox.protocols import Plain, Received
from pillarbox.receivers.http.asgi import Receive, Refused, Request, Scope, Send, answer, gone, read, refuse_websocket
from pillarbox.receivers.identity import identity
from pillarbox.signing import ID, SIGNATURE, TIMESTAMP, verify

__all__ = ["HandOver", "HttpApp"]

_TAKEN: Final = ("POST", "PUT", "PATCH")
_ASKED: Final = ("HEAD", "GET", "OPTIONS")
_BATCH: Final = "application/cloudevents-batch"
_PRIVATE: Final = frozenset({"authorization", "cookie", "proxy-authorization", SIGNATURE})
"""Headers for the web service and for us. A message that is kept does not keep them."""
_SOON: Final = {"retry-after": "1"}


class HandOver(Protocol):
    """The consumer's side."""

    def put(self, received: Received) -> str | None:
        """Take it; its token is a future to be answered. Or say in a sentence why not."""

    def drop(self, received: Received) -> None:
        """Nobody waits for it any more."""

    def serving(self, is_up: bool) -> None:
        """The web server has started, or shuts down."""


class HttpApp:
    """Answers requests at any path. An object with `__call__`, because servers take a method for something older."""

    def __init__(
        self,
        hand_over: HandOver,
        *,
        keys: Sequence[bytes],
        source: str,
        timeout: float,
        largest: int,
        clock: Clock,
    ) -> None:
        self._hand_over = hand_over
        self._keys = keys
        self._source = source
        self._timeout = timeout
        self._largest = largest
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] != "http":
            await refuse_websocket(receive, send)
        else:
            try:
                await self._respond(Request.of(scope), receive)
            except Refused as refused:
                await answer(send, refused.status, str(refused), headers=refused.headers)
            else:
                await answer(send, 204)

    async def _respond(self, request: Request, receive: Receive) -> None:
        if request.method in _ASKED:
            return
        if request.method not in _TAKEN:
            raise Refused(405, "Send messages by POST.", headers={"allow": ", ".join((*_TAKEN, *_ASKED))})
        body = await self._verified(request, receive)
        if request.headers.get("content-type", "").lower().startswith(_BATCH):
            raise Refused(415, "Batches of CloudEvents are not taken; send each event by itself.")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "Compressed messages are not taken; send them as they are.")
        await self._handled(self._received(request, body), receive)

    async def _verified(self, request: Request, receive: Receive) -> bytes:
        """The body, signed by one of the secrets if there are any. Without a signature it is not even read."""
        if self._keys and not {ID, TIMESTAMP, SIGNATURE} <= request.headers.keys():
            raise Refused(401, "A message must be signed here, as Standard Webhooks says; this one is not.")
        body = await read(request, receive, largest=self._largest)
        if self._keys:
            try:
                verify(self._keys, headers=request.headers, body=body, now=self._clock.now())
            except DecodeError as error:
                raise Refused(401, str(error)) from None
        return body

    def _received(self, request: Request, body: bytes) -> Received:
        headers = request.headers
        plain = Plain(
            message_id=identity(_own_id(headers) or str(uuid4())),
            source=self._source,
            type=headers.get("ce-type") or "http",
            topic=request.path,
        )
        shown = {name: value for name, value in headers.items() if name not in _PRIVATE}
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return Received(headers=shown, body=body, binding=HTTP, plain=plain, token=future)

    async def _handled(self, received: Received, receive: Receive) -> None:
        """Wait until the consumer is done with it; `Refused` when it could not be."""
        taken: asyncio.Future[bool] = received.token
        leaving = asyncio.ensure_future(gone(receive))
        try:
            if refusal := self._hand_over.put(received):
                raise Refused(503, refusal, headers=_SOON)
            either: set[asyncio.Future[Any]] = {taken, leaving}
            await asyncio.wait(either, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if not taken.done():
                raise Refused(503, "The message was not handled in time; send it again.", headers=_SOON)
            if not taken.result():
                raise Refused(503, "The message was not handled; send it again.", headers=_SOON)
        finally:
            taken.cancel()
            leaving.cancel()
            self._hand_over.drop(received)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Only the outermost app hears of this. Where ours is mounted, the service stops the consumer itself."""
        while True:
            event = await receive()
            is_up = event["type"] == "lifespan.startup"
            self._hand_over.serving(is_up)
            await send({"type": f"{event['type']}.complete"})
            if not is_up:
                return


def _own_id(headers: Mapping[str, str]) -> str | None:
    return headers.get(ID) or headers.get("idempotency-key") or headers.get("ce-id")
