"""Meaning of a transport's answers: delivered, failed, tried again later, or an outage that costs nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Literal
from uuid import UUID

import msgspec

from pillarbox.contracts.store import FailedOutcome
from pillarbox.contracts.transport import Outcome
from pillarbox.durations import FOREVER, format_duration
from pillarbox.message import Message, State, Waits
from pillarbox.redaction import redact_block, redact_line
from pillarbox.relay.breaker import FailureRow
from pillarbox.relay.in_flight import Identity, identify
from pillarbox.retry import RetryPolicy

__all__ = [
    "AfterFailure",
    "BatchResult",
    "MissingTopology",
    "OutcomePolicy",
    "SkipPolicy",
    "build_hold",
    "build_refusal",
]

AfterFailure = Literal["continue", "hold"]
"""After a failed message of a key: continue with the next one, or hold the key until a person acts."""

MissingTopology = Literal["wait", "reject"]
"""For a message whose queue, topic, stream or permission is missing: wait until it is there, or fail it at once."""

_FLOOD: Final = 20
"""Rejections in a row, without one acknowledgement, that are the destination's fault, unless it is in this process."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
"""Seconds until a message is tried again that its address did not take. They double with each try."""
_RECENT: Final = 2.0
"""Seconds for which an acknowledgement shows that "not now" concerns its message alone, as when a tenant is throttled.

Longer than an answer takes: while one message is refused, others of the same moment may be under way or not yet read.
"""
_GOLDEN: Final = 0.618
"""Added to the dice for each message of a batch, so that what was refused together does not come back together."""
_MAX_REMEMBERED: Final = 100_000
"""Most messages whose previous attempt is remembered. Forgetting one costs at most an attempt that is not spent."""
_MAX_ERROR: Final = 2_000
_MAX_DETAIL: Final = 50_000


class BatchResult(msgspec.Struct):
    """Consequences of the answers to one batch."""

    delivered: list[Message]
    failures: list[tuple[Message, FailedOutcome]]
    """An attempt was spent, or the message is closed."""
    not_now: list[tuple[Message, FailedOutcome, Outcome]] = []
    """Their addresses take nothing at present. No attempt is spent, and the destination works."""
    tried: list[tuple[Message, FailedOutcome]] = []
    """No attempt is spent: nothing shows that the destination works."""
    outage: str | None = None
    """Reason why the destination looks down. None while it answers, and few different messages failed in a row."""
    retry_after: timedelta | None = None


