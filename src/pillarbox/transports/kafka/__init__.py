"""Kafka as a destination: records of CloudEvents, acknowledged by all in-sync replicas. Needs the extra `kafka`."""

from __future__ import annotations

from pillarbox.transports.kafka.settings import KafkaSettings, kafka_settings
from pillarbox.transports.kafka.transport import KafkaTransport, kafka_transport

__all__ = ["KafkaSettings", "KafkaTransport", "kafka_settings", "kafka_transport"]
