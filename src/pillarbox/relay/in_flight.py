"""Bookkeeping of the ordering: messages in flight with their claims, the queue of each key, hot keys, lanes. Pure."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from pillarbox.contracts.store import FailedOutcome, Settlement
from pillarbox.message import Message

__all__ = [
    "HotKeys",
    "Identity",
    "InFlight",
    "InFlightMessage",
    "KeyQueue",
    "LaneProgress",
    "Stage",
    "halve_settlement",
    "identify",
]

Identity: TypeAlias = tuple[int, UUID]
"""What tells a row from every other that a relay has met."""


def identify(message: Message) -> Identity:
    """Return the ids of a message's row and of the message.

    Neither is enough: a database that lost commits gives ids of rows out again, and a destination may have two rows of
    one message, its own and one that was forwarded as a dead letter.
    """
    return message.id, message.message_id


class Stage(IntEnum):
    """Progress of a message in flight."""

    WAITING = 0
    READY = 1
    SENT = 2
    DONE = 3
    """Its outcome is known, and is in no settlement yet."""
    SETTLING = 4
    """Its outcome is in the settlement that is being recorded, or was set aside."""


class InFlightMessage(msgspec.Struct, gc=False):
    """One message in flight. Without the garbage collector's header: there are thousands, and none is in a cycle."""

    message: Message
    claim: int = 0
    """Number of its claim; 0 until that is committed."""
    strikes: int = 0
    generation: int = 0
    """Generation of its lane when the message was read."""
    stage: Stage = Stage.WAITING


