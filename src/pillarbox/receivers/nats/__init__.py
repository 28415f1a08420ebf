"""NATS JetStream for a consumer: a durable pull consumer, acknowledged message by message. Needs the extra `nats`."""

from __future__ import annotations

from pillarbox.receivers.nats.receiver import NatsReceiver, nats_receiver
from pillarbox.receivers.nats.settings import NatsReceiverSettings

__all__ = ["NatsReceiver", "NatsReceiverSettings", "nats_receiver"]
