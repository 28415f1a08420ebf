"""The checkers: they see what really happened, and know nothing of how relays work. Relays do not see them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from pillarbox.contracts.store import FailedOutcome
from pillarbox.message import Message, State, Waits

__all__ = ["DeliveryChecker", "FailureChecker", "Promise", "Violation"]


class Promise(StrEnum):
    """A promise that a run can break."""

    LOST = "lost"
    """Committed, and at the end neither delivered nor visible as failed, skipped or discarded."""
    GHOST = "ghost"
    """Delivered, and never committed, or not yet, or not for that destination."""
    OUT_OF_ORDER = "out of order"
    """Delivered for the first time before an earlier message of its key."""
    SPENT = "attempt spent"
    """An attempt was spent without a sign that the destination works."""
    MISCOUNTED = "attempts miscounted"
    """The recorded attempts are not those that the answers account for, or more than the destination was sent."""
    INNOCENT = "innocent failed"
    """Failed, and neither rejected, nor out of attempts, nor sent alone by enough relays that died."""
    FENCE = "written after takeover"
    """Recorded in a lane that belonged to another relay."""
    OVERRUN = "sent after lease"
    """Sending went on when the lease had ended."""
    STARVED = "lease lost"
    """A lease ran out, or a write was refused, while nothing was wrong."""
    STUCK = "stuck"
    """Still open long after the last fault."""
    DELAYED = "delayed by another"
    """Held up by a bad message of another key, while the destination took everything else."""
    CRASHED = "relay crashed"
    """A relay ended by an error of its own, or never waited."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: which, when, and how."""

    promise: Promise
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.promise.value}, {self.at:.3f} s: {self.text}"


@dataclass(slots=True)
class Row:
    """A committed message, as its writer knows it."""

    id: int
    key: str | None
    message_id: UUID
    destinations: list[str]
    """Where it belongs: the last one is where it belongs now, the others are where it was moved from."""