class InFlight:
    """Messages from the moment they are chosen to be claimed until their outcome is recorded.

    Keeps the size of every claim, so that a settlement can tell which claims it empties.
    """

    def __init__(self) -> None:
        self.entries: dict[int, InFlightMessage] = {}
        self.size = 0
        """Bytes of the payloads in flight."""
        self._claim_sizes: dict[int, int] = {}
        """Claim number to how many of its messages are still in flight."""
        self._delivered: list[int] = []
        self._failures: list[FailedOutcome] = []
        self._returned: list[int] = []
        self.aside: dict[int, Settlement] = {}
        """Message to its outcome, which the store refuses for good; without one, its claim was refused."""

    @property
    def moving(self) -> int:
        """How many messages are in flight and will leave by themselves."""
        return len(self.entries) - len(self.aside)

    @property
    def moving_size(self) -> int:
        """Bytes of the payloads of those messages."""
        if not self.aside:
            return self.size
        return self.size - sum(len(self.entries[message_id].message.payload) for message_id in self.aside)

    def in_lane(self, partition: int) -> list[InFlightMessage]:
        """Return the messages in flight of one lane."""
        return [entry for entry in self.entries.values() if entry.message.partition == partition]

    def find(self, message: Message) -> InFlightMessage | None:
        """Return the entry of a message; None if it left, even if its id was given to another message since."""
        entry = self.entries.get(message.id)
        if entry is None or entry.message is message or entry.message.message_id == message.message_id:
            return entry
        return None

    def find_settling(self, message_id: int) -> InFlightMessage | None:
        """Return the entry of a message in the settlement under way; None if it left, even if the id is back since.

        A lane that was lost meanwhile may be served again, and bring the same message, or another one under its id. The
        settlement tells nothing about that entry, which has a claim and perhaps an outcome of its own.
        """
        entry = self.entries.get(message_id)
        return entry if entry is not None and entry.stage is Stage.SETTLING else None

    def add(self, entry: InFlightMessage) -> None:
        """Note that a message is chosen to be claimed."""
        message = entry.message
        self.entries[message.id] = entry
        self.size += len(message.payload)

    # --- claims ---

    def assign_claim(self, number: int, entries: Collection[InFlightMessage], *, strikes: int) -> None:
        """Note that these messages are recorded under one claim."""
        self._claim_sizes[number] = len(entries)
        for entry in entries:
            entry.claim = number
        for entry in entries if strikes else ():
            entry.strikes = max(entry.strikes, strikes)

    def reassign_claim(self, entries: Collection[InFlightMessage], number: int) -> Settlement:
        """Move messages to a claim of their own; return the settlement that takes them out of their old ones."""
        old = Counter([entry.claim for entry in entries])
        left = {claim: self._shrink_claim(claim, count) for claim, count in old.items()}
        self.assign_claim(number, entries, strikes=0)
        return Settlement(
            returned=[entry.message.id for entry in entries],
            finished=[claim for claim, count in left.items() if not count],
            touched=[claim for claim, count in left.items() if count],
        )

    def _shrink_claim(self, number: int, by: int = 1) -> int:
        left = self._claim_sizes[number] = self._claim_sizes[number] - by
        if not left:
            del self._claim_sizes[number]
        return left

    # --- outcomes ---

    def add_delivered(self, message_ids: Iterable[int]) -> None:
        """Queue deliveries to be recorded. The caller has marked the entries as done."""
        self._delivered.extend(message_ids)

    def add_failure(self, entry: InFlightMessage, failure: FailedOutcome) -> None:
        """Queue a failure, or a wait, to be recorded."""
        entry.stage = Stage.DONE
        self._failures.append(failure)

    def add_return(self, entry: InFlightMessage) -> None:
        """Queue a message to leave its claim unchanged."""
        entry.stage = Stage.DONE
        self._returned.append(entry.message.id)

    @property
    def has_outcomes(self) -> bool:
        return bool(self._delivered or self._failures or self._returned)

    def next_settlement(self, limit: int) -> tuple[Settlement, set[int]]:
        """Take the next outcomes to record: at most `limit` deliveries, and all the rest. With the lanes concerned."""
        delivered, self._delivered = self._delivered[:limit], self._delivered[limit:]
        failures, self._failures = self._failures, []
        returned, self._returned = self._returned, []
        return self._build_settlement(delivered, failures, returned)

    def rebuild_settlement(self, part: Settlement) -> tuple[Settlement, set[int]]:
        """Build the settlement of some outcomes anew, as claims and lanes are now. What left meanwhile is left out."""
        return self._build_settlement(*self._list_settling(part))

    def _list_settling(self, settlement: Settlement) -> tuple[list[int], list[FailedOutcome], list[int]]:
        """List the outcomes of a settlement whose messages have not left since: delivered, failures, returned."""
        is_settling = self.find_settling
        return (
            [i for i in settlement.delivered if is_settling(i)],
            [failure for failure in settlement.failures if is_settling(failure.message_id)],
            [i for i in settlement.returned if is_settling(i)],
        )

    def _build_settlement(
        self, delivered: list[int], failures: list[FailedOutcome], returned: list[int]
    ) -> tuple[Settlement, set[int]]:
        entries = [self.entries[i] for i in (*delivered, *(failure.message_id for failure in failures), *returned)]
        for entry in entries:
            entry.stage = Stage.SETTLING
        leaving = Counter([entry.claim for entry in entries])
        lanes = {entry.message.partition for entry in entries}
        finished = [number for number, count in leaving.items() if count >= self._claim_sizes[number]]
        touched = [number for number, count in leaving.items() if count < self._claim_sizes[number]]
        message_ids = {entry.message.id: entry.message.message_id for entry in entries}
        settlement = Settlement(
            delivered=delivered, failures=failures, returned=returned, finished=finished, touched=touched,
            message_ids=message_ids,
        )  # fmt: skip
        return settlement, lanes

    def restore_outcomes(self, settlement: Settlement) -> None:
        """Queue the outcomes of a settlement that was not recorded again, before all others."""
        delivered, failures, returned = self._list_settling(settlement)
        for message_id in (*delivered, *(failure.message_id for failure in failures), *returned):
            self.entries[message_id].stage = Stage.DONE
        self._delivered = delivered + self._delivered
        self._failures = failures + self._failures
        self._returned = returned + self._returned

    # --- leaving ---

    def release(self, message_id: int) -> InFlightMessage | None:
        """Forget one message: its outcome is recorded, or another relay owns it."""
        entry = self.entries.pop(message_id, None)
        if entry is not None:
            self.size -= len(entry.message.payload)
            if entry.claim:
                self._shrink_claim(entry.claim)
        return entry

    def release_settled(self, message_ids: Iterable[int]) -> list[InFlightMessage]:
        """Forget many messages of the settlement under way at once; return those that had not left before."""
        find, pop = self.find_settling, self.entries.pop
        entries = [pop(message_id) for message_id in message_ids if find(message_id)]
        self.size -= sum([len(entry.message.payload) for entry in entries])
        for number, count in Counter([entry.claim for entry in entries]).items():
            if number:
                self._shrink_claim(number, count)
        return entries

    def drop(self, chosen: Callable[[Message], bool]) -> None:
        """Forget messages that another relay owns, with their outcomes."""
        gone = {message_id for message_id, entry in self.entries.items() if chosen(entry.message)}
        self._delivered = [i for i in self._delivered if i not in gone]
        self._returned = [i for i in self._returned if i not in gone]
        self._failures = [f for f in self._failures if f.message_id not in gone]
        for message_id in gone:
            self.aside.pop(message_id, None)
            self.release(message_id)


