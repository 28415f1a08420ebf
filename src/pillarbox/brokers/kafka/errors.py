"""Meaning of a cluster's error codes for messages and for the destination. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum, auto
from types import MappingProxyType
from typing import Final

import msgspec

from pillarbox.brokers.send_batch import DELIVERED as _DELIVERED
from pillarbox.brokers.send_batch import UNSENT as _UNSENT
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.redaction import redact_line

__all__ = [
    "DELIVERED",
    "TIMED_OUT",
    "UNSENT",
    "DeliveryReport",
    "DeliveryStatus",
    "ErrorCode",
    "build_report",
    "classify",
    "to_outcomes",
]


class ErrorCode(IntEnum):
    """Error codes that are treated differently: those of the protocol, and below zero those of librdkafka."""

    NO_ERROR = 0
    UNKNOWN_TOPIC_OR_PART = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_FOR_PARTITION = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MSG_SIZE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    TOPIC_ALREADY_EXISTS = 36
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    _FENCED = -144
    _GAPLESS_GUARANTEE = -148
    _FATAL = -150
    _PURGE_INFLIGHT = -151
    _PURGE_QUEUE = -152
    _TIMED_OUT_QUEUE = -166
    _QUEUE_FULL = -184
    _TIMED_OUT = -185
    _ALL_BROKERS_DOWN = -187
    _UNKNOWN_TOPIC = -188
    _UNKNOWN_PARTITION = -190
    _MSG_TIMED_OUT = -192
    _TRANSPORT = -195
    _DESTROY = -197


class DeliveryStatus(Enum):
    """Fate of one message."""

    DELIVERED = auto()
    REJECTED = auto()
    """The cluster will never take it."""
    SUSPECT = auto()
    """The cluster refused its whole request for good: it, or another message of the request, is the reason."""
    FAILED = auto()
    """The cluster did not take it this time."""
    NOT_NOW = auto()
    """The partition has no leader or too few replicas, or a broker is short of something: it can take it later."""
    MISSING = auto()
    """The topic, or a permission on it, is missing, which is not the message's fault."""
    OUTAGE = auto()
    """A permission or a capability of the cluster is missing, for every message."""
    LOST = auto()
    """The producer ended while the message was in flight."""
    TIMED_OUT = auto()
    """No answer in time. A broker may have taken it."""
    UNSENT = auto()
    """It was not sent, because an earlier message of its run was not delivered."""


class DeliveryReport(msgspec.Struct, frozen=True):
    """The answer for one message."""

    status: DeliveryStatus
    reason: str = ""


DELIVERED: Final = DeliveryReport(DeliveryStatus.DELIVERED)
TIMED_OUT: Final = DeliveryReport(DeliveryStatus.TIMED_OUT)
UNSENT: Final = DeliveryReport(DeliveryStatus.UNSENT)

_MISSING: Final = "the topic {topic} does not exist: create it, or set declare=true"
_REASONS: Final = MappingProxyType(
    {
        # The brokers answer these for a whole request, even if a single record in it is the reason.
        ErrorCode.MSG_SIZE_TOO_LARGE: (
            DeliveryStatus.SUSPECT,
            "it is larger than the topic {topic} or max_message_bytes allows",
        ),
        ErrorCode.RECORD_LIST_TOO_LARGE: (DeliveryStatus.SUSPECT, "it is larger than a segment of the topic {topic}"),
        ErrorCode.INVALID_TIMESTAMP: (DeliveryStatus.SUSPECT, "the topic {topic} does not take its timestamp"),
        ErrorCode.POLICY_VIOLATION: (DeliveryStatus.SUSPECT, "a policy of the cluster forbids it in the topic {topic}"),
        ErrorCode.INVALID_RECORD: (DeliveryStatus.SUSPECT, "the topic {topic} does not take such records"),
        ErrorCode.UNKNOWN_TOPIC_OR_PART: (DeliveryStatus.MISSING, _MISSING),
        ErrorCode._UNKNOWN_TOPIC: (DeliveryStatus.MISSING, _MISSING),
        ErrorCode._UNKNOWN_PARTITION: (DeliveryStatus.MISSING, _MISSING),
        # A cluster also refuses a name that differs from another topic's in "." and "_" alone.
        ErrorCode.TOPIC_EXCEPTION: (
            DeliveryStatus.MISSING,
            "the cluster takes no topic of the name {topic}: use another one",
        ),
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
            DeliveryStatus.MISSING,
            "the login may not write to the topic {topic}: let it",
        ),
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
            DeliveryStatus.OUTAGE,
            "the login may not write idempotently: let it",
        ),
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: (
            DeliveryStatus.MISSING,
            "the topic {topic} is of a format without headers: raise its message.format.version",
        ),
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: (
            DeliveryStatus.OUTAGE,
            "the cluster cannot do this compression: change the option compression",
        ),
    }
)
_NOT_NOW: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_FOR_PARTITION, ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode._QUEUE_FULL, ErrorCode._TRANSPORT,
    }
)  # fmt: skip
_TIMEOUTS: Final = frozenset({ErrorCode._MSG_TIMED_OUT, ErrorCode._TIMED_OUT, ErrorCode._TIMED_OUT_QUEUE})
_LOST: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.PRODUCER_FENCED, ErrorCode._FENCED, ErrorCode._GAPLESS_GUARANTEE, ErrorCode._FATAL,
        ErrorCode._PURGE_INFLIGHT, ErrorCode._PURGE_QUEUE, ErrorCode._DESTROY,
    }
)  # fmt: skip
"""The producer has ended; or the cluster has lost its sequence numbers, after which the producer must end."""


