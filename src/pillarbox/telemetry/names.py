"""The names of metrics and span attributes, in one place. They are part of what people build on: keep them."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ATTEMPT",
    "ATTEMPTS_FAILED",
    "BATCH_COUNT",
    "BODY_SIZE",
    "BREAKER_OPEN",
    "CONSUMER_GROUP",
    "CONVERSATION_ID",
    "DELIVERED",
    "DESTINATION",
    "DESTINATION_SERVED",
    "ERROR_TYPE",
    "FAILED",
    "FAILED_NOW",
    "FENCED",
    "INBOX_DUPLICATES",
    "INBOX_FAILED",
    "INBOX_HANDLED",
    "INBOX_RETRIED",
    "LATENCY",
    "LATENCY_BUCKETS",
    "LEASES",
    "MAX_AGE",
    "MESSAGE_ID",
    "OPERATION",
    "OPERATION_TYPE",
    "PAUSED",
    "RELAYS",
    "RETURNED",
    "STUCK",
    "SYSTEM",
    "TOPIC",
    "TYPE",
    "UNSENT",
]

UNSENT: Final = "outbox_unsent_count"
MAX_AGE: Final = "outbox_max_age_seconds"
STUCK: Final = "outbox_stuck_count"
FAILED_NOW: Final = "outbox_failed_count"
DELIVERED: Final = "outbox_delivered"
FAILED: Final = "outbox_failed"
ATTEMPTS_FAILED: Final = "outbox_retried"
RETURNED: Final = "outbox_returned"
FENCED: Final = "outbox_fenced"
LATENCY: Final = "outbox_delivery_latency_seconds"
BREAKER_OPEN: Final = "outbox_breaker_open"
PAUSED: Final = "outbox_paused"
LEASES: Final = "outbox_leases"
RELAYS: Final = "outbox_relays"
DESTINATION_SERVED: Final = "outbox_destination_relays"
INBOX_HANDLED: Final = "inbox_handled"
INBOX_DUPLICATES: Final = "inbox_duplicates"
INBOX_FAILED: Final = "inbox_failed"
INBOX_RETRIED: Final = "inbox_retried"

LATENCY_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds."""

# OpenTelemetry's words for messaging.
SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
BODY_SIZE: Final = "messaging.message.body.size"
BATCH_COUNT: Final = "messaging.batch.message_count"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
ATTEMPT: Final = "pillarbox.attempt"
TOPIC: Final = "pillarbox.topic"
TYPE: Final = "pillarbox.type"
ERROR_TYPE: Final = "error.type"
