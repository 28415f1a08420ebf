"""RabbitMQ: a queue, read with manual acknowledgement."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pillarbox.protocols import Received, ReceiverFeatures
from pillarbox.receivers.links import LinkedReceiver, Token
from pillarbox.receivers.rabbitmq.connecting import Server
from pillarbox.receivers.rabbitmq.deliveries import received_of
from pillarbox.receivers.rabbitmq.link import Link
from pillarbox.receivers.rabbitmq.settings import NAME, RabbitmqReceiverSettings, rabbitmq_receiver_settings
from pillarbox.receivers.rabbitmq.topology import see_to
from pillarbox.transports.urls import TransportUrl

__all__ = ["RabbitmqReceiver", "rabbitmq_receiver"]


class RabbitmqReceiver(LinkedReceiver[Link]):
    """Reads one queue. The password is read when this is made.

    A connection that broke is made anew by the next `receive` or `ping`, not in the background; the broker
    delivers again what was not acknowledged over the old one.
    """

    def __init__(self, settings: RabbitmqReceiverSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(NAME, lambda: Link.made(self._server, settings))
        self.features = ReceiverFeatures(name=NAME)
        self.settings = settings
        self._server = Server.of(settings, environ=environ)

    def __repr__(self) -> str:
        return f"RabbitmqReceiver({self.settings!r})"

    async def ping(self) -> None:
        """Ask for the queue; a declared one is made again, should somebody have removed it."""
        link = await self._links.standing()
        await see_to(link.connection, self.settings, where=self._server.where)

    async def receive(self, *, limit: int) -> Sequence[Received]:
        link = await self._links.standing()
        queue = self.settings.queue
        return [
            received_of(message, queue=queue, token=Token(link, message.delivery_tag or 0))
            for message in await link.take(limit)
        ]


def rabbitmq_receiver(url: TransportUrl) -> RabbitmqReceiver:
    """For `amqp:` and `amqps:`."""
    return RabbitmqReceiver(rabbitmq_receiver_settings(url))