def classify(code: int, *, fatal: bool = False) -> DeliveryStatus:
    """Return the meaning of an error code. `DELIVERED` is the answer without an error and nothing else."""
    if fatal or code in _LOST:
        return DeliveryStatus.LOST
    if code in _REASONS:
        return _REASONS[ErrorCode(code)][0]
    if code in _TIMEOUTS:
        return DeliveryStatus.TIMED_OUT
    if code in _NOT_NOW:
        return DeliveryStatus.NOT_NOW
    return DeliveryStatus.DELIVERED if code == ErrorCode.NO_ERROR else DeliveryStatus.FAILED


def build_report(code: int, *, topic: str, text: str, fatal: bool = False) -> DeliveryReport:
    """Build the report for an error code: with our own reason where we have one, else with the client's text."""
    status = classify(code, fatal=fatal)
    if status in (DeliveryStatus.SUSPECT, DeliveryStatus.MISSING, DeliveryStatus.OUTAGE):
        return DeliveryReport(status, _REASONS[ErrorCode(code)][1].format(topic=topic))
    return DeliveryReport(status, redact_line(text))


def to_outcomes(reports: Sequence[DeliveryReport], *, where: str, timeout: float, down: str | None) -> list[Outcome]:
    """Return one outcome per report; raise `TransportUnavailable` if none of them is about its message.

    `down` is the reason why no broker can be reached, if that is so: then a timeout is an outage.
    """
    if reports.count(DELIVERED) == len(reports):
        return [_DELIVERED] * len(reports)
    concerns_message = [_concerns_message(report, down) for report in reports]
    if any(concerns_message):
        return [
            _to_outcome(report, where=where, timeout=timeout)
            if concerned or report is UNSENT
            else Outcome(
                delivered=False,
                error=_describe_outage(report, where=where, down=down),
                lost=report.status is not DeliveryStatus.OUTAGE,
                not_now=report.status is DeliveryStatus.OUTAGE,
            )
            for report, concerned in zip(reports, concerns_message, strict=True)
        ]
    # An outage is found before anything is written. Any other break may have been caused by one of the messages.
    worst = next((report for report in reports if report.status is DeliveryStatus.OUTAGE), reports[0])
    raise TransportUnavailable(
        _describe_outage(worst, where=where, down=down), mid_send=worst.status is not DeliveryStatus.OUTAGE
    )


def _concerns_message(report: DeliveryReport, down: str | None) -> bool:
    if report.status is DeliveryStatus.TIMED_OUT:
        return down is None
    return report.status not in (DeliveryStatus.OUTAGE, DeliveryStatus.LOST, DeliveryStatus.UNSENT)


def _describe_outage(report: DeliveryReport, *, where: str, down: str | None) -> str:
    if report.status is DeliveryStatus.OUTAGE:
        return f"At {where}, {report.reason}."
    reason = down if report.status is DeliveryStatus.TIMED_OUT else report.reason
    return f"The connection to {where} broke before the answer ({reason})."


def _to_outcome(report: DeliveryReport, *, where: str, timeout: float) -> Outcome:
    if report.status is DeliveryStatus.DELIVERED:
        return _DELIVERED
    if report.status is DeliveryStatus.UNSENT:
        return _UNSENT
    if report.status is DeliveryStatus.TIMED_OUT:
        error = f"no answer from {where} within {timeout:g} s"
        return Outcome(delivered=False, error=error, unanswered=True, not_now=True)
    if report.status is DeliveryStatus.MISSING:
        return Outcome(delivered=False, error=f"At {where}, {report.reason}.", not_now=True, missing=True)
    is_rejected = report.status in (DeliveryStatus.REJECTED, DeliveryStatus.SUSPECT)
    is_later = report.status is DeliveryStatus.NOT_NOW
    error = f"{where} did not take it: {report.reason}"
    return Outcome(delivered=False, error=error, rejected=is_rejected, not_now=is_later)
