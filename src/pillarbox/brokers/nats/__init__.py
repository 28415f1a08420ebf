"""NATS JetStream as a destination. Needs the extra `nats`."""

from __future__ import annotations

from pillarbox.brokers.nats.receiver import NatsReceiver, nats_receiver
from pillarbox.brokers.nats.settings import NatsReceiverSettings, NatsSettings, nats_settings
from pillarbox.brokers.nats.transport import NatsTransport, nats_transport

__all__ = [
    "NatsReceiver",
    "NatsReceiverSettings",
    "NatsSettings",
    "NatsTransport",
    "nats_receiver",
    "nats_settings",
    "nats_transport",
]
