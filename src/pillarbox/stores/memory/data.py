"""What a memory store keeps, and what its parts stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from pillarbox.clock import Clock
from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Claim, Entry, Pause, RelayInfo
from pillarbox.stores.keeping import Keep
from pillarbox.stores.memory.rows import OpenRows
from pillarbox.stores.memory.visibility import Transactions

__all__ = ["InboxKey", "InboxRow", "LaneRow", "MemoryData", "Parts"]

InboxKey = tuple[str, str, str]
"""Consumer, source, message id."""


class LaneRow(msgspec.Struct, frozen=True):
    """Who owns a lane, and for the how manieth time it changed hands."""

    owner: UUID | None = None
    epoch: int = 0


class InboxRow(msgspec.Struct, frozen=True):
    """What a consumer knows of a message."""

    status: Literal["started", "done", "failed"]
    status_at: datetime
    attempts: int = 0
    duplicates: int = 0
    last_error: str | None = None
    message: bytes | None = None


class MemoryData:
    """The tables. Several `MemoryStore`s over one of these are several connections to one database."""

    def __init__(self) -> None:
        self.open = OpenRows()
        self.history: dict[int, Message] = {}
        self.claims: dict[tuple[UUID, int], Claim] = {}
        self.claimed_at: dict[tuple[UUID, int], datetime] = {}
        self.lanes: dict[tuple[str, int], LaneRow] = {}
        self.relays: dict[UUID, RelayInfo] = {}
        self.pauses: dict[str, Pause] = {}
        self.journal: list[Entry] = []
        self.inbox: dict[InboxKey, InboxRow] = {}
        self.transactions = Transactions()
        self.wakes: list[Callable[[], None]] = []
        """Whom to wake after a commit."""

    def claimed(self) -> set[int]:
        """The ids in any relay's hands."""
        return {id for claim in self.claims.values() for id in claim.message_ids}

    def messages(self) -> Iterator[Message]:
        """Every message with the state people see, by id."""
        claimed = self.claimed()
        for id in sorted([*self.open.ids(), *self.history]):
            row = self.open.get(id)
            yield self.history[id] if row is None else _seen(row, claimed)

    def keep(self, message: Message) -> None:
        """Write a message where its state belongs: closed ones into history, all others among the open."""
        self.open.drop(message.id)
        self.history.pop(message.id, None)
        if message.state.is_closed:
            self.history[message.id] = message
        else:
            self.open.put(message)

    def take_out(self, relay_id: UUID, number: int, ids: set[int]) -> None:
        """Take ids out of a claim; one with nothing left in it goes."""
        claim = self.claims.get((relay_id, number))
        if claim is None:
            return
        left = [id for id in claim.message_ids if id not in ids]
        if left:
            self.claims[relay_id, number] = Claim(number, left, claim.strikes)
        else:
            del self.claims[relay_id, number]


def _seen(row: Message, claimed: set[int]) -> Message:
    if row.waits is Waits.HELD:
        return msgspec.structs.replace(row, state=State.FAILED)
    return msgspec.structs.replace(row, state=State.SENDING) if row.id in claimed else row


class Parts:
    """The tables, the clock and the connection: what each part of the store stands on."""

    _data: MemoryData
    _clock: Clock
    _keep: Keep
    _session: object
