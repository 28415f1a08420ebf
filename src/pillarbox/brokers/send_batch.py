"""The messages of one send: encoded, answered one by one, and what the answers come to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from pillarbox.contracts.transport import Outcome
from pillarbox.errors import MessageRejected, TransportUnavailable
from pillarbox.message import Message
from pillarbox.progress import StallTimeout
from pillarbox.redaction import redact_line

__all__ = [
    "DELIVERED",
    "ENCODE_ERRORS",
    "UNSENT",
    "Answer",
    "NotAnswered",
    "SendBatch",
    "collect_outcomes",
    "describe_encode_error",
    "encode_each",
    "find_runs",
    "stop_runs",
]

ENCODE_ERRORS: Final = (MessageRejected, ValueError, TypeError, OverflowError)
"""Raised for a message that cannot be encoded. Others than the first come from a value that nobody foresaw, such as
half a surrogate pair in a row that another program wrote: the fault of this message alone."""

DELIVERED: Final = Outcome(delivered=True)
UNSENT: Final = Outcome(False, "It was not sent, because an earlier message of its key was not delivered.", unsent=True)
A = TypeVar("A")
E = TypeVar("E")


class NotAnswered(msgspec.Struct, frozen=True):
    """No answer about the message, and none to come."""

    reason: str
    is_outage: bool = False
    """The broker answered that it takes nothing at present, from nobody."""


Answer = Outcome | NotAnswered


class SendBatch(Generic[A]):
    """The answers to the messages of one send, as they come in. The first answer to a message counts."""

    __slots__ = ("answers", "done", "unanswered")

    def __init__(self, answers: Iterable[A | None]) -> None:
        """Begin with the answers that are known before anything is sent, and None for the others."""
        self.answers: list[A | None] = list(answers)
        self.unanswered = self.answers.count(None)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved by the last answer; cancelled with the send that waits for it."""
        if not self.unanswered:
            self.done.set_result(None)

    def answer(self, index: int, answer: A) -> bool:
        """Record the answer to one message; return False if it had one."""
        if self.answers[index] is not None:
            return False
        self.answers[index] = answer
        self.unanswered -= 1
        if not self.unanswered and not self.done.done():
            self.done.set_result(None)
        return True

    async def wait(self, seconds: float, *, count_sent: Callable[[], int] = lambda: 0) -> None:
        """Wait for the last answer; raise `TimeoutError` when for so long none came and no byte left.

        `count_sent` is how many bytes have left. It must not grow after the last byte of this batch: else the traffic
        of others would hide that an answer is missing.
        """
        async with StallTimeout(seconds, measure=lambda: (self.unanswered, count_sent())):
            await self.done

    def answer_rest(self, answer: A) -> None:
        """Give every message without an answer this one: no others will come."""
        for index, known in enumerate(self.answers):
            if known is None:
                self.answer(index, answer)


def encode_each(
    messages: Sequence[Message], encode: Callable[[Message], E], *, broker: str | None = None
) -> list[E | Outcome]:
    """Encode messages; in the place of one that the broker can never take is its rejected outcome."""
    encoded: list[E | Outcome] = []
    for message in messages:
        try:
            encoded.append(encode(message))
        except ENCODE_ERRORS as error:
            text = describe_encode_error(error)
            if broker is not None and isinstance(error, MessageRejected):
                text = f"The message cannot be sent to {broker}: {text}."
            encoded.append(Outcome(False, text, rejected=True))
    return encoded


def describe_encode_error(error: Exception) -> str:
    """Describe one of `ENCODE_ERRORS` for the outcome of the message."""
    if isinstance(error, MessageRejected):
        return str(error)
    return f"The message cannot be encoded ({redact_line(f'{type(error).__name__}: {error}')})."


def find_runs(messages: Sequence[Message]) -> list[list[int]]:
    """Return the runs among the messages of one send: the indexes of those that share a key, in their order."""
    by_key: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        if message.key is not None:
            by_key.setdefault(message.key, []).append(index)
    if len(by_key) == len(messages):
        return []
    return [run for run in by_key.values() if len(run) > 1]


def stop_runs(runs: Iterable[Sequence[int]], answers: MutableSequence[E | Outcome]) -> None:
    """Mark what comes after the first message of a run that was not delivered as unsent.

    Used before a send for messages that were rejected already, and after it for what was not acknowledged.
    """
    for run in runs:
        is_stopped = False
        for index in run:
            if is_stopped:
                answers[index] = UNSENT
            else:
                answer = answers[index]
                is_stopped = isinstance(answer, Outcome) and not answer.delivered


def collect_outcomes(answers: Sequence[Answer | None], *, late: str, is_written: bool = True) -> list[Outcome]:
    """Return one outcome per message; raise `TransportUnavailable` when the broker answered about none of them.

    None is no answer in time, and `late` its error. A message that is not answered beside others that are is `lost`:
    it costs no attempt, and it is no reason to send the others again. If it is the broker that takes nothing, it is
    `not_now`. `is_written` is whether anything was written: if not, no message can be the reason for the break.
    """
    if all(type(answer) is Outcome for answer in answers):
        return [answer for answer in answers if type(answer) is Outcome]
    not_answered = [answer for answer in answers if isinstance(answer, NotAnswered)]
    if not_answered and not any(answer is None or _is_from_broker(answer) for answer in answers):
        is_broken = not all(answer.is_outage for answer in not_answered)
        raise TransportUnavailable(not_answered[0].reason, mid_send=is_broken and is_written)
    return [_to_outcome(answer, late) for answer in answers]


def _is_from_broker(answer: Answer) -> bool:
    # A rejection is mostly our own, made without the broker: it is no sign that others could get through.
    return isinstance(answer, Outcome) and not answer.rejected and not answer.unsent


def _to_outcome(answer: Answer | None, late: str) -> Outcome:
    if answer is None:
        return Outcome(False, late, unanswered=True, not_now=True)
    if isinstance(answer, Outcome):
        return answer
    return Outcome(False, answer.reason, lost=not answer.is_outage, not_now=answer.is_outage)
