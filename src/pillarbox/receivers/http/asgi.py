"""Requests and answers as ASGI has them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

__all__ = ["Receive", "Refused", "Request", "Scope", "Send", "answer", "gone", "read", "refuse_websocket"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Refused(Exception):
    """A request that is answered without a consumer."""

    def __init__(self, status: int, text: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


class Request(msgspec.Struct, frozen=True):
    """A request without its body: the names of its headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]

    @classmethod
    def of(cls, scope: Scope) -> Request:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        return cls(scope["method"], scope.get("path", "/"), headers)


async def read(request: Request, receive: Receive, *, largest: int) -> bytes:
    """The body; `Refused` as soon as it is known to be too large."""
    too_large = Refused(413, f"A message may have at most {largest} bytes.")
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and (len(announced) > 18 or int(announced) > largest):
        raise too_large
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Refused(400, "The request ended before its body did.")
        body += event.get("body", b"")
        if len(body) > largest:
            raise too_large
        if not event.get("more_body"):
            return bytes(body)


async def gone(receive: Receive) -> None:
    """Returns when the sender has hung up."""
    with contextlib.suppress(Exception):
        while (await receive())["type"] != "http.disconnect":
            pass


async def answer(send: Send, status: int, text: str = "", *, headers: Mapping[str, str] | None = None) -> None:
    """Answer with a status and a sentence."""
    content = text.encode()
    lines = {"content-length": str(len(content)), **(headers or {})}
    if text:
        lines["content-type"] = "text/plain; charset=utf-8"
    start = [(name.encode(), value.encode()) for name, value in lines.items()]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": content})


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Messages come by requests alone."""
    await receive()
    await send({"type": "websocket.close", "code": 1003})