class OutcomePolicy:
    """Decides by evidence: an attempt is spent only when the destination has shown that it works.

    The evidence, called the witness, is an acknowledgement of any other message since this one's previous attempt began
    (since this attempt began, for the first). A ping that succeeded since the previous attempt is a witness too, if the
    transport says so and the message was answered. What runs in the relay's own process needs no witness. Without one
    no attempt is spent: silence is an outage at once, and answers are one when three different messages in a row were
    answered with failures. Until then each of those waits at its own pace. Every try is recorded.
    """

    def __init__(
        self,
        *,
        retry: RetryPolicy,
        after_failure: AfterFailure = "continue",
        dead_letter: str | None = None,
        missing_topology: MissingTopology = "wait",
        give_up_after: timedelta = FOREVER,
        has_addresses: bool = False,
        in_process: bool = False,
    ) -> None:
        self._retry = retry
        self._after_failure = after_failure
        self._dead_letter = dead_letter
        """Destination to which failed messages go on. Then no key is held."""
        self._missing_topology = missing_topology
        self._give_up_after = give_up_after
        self.has_addresses = has_addresses
        """The transport sends to several addresses, so one that takes nothing is no sign of an outage."""
        self.in_process = in_process
        """The destination runs in this process, so a failure is the message's own."""
        self.row = FailureRow()
        """Messages that were answered with failures, and nothing shows whose fault that is."""
        self.acknowledged = 0
        """How many messages the destination has acknowledged."""
        self._heard = 0
        """The value of `acknowledged` when the answers came that are being evaluated."""
        self._acknowledged_at = -math.inf
        self.needs_ping = False
        """A message failed and nothing shows whose fault it is: a ping that succeeds now would be a witness."""
        self._pings = 0
        """How many pings were a witness."""
        self._baselines: dict[Identity, int] = {}
        """Message to the value of `acknowledged` when its previous, unsettled attempt began. Oldest
        first."""
        self._lone_baselines: dict[Identity, int] = {}
        """Message to the value of `acknowledged` when it was last sent alone. Oldest first."""
        self._tries: dict[Identity, _Tries] = {}
        """Messages whose last try failed and spent no attempt. Oldest first."""
        self._counts: dict[Identity, _TryCount] = {}
        """Messages that failed, to all their tries. Oldest first. For the log: nothing is decided by it."""
        self._unrecalled: set[Identity] = set()
        """Messages of which the journal may know earlier tries, and could not be asked."""
        self._rejections = 0

    def count_acknowledged(self, outcomes: Sequence[Outcome]) -> int:
        """Count the acknowledgements among the answers to one send; return `acknowledged` with them.

        Call it when the answers come, and before any wait: counted later, they would be witnesses against messages
        whose send began in between.
        """
        self.acknowledged += sum(outcome.delivered for outcome in outcomes)
        return self.acknowledged

    def evaluate(
        self,
        messages: Sequence[Message],
        outcomes: Sequence[Outcome],
        *,
        began: int,
        dice: float,
        now: float = 0.0,
        heard: int | None = None,
    ) -> BatchResult:
        """Decide what follows from the answers to one send. Lost messages have no answer, and are left out.

        `began` is the value of `acknowledged` when the send began, `now` the caller's monotonic seconds. `heard` is
        what `count_acknowledged` returned, if the caller has waited since: what came later is no witness.
        """
        result = BatchResult([], [])
        result.delivered = [m for m, outcome in zip(messages, outcomes, strict=True) if outcome.delivered]
        self._heard = self.count_acknowledged(outcomes) if heard is None else heard
        if result.delivered:
            self._acknowledged_at = now
            self.row.clear()
            for message in result.delivered if self._counts else ():
                self._counts.pop(identify(message), None)
            for message in result.delivered if self._baselines or self._lone_baselines or self._tries else ():
                self._forget(identify(message))
                self._lone_baselines.pop(identify(message), None)
        if len(result.delivered) < len(messages):
            self.needs_ping = True
            unproven: list[_UnprovenTry] = []
            for message, outcome in zip(messages, outcomes, strict=True):
                if outcome.delivered:
                    self._rejections = 0  # in the order of the answers: rejections among acknowledgements are no row
                elif not outcome.lost:
                    self._count_for_log(message, now=now)
                    dice = (dice + _GOLDEN) % 1
                    unproven += self._evaluate_failure(
                        message, _sanitize(outcome), result, began=began, dice=dice, now=now
                    )
            self._add_unproven(result, unproven)
        elif result.delivered:
            self._rejections = 0
        return result

    def _add_unproven(self, result: BatchResult, unproven: Sequence[_UnprovenTry]) -> None:
        """Add the failures without a witness. In an outage they go at the breaker's pace, else each at its own."""
        is_outage = self.row.is_outage or any(one.is_outage for one in unproven)
        for one in unproven:
            if is_outage:
                result.outage = one.error
                result.retry_after = max(filter(None, (result.retry_after, one.outcome.retry_after)), default=None)
            if not one.is_given_up:
                pause = timedelta(0) if is_outage else one.pause
                result.tried.append((one.message, _build_try(one.message, one.outcome, pause=pause)))

    def _evaluate_failure(
        self, message: Message, outcome: Outcome, result: BatchResult, *, began: int, dice: float, now: float
    ) -> Sequence[_UnprovenTry]:
        """Add a failure to the result, or return it, if what it shows depends on the others without a witness."""
        is_rejected = outcome.rejected or (outcome.missing and self._missing_topology == "reject")
        is_at_fault = False
        if is_rejected:
            self._rejections += 1
            if self._rejections < _FLOOD or self.in_process:
                self._forget(identify(message))
                result.failures.append((message, self._build_failure(message, message.attempts + 1, outcome)))
                return ()
        else:
            is_at_fault = self._is_at_fault(message, outcome, began=began)
            if is_at_fault and not outcome.not_now:
                result.failures.append((message, self._spend_attempt(message, outcome, dice=dice)))
                return ()
        tries = self._count_try(message, now=now)
        is_given_up = now - tries.first_at >= self._give_up_after.total_seconds()
        if is_given_up:
            self._forget(identify(message))
            error = f"given up after {format_duration(self._give_up_after)}: {outcome.error}"
            result.failures.append((message, self.build_failure(message, error=error)))
        if not is_rejected and self._is_not_now(outcome, is_at_fault=is_at_fault, now=now):
            if not is_given_up:
                result.not_now.append((message, _build_try(message, outcome, pause=tries.pause(dice=dice)), outcome))
            return ()
        error = outcome.error or "the destination did not acknowledge"
        if is_rejected:
            error = f"it rejects every message, the last one so: {outcome.error}"
        # A function that hangs says as little about the others as one that fails.
        is_silence = outcome.unanswered and not self.in_process
        if not is_rejected and not is_silence and self.acknowledged == self._heard:
            self.row.add(message.message_id)
        pause, is_outage = tries.pause(dice=dice), is_rejected or is_silence
        return (_UnprovenTry(message, outcome, error, pause, is_outage=is_outage, is_given_up=is_given_up),)

    def _is_at_fault(self, message: Message, outcome: Outcome, *, began: int) -> bool:
        """Return whether the failure is the message's own: there is a witness, or none is needed."""
        has_witness = self.has_witness(message, began=began, heard=self._heard)
        has_witness = self._has_ping_witness(message, outcome) or has_witness
        return has_witness or (self.in_process and not outcome.unanswered)

    def _is_not_now(self, outcome: Outcome, *, is_at_fault: bool, now: float) -> bool:
        """Return whether the destination works, and only the address of the message takes nothing at present."""
        is_answered = not outcome.unanswered and (self.has_addresses or now - self._acknowledged_at <= _RECENT)
        return outcome.not_now and (is_answered or is_at_fault)

    def has_witness(self, message: Message, *, began: int, heard: int | None = None) -> bool:
        """Return whether another message was acknowledged since this one's previous attempt began.

        Call it once per attempt: it also notes when the attempt began.
        """
        baseline = self._baselines.get(identify(message), began)
        has_witness = (self.acknowledged if heard is None else heard) > baseline
        self._remember(identify(message), began if has_witness else baseline)
        return has_witness

    def note_ping(self) -> None:
        """Note that the destination answered a ping that is a witness."""
        self._pings += 1

    def _has_ping_witness(self, message: Message, outcome: Outcome) -> bool:
        tries = self._tries.get(identify(message))
        return tries is not None and self._pings > tries.pings and not outcome.unanswered

    def _count_try(self, message: Message, *, now: float) -> _Tries:
        tries = self._tries.pop(identify(message), None) or _Tries(first_at=now)
        tries.count += 1
        tries.pings = self._pings
        self._tries[identify(message)] = tries
        if len(self._tries) > _MAX_REMEMBERED:
            del self._tries[next(iter(self._tries))]
        return tries

    def _forget(self, identity: Identity) -> None:
        self._baselines.pop(identity, None)
        self._tries.pop(identity, None)
        self._unrecalled.discard(identity)

    def _count_for_log(self, message: Message, *, now: float) -> None:
        known = self._counts.setdefault(identify(message), _TryCount(now))
        known.count += 1
        if len(self._counts) > _MAX_REMEMBERED:
            del self._counts[next(iter(self._counts))]

    def add_tries(self, message: Message, failure: FailedOutcome, *, now: float) -> FailedOutcome:
        """Return a failure with the tries of its message, for the log. A message that is closed is forgotten."""
        is_over = failure.waits is None
        known = self._counts.pop(identify(message), None) if is_over else self._counts.get(identify(message))
        if known is None:
            return failure
        return msgspec.structs.replace(
            failure, tries=known.count, tried_for=timedelta(seconds=max(0.0, now - known.first_at))
        )

    def list_uncounted(self, messages: Sequence[Message], outcomes: Sequence[Outcome]) -> list[Message]:
        """List the messages that failed, and of which others may have made tries that this relay does not know."""
        return [
            message
            for message, outcome in zip(messages, outcomes, strict=True)
            if not outcome.delivered and not outcome.lost and message.waits is Waits.RETRY
            and identify(message) not in self._counts
        ]  # fmt: skip

    def recall_count(self, message: Message, *, count: int, age: float, now: float) -> None:
        """Take note of how often a message was tried before, and since when."""
        self._counts.setdefault(identify(message), _TryCount(now - age, count))

    def list_forgotten(self, messages: Sequence[Message], outcomes: Sequence[Outcome]) -> list[Message]:
        """List the messages that failed, and of which another relay may have made the first try.

        `give_up_after` counts from it, so the journal must be asked before `evaluate`. Without that setting: none.
        """
        if self._give_up_after == FOREVER:
            return []
        return [
            message
            for message, outcome in zip(messages, outcomes, strict=True)
            if not outcome.delivered and not outcome.lost and message.waits is Waits.RETRY
            and (identify(message) not in self._tries or identify(message) in self._unrecalled)
        ]  # fmt: skip

    def recall(self, messages: Sequence[Message], tried_for: Mapping[UUID, timedelta] | None, *, now: float) -> None:
        """Take note of earlier tries as the journal tells them; None if it could not be asked, and must be again."""
        for message in messages:
            if tried_for is None:
                self._unrecalled.add(identify(message))
                continue
            self._unrecalled.discard(identify(message))
            if (length := tried_for.get(message.message_id)) is not None:
                tries = self._tries.setdefault(identify(message), _Tries(first_at=now))
                tries.first_at = min(tries.first_at, now - length.total_seconds())

    def note_interrupted(self, messages: Sequence[Message], *, began: int, sent: bool = True) -> None:
        """Note that messages were tried and not answered at all: that was an attempt too.

        A message that was not even sent had no attempt, so what was acknowledged meanwhile is no witness against it.
        For such a message only the witnesses of earlier attempts become too old.
        """
        for message in messages:
            if sent or identify(message) in self._baselines:
                self._remember(identify(message), began)

    def has_lone_witness(self, message: Message) -> bool:
        """Return whether this relay heard an acknowledgement since it last sent this message alone, or since it began.

        Without one, a death with the message in hand proves nothing: the destination may hang, and relays die for other
        reasons too. Call it once per attempt: it also notes when the attempt began.
        """
        has_witness = self.acknowledged > self._lone_baselines.get(identify(message), 0)
        _put_last(self._lone_baselines, identify(message), self.acknowledged)
        return has_witness

    def _remember(self, identity: Identity, began: int) -> None:
        _put_last(self._baselines, identity, began)

    def _spend_attempt(self, message: Message, outcome: Outcome, *, dice: float) -> FailedOutcome:
        spent = message.attempts + 1
        if self._retry.gives_up(spent):
            self._forget(identify(message))
            return self._build_failure(message, spent, outcome)
        if (tries := self._tries.get(identify(message))) is not None:
            tries.pings = self._pings
        delay = self._retry.delay(spent, dice=dice)
        return FailedOutcome(
            message_id=message.id,
            state=State.PENDING,
            waits=Waits.RETRY,
            attempts=spent,
            error=outcome.error,
            delay=max(delay, outcome.retry_after or delay),
            detail=outcome.detail,
        )

    def build_failure(self, message: Message, *, error: str) -> FailedOutcome:
        """Build the outcome of a message that is given up for a reason which is not an answer."""
        return self._build_failure(message, message.attempts, Outcome(False, error))

    def _build_failure(self, message: Message, spent: int, outcome: Outcome) -> FailedOutcome:
        is_held = self._after_failure == "hold" and message.key is not None and self._dead_letter is None
        return FailedOutcome(
            message_id=message.id,
            state=State.PENDING if is_held else State.FAILED,
            waits=Waits.HELD if is_held else None,
            attempts=spent,
            error=outcome.error,
            detail=outcome.detail,
            forward_to=self._dead_letter,
        )


