"""Errors of the protocol, and what the broker's answers mean for a message and for the destination. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from pillarbox.brokers import errors
from pillarbox.brokers.errors import describe_error, login_refused_error
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.redaction import redact_line

if TYPE_CHECKING:
    from pillarbox.brokers.rabbitmq.encoding import EncodedMessage

__all__ = [
    "DUPLICATE",
    "NACKED",
    "NOT_FOUND",
    "Answer",
    "Broken",
    "Closed",
    "Ended",
    "NotAmqp",
    "NotAnswered",
    "map_connect_error",
    "map_end",
    "map_refusal",
    "map_return",
    "parse_size_limit",
    "to_outcomes",
]

_TOO_LARGE: Final = 311
_REFUSED: Final = 403
NOT_FOUND: Final = 404
_PRECONDITION_FAILED: Final = 406
_NOT_ALLOWED: Final = 530


class NotAmqp(Exception):
    """Bytes that no AMQP 0-9-1 server sends."""


class Ended(Exception):
    """A connection or channel that has ended. The text is the reason."""


class Closed(Ended):
    """The broker closed it, with a code and a reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class Broken(Ended):
    """It ended without a word from the broker."""


# --- no way to the broker, or to what is to be used there ----------------------------------------


def map_connect_error(error: Exception, *, where: str) -> TransportUnavailable:
    """Map what prevented a connection: no server, no trust, a refused login or virtual host."""
    reason, code = describe_error(error), error.code if isinstance(error, Closed) else None
    if code == _REFUSED:
        return login_refused_error(where, reason)
    if code == _NOT_ALLOWED:
        return TransportUnavailable(
            f"{where} refuses the virtual host ({reason}): check the URL's path and the user's permissions."
        )
    return errors.map_connect_error(error, where)


def map_refusal(closed: Closed, *, where: str, what: str) -> TransportUnavailable:
    """Map the refusal of a question about an exchange or a queue, or of its declaration."""
    if closed.code == NOT_FOUND:
        text = f"{where} has no {what}: declare it, or set declare=true"
    elif closed.code == _PRECONDITION_FAILED:
        text = f"{where} has another {what}: correct exchange_type or queue_type, or leave out declare"
    elif closed.code == _REFUSED:
        text = f"{where} does not let this user use or declare the {what}: grant it, or leave out declare"
    else:
        text = f"{where} did not like a question about the {what}"
    return TransportUnavailable(f"{text} ({describe_error(closed)}).")


# --- answers for messages ------------------------------------------------------------------------

NACKED: Final = Outcome(
    False, "RabbitMQ did not take the message (nack): a queue is full or not available.", not_now=True
)
DUPLICATE: Final = Outcome(
    False, "Another message with the same id is under way; this one goes after it.", not_now=True
)


class NotAnswered(msgspec.Struct, frozen=True):
    """No answer, and none to come: the channel or the connection has ended."""

    reason: str
    is_to_blame: bool = False
    """The message was published to what is missing or forbidden."""


Answer = Outcome | NotAnswered


def map_return(message: EncodedMessage, *, code: int, text: str | None) -> Outcome:
    """Map a return: no queue is bound for the message, or none that is available."""
    reason = redact_line(f"{code} {text or ''}")
    return Outcome(
        False,
        f"RabbitMQ returned the message ({reason}): no queue is bound to {_quote_exchange(message.exchange)} "
        f"for the routing key {redact_line(message.routing_key)!r}; bind one.",
        not_now=True,
        missing=True,
    )


_SIZE: Final = re.compile(r"message size (\d+) (?:is )?larger than (?:configured )?max size (\d+)")
_EXCHANGE: Final = re.compile(r"exchange '(?P<name>(?:[^']|'(?! ))*)' in vhost")
_TOPIC: Final = re.compile(r"topic '(?P<name>(?:[^']|'(?! ))*)' in exchange")


def parse_size_limit(reason: Ended | None) -> int | None:
    """Return the largest body that the broker accepts, if that is why it closed the channel."""
    match = _SIZE.search(reason.text) if isinstance(reason, Closed) else None
    return int(match[2]) if match else None


def map_end(reason: Ended, message: EncodedMessage, *, is_alone: bool) -> Answer:
    """Map the end of a channel or connection to an answer for a message that was under way.

    The message at fault is known when the broker names it, or when no other was under way.
    """
    text = redact_line(str(reason))
    if not isinstance(reason, Closed):
        return NotAnswered(f"The connection to RabbitMQ broke ({text}).")
    limit = parse_size_limit(reason)
    if limit is not None and message.size > limit:
        return Outcome(
            False, f"The message has {message.size} bytes, and RabbitMQ takes at most {limit} ({text}).", rejected=True
        )
    if reason.code in (_PRECONDITION_FAILED, _TOO_LARGE) and is_alone and limit is None:
        return Outcome(False, f"RabbitMQ closed the channel over this message ({text}).", rejected=True)
    if reason.code in (NOT_FOUND, _REFUSED) and _is_meant(message, reason.text):
        return NotAnswered(f"{_advise(message, reason.code)} ({text}).", is_to_blame=True)
    return NotAnswered(f"RabbitMQ closed the channel or the connection ({text}).")


def _is_meant(message: EncodedMessage, text: str) -> bool:
    exchange, topic = _EXCHANGE.search(text), _TOPIC.search(text)
    if topic is not None and topic["name"] != message.routing_key:
        return False
    return exchange is None or exchange["name"] == (message.exchange or "amq.default")


def _advise(message: EncodedMessage, code: int) -> str:
    exchange = _quote_exchange(message.exchange)
    if code == NOT_FOUND:
        return f"RabbitMQ has no {exchange}: declare it, or set declare=true"
    return f"RabbitMQ does not let this user write to {exchange}: grant it, or use another login"


def _quote_exchange(name: str) -> str:
    return f"exchange {redact_line(name)!r}" if name else "default exchange"


def to_outcomes(answers: Sequence[Answer | None], *, late: str, blocked: str | None) -> list[Outcome]:
    """Return one outcome per message; raise `TransportUnavailable` when the broker answered for none of them.

    None is no answer in time, for the reason `late`. `blocked` is why the broker accepts no messages at present.
    """
    if all(type(answer) is Outcome for answer in answers):
        return [answer for answer in answers if type(answer) is Outcome]
    if blocked is not None:
        answers = [NotAnswered(blocked) if answer is None else answer for answer in answers]
    if not any(answer is None or isinstance(answer, Outcome) for answer in answers):
        _give_up([answer for answer in answers if isinstance(answer, NotAnswered)], is_blocked=blocked is not None)
    return [_to_outcome(answer, late) for answer in answers]


def _give_up(answers: Sequence[NotAnswered], *, is_blocked: bool) -> None:
    """Raise, unless some are to blame: that is an answer for those who are."""
    if not any(answer.is_to_blame for answer in answers):
        raise TransportUnavailable(answers[0].reason, mid_send=not is_blocked)


def _to_outcome(answer: Answer | None, late: str) -> Outcome:
    if answer is None:
        return Outcome(False, late, unanswered=True, not_now=True)
    if isinstance(answer, Outcome):
        return answer
    is_missing = answer.is_to_blame
    return Outcome(False, answer.reason, lost=not is_missing, not_now=is_missing, missing=is_missing)
