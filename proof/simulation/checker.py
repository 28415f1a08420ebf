"""What truly happened, written down by the world itself. Relays never see it, and it knows nothing of how they work."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from pillarbox.contracts.store import FailedOutcome
from pillarbox.message import Message, State, Waits

__all__ = ["Breach", "Evidence", "Fault", "Ledger"]


class Breach(StrEnum):
    """Which promise was broken."""

    LOST = "lost"
    """Committed, and at the end neither delivered nor visible as failed, skipped or discarded."""
    GHOST = "ghost"
    """Delivered, and never committed, or not yet, or not for that destination."""
    OUT_OF_ORDER = "out of order"
    """Taken for the first time while an earlier message of its key was still to come."""
    SPENT = "attempt spent"
    """An attempt was spent without a sign that the destination works."""
    INNOCENT = "innocent failed"
    """Failed, and neither rejected, nor out of attempts, nor deadly often enough."""
    FENCE = "written after takeover"
    """Recorded in a lane that belonged to another relay."""
    OVERRUN = "sent after lease"
    """Sending went on when the lease had ended."""
    STARVED = "lease lost"
    """A lease ran out, or a write was refused, while nothing was wrong."""
    STUCK = "stuck"
    """Still open long after everything was well again."""
    CRASHED = "relay crashed"
    """A relay ended by an error of its own, or spun."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken promise: which, when, and what a person needs to know."""

    breach: Breach
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.breach.value}, {self.at:.3f} s: {self.text}"


@dataclass(slots=True)
class Row:
    """A committed message, as its writer knows it."""

    id: int
    key: str | None
    destinations: list[str]
    """Where it belongs; the last is where it belongs now, those before it are where it was taken from."""


@dataclass
class Ledger:
    """Facts by message id, and the faults that show at once."""

    rows: dict[int, Row] = field(default_factory=dict)
    taken: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Destination and message to how often the destination took it."""
    faults: list[Fault] = field(default_factory=list)
    purged: set[int] = field(default_factory=set)
    """Closed messages that the janitor removed."""
    seen: Counter[str] = field(default_factory=Counter)
    """What came to pass, so that a test can tell whether a rare thing ever did."""
    duplicates: int = 0
    _owed: dict[tuple[str, str], dict[int, None]] = field(default_factory=lambda: defaultdict(dict))
    """Destination and key to the messages that must come before all later ones."""
    _free: set[int] = field(default_factory=set)
    """What a writer or a person let depart from the order."""

    def fault(self, breach: Breach, at: float, text: str) -> None:
        """A promise was broken."""
        self.faults.append(Fault(breach, at, text))

    # --- writers and people ---

    def committed(self, messages: Iterable[Message]) -> None:
        """A transaction committed these."""
        for message in messages:
            self.rows[message.id] = Row(message.id, message.key, [message.destination])
            if message.available_at is not None or message.key is None:
                self._free.add(message.id)
            else:
                self._owed[message.destination, message.key][message.id] = None

    def freed(self, id: int) -> None:
        """From now on nothing of its key has to wait for it, nor it for anything."""
        self._free.add(id)
        self.closed(id)

    def closed(self, id: int) -> None:
        """Recorded as failed, skipped or discarded: its key may go on."""
        row = self.rows.get(id)
        if row is not None and row.key is not None:
            self._owed[row.destinations[0], row.key].pop(id, None)

    def moved(self, id: int, destination: str) -> None:
        """It goes to another destination, out of its place."""
        self.freed(id)
        self.rows[id].destinations.append(destination)

    # --- destinations ---

    def took(self, destination: str, message: Message, at: float) -> None:
        """The destination has it now, whether or not anybody hears of that."""
        row = self.rows.get(message.id)
        if row is None or destination not in row.destinations:
            self.fault(Breach.GHOST, at, f"{destination} got {message.id}, which was not committed for it")
            return
        self.taken[destination, row.id] += 1
        if self.taken[destination, row.id] > 1:
            self.duplicates += 1
        elif row.key is not None:
            self._in_order(destination, row, row.key, at)

    def _in_order(self, destination: str, row: Row, key: str, at: float) -> None:
        owed = self._owed[destination, key]
        owed.pop(row.id, None)
        if row.id not in self._free and (earlier := [id for id in owed if id < row.id]):
            self.fault(Breach.OUT_OF_ORDER, at, f"{destination} got {row.id} of {key} before {earlier}")


class Evidence:
    """Decides for itself what a relay's answers allowed it to record.

    A `life` is one relay under one id. The witness of a failure: another message that this life heard acknowledged
    since the failing one's previous attempt began, or this attempt, if it was the first.
    """

    def __init__(self, ledger: Ledger, *, attempts: dict[str, int | None], lone_cap: int) -> None:
        self._ledger = ledger
        self._attempts = attempts
        self._lone_cap = lone_cap
        self._acks: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        self._began: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        self._answers: dict[tuple[str, int], str] = {}
        """Life and message to what its last unrecorded answer was worth: rejected, witnessed, or nothing."""
        self._recorded: set[tuple[str, int, int, State, Waits | None]] = set()
        self._deaths: dict[int, int] = defaultdict(int)
        """Message to how often a relay, or its own connection, died with it alone in hand."""

    # --- what the wire sees ---

    def began(self, life: str, destination: str, messages: Iterable[Message], at: float) -> None:
        """A relay gave these to the destination."""
        for message in messages:
            self._began[life, destination, message.id].append(at)

    def acknowledged(self, life: str, destination: str, id: int, at: float) -> None:
        """The relay heard that the destination has it."""
        self._acks[life, destination].append((at, id))
        self._began.pop((life, destination, id), None)

    def refused(self, life: str, destination: str, id: int, *, rejected: bool = False) -> None:
        """The relay heard no, or gave up waiting."""
        worth = "rejected" if rejected else "witnessed" if self._is_witnessed(life, destination, id) else "nothing"
        self._answers[life, id] = worth

    def _is_witnessed(self, life: str, destination: str, id: int) -> bool:
        since = self._began[life, destination, id][-2:][0]
        return any(at >= since and other != id for at, other in self._acks[life, destination])

    def died_alone(self, id: int) -> None:
        """A relay or a connection ended with this message, and no other, in hand."""
        self._deaths[id] += 1

    # --- what the store sees ---

    def recorded(self, life: str, message: Message, trouble: FailedOutcome, at: float) -> None:
        """A relay recorded that a message was not delivered."""
        what = (life, message.id, trouble.attempts, trouble.state, trouble.waits)
        if trouble.waits is Waits.PARKED or trouble.state is State.SKIPPED or what in self._recorded:
            return
        self._recorded.add(what)
        worth = self._answers.pop((life, message.id), "nothing")
        if trouble.waits is Waits.RETRY:
            if worth == "nothing":
                self._ledger.fault(Breach.SPENT, at, f"{message.id} paid for a failure that nobody witnessed")
        elif not self._may_fail(worth, message, trouble):
            text = f"{message.id} failed after {trouble.attempts} attempts and {self._deaths[message.id]} deaths alone"
            self._ledger.fault(Breach.INNOCENT, at, f"{text}: {trouble.error}")

    def _may_fail(self, worth: str, message: Message, trouble: FailedOutcome) -> bool:
        most = self._attempts.get(message.destination)
        is_spent = worth == "witnessed" and most is not None and trouble.attempts >= most
        return worth == "rejected" or is_spent or self._deaths[message.id] >= self._lone_cap