class SkipPolicy(OutcomePolicy):
    """Closes every message as skipped, because no route matched it."""

    def count_acknowledged(self, outcomes: Sequence[Outcome]) -> int:
        """Count nothing: there is no destination that could acknowledge anything."""
        del outcomes
        return self.acknowledged

    def evaluate(
        self,
        messages: Sequence[Message],
        outcomes: Sequence[Outcome],
        *,
        began: int,
        dice: float,
        now: float = 0.0,
        heard: int | None = None,
    ) -> BatchResult:
        del outcomes, began, dice, now, heard
        skipped = [
            (message, FailedOutcome(message_id=message.id, state=State.SKIPPED, error="no route matched"))
            for message in messages
        ]
        return BatchResult([], skipped)


class _UnprovenTry(msgspec.Struct, frozen=True):
    """A failure without a witness: of one message, or of the destination."""

    message: Message
    outcome: Outcome
    error: str
    pause: timedelta
    """The message's own, for as long as it is no outage."""
    is_outage: bool
    """It shows an outage by itself."""
    is_given_up: bool


class _TryCount(msgspec.Struct):
    """All tries of one message."""

    first_at: float
    count: int = 0


class _Tries(msgspec.Struct):
    """Tries of one message that spent no attempt."""

    first_at: float
    count: int = 0
    pings: int = 0
    """Value of `_pings` when the last one was answered."""

    def pause(self, *, dice: float) -> timedelta:
        """Return the wait until the next try, at the message's own pace."""
        seconds = min(_FIRST_PAUSE * (1 << min(self.count - 1, 10)), _LONGEST_PAUSE)
        return timedelta(seconds=seconds * (0.5 + dice / 2))


