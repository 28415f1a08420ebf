"""RabbitMQ: messages to an exchange, confirmed one by one, sent many at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence

from pillarbox.errors import MessageRejected, TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Finding, Outcome, TransportFeatures
from pillarbox.transports.rabbitmq.connecting import Broker
from pillarbox.transports.rabbitmq.endings import Ended
from pillarbox.transports.rabbitmq.inspecting import Inspection
from pillarbox.transports.rabbitmq.management import Management, management_at
from pillarbox.transports.rabbitmq.parcels import Parcel, Parcels
from pillarbox.transports.rabbitmq.publishing import Publisher
from pillarbox.transports.rabbitmq.reasons import said
from pillarbox.transports.rabbitmq.settings import NAME, RabbitmqSettings, rabbitmq_settings
from pillarbox.transports.rabbitmq.verdicts import outcomes, size_limit
from pillarbox.transports.templates import address
from pillarbox.transports.tls import tls_context
from pillarbox.transports.urls import TransportUrl

__all__ = ["RabbitmqTransport", "rabbitmq_transport"]


class RabbitmqTransport:
    """Publishes messages as CloudEvents, persistent and mandatory.

    Delivered means that the broker confirmed the message: every queue it was routed to has it, on disk if the queue is
    durable, on a majority of nodes if it is a quorum queue. The password is read when this is made.
    """

    def __init__(self, settings: RabbitmqSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name=NAME, max_payload=settings.max_payload)
        self.settings = settings
        self._broker = Broker(settings, environ=environ)
        self._parcels = Parcels(
            exchange=address(settings.exchange, option="exchange", transport=NAME),
            routing_key=address(settings.routing_key, option="routing_key", transport=NAME),
            mode=settings.mode,
        )
        self._management = _management(settings, self._broker, environ)
        self._seconds = settings.timeout.total_seconds()
        self._most = settings.max_payload
        """The largest body that the broker takes, once that is known."""

    def __repr__(self) -> str:
        return f"RabbitmqTransport({self.settings!r})"

    async def open(self) -> None:
        await self._broker.open()

    async def close(self) -> None:
        await self._broker.close()

    async def ping(self) -> None:
        """Ask over a channel of its own, and whether the exchange is there, if it is one and the same."""
        await self._broker.ping()

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        """What is set on the broker that could lose messages of these topics. Changes nothing."""
        inspection = Inspection(broker=self._broker, parcels=self._parcels, management=self._management)
        return await inspection.findings(topics)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if not messages:
            return []
        publisher = await self._broker.publisher()
        parcels = [self._packed(message, publisher) for message in messages]
        if self.settings.declare:
            await self._broker.declare({parcel.exchange for parcel in parcels if isinstance(parcel, Parcel)})
            publisher = await self._broker.publisher()
        return await self._published(publisher, parcels)

    def _packed(self, message: Message, publisher: Publisher) -> Parcel | Outcome:
        try:
            return self._parcels.packed(message, frame_max=publisher.connection.frame_max, most=self._most)
        except MessageRejected as error:
            return Outcome(False, f"The message cannot be sent to RabbitMQ: {error}.", rejected=True)

    async def _published(self, publisher: Publisher, parcels: Sequence[Parcel | Outcome]) -> Sequence[Outcome]:
        try:
            batch = publisher.publish(parcels)
        except Ended as error:  # since it was asked for
            raise TransportUnavailable(f"The connection to {self._broker.where} is gone ({said(error)}).") from error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await publisher.connection.drain()
                await batch.is_done
        self._most = size_limit(publisher.reason) or self._most
        late = f"{self._broker.where} gave no answer within {self._seconds:g} s."
        return outcomes(batch.answers, late=late, blocked=self._broker.blocked(publisher.connection))


def _management(settings: RabbitmqSettings, broker: Broker, environ: Mapping[str, str]) -> Management | None:
    if settings.management is None:
        return None
    url, place = settings.management.read(option="management", environ=environ), broker.places[0]
    return management_at(
        url, login=place.login, vhost=place.vhost, timeout=settings.timeout.total_seconds(),
        tls=place.tls or tls_context(settings, transport=NAME, where="the management API"),
    )  # fmt: skip


def rabbitmq_transport(url: TransportUrl) -> RabbitmqTransport:
    """For `amqp:` and `amqps:`."""
    return RabbitmqTransport(rabbitmq_settings(url))
