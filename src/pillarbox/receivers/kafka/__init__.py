"""Kafka for a consumer: a consumer group whose offsets are committed by hand. Needs the extra `kafka`."""

from __future__ import annotations

from pillarbox.receivers.kafka.receiver import KafkaReceiver, kafka_receiver
from pillarbox.receivers.kafka.settings import KafkaReceiverSettings

__all__ = ["KafkaReceiver", "KafkaReceiverSettings", "kafka_receiver"]
