"""Kafka: the partitions of a consumer group, committed when their messages are handled."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping, Sequence

from pillarbox.protocols import Received, ReceiverFeatures
from pillarbox.receivers.kafka.client import check_config
from pillarbox.receivers.kafka.deliveries import received_of
from pillarbox.receivers.kafka.link import Link
from pillarbox.receivers.kafka.settings import (
    NAME,
    KafkaReceiverSettings,
    consumer_config,
    kafka_receiver_settings,
)
from pillarbox.receivers.links import LinkedReceiver, Token
from pillarbox.transports.kafka.client_settings import client_secrets
from pillarbox.transports.secret import hidden
from pillarbox.transports.urls import TransportUrl

__all__ = ["KafkaReceiver", "kafka_receiver"]


class KafkaReceiver(LinkedReceiver[Link]):
    """Reads topics as a member of a group. Secrets are read when this is made.

    What a partition brought when it is taken away is dropped: its handlers may end, and the next owner's repeats find
    that done. A cluster that cannot be reached ends the membership; the next `receive` or `ping` makes another.
    """

    def __init__(self, settings: KafkaReceiverSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(NAME, self._made)
        self.features = ReceiverFeatures(name=NAME)
        self.settings = settings
        self._config = consumer_config(settings, environ=environ)
        self._secrets = client_secrets(settings.cluster, environ=environ)
        check_config(self._config, told=self._hide)

    def __repr__(self) -> str:
        return f"KafkaReceiver({self.settings!r})"

    async def ping(self) -> None:
        """Ask the cluster for the topics."""
        link = await self._links.standing()
        await link.ask()

    async def receive(self, *, limit: int) -> Sequence[Received]:
        link = await self._links.standing()
        return [received_of(delivery, token=Token(link, delivery)) for delivery in await link.take(limit)]

    def _made(self) -> Awaitable[Link]:
        return Link.made(
            self._config,
            topics=self.settings.topics,
            where=self.settings.shown,
            seconds=self.settings.timeout.total_seconds(),
            hide=self._hide,
        )

    def _hide(self, text: str) -> str:
        return hidden(text, self._secrets)


def kafka_receiver(url: TransportUrl) -> KafkaReceiver:
    """For `kafka:`."""
    return KafkaReceiver(kafka_receiver_settings(url))
