"""NATS JetStream: messages to a stream, acknowledged one by one, sent many at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence

import msgspec

from pillarbox.errors import MessageRejected, TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Finding, Outcome, TransportFeatures
from pillarbox.transports.nats.connecting import Server, connected
from pillarbox.transports.nats.connection import Connection
from pillarbox.transports.nats.inspecting import inspected
from pillarbox.transports.nats.publications import Form, Publication
from pillarbox.transports.nats.settings import NAME, NatsSettings, nats_settings
from pillarbox.transports.nats.streams import declare
from pillarbox.transports.templates import address
from pillarbox.transports.urls import TransportUrl

__all__ = ["NatsTransport", "nats_transport"]


class NatsTransport:
    """Publishes messages as CloudEvents to JetStream.

    Delivered means that a stream has stored the message, on a majority of its servers if it has several. Secrets are
    read when this is made.
    """

    def __init__(self, settings: NatsSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name=NAME)
        self.settings = settings
        self._server = Server.of(settings, environ=environ)
        subject = address(settings.subject, option="subject", transport=NAME)
        self._form = Form(subject=subject, stream=settings.stream, mode=settings.mode)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._refusals = 0
        """How often there was no way."""
        self._refusal = ""
        self._is_open = False

    def __repr__(self) -> str:
        return f"NatsTransport({self.settings!r})"

    async def open(self) -> None:
        self._is_open = True
        try:
            await self._connected()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._is_open = False
        await self._hang_up()

    async def ping(self) -> None:
        """Hear from the server; and make a declared stream again, should somebody have removed it."""
        connection = await self._connected()
        await connection.check()
        if self.settings.declare:
            await declare(connection.client, self.settings, where=self._server.where)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if not messages:
            return []
        connection = await self._connected()
        limit = connection.max_payload
        return await connection.publish([self._publication(message, limit) for message in messages])

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        connection = await self._connected()
        return await inspected(connection.client, self.settings, topics=topics)

    def _publication(self, message: Message, limit: int) -> Publication | Outcome:
        try:
            return self._form.publication(message, limit=limit)
        except MessageRejected as error:
            return Outcome(False, f"The message cannot be sent to NATS: {error}.", rejected=True)

    async def _connected(self) -> Connection:
        """The connection that stands, or a new one; `TransportUnavailable` when there is no way."""
        connection = self._connection
        if connection is not None and connection.reason is None and not connection.is_doubted:
            return connection
        refusals = self._refusals
        async with self._connecting:
            self._insist_on_open()
            if self._refusals > refusals:  # somebody else has tried meanwhile
                raise TransportUnavailable(self._refusal)
            connection = self._connection
            if connection is None or not await _is_alive(connection):
                await self._hang_up()
                connection = self._connection = await self._made()
            return connection

    async def _made(self) -> Connection:
        try:
            connection = await connected(self._server)
        except TransportUnavailable as error:
            self._refusals, self._refusal = self._refusals + 1, str(error)
            raise
        try:
            if self.settings.declare:
                await declare(connection.client, self.settings, where=self._server.where)
            self._insist_on_open()
        except BaseException:
            await connection.close()
            raise
        self.features = msgspec.structs.replace(self.features, max_payload=connection.max_payload)
        return connection

    async def _hang_up(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    def _insist_on_open(self) -> None:
        if not self._is_open:
            raise TransportUnavailable("The nats transport is not open; call open() first.")


async def _is_alive(connection: Connection) -> bool:
    if connection.reason is None and connection.is_doubted:
        with contextlib.suppress(TransportUnavailable):
            await connection.check()
    return connection.reason is None


def nats_transport(url: TransportUrl) -> NatsTransport:
    """For `nats:`."""
    return NatsTransport(nats_settings(url))
