"""Why an attempt was spent or a message failed: the destination's answers, relay by relay, and deaths in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Trouble
from simulation.faults import Breach
from simulation.ledger import Ledger

__all__ = ["Evidence"]


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

    def recorded(self, life: str, message: Message, trouble: Trouble, at: float) -> None:
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

    def _may_fail(self, worth: str, message: Message, trouble: Trouble) -> bool:
        most = self._attempts.get(message.destination)
        is_spent = worth == "witnessed" and most is not None and trouble.attempts >= most
        return worth == "rejected" or is_spent or self._deaths[message.id] >= self._lone_cap
