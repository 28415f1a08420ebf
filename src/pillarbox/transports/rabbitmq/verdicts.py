"""What the broker's answers mean for a message and for the destination. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from pillarbox.errors import TransportUnavailable
from pillarbox.protocols import Outcome
from pillarbox.transports.rabbitmq.endings import Closed, Ended
from pillarbox.transports.rabbitmq.parcels import Parcel
from pillarbox.transports.rabbitmq.reasons import NOT_FOUND, PRECONDITION_FAILED, REFUSED, TOO_LARGE
from pillarbox.transports.redaction import one_line

__all__ = [
    "DELIVERED",
    "NACKED",
    "TWICE",
    "Answer",
    "Interrupted",
    "interrupted",
    "outcomes",
    "size_limit",
    "unroutable",
]

DELIVERED: Final = Outcome(delivered=True)
NACKED: Final = Outcome(False, "RabbitMQ did not take the message (nack): a queue is full or not available.")
TWICE: Final = Outcome(False, "Another message with the same id is under way; this one goes after it.")


class Interrupted(msgspec.Struct, frozen=True):
    """No answer, and none to come: the channel or the connection is gone."""

    reason: str
    is_to_blame: bool = False
    """It was published to what is missing or forbidden."""


Answer = Outcome | Interrupted


def unroutable(parcel: Parcel, *, code: int, text: str | None) -> Outcome:
    """It came back: no queue is bound for it."""
    said = one_line(f"{code} {text or ''}")
    return Outcome(
        False,
        f"RabbitMQ returned the message ({said}): no queue is bound to {_exchange(parcel.exchange)} "
        f"for the routing key {one_line(parcel.routing_key)!r}.",
        rejected=True,
    )


_SIZE: Final = re.compile(r"message size (\d+) (?:is )?larger than (?:configured )?max size (\d+)")
_EXCHANGE: Final = re.compile(r"exchange '(?P<name>(?:[^']|'(?! ))*)' in vhost")
_TOPIC: Final = re.compile(r"topic '(?P<name>(?:[^']|'(?! ))*)' in exchange")


def size_limit(reason: Ended | None) -> int | None:
    """The largest body that the broker takes, if that is why it closed the channel."""
    match = _SIZE.search(reason.text) if isinstance(reason, Closed) else None
    return int(match[2]) if match else None


def interrupted(reason: Ended, parcel: Parcel, *, is_alone: bool) -> Answer:
    """What became of a message that was under way when the channel or the connection ended.

    Who is to blame is known when the broker names it, or when nobody else was under way.
    """
    said = one_line(str(reason))
    if not isinstance(reason, Closed):
        return Interrupted(f"The connection to RabbitMQ broke ({said}).")
    most = size_limit(reason)
    if most is not None and parcel.size > most:
        return Outcome(
            False, f"The message has {parcel.size} bytes, and RabbitMQ takes at most {most} ({said}).", rejected=True
        )
    if reason.code in (PRECONDITION_FAILED, TOO_LARGE) and is_alone and most is None:
        return Outcome(False, f"RabbitMQ closed the channel over this message ({said}).", rejected=True)
    if reason.code in (NOT_FOUND, REFUSED) and _is_meant(parcel, reason.text):
        return Interrupted(f"{_advice(parcel, reason.code)} ({said}).", is_to_blame=True)
    return Interrupted(f"RabbitMQ closed the channel or the connection ({said}).")


def _is_meant(parcel: Parcel, text: str) -> bool:
    exchange, topic = _EXCHANGE.search(text), _TOPIC.search(text)
    if topic is not None and topic["name"] != parcel.routing_key:
        return False
    return exchange is None or exchange["name"] == (parcel.exchange or "amq.default")


def _advice(parcel: Parcel, code: int) -> str:
    if code == NOT_FOUND:
        return f"RabbitMQ has no {_exchange(parcel.exchange)}: declare it, or set declare=true"
    return f"RabbitMQ does not let this user write to {_exchange(parcel.exchange)}: grant it, or use another login"


def _exchange(name: str) -> str:
    return f"exchange {one_line(name)!r}" if name else "default exchange"


def outcomes(answers: Sequence[Answer | None], *, late: str, blocked: str | None) -> list[Outcome]:
    """One outcome per message; `TransportUnavailable` when the broker answered for none of them.

    None is no answer in time; `late` says so. `blocked`: why the broker takes no messages at present.
    """
    if all(type(answer) is Outcome for answer in answers):
        return [answer for answer in answers if type(answer) is Outcome]
    if blocked is not None:
        answers = [Interrupted(blocked) if answer is None else answer for answer in answers]
    if not any(answer is None or isinstance(answer, Outcome) for answer in answers):
        _give_up([answer for answer in answers if isinstance(answer, Interrupted)], is_blocked=blocked is not None)
    return [_outcome(answer, late) for answer in answers]


def _give_up(answers: Sequence[Interrupted], *, is_blocked: bool) -> None:
    """Nothing was answered. If some are to blame and others are not, that is an answer for those who are."""
    to_blame = sum(answer.is_to_blame for answer in answers)
    if to_blame in (0, len(answers)):
        raise TransportUnavailable(answers[0].reason, mid_send=not to_blame and not is_blocked)


def _outcome(answer: Answer | None, late: str) -> Outcome:
    if answer is None:
        return Outcome(False, late)
    if isinstance(answer, Outcome):
        return answer
    return Outcome(False, answer.reason, lost=not answer.is_to_blame)
