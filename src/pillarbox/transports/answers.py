"""What a broker said about the messages of one send, and what that comes to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from pillarbox.errors import TransportUnavailable
from pillarbox.protocols import Outcome

__all__ = ["DELIVERED", "Answer", "Interrupted", "outcomes"]

DELIVERED: Final = Outcome(delivered=True)


class Interrupted(msgspec.Struct, frozen=True):
    """No answer, and none to come; or one that says nothing about the message."""

    reason: str
    is_outage: bool = False
    """The broker is there and answers, but takes nothing at this address: topology or permission is missing."""


Answer = Outcome | Interrupted


def outcomes(answers: Sequence[Answer | None], *, late: str, under_way: bool = True) -> list[Outcome]:
    """One outcome per message; `TransportUnavailable` when the broker said nothing about any of them.

    None is no answer in time; `late` says so. What is interrupted beside messages that were answered is `lost`: it
    costs no attempt, and it is no reason to send the others again. `under_way`: something had been written.
    """
    if all(type(answer) is Outcome for answer in answers):
        return [answer for answer in answers if type(answer) is Outcome]
    interrupted = [answer for answer in answers if isinstance(answer, Interrupted)]
    if interrupted and not any(answer is None or _is_the_brokers(answer) for answer in answers):
        is_broken = not all(answer.is_outage for answer in interrupted)
        raise TransportUnavailable(interrupted[0].reason, mid_send=is_broken and under_way)
    return [_outcome(answer, late) for answer in answers]


def _is_the_brokers(answer: Answer) -> bool:
    """A message that is rejected, mostly without asking, says nothing about the others."""
    return isinstance(answer, Outcome) and not answer.rejected


def _outcome(answer: Answer | None, late: str) -> Outcome:
    if answer is None:
        return Outcome(False, late)
    return answer if isinstance(answer, Outcome) else Outcome(False, answer.reason, lost=True)