def _build_try(message: Message, outcome: Outcome, *, pause: timedelta) -> FailedOutcome:
    """Build the outcome of a message that was tried, and spends no attempt."""
    return FailedOutcome(
        message_id=message.id,
        state=State.PENDING,
        waits=Waits.RETRY,
        attempts=message.attempts,
        error=outcome.error,
        delay=max(pause, outcome.retry_after or pause),
        detail=outcome.detail,
        spends=False,
    )


def build_hold(message: Message, *, reason: str, pause: timedelta) -> FailedOutcome:
    """Build the outcome of a message that is not sent, because its address takes nothing at present."""
    return FailedOutcome(
        message_id=message.id,
        state=State.PENDING,
        waits=Waits.RETRY,
        attempts=message.attempts,
        error=reason,
        delay=pause,
        spends=False,
        tried=False,
    )


def build_refusal(message: Message, refusal: Exception, *, outcome: FailedOutcome | None = None) -> FailedOutcome:
    """Build the outcome of a message whose own outcome the store refuses for good: it fails, and the reason says why.

    `outcome` is what could not be recorded; None is a delivery.
    """
    if outcome is None:
        error = f"it was delivered, but the store refused to record that: {refusal}"
    elif outcome.waits is Waits.PARKED:
        error = (
            f"it cannot wait behind an earlier message of its key, because the store refused to record that: {refusal}"
        )
    else:
        error = f"the store refused to record its outcome: {refusal} That outcome was: {outcome.error}"
    return FailedOutcome(
        message_id=message.id,
        state=State.FAILED,
        attempts=message.attempts if outcome is None else outcome.attempts,
        error=redact_line(error, limit=_MAX_ERROR),
    )


def _put_last(baselines: dict[Identity, int], identity: Identity, began: int) -> None:
    baselines.pop(identity, None)
    baselines[identity] = began
    if len(baselines) > _MAX_REMEMBERED:
        del baselines[next(iter(baselines))]


def _sanitize(outcome: Outcome) -> Outcome:
    """Make the texts of an answer fit for every store, log and terminal: a broker or a handler wrote them."""
    error = None if outcome.error is None else redact_line(outcome.error, limit=_MAX_ERROR)
    detail = None if outcome.detail is None else redact_block(outcome.detail, limit=_MAX_DETAIL)
    return msgspec.structs.replace(outcome, error=error, detail=detail)