def halve_settlement(settlement: Settlement) -> list[Settlement]:
    """Split the outcomes of a settlement into two halves. One outcome cannot be split: it comes alone."""
    outcomes: list[tuple[str, int | FailedOutcome]] = [
        *(("delivered", message_id) for message_id in settlement.delivered),
        *(("failures", failure) for failure in settlement.failures),
        *(("returned", message_id) for message_id in settlement.returned),
    ]
    middle = (len(outcomes) + 1) // 2
    return [_collect_outcomes(half) for half in (outcomes[:middle], outcomes[middle:]) if half]


def _collect_outcomes(outcomes: Iterable[tuple[str, int | FailedOutcome]]) -> Settlement:
    lists: dict[str, list[Any]] = {"delivered": [], "failures": [], "returned": []}
    for name, outcome in outcomes:
        lists[name].append(outcome)
    return Settlement(delivered=lists["delivered"], failures=lists["failures"], returned=lists["returned"])


class KeyQueue(msgspec.Struct, gc=False, eq=False):
    """The messages of one key: a run of them is being sent, often of one, and the others in flight follow in id order.

    The key is blocked while the table holds a `retry`, `parked` or `held` message of it that is not in flight. The
    waiting messages of a blocked key are read only while the queue is quiet. Between such a read and its result nothing
    changes then, except that more messages may be parked.
    """

    partition: int
    current: int | None = None
    """The message that is being sent, or chosen to be next: the first of the run."""
    run: list[int] = []
    """The others that were sent with it, by id."""
    behind: list[int] = []
    """The others in flight, by id."""
    single_to: int = 0
    """Messages up to this id are in no run: they were in one that was not acknowledged to its end."""
    size: int = 0
    """Bytes of the payloads in flight."""
    unsettled: int = 0
    """How many left the queue with an outcome that is not recorded yet."""
    stopped: bool = False
    """One of those was not acknowledged: nothing may be sent until that is recorded durably."""
    blocked: bool = False
    front: int | None = None
    """The first waiting message in the table; None while it is not known."""
    due: set[int] = set()
    """Waiting messages whose time has come."""
    reading: bool = False
    """More of the key is being read from the table."""
    parking: int = 0
    """Parks that are decided and not yet committed."""
    parked_from: float = math.inf
    """The lowest id that was parked since the last read of the waiting messages began: that read may lack it."""
    loaded_to: int | None = None
    """Set for a hot key: its fresh messages above this id, the remainder, were left in the table."""
    remainder_first: bool = False
    """The next waiting message stands in the remainder, which must be read up to it first."""

    # --- in flight ---

    def add(self, message: Message) -> None:
        """Queue a message behind the current one, in id order."""
        message_id = message.id
        self.size += len(message.payload)
        if not self.behind or message_id > self.behind[-1]:
            self.behind.append(message_id)
        else:
            insort(self.behind, message_id)

    def remove(self, message: Message) -> None:
        """Take a message out of the queue that has an outcome to be recorded."""
        message_id = message.id
        self.size -= len(message.payload)
        self.unsettled += 1
        if self.current == message_id:
            self.current = self.run.pop(0) if self.run else None
        elif message_id in self.run:
            self.run.remove(message_id)
        else:
            self.behind.remove(message_id)
        if self.blocked:
            self.due.discard(message_id)
            if self.front == message_id:
                self.front = None

    def forget(self, message: Message) -> None:
        """Take a message out of the queue that has no outcome to record."""
        self.remove(message)
        self.unsettled -= 1

    def extend_run(self, length: int) -> None:
        """Note that so many more messages are sent with the current one."""
        self.run, self.behind = self.behind[:length], self.behind[length:]

    def end_run(self, *, after: int) -> list[int]:
        """Queue the messages of the run with a higher id again, as if they had not been sent; return them."""
        if self.current is None:
            return []
        run = [self.current, *self.run]
        rest = [message_id for message_id in run if message_id > after]
        if rest:
            sent = run[: -len(rest)]
            self.current, self.run = (sent[0], sent[1:]) if sent else (None, [])
            self.behind = sorted([*rest, *self.behind])
        return rest

    def may_send(self, message_id: int) -> bool:
        """Return whether no known waiting message comes before this one."""
        return self.front is None or message_id <= self.front

    # --- in the table ---

    def park(self, message_id: int) -> None:
        """Note that a message of the key is to be parked."""
        self.blocked = True
        self.parking += 1
        self.parked_from = min(self.parked_from, message_id)

    def mark_due(self, message_id: int) -> bool:
        """Note that a waiting message is due; return whether it is known to be the first of the waiting ones."""
        self.blocked = True
        self.due.add(message_id)
        return self.is_quiet and self.front is not None and message_id <= self.front

    def begin_read(self) -> None:
        """Start a read of the waiting messages: it finds the first of them."""
        self.reading = True
        self.front = None
        self.parked_from = math.inf

    def unblock(self) -> None:
        """Note that the table holds nothing of the key but what is in flight."""
        self.blocked, self.front = False, None
        self.due.clear()

    def is_in_remainder(self, message_id: int) -> bool:
        """Return whether this message, or one before it, was left in the table unread."""
        return self.loaded_to is not None and message_id > self.loaded_to

    @property
    def has_unread_parks(self) -> bool:
        """Something was parked that the last read could not see."""
        return self.parking > 0 or self.parked_from < math.inf

    @property
    def is_quiet(self) -> bool:
        """Nothing of the key is in flight or being read."""
        return not (self.current is not None or self.behind or self.unsettled or self.reading)

    @property
    def needs_read(self) -> bool:
        """The next messages of the key wait in the table, and no known one must come before them."""
        is_open = self.front is None or self.front in self.due
        return self.blocked and is_open and not self.parking and not self.remainder_first and self.is_quiet

    @property
    def can_load_remainder(self) -> bool:
        """The next messages of this hot key are in the remainder."""
        return (not self.blocked or self.remainder_first) and not self.parking and self.is_quiet

    @property
    def is_forgettable(self) -> bool:
        """Nothing is left to remember about the key."""
        return not (self.blocked or self.parking or self.loaded_to is not None) and self.is_quiet


