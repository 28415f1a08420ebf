"""NATS JetStream: messages to a stream, acknowledged one by one, sent many at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

import msgspec

from pillarbox.brokers.nats.checks import check_streams
from pillarbox.brokers.nats.connection import Server
from pillarbox.brokers.nats.encoding import Encoder
from pillarbox.brokers.nats.publisher import Publisher
from pillarbox.brokers.nats.settings import NAME, NatsSettings, nats_settings
from pillarbox.brokers.nats.streams import declare_stream
from pillarbox.brokers.reconnecting import ReconnectingConnection
from pillarbox.brokers.send_batch import encode_each
from pillarbox.brokers.settings import TransportUrl
from pillarbox.brokers.templates import compile_template
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message

__all__ = ["NatsTransport", "nats_transport"]


class NatsTransport:
    """Publishes messages as CloudEvents to JetStream.

    Delivered means that a stream has stored the message, on a majority of its servers if it has several. Secrets are
    read when this is built.
    """

    def __init__(self, settings: NatsSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name=NAME)
        self.settings = settings
        self._server = Server.from_settings(settings, environ=environ)
        subject = compile_template(settings.subject, option="subject", transport=NAME)
        self._encoder = Encoder(subject=subject, stream=settings.stream, mode=settings.mode)
        self._publisher = ReconnectingConnection(self._connect, owner="nats transport")

    def __repr__(self) -> str:
        return f"NatsTransport({self.settings!r})"

    async def open(self) -> None:
        await self._publisher.open()

    async def close(self) -> None:
        await self._publisher.close()

    async def ping(self) -> None:
        """Make a round trip to the server, and declare the stream again, in case somebody removed it."""
        publisher = await self._get_publisher()
        await publisher.check()
        if self.settings.declare:
            await declare_stream(publisher.client, self.settings, where=self._server.where)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if not messages:
            return []
        publisher = await self._get_publisher()
        limit, encode = publisher.max_payload, self._encoder.encode
        return await publisher.publish(
            encode_each(messages, lambda message: encode(message, limit=limit), broker="NATS")
        )

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        publisher = await self._get_publisher()
        return await check_streams(publisher.client, self.settings, topics=topics)

    async def _get_publisher(self) -> Publisher:
        publisher = await self._publisher.get()
        if publisher.is_doubted:
            with contextlib.suppress(TransportUnavailable):
                await publisher.check()
            publisher = await self._publisher.get()
        return publisher

    async def _connect(self) -> Publisher:
        publisher = await Publisher.connect(self._server, window=self.settings.window)
        try:
            if self.settings.declare:
                await declare_stream(publisher.client, self.settings, where=self._server.where)
        except BaseException:
            await publisher.close()
            raise
        self.features = msgspec.structs.replace(self.features, max_payload=publisher.max_payload)
        return publisher


def nats_transport(url: TransportUrl) -> NatsTransport:
    """Build the transport for `nats:`."""
    return NatsTransport(nats_settings(url))
