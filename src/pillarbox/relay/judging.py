"""What an answer means for a message: delivered, tried again later, failed, or nobody's fault. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Literal

import msgspec

from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Outcome, Trouble
from pillarbox.retry import RetryPolicy

__all__ = ["AfterFailure", "Judge", "Verdict"]

AfterFailure = Literal["continue", "hold"]
"""What follows a failed message of a key: go on with the next, or hold the key until a person acts."""

_REJECTIONS: Final = 20
_REMEMBERED: Final = 100_000
_LONGEST_ERROR: Final = 2_000
_LONGEST_DETAIL: Final = 50_000


class Verdict(msgspec.Struct):
    """What one batch of answers came to."""

    delivered: list[Message]
    troubles: list[tuple[Message, Trouble]]
    returned: list[Message]
    """Not delivered, and no attempt spent: the destination is to blame, not the message."""
    outage: str | None = None
    """Why the destination looks down."""
    retry_after: timedelta | None = None
    flood: bool = False
    """So many rejections in a row that the destination must be wrong, not the messages."""


class Judge:
    """Decides by evidence. An attempt is spent only when the destination has shown that it works.

    The witness: an acknowledgement of any other message since this one's previous attempt began (since this attempt
    began, for the first). Without it a failure is an outage.
    """

    def __init__(self, *, retry: RetryPolicy, after_failure: AfterFailure = "continue") -> None:
        self._retry = retry
        self._after_failure = after_failure
        self.acknowledged = 0
        """How many messages the destination has acknowledged."""
        self._seen: dict[int, int] = {}
        """Message to that count when its previous, unsettled attempt began."""
        self._rejections = 0

    def judge(self, messages: Sequence[Message], outcomes: Sequence[Outcome], *, began: int, dice: float) -> Verdict:
        """Weigh the answers of one send; what is lost has none. `began`: what `acknowledged` was when it started."""
        verdict = Verdict([], [], [])
        verdict.delivered = [m for m, outcome in zip(messages, outcomes, strict=True) if outcome.delivered]
        self.acknowledged += len(verdict.delivered)
        if verdict.delivered:
            self._rejections = 0
            for message in verdict.delivered if self._seen else ():
                self._seen.pop(message.id, None)
        if len(verdict.delivered) < len(messages):
            for message, outcome in zip(messages, outcomes, strict=True):
                if not outcome.delivered and not outcome.lost:
                    self._weigh(message, outcome, verdict, began=began, dice=dice)
        return verdict

    def _weigh(self, message: Message, outcome: Outcome, verdict: Verdict, *, began: int, dice: float) -> None:
        outcome = _recordable(outcome)
        if outcome.rejected:
            self._reject(message, outcome, verdict)
        elif self.is_witnessed(message, began=began):
            self._spend(message, outcome, verdict, dice=dice)
        else:
            verdict.returned.append(message)
            verdict.outage = outcome.error or "the destination did not acknowledge"
            verdict.retry_after = max(filter(None, (verdict.retry_after, outcome.retry_after)), default=None)

    def is_witnessed(self, message: Message, *, began: int) -> bool:
        """Whether another message was acknowledged since this one's previous attempt began. Asked once per attempt."""
        seen = self._seen.get(message.id, began)
        is_witnessed = self.acknowledged > seen
        self._note(message.id, began if is_witnessed else seen)
        return is_witnessed

    def interrupted(self, messages: Sequence[Message], *, began: int, sent: bool = True) -> None:
        """These were tried and not answered at all: that was an attempt too, and the next one is weighed from here.

        What was not even sent had no attempt: what was acknowledged meanwhile is no witness against it. It only makes
        the witnesses of earlier attempts too old.
        """
        for message in messages:
            if sent or message.id in self._seen:
                self._note(message.id, began)

    def _note(self, message_id: int, began: int) -> None:
        self._seen.pop(message_id, None)
        self._seen[message_id] = began
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def _reject(self, message: Message, outcome: Outcome, verdict: Verdict) -> None:
        self._rejections += 1
        if self._rejections >= _REJECTIONS:
            verdict.flood = True
            verdict.returned.append(message)
            return
        verdict.troubles.append((message, self._failure(message, message.attempts + 1, outcome)))

    def _spend(self, message: Message, outcome: Outcome, verdict: Verdict, *, dice: float) -> None:
        spent = message.attempts + 1
        if self._retry.gives_up(spent):
            self._seen.pop(message.id, None)
            verdict.troubles.append((message, self._failure(message, spent, outcome)))
            return
        delay = self._retry.delay(spent, dice=dice)
        verdict.troubles.append((
            message,
            Trouble(
                message_id=message.id, state=State.PENDING, waits=Waits.RETRY, attempts=spent, error=outcome.error,
                delay=max(delay, outcome.retry_after or delay), detail=outcome.detail,
            ),
        ))  # fmt: skip

    def failed(self, message: Message, *, error: str) -> Trouble:
        """Give a message up for a reason that is not an answer: it killed too often, or it is to be skipped."""
        return self._failure(message, message.attempts, Outcome(False, error))

    def _failure(self, message: Message, spent: int, outcome: Outcome) -> Trouble:
        held = self._after_failure == "hold" and message.key is not None
        return Trouble(
            message_id=message.id,
            state=State.PENDING if held else State.FAILED,
            waits=Waits.HELD if held else None,
            attempts=spent,
            error=outcome.error,
            detail=outcome.detail,
        )

    def resumed(self) -> None:
        """A person resumed the destination: rejections are counted afresh."""
        self._rejections = 0


def _recordable(outcome: Outcome) -> Outcome:
    """An answer in words that every store and every log can take: a broker may quote bytes that are no text."""
    error, detail = _cleaned(outcome.error, _LONGEST_ERROR), _cleaned(outcome.detail, _LONGEST_DETAIL)
    return msgspec.structs.replace(outcome, error=error, detail=detail)


def _cleaned(text: str | None, longest: int) -> str | None:
    if text is None:
        return None
    return text[:longest].encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
