"""What the answers of a cluster mean for messages and for the destination. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum, auto
from types import MappingProxyType
from typing import Final

import msgspec

from pillarbox.errors import TransportUnavailable
from pillarbox.protocols import Outcome
from pillarbox.transports.redaction import one_line

__all__ = ["DELIVERED", "SILENT", "Answer", "Code", "Verdict", "answer_of", "outcomes_of", "verdict"]


class Code(IntEnum):
    """The codes that are told apart: those of the protocol, and below zero those of librdkafka."""

    NO_ERROR = 0
    UNKNOWN_TOPIC_OR_PART = 3
    MSG_SIZE_TOO_LARGE = 10
    RECORD_LIST_TOO_LARGE = 18
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    TOPIC_ALREADY_EXISTS = 36
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    UNKNOWN_PRODUCER_ID = 59
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90
    _FENCED = -144
    _FATAL = -150
    _PURGE_INFLIGHT = -151
    _PURGE_QUEUE = -152
    _TIMED_OUT_QUEUE = -166
    _TIMED_OUT = -185
    _ALL_BROKERS_DOWN = -187
    _UNKNOWN_TOPIC = -188
    _UNKNOWN_PARTITION = -190
    _MSG_TIMED_OUT = -192
    _DESTROY = -197


class Verdict(Enum):
    """What became of one message."""

    DELIVERED = auto()
    REJECTED = auto()
    """It will never be taken."""
    SUSPECT = auto()
    """It will never be taken, or another one that was in the same request."""
    FAILED = auto()
    """It was not taken this time."""
    OUTAGE = auto()
    """The cluster lacks something that is no message's fault."""
    LOST = auto()
    """The client broke with it under way."""
    SILENT = auto()
    """No answer in time."""


class Answer(msgspec.Struct, frozen=True):
    """What was said about one message."""

    verdict: Verdict
    text: str = ""


DELIVERED: Final = Answer(Verdict.DELIVERED)
SILENT: Final = Answer(Verdict.SILENT)

_MISSING: Final = "the topic {topic} does not exist: create it, or set declare=true"
_TEXTS: Final = MappingProxyType(
    {
        # Said of a whole request, also when one record in it is the reason.
        Code.MSG_SIZE_TOO_LARGE: (Verdict.SUSPECT, "it is larger than the topic {topic} or max_message_bytes allows"),
        Code.RECORD_LIST_TOO_LARGE: (Verdict.SUSPECT, "it is larger than a segment of the topic {topic}"),
        Code.INVALID_TIMESTAMP: (Verdict.SUSPECT, "the topic {topic} does not take its timestamp"),
        Code.POLICY_VIOLATION: (Verdict.SUSPECT, "a policy of the cluster forbids it in the topic {topic}"),
        Code.INVALID_RECORD: (Verdict.SUSPECT, "the topic {topic} does not take such records"),
        Code.UNKNOWN_TOPIC_OR_PART: (Verdict.OUTAGE, _MISSING),
        Code._UNKNOWN_TOPIC: (Verdict.OUTAGE, _MISSING),
        Code._UNKNOWN_PARTITION: (Verdict.OUTAGE, _MISSING),
        Code.TOPIC_AUTHORIZATION_FAILED: (Verdict.OUTAGE, "the login may not write to the topic {topic}: let it"),
        Code.CLUSTER_AUTHORIZATION_FAILED: (Verdict.OUTAGE, "the login may not write idempotently: let it"),
        Code.UNSUPPORTED_FOR_MESSAGE_FORMAT: (
            Verdict.OUTAGE,
            "the topic {topic} is of a format without headers: raise its message.format.version",
        ),
        Code.UNSUPPORTED_COMPRESSION_TYPE: (
            Verdict.OUTAGE,
            "the cluster cannot do this compression: change the option compression",
        ),
    }
)
_SILENT: Final = frozenset({Code._MSG_TIMED_OUT, Code._TIMED_OUT, Code._TIMED_OUT_QUEUE})
"""The client's own word that time is up: whether a broker took it is not known."""
_LOST: Final = frozenset(
    {
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH, Code.UNKNOWN_PRODUCER_ID, Code.PRODUCER_FENCED,
        Code._FENCED, Code._FATAL, Code._PURGE_INFLIGHT, Code._PURGE_QUEUE, Code._DESTROY,
    }
)  # fmt: skip
"""The client has ended, or the cluster has lost count of its messages, after which it must."""


def verdict(code: int, *, fatal: bool = False) -> Verdict:
    """What a code says. Delivered is no error and nothing else."""
    if fatal or code in _LOST:
        return Verdict.LOST
    if code in _TEXTS:
        return _TEXTS[Code(code)][0]
    if code in _SILENT:
        return Verdict.SILENT
    return Verdict.DELIVERED if code == Code.NO_ERROR else Verdict.FAILED


def answer_of(code: int, *, topic: str, said: str, fatal: bool = False) -> Answer:
    """The answer with its reason for people."""
    found = verdict(code, fatal=fatal)
    if found in (Verdict.SUSPECT, Verdict.OUTAGE):
        return Answer(found, _TEXTS[Code(code)][1].format(topic=topic))
    return Answer(found, one_line(said))


def outcomes_of(answers: Sequence[Answer], *, where: str, within: float, down: str | None) -> list[Outcome]:
    """One outcome per answer; `TransportUnavailable` when not one of them is about its message.

    `down` is why no broker can be reached, if that is so: then silence is an outage.
    """
    if answers.count(DELIVERED) == len(answers):
        return [_DELIVERED] * len(answers)
    about = [not _says_nothing(answer, down) for answer in answers]
    if any(about):
        return [
            _outcome(answer, where=where, within=within) if is_about else _unheard(answer, where=where, down=down)
            for answer, is_about in zip(answers, about, strict=True)
        ]
    # What is missing is said before anything is written; whatever else broke may have been broken by a message.
    worst = next((answer for answer in answers if answer.verdict is Verdict.OUTAGE), answers[0])
    raise TransportUnavailable(_told(worst, where=where, down=down), mid_send=worst.verdict is not Verdict.OUTAGE)


def _says_nothing(answer: Answer, down: str | None) -> bool:
    return answer.verdict in (Verdict.OUTAGE, Verdict.LOST) or (answer.verdict is Verdict.SILENT and down is not None)


def _unheard(answer: Answer, *, where: str, down: str | None) -> Outcome:
    """Others got through, so a topic that is missing is the trouble of its own messages; what broke is nobody's."""
    is_lost = answer.verdict is not Verdict.OUTAGE
    return Outcome(delivered=False, error=_told(answer, where=where, down=down), lost=is_lost)


def _told(answer: Answer, *, where: str, down: str | None) -> str:
    if answer.verdict is Verdict.OUTAGE:
        return f"At {where}, {answer.text}."
    reason = down if answer.verdict is Verdict.SILENT else answer.text
    return f"The connection to {where} broke before the answer ({reason})."


def _outcome(answer: Answer, *, where: str, within: float) -> Outcome:
    if answer.verdict is Verdict.DELIVERED:
        return _DELIVERED
    if answer.verdict is Verdict.SILENT:
        return Outcome(delivered=False, error=f"no answer from {where} within {within:g} s")
    rejected = answer.verdict in (Verdict.REJECTED, Verdict.SUSPECT)
    return Outcome(delivered=False, error=f"{where} did not take it: {answer.text}", rejected=rejected)


_DELIVERED: Final = Outcome(delivered=True)
