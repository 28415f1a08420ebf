"""NATS JetStream: a durable pull consumer, read with explicit acknowledgement."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pillarbox.protocols import Received, ReceiverFeatures
from pillarbox.receivers.links import LinkedReceiver, Token
from pillarbox.receivers.nats.connecting import Server
from pillarbox.receivers.nats.consumers import horizon_of, see_to
from pillarbox.receivers.nats.deliveries import received_of
from pillarbox.receivers.nats.link import Link
from pillarbox.receivers.nats.settings import NAME, NatsReceiverSettings, nats_receiver_settings
from pillarbox.transports.urls import TransportUrl

__all__ = ["NatsReceiver", "nats_receiver"]


class NatsReceiver(LinkedReceiver[Link]):
    """Reads one durable consumer. Secrets are read when this is made.

    While a message is in hand the server is told so, and does not deliver it again, however long its handler takes.
    A connection that broke is made anew by the next `receive` or `ping`, not in the background.
    """

    def __init__(self, settings: NatsReceiverSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(NAME, lambda: Link.made(self._server))
        self.features = ReceiverFeatures(name=NAME)
        """The horizon is the stream's `max_age`, and known once this is open."""
        self.settings = settings
        self._server = Server.of(settings, environ=environ)

    def __repr__(self) -> str:
        return f"NatsReceiver({self.settings!r})"

    async def open(self) -> None:
        await super().open()
        try:
            link = await self._links.standing()
            horizon = await horizon_of(link.client, self.settings)
        except BaseException:
            await self.close()
            raise
        self.features = ReceiverFeatures(name=NAME, horizon=horizon)

    async def ping(self) -> None:
        """Ask for the durable consumer; a declared one is made again, should somebody have removed it."""
        link = await self._links.standing()
        await see_to(link.client, self.settings, where=self._server.where)

    async def receive(self, *, limit: int) -> Sequence[Received]:
        link = await self._links.standing()
        stream = self.settings.stream
        return [
            received_of(delivery, stream=stream, token=Token(link, delivery.reply))
            for delivery in await link.take(limit)
        ]


def nats_receiver(url: TransportUrl) -> NatsReceiver:
    """For `nats:`."""
    return NatsReceiver(nats_receiver_settings(url))
