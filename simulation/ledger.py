"""What truly happened, written down by the world itself. Relays never see it, and it knows nothing of how they work."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pillarbox.message import Message
from simulation.faults import Breach, Fault

__all__ = ["Ledger", "Row"]


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
