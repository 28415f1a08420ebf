"""NATS JetStream as a destination. Needs the extra `nats`."""

from __future__ import annotations

from pillarbox.transports.nats.settings import NatsSettings, nats_settings
from pillarbox.transports.nats.transport import NatsTransport, nats_transport

__all__ = ["NatsSettings", "NatsTransport", "nats_settings", "nats_transport"]
