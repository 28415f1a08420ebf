"""Kafka transport and receiver. Need the extra `kafka`."""

from __future__ import annotations

from pillarbox.brokers.kafka.receiver import KafkaReceiver, kafka_receiver
from pillarbox.brokers.kafka.settings import KafkaReceiverSettings, KafkaSettings, kafka_settings
from pillarbox.brokers.kafka.transport import KafkaTransport, kafka_transport

__all__ = [
    "KafkaReceiver",
    "KafkaReceiverSettings",
    "KafkaSettings",
    "KafkaTransport",
    "kafka_receiver",
    "kafka_settings",
    "kafka_transport",
]
