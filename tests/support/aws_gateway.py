"""Stands before moto as AWS's front door, and says no where a test wants it. What it does not refuse reaches moto."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ssl import SSLContext
from typing import Final, Self
from urllib.parse import parse_qsl, urlencode

import aiohttp
import msgspec
from aiohttp import web

__all__ = ["Call", "Gateway", "No"]

_SENDS: Final = ("SendMessageBatch", "PublishBatch")
_OWN: Final = ("host", "connection", "content-length", "date", "server", "transfer-encoding")
"""Headers that each leg of the way has for itself."""
_MEMBER: Final = re.compile(r"PublishBatchRequestEntries\.member\.(\d+)\.(.*)")


class No(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal, of a whole call or of one entry."""

    code: str = "ServiceUnavailable"
    status: int = 503
    sender_fault: bool = False
    said: str = "not now"
    silent: bool = False
    """Of an entry: do not even mention it."""


class Call(msgspec.Struct, frozen=True):
    """What came in."""

    operation: str
    entries: Sequence[Mapping[str, object]]


class Gateway:
    """An HTTP server on a free loopback port."""

    def __init__(self, target: str, *, tls: SSLContext | None = None) -> None:
        self.calls: list[Call] = []
        self.refuses: list[No] = []
        """Of the next sends: their first entry, one each."""
        self.answers: dict[str, No] = {}
        """By operation, for every call until it is taken out."""
        self.once: list[No] = []
        """For the next sends, one each."""
        self.at_once = 0
        self.most_at_once = 0
        self.garbage: bytes | None = None
        self.delay = 0.0
        """Seconds before a send is answered."""
        self.hangs_up_after: int | None = None
        """Sends: the connections of later ones are cut."""
        self._target = target
        self._tls = tls
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self.stop()
        await self._session.close()

    async def start(self) -> None:
        """At the same port as before, if there was one."""
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handle_signals=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Hang up on everybody, and take nobody."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._answered(request, await request.read())
        finally:
            self.at_once -= 1

    async def _answered(self, request: web.Request, body: bytes) -> web.Response:
        wire = _Json() if "x-amz-target" in request.headers else _Form()
        operation, entries = wire.read(request, body)
        self.calls.append(Call(operation, entries))
        if operation in _SENDS:
            await asyncio.sleep(self.delay)
        if self.hangs_up_after is not None and operation in _SENDS:
            self.hangs_up_after -= 1
            if self.hangs_up_after < 0 and request.transport is not None:
                request.transport.abort()
        if self.garbage is not None:
            return web.Response(body=self.garbage)
        if operation in self.answers:
            return wire.error(self.answers[operation])
        if operation in _SENDS and self.once:
            return wire.error(self.once.pop(0))
        if operation not in _SENDS or not self.refuses:
            return (await self._forwarded(request, body)).response()
        no, first = self.refuses.pop(0), entries[0]
        if len(entries) == 1:
            return wire.empty(first, no)
        answer = await self._forwarded(request, wire.without_first(body))
        return _Answer(answer.status, wire.with_failed(answer.body, first, no), answer.headers).response()

    async def _forwarded(self, request: web.Request, body: bytes) -> _Answer:
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN}
        url = self._target + request.path_qs
        with suppress(asyncio.CancelledError):  # what has arrived is carried out, whoever hangs up
            async with self._session.request(request.method, url, headers=headers, data=body) as answer:
                return _Answer(answer.status, await answer.read(), dict(answer.headers))
        return _Answer(503, b"", {})


class _Answer(msgspec.Struct, frozen=True):
    """What moto said."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def response(self) -> web.Response:
        kept = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        return web.Response(status=self.status, body=self.body, headers=kept)


class _Json:
    """SQS."""

    def read(self, request: web.Request, body: bytes) -> tuple[str, Sequence[Mapping[str, object]]]:
        return request.headers["x-amz-target"].rpartition(".")[2], json.loads(body or b"{}").get("Entries", [])

    def without_first(self, body: bytes) -> bytes:
        members = json.loads(body)
        return json.dumps({**members, "Entries": members["Entries"][1:]}).encode()

    def with_failed(self, answer: bytes, entry: Mapping[str, object], no: No) -> bytes:
        members = json.loads(answer)
        return json.dumps({**members, "Failed": [*members.get("Failed", []), *self._failed(entry, no)]}).encode()

    def empty(self, entry: Mapping[str, object], no: No) -> web.Response:
        members = {"Successful": [], "Failed": self._failed(entry, no)}
        return web.json_response(members, content_type="application/x-amz-json-1.0")

    def error(self, no: No) -> web.Response:
        members = {"__type": f"com.amazonaws.sqs#{no.code}", "message": no.said}
        return web.json_response(members, status=no.status, content_type="application/x-amz-json-1.0")

    def _failed(self, entry: Mapping[str, object], no: No) -> list[dict[str, object]]:
        failed = {"Id": entry["Id"], "SenderFault": no.sender_fault, "Code": no.code, "Message": no.said}
        return [] if no.silent else [failed]


class _Form:
    """SNS."""

    def read(self, request: web.Request, body: bytes) -> tuple[str, Sequence[Mapping[str, object]]]:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
        entries: dict[int, dict[str, object]] = {}
        for name, value in fields.items():
            if match := _MEMBER.fullmatch(name):
                entries.setdefault(int(match[1]), {})[match[2]] = value
        return fields.get("Action", ""), [entries[number] for number in sorted(entries)]

    def without_first(self, body: bytes) -> bytes:
        fields: list[tuple[str, str]] = []
        for name, value in parse_qsl(body.decode(), keep_blank_values=True):
            match = _MEMBER.fullmatch(name)
            if match is None:
                fields.append((name, value))
            elif match[1] != "1":
                fields.append((f"PublishBatchRequestEntries.member.{int(match[1]) - 1}.{match[2]}", value))
        return urlencode(fields).encode()

    def with_failed(self, answer: bytes, entry: Mapping[str, object], no: No) -> bytes:
        text = answer.decode()
        if "<Failed>" in text:
            return text.replace("<Failed>", f"<Failed>{self._failed(entry, no)}", 1).encode()
        failed = f"<Failed>{self._failed(entry, no)}</Failed>"
        return (
            re.sub(r"<Failed\s*/>", "", text)
            .replace("</PublishBatchResult>", f"{failed}</PublishBatchResult>")
            .encode()
        )

    def empty(self, entry: Mapping[str, object], no: No) -> web.Response:
        text = (
            '<PublishBatchResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishBatchResult><Successful/>'
            f"<Failed>{self._failed(entry, no)}</Failed></PublishBatchResult></PublishBatchResponse>"
        )
        return web.Response(text=text, content_type="text/xml")

    def error(self, no: No) -> web.Response:
        text = (
            '<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error><Type>Sender</Type>'
            f"<Code>{no.code}</Code><Message>{no.said}</Message></Error></ErrorResponse>"
        )
        return web.Response(status=no.status, text=text, content_type="text/xml")

    def _failed(self, entry: Mapping[str, object], no: No) -> str:
        if no.silent:
            return ""
        fault = str(no.sender_fault).lower()
        return (
            f"<member><Id>{entry['Id']}</Id><Code>{no.code}</Code><Message>{no.said}</Message>"
            f"<SenderFault>{fault}</SenderFault></member>"
        )