@dataclass
class DeliveryChecker:
    """Records commits and deliveries, and reports what was lost, invented or out of order."""

    rows: dict[int, Row] = field(default_factory=dict)
    taken: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Destination and message to how many times the destination received it."""
    tries: Counter[int] = field(default_factory=Counter)
    """Message to how many times it was sent to its destination, since it was last begun anew."""
    violations: list[Violation] = field(default_factory=list)
    purged: set[int] = field(default_factory=set)
    """Closed messages that the janitor removed."""
    seen: Counter[str] = field(default_factory=Counter)
    """How often each thing happened, so that a test can show that rare things do happen."""
    duplicates: int = 0
    lost: set[UUID] = field(default_factory=set)
    """Messages whose commit the store lost. Some may still be on their way to a destination."""
    _owed: dict[tuple[str, str], dict[int, None]] = field(default_factory=lambda: defaultdict(dict))
    """Destination and key to the messages that must be delivered before all later ones."""
    _free: set[int] = field(default_factory=set)
    """Messages that a writer or an operator took out of the order."""

    def report(self, promise: Promise, at: float, text: str) -> None:
        """Report a broken promise."""
        self.violations.append(Violation(promise, at, text))

    # --- writers and operators ---

    def forget(self, messages: Iterable[Message]) -> None:
        """Forget messages whose commit the store lost: nothing is owed for them, and their ids are given out again."""
        for message in messages:
            self.lost.add(message.message_id)
            row = self.rows.pop(message.id)
            self.tries.pop(message.id, None)
            self.purged.discard(message.id)
            self._free.discard(message.id)
            for destination in row.destinations:
                self.taken.pop((destination, message.id), None)
            if row.key is not None:
                self._owed[row.destinations[0], row.key].pop(message.id, None)

    def record_commit(self, messages: Iterable[Message]) -> None:
        """Record what a transaction committed."""
        for message in messages:
            self.rows[message.id] = Row(message.id, message.key, message.message_id, [message.destination])
            if message.available_at is not None or message.key is None:
                self._free.add(message.id)
            else:
                self._owed[message.destination, message.key][message.id] = None

    def exempt(self, id: int) -> None:
        """Take a message out of the order: it waits for nothing, and nothing waits for it."""
        self._free.add(id)
        self.record_close(id)

    def record_close(self, id: int) -> None:
        """Record that a message is failed, skipped or discarded, so that its key may go on."""
        row = self.rows.get(id)
        if row is not None and row.key is not None:
            self._owed[row.destinations[0], row.key].pop(id, None)

    def record_move(self, id: int, destination: str) -> None:
        """Record that a message goes to another destination, out of the order."""
        self.exempt(id)
        self.rows[id].destinations.append(destination)

    # --- destinations ---

    def record_try(self, message: Message) -> None:
        """Record that a message was sent to its destination, whatever becomes of it there."""
        if message.message_id not in self.lost:
            self.tries[message.id] += 1

    def record_delivery(self, destination: str, message: Message, at: float) -> None:
        """Record that a destination received a message, whether or not a relay learns of it."""
        if message.message_id in self.lost:
            return
        row = self.rows.get(message.id)
        if row is None or row.message_id != message.message_id or destination not in row.destinations:
            self.report(Promise.GHOST, at, f"{destination} got {message.id}, which was not committed for it")
            return
        self.taken[destination, row.id] += 1
        if self.taken[destination, row.id] > 1:
            self.duplicates += 1
        elif row.key is not None:
            self._check_order(destination, row, row.key, at)

    def _check_order(self, destination: str, row: Row, key: str, at: float) -> None:
        owed = self._owed[destination, key]
        owed.pop(row.id, None)
        if row.id not in self._free and (earlier := [id for id in owed if id < row.id]):
            self.report(Promise.OUT_OF_ORDER, at, f"{destination} got {row.id} of {key} before {earlier}")


class FailureChecker:
    """Checks the failures that relays record against the answers that they got.

    `relay_id` names a relay from its registration to its end. A failure needs a witness: another message that this
    relay heard acknowledged since the previous attempt of the failing one began, or since this one, if it is the first.
    """

    def __init__(self, deliveries: DeliveryChecker, *, attempts: dict[str, int | None], lone_cap: int) -> None:
        self._deliveries = deliveries
        self._attempts = attempts
        self._lone_cap = lone_cap
        self._acks: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        self._began: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        self._answers: dict[tuple[str, int], str] = {}
        """Relay and message to the worth of its last unrecorded answer: rejected, witnessed, or nothing."""
        self._spent: Counter[int] = Counter()
        """Message to the attempts that it has spent, by the answers."""
        self._recorded: set[tuple[str, int, int, State, Waits | None]] = set()
        self._deaths: dict[int, int] = defaultdict(int)
        """Message to how many times a relay, or a connection of its own, died with it alone in flight, witnessed."""

    # --- on the network ---

    def record_send(self, relay_id: str, destination: str, messages: Iterable[Message], at: float) -> None:
        """Record that a relay sent these messages."""
        for message in messages:
            self._began[relay_id, destination, message.id].append(at)

    def forget_send(self, relay_id: str, destination: str, id: int) -> None:
        """Forget the last send of a message: an earlier one of its run was not acknowledged, so it was no attempt."""
        self._began[relay_id, destination, id].pop()

    def record_ack(self, relay_id: str, destination: str, id: int, at: float) -> None:
        """Record that a relay got an acknowledgement."""
        self._acks[relay_id, destination].append((at, id))
        self._began.pop((relay_id, destination, id), None)

    def record_refusal(
        self, relay_id: str, destination: str, id: int, *, rejected: bool = False, is_free: bool = False
    ) -> None:
        """Record that a relay got a refusal, or stopped waiting for an answer.

        "Not now", and a connection that broke before the answer, cost the message nothing.
        """
        is_witnessed = not is_free and self._is_witnessed(relay_id, destination, id)
        self._answers[relay_id, id] = "rejected" if rejected else "witnessed" if is_witnessed else "nothing"

    def _is_witnessed(self, relay_id: str, destination: str, id: int) -> bool:
        since = self._began[relay_id, destination, id][-2:][0]
        return any(at >= since and other != id for at, other in self._acks[relay_id, destination])

    def record_lone_death(self, relay_id: str, destination: str, id: int) -> None:
        """Record that a relay, or its connection, died with this message and no other in flight.

        It counts only if that relay had heard another message acknowledged: else the destination may have hung.
        """
        if any(other != id for _, other in self._acks[relay_id, destination]):
            self._deaths[id] += 1

    # --- in the store ---

    def forget(self, ids: Iterable[int]) -> None:
        """Forget what is known by these ids: the store gives them to other messages."""
        for id in ids:
            self.begin_anew(id)
            self._deaths.pop(id, None)

    def begin_anew(self, id: int) -> None:
        """Note that a message was redriven, replayed or forwarded: it has all its attempts again."""
        self._deliveries.tries.pop(id, None)
        self._spent.pop(id, None)
        # From here on the same failure is no repeat any more: the message was to be sent again.
        self._recorded = {what for what in self._recorded if what[1] != id}

    def check_end(self, message: Message, at: float) -> None:
        """Check the attempts that a closed message shows."""
        if message.attempts != self._spent[message.id]:
            text = f"{message.id} shows {message.attempts} attempts, and spent {self._spent[message.id]}"
            self._deliveries.report(Promise.MISCOUNTED, at, text)

    def check(self, relay_id: str, message: Message, failure: FailedOutcome, at: float) -> None:
        """Check a failure that a relay recorded against the answers that it got."""
        id = message.id
        if failure.waits is Waits.PARKED or failure.state is State.SKIPPED:
            return
        before, self._spent[id] = self._spent[id], failure.attempts
        what = (relay_id, id, failure.attempts, failure.state, failure.waits)
        if what in self._recorded:  # a repeat, whose first answer was lost
            return
        self._recorded.add(what)
        worth = self._answers.pop((relay_id, id), "nothing")
        if failure.waits is Waits.RETRY and worth == "nothing" and failure.attempts > before:
            self._deliveries.report(Promise.SPENT, at, f"{id} paid for a failure that nobody witnessed")
        elif failure.waits is not Waits.RETRY and not self._may_fail(worth, message, failure):
            text = f"{id} failed after {failure.attempts} attempts and {self._deaths[id]} deaths alone"
            self._deliveries.report(Promise.INNOCENT, at, f"{text}: {failure.error}")
        elif not self._is_counted(failure, before):
            text = (
                f"{id} has {failure.attempts} attempts after {before}, and was sent {self._deliveries.tries[id]} times"
            )
            self._deliveries.report(Promise.MISCOUNTED, at, text)

    def _is_counted(self, failure: FailedOutcome, before: int) -> bool:
        """Return whether a try that spends an attempt is one more than before, and any other none.

        A message that is given up for its deaths, or cannot be read, spends none with that.
        """
        fair = {before + failure.spends}
        if failure.waits is not Waits.RETRY and self._deaths[failure.message_id] >= self._lone_cap:
            fair.add(before)
        return failure.attempts in fair and failure.attempts <= self._deliveries.tries[failure.message_id]

    def note_attempts(self, id: int, attempts: int) -> None:
        """Note the attempts of a message that is closed for a reason which is not an answer."""
        self._spent[id] = attempts

    def _may_fail(self, worth: str, message: Message, failure: FailedOutcome) -> bool:
        most = self._attempts.get(message.destination)
        is_spent = worth == "witnessed" and most is not None and failure.attempts >= most
        return worth == "rejected" or is_spent or self._deaths[message.id] >= self._lone_cap