class HotKeys:
    """Keys of which a share is in flight, while the remainder stays in the table, unread and unchanged."""

    def __init__(self) -> None:
        self._queues: dict[str, KeyQueue] = {}

    @property
    def names(self) -> list[str]:
        return list(self._queues)

    def items(self) -> list[tuple[str, KeyQueue]]:
        return list(self._queues.items())

    def add(self, key: str, queue: KeyQueue, *, loaded_to: int) -> None:
        """Leave everything of the key above that id in the table."""
        queue.loaded_to = loaded_to
        self._queues[key] = queue

    def remove(self, key: str) -> None:
        """Note that nothing of the key is left behind the reads of its lane any more."""
        queue = self._queues.pop(key)
        queue.loaded_to, queue.remainder_first = None, False

    def remove_lanes(self, partitions: Collection[int]) -> list[tuple[str, KeyQueue]]:
        """Remove and return the hot keys of these lanes."""
        removed = [(key, queue) for key, queue in self._queues.items() if queue.partition in partitions]
        for key, _ in removed:
            self.remove(key)
        return removed


class LaneProgress(msgspec.Struct):
    """Reading progress of one lane."""

    generation: int
    """Changes whenever something returns to the lane. A claim of an older generation returns too."""
    must_restart: bool = True
    """The next read begins at the start of the lane."""
    suspended: bool = True
    """Nothing of the lane is taken before that read."""
    returning: int = 0
    """How many of its messages are on their way back to the table. It cannot be read from its start before."""
    read_to: float = 0
    """The id up to which all fresh messages are known. A waiting message above it is not taken yet."""
    unread_keys: dict[str, None] = {}
    """Keys whose first waiting message stands above `read_to`: they are read again after the next read of the lane."""
    mark: int = 0
    """The low mark of the last read. No further read returns what was left of a hot key below it."""
