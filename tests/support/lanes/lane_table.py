"""A store in memory, as far as the ordering core can tell one: rows, claims, owners of lanes, and a clock of steps.

Ids are drawn before they become visible, as on PostgreSQL; writers of one key wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from pillarbox.contracts.store import (
    BlockedKey,
    Claim,
    Cursor,
    DueMark,
    DueMessage,
    FailedOutcome,
    KeyMessages,
    ReadResult,
    RecoveredClaim,
    Settlement,
)
from pillarbox.errors import Fenced
from pillarbox.message import Kind, Message, State, Waits

__all__ = ["LANES", "Epochs", "Table", "row"]

LANES = 3
BLOCKED = (Waits.RETRY, Waits.PARKED, Waits.HELD)
Epochs = Mapping[int, int]
_HAPPENED = datetime(2026, 1, 1, tzinfo=UTC)


def row(
    number: int,
    key: str | None = None,
    *,
    lane: int = 0,
    waits: Waits | None = None,
    attempts: int = 0,
    payload: bytes = b"",
) -> Message:
    """A message as the core sees it: only id, lane, key, size and what it waits for matter there."""
    return Message(
        number, UUID(int=number), "d", lane, Kind.EVENT, "t", "t", key, payload, "", {}, "/", None, "c", None,
        _HAPPENED, waits=waits, attempts=attempts,
    )  # fmt: skip


@dataclass
class Table:
    """What is committed, and what is drawn but not yet."""

    rows: dict[int, Message] = field(default_factory=dict)
    drawn: dict[int, Message] = field(default_factory=dict)
    due_at: dict[int, int] = field(default_factory=dict)
    claims: dict[tuple[str, int], Claim] = field(default_factory=dict)
    owners: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Lane to owner and epoch."""
    closed: dict[int, State] = field(default_factory=dict)
    parkings: dict[int, int] = field(default_factory=dict)
    """Message to how often it became parked."""
    now: int = 0
    last_id: int = 0

    # --- writing ---

    def draw(self, key: str | None, *, lane: int, delay: int | None = None) -> int:
        """An id in a transaction that is still open."""
        self.last_id += 1
        waits = None if delay is None else Waits.DEFERRED
        self.drawn[self.last_id] = row(self.last_id, key, lane=lane, waits=waits)
        if delay is not None:
            self.due_at[self.last_id] = self.now + delay
        return self.last_id

    def commit(self, number: int) -> None:
        self.rows[number] = self.drawn.pop(number)

    # --- reading ---

    def read(self, partitions: Sequence[int], cursor: Cursor | None, limit: int) -> ReadResult:
        """Fresh rows above the marks, `limit` of each lane, and those below that the previous read could not see.

        Of the keys to skip no fresh ones come, and a lane's mark passes them.
        """
        cursor = cursor or Cursor()
        unseen = cursor.snapshot if isinstance(cursor.snapshot, frozenset) else frozenset()
        found: list[Message] = []
        low, complete = {}, set()
        for lane in partitions:
            mark = cursor.low.get(lane, 0)
            above = [m for m in self._fresh(lane) if m.id > mark]
            fresh = [m for m in above if m.key not in cursor.skip]
            late = [m for m in self._fresh(lane) if m.id <= mark and m.id in unseen]
            found += fresh[:limit] + late
            low[lane] = max([mark, *(m.id for m in fresh[:limit])])
            if len(fresh) < limit:
                complete.add(lane)
                low[lane] = max([low[lane], *(m.id for m in above)])
        return ReadResult(sorted(found, key=_by_id), Cursor(low, frozenset(self.drawn)), frozenset(complete))

    def find_due(self, partitions: Sequence[int], *, after: DueMark | None, limit: int) -> list[DueMessage]:
        due = [
            DueMessage(
                m.id, m.partition, m.key, m.waits, _HAPPENED + timedelta(seconds=self.due_at[m.id]), len(m.payload)
            )
            for m in self._open(partitions, (Waits.RETRY, Waits.DEFERRED))
            if self.due_at[m.id] <= self.now and m.waits is not None
        ]
        return [m for m in sorted(due, key=lambda m: m.mark) if after is None or m.mark > after][:limit]

    def read_due(self, ids: Collection[int]) -> list[Message]:
        rows = [self.rows[id_] for id_ in sorted(ids) if id_ in self.rows]
        return [m for m in rows if m.waits in (Waits.RETRY, Waits.DEFERRED) and self.due_at[m.id] <= self.now]

    def read_key(self, lane: int, key: str, *, limit: int) -> KeyMessages:
        waiting = [m for m in self._open([lane], BLOCKED) if m.key == key]
        return KeyMessages(waiting[:limit], complete=len(waiting) < limit)

    def blocked_keys(self, partitions: Iterable[int]) -> list[BlockedKey]:
        fronts: dict[str, Message] = {}
        for message in self._open(partitions, BLOCKED):
            if message.key is not None:
                fronts.setdefault(message.key, message)
        return [BlockedKey(m.partition, key, m.waits) for key, m in fronts.items() if m.waits is not None]

    def _fresh(self, lane: int) -> list[Message]:
        return self._open([lane], (None,))

    def _open(self, partitions: Iterable[int], waits: Sequence[Waits | None]) -> list[Message]:
        lanes = set(partitions)
        return [m for _, m in sorted(self.rows.items()) if m.partition in lanes and m.waits in waits]

    # --- behind a fence ---

    def claim(self, relay: str, epochs: Epochs, claim: Claim, *, park: Iterable[int] = ()) -> None:
        self._check(relay, epochs)
        if claim.message_ids:
            self.claims.setdefault((relay, claim.number), claim)
        for number in park:
            if number in self.rows and self.rows[number].waits in (None, Waits.DEFERRED):
                self._wait(number, Waits.PARKED)

    def settle(self, relay: str, epochs: Epochs, settlement: Settlement) -> None:
        self._check(relay, epochs)
        for number in settlement.delivered:
            self._close(number, State.DELIVERED)
        for trouble in settlement.failures:
            self._trouble(trouble)
        for number in settlement.finished:
            self.claims.pop((relay, number), None)
        gone = {*settlement.delivered, *(t.message_id for t in settlement.failures), *settlement.returned}
        for number in settlement.touched:
            self._lessen((relay, number), gone)

    def _check(self, relay: str, epochs: Epochs) -> None:
        if lost := [lane for lane, epoch in epochs.items() if self.owners.get(lane) != (relay, epoch)]:
            raise Fenced("d", lost)

    def _trouble(self, trouble: FailedOutcome) -> None:
        if trouble.message_id not in self.rows:
            return
        if trouble.waits is None:
            self._close(trouble.message_id, trouble.state)
            return
        message = self.rows[trouble.message_id]
        self.rows[message.id] = msgspec.structs.replace(message, attempts=trouble.attempts)
        self._wait(message.id, trouble.waits)
        if trouble.delay is not None:
            self.due_at[message.id] = self.now + int(trouble.delay.total_seconds())

    def _wait(self, number: int, waits: Waits) -> None:
        if waits is Waits.PARKED is not self.rows[number].waits:
            self.parkings[number] = self.parkings.get(number, 0) + 1
        self.rows[number] = msgspec.structs.replace(self.rows[number], waits=waits)

    def _close(self, number: int, state: State) -> None:
        if self.rows.pop(number, None) is not None:
            self.closed[number] = state

    def _lessen(self, which: tuple[str, int], gone: Collection[int]) -> None:
        if (claim := self.claims.pop(which, None)) is None:
            return
        if left := [number for number in claim.message_ids if number not in gone]:
            self.claims[which] = Claim(claim.number, left, claim.strikes)

    # --- lanes ---

    def take(self, relay: str, lane: int, *, number: int) -> tuple[int, list[RecoveredClaim]]:
        """A free lane, its new epoch, and what its dead owner had in hand of it."""
        before, epoch = self.owners.get(lane, ("", 0))
        self.owners[lane] = (relay, epoch + 1)
        strikes: dict[int, int] = {}
        for which, claim in [(w, c) for w, c in self.claims.items() if w[0] == before]:
            mine = [i for i in claim.message_ids if i in self.rows and self.rows[i].partition == lane]
            strikes.update({i: max(strikes.get(i, 0), claim.strikes + 1) for i in mine})
            self._lessen(which, [*mine, *(i for i in claim.message_ids if i not in self.rows)])
        groups: dict[int, list[Message]] = {}
        for message_id, struck in sorted(strikes.items()):
            groups.setdefault(struck, []).append(self.rows[message_id])
        return epoch + 1, [self._inherited(relay, number + i, *group) for i, group in enumerate(groups.items())]

    def _inherited(self, relay: str, number: int, strikes: int, messages: list[Message]) -> RecoveredClaim:
        claim = Claim(number, [message.id for message in messages], strikes)
        self.claims[relay, number] = claim
        return RecoveredClaim(claim, messages)

    def release(self, relay: str, epochs: Epochs) -> None:
        lanes = [lane for lane, epoch in epochs.items() if self.owners.get(lane) == (relay, epoch)]
        for lane in lanes:
            self.owners[lane] = ("", self.owners[lane][1])
        there = {number for number, message in self.rows.items() if message.partition in lanes}
        for which in [which for which in self.claims if which[0] == relay]:
            self._lessen(which, there)

    # --- people ---

    def redrive_held(self, number: int) -> None:
        """A held message goes again."""
        self.due_at[number] = self.now
        self._wait(number, Waits.RETRY)

    def discard(self, number: int) -> None:
        self._close(number, State.DISCARDED)

    def defer(self, number: int, *, until: int) -> None:
        """A person lets a fresh message wait, and its key with it."""
        self.due_at[number] = until
        self._wait(number, Waits.RETRY)

    @property
    def claimed(self) -> set[int]:
        return {number for claim in self.claims.values() for number in claim.message_ids}


def _by_id(message: Message) -> int:
    return message.id
