"""Order of one destination's messages: what to claim, park, send and settle next. Pure: no I/O, no clock.

The relay reads rows, sends messages and writes to the store; `LaneOrdering` decides. It promises:

- Messages of one key are sent for the first time in id order, one send at a time. Messages without a key are free.
- A send has one message of a key, or a *run* of several where the transport promises that the broker takes a run from
  its beginning and stops at the first message that it does not acknowledge.
- Nothing is sent before its claim is committed.
- After an acknowledgement the next message of the key goes at once. After any other outcome it goes only when that
  outcome is recorded durably.
- What follows a message that was not acknowledged in its run was not tried. It waits behind that one, as if the run had
  ended there.
- A key has at most its share of the window, in messages and in bytes, so that no key starves the others.

How messages come in:

- *Fresh* messages are read above the mark of their lane. *Late* ones were committed after the mark had passed them; the
  store returns both in one read, in id order, and both are treated alike. Ids already in flight are ignored.
- *Due* messages waited for a retry or were deferred, and their time has come.
- A key is *blocked* while the table holds a `retry`, `parked` or `held` message of it that is not in flight. A later
  message of a blocked key is *parked* once, when it is read. As soon as nothing of the key is in flight, its waiting
  messages are read by key and taken in id order, up to the first that must go on waiting: the *front*, which is held
  or whose retry is not due. A message above what was read of its lane is not taken yet, because a fresh one of its key
  may still come before it.
- A key that fills its share is *hot*. If the store can skip keys while reading, the rest stays in the table as it is:
  reads skip the key, and this *remainder* is read in shares whenever the key has nothing else to do. Otherwise the rest
  is parked.

How messages go back:

- When the destination is down or a lane is handed over, unsent messages return to the table unchanged, with all that is
  queued behind them. Their lane is *suspended*: nothing new of it is taken until it is read from its start. It also
  begins a new *generation*, and a claim of an older one returns as soon as it commits. So nothing overtakes what went
  back.
- A message that was being sent when a relay or its connection died gets a *strike*. From `SUSPECT_STRIKES` on it is a
  *suspect*. Suspects are sent in groups under a claim of their own, and each strike makes the group smaller, down to
  one: so the message that kills relays is found in a few steps, and its neighbours go on.

A run has only messages that were never tried, have no strikes, can be read, and go to one address. If a failure ends
it early, the rest of it goes one at a time: a broker that answers for a run as a whole does not say who is at fault.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.contracts.store import NO_BYTE_LIMIT, DueMessage, FailedOutcome, KeyMessages, ReadResult, Settlement
from pillarbox.message import Message, State, Waits
from pillarbox.relay.in_flight import (
    HotKeys,
    Identity,
    InFlight,
    InFlightMessage,
    KeyQueue,
    LaneProgress,
    Stage,
    identify,
)
from pillarbox.stores.rules import cut_by_bytes

__all__ = ["LONE_STRIKES", "SUSPECT_STRIKES", "HotKeyRemainder", "KeyRead", "LaneOrdering", "ReadDecision"]

SUSPECT_STRIKES: Final = 2
"""From this many strikes on, a message is a suspect."""
_GROUP_SIZES: Final = (256, 32, 4, 1)
"""Most suspects in a group, by their strikes from `SUSPECT_STRIKES` on.

Eighths, not halves: every step may cost the death of a relay, and a restart, while a smaller group costs one write.
"""
LONE_STRIKES: Final = SUSPECT_STRIKES + len(_GROUP_SIZES) - 1
"""From this many strikes on, a suspect is sent alone. Only strikes above this are evidence against it."""
_RUN_BYTES: Final = 1024 * 1024
"""Most bytes of the payloads of a run. It may have to fit into one request, or into one transaction of the broker."""

# Looking a member up on its enum costs more than the comparison, and these are looked up for every message.
_WAITING: Final = Stage.WAITING
_READY: Final = Stage.READY
_SENT: Final = Stage.SENT
_DONE: Final = Stage.DONE


class ReadDecision(msgspec.Struct, frozen=True):
    """The messages of one read to claim, and those to park. All others are left alone."""

    take: Sequence[Message]
    park: Sequence[Message] = ()


class KeyRead(msgspec.Struct, frozen=True):
    """A read to make: the waiting messages of one key."""

    key: str
    partition: int


class HotKeyRemainder(msgspec.Struct, frozen=True):
    """A read to make: the lane of a hot key, above the id up to which the key was loaded."""

    key: str
    partition: int
    after: int
    max_bytes: int = NO_BYTE_LIMIT


class LaneOrdering:
    """Order, parking and bookkeeping for one destination's lanes in one relay.

    Calls come in pairs. What `begin_…` or `next_…` hands out comes back by `accept_…` with what was read, by
    `confirm_…` when it is written, or by `abort_…` when that failed.
    """

    def __init__(
        self, *, window: int, key_share: int, window_bytes: int = NO_BYTE_LIMIT, skips_keys: bool = False
    ) -> None:
        self.window = window
        self._most = 2 * window
        self.window_bytes = window_bytes
        self.is_open = True
        """False while the destination is down or paused: nothing more is sent."""
        self.must_read_blocked = False
        """The blocked keys must be read before the next lane: a person may have changed them in an outage or pause."""
        self._set_key_share(key_share, window=window, window_bytes=window_bytes)
        self._skips_keys = skips_keys
        """The remainder of a hot key can stay in the table, because reads skip it; otherwise it is parked."""
        self._lanes: dict[int, LaneProgress] = {}
        """The lanes that this relay owns."""
        self._generations = count(1)
        self._in_flight = InFlight()
        self._keys: dict[str, KeyQueue] = {}
        self._hot_keys = HotKeys()
        self._key_reads: dict[str, None] = {}
        """Keys whose waiting messages are to be read, first come, first served."""
        self._astray: dict[tuple[int, str], None] = {}
        """Lanes and blocked keys in them that are none, or not of that lane."""
        self._ready: deque[InFlightMessage] = deque()
        self._suspects: deque[InFlightMessage] = deque()
        self._strikes: dict[Identity, int] = {}
        """Message to its strikes, kept also while it is not in flight."""
        self._reads = 0
        """Reads under way."""
        self._released_meanwhile: dict[int, UUID] = {}
        """Messages that were released since those reads began. Their results may still contain them."""
        self.reused_lanes: set[int] = set()
        """Lanes of a message in flight and of another one that a read found under the same id: the database lost
        commits. What is in flight exists no more, and stands in the way of what does."""

    def _set_key_share(self, key_share: int, *, window: int, window_bytes: int) -> None:
        self._key_share = max(1, key_share)
        is_limited = window_bytes < NO_BYTE_LIMIT
        self._key_share_bytes = max(1, window_bytes * self._key_share // window) if is_limited else NO_BYTE_LIMIT

    def resize(self, *, window: int, window_bytes: int, key_share: int) -> None:
        """Change the window. What is in flight beyond a smaller one stays; nothing is added until it fits."""
        self.window = window
        self._most = 2 * window
        self.window_bytes = window_bytes
        self._set_key_share(key_share, window=window, window_bytes=window_bytes)

    @property
    def partitions(self) -> list[int]:
        """The lanes that this relay owns."""
        return sorted(self._lanes)

    @property
    def in_flight(self) -> int:
        """How many messages are claimed, or being claimed, and not settled. Without those that were set aside."""
        return self._in_flight.moving

    @property
    def room(self) -> int:
        """How many more messages fit into the window.

        What was set aside, or waits as a suspect, takes no room of it: others must be able to pass, and to show that
        the destination works. As many again are the most: a store that refuses everything would otherwise bring the
        whole backlog into memory.
        """
        moving = self._in_flight.moving
        moving -= min(len(self._suspects), moving)
        return min(self.window - moving, self._most - len(self._in_flight.entries))

    @property
    def key_share(self) -> int:
        """How many messages of one key fit into the window."""
        return self._key_share

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the payloads of all messages in flight."""
        return self._in_flight.size

    @property
    def room_bytes(self) -> int:
        """How many more bytes fit into the window, as `room` counts. The last message may have passed its end."""
        waiting = sum(len(entry.message.payload) for entry in self._suspects)
        moving = max(0, self._in_flight.moving_size - waiting)
        return min(self.window_bytes - moving, 2 * self.window_bytes - self._in_flight.size)

    @property
    def has_room(self) -> bool:
        """The window has room for a message."""
        return self.room > 0 and self.room_bytes > 0

    @property
    def must_read(self) -> bool:
        """Something is to be read, whatever came into the table since the last read: keys, or a lane from its start."""
        if self.must_read_blocked or self._key_reads or self._astray or self._hot_keys.names:
            return True
        return any(lane.suspended or lane.must_restart or lane.unread_keys for lane in self._lanes.values())

    def is_in_flight(self, message: Message) -> bool:
        return self._in_flight.find(message) is not None

    def is_being_sent(self, message: Message) -> bool:
        """Return whether a message that was handed out to be sent is still to be: its lane was not lost since."""
        entry = self._in_flight.find(message)
        return entry is not None and entry.stage is _SENT

    def is_drained(self, partition: int) -> bool:
        """Return whether nothing of a lane is in flight any more, except for what was set aside."""
        return all(entry.message.id in self._in_flight.aside for entry in self._in_flight.in_lane(partition))

    def find_settling(self, message_id: int) -> Message | None:
        """Return a message whose outcome is being recorded; None if its lane was lost meanwhile."""
        entry = self._in_flight.find_settling(message_id)
        return None if entry is None else entry.message

    @property
    def has_strikes(self) -> bool:
        """Some message was being sent when a relay or its connection died."""
        return bool(self._strikes)

    def count_strikes(self, message_id: int) -> int:
        """Return how often a relay or its connection died while sending this message."""
        entry = self._in_flight.entries.get(message_id)
        return entry.strikes if entry else 0

    # --- lanes ---

    def grant(self, partition: int) -> None:
        """Own a lane. Its recovered claims and its blocked keys must be passed in before its first read."""
        self._lanes[partition] = LaneProgress(next(self._generations))

    def revoke(self, partition: int) -> None:
        """Stop reading a lane: what is unsent returns, what is being sent may finish."""
        self._lanes.pop(partition, None)
        self._return_unsent(self._in_flight.in_lane(partition))
        self._forget_keys({partition}, only_quiet=True)

    def drop(self, partitions: Iterable[int]) -> None:
        """Forget everything in lanes that another relay owns. Nothing there may be settled."""
        gone = set(partitions)
        for partition in gone:
            self._lanes.pop(partition, None)
        self._in_flight.drop(lambda message: message.partition in gone)
        self._forget_keys(gone)

    def _forget_keys(self, partitions: set[int], *, only_quiet: bool = False) -> None:
        for key in [
            key
            for key, queue in self._keys.items()
            if queue.partition in partitions and (queue.is_quiet or not only_quiet)
        ]:
            del self._keys[key]
        self._hot_keys.remove_lanes(partitions)
        for key in [k for k in self._key_reads if k not in self._keys or self._keys[k].partition in partitions]:
            del self._key_reads[key]

    def _suspend(self, partition: int) -> None:
        lane = self._lanes.get(partition)
        if lane is not None and not lane.suspended:
            lane.suspended = True
            lane.generation = next(self._generations)

    # --- reading lanes ---

    @property
    def can_restart(self) -> bool:
        """Some lane is to be read from its start, and can be."""
        return any(lane.must_restart and not lane.returning for lane in self._lanes.values())

    def begin_read(self, *, most_restarts: int | None = None) -> tuple[list[int], set[int]]:
        """Begin a read of fresh messages; return the lanes to read, and those of them to read from their start.

        Of the latter no more than `most_restarts` come. The others stay as they are, for another read.
        """
        self._reads += 1
        restart = {p for p, lane in self._lanes.items() if lane.must_restart and not lane.returning}
        if most_restarts is not None:
            restart = set(sorted(restart)[:most_restarts])
        for partition in restart:
            lane = self._lanes[partition]
            lane.must_restart = lane.suspended = False
            lane.read_to = 0
        self.load_hot_keys(restart)
        return sorted(p for p, lane in self._lanes.items() if not lane.suspended), restart

    def accept_read(self, result: ReadResult, partitions: Iterable[int]) -> ReadDecision:
        """Decide what to claim and to park of a read of these lanes."""
        decision = self.accept(result.messages)
        for partition in partitions:
            lane = self._lanes.get(partition)
            if lane is None or lane.suspended:
                continue
            lane.mark = result.cursor.low.get(partition, 0)
            lane.read_to = math.inf if partition in result.complete else lane.mark
            if lane.unread_keys:
                unread, lane.unread_keys = lane.unread_keys, {}
                for key in unread:
                    self._review(key, self._keys[key])
        for key, queue in self._hot_keys.items():
            # All that was left of it stands above the mark, where its lane is still to be read: no need to skip it.
            if queue.loaded_to is None or queue.loaded_to >= self._lanes[queue.partition].mark:
                self._hot_keys.remove(key)
                self._review(key, queue)
        return decision

    def accept_survey(self, result: ReadResult, partitions: Iterable[int]) -> None:
        """Note where the fresh messages of these lanes begin, and take none. Ends a read.

        What waits below them may be taken before the lanes are read, in the order of its key.
        """
        first: dict[int, int] = {}
        for message in result.messages:
            first.setdefault(message.partition, message.id)
        for partition in partitions:
            lane = self._lanes.get(partition)
            if lane is None or lane.suspended:
                continue
            lane.read_to = math.inf if partition in result.complete - first.keys() else first.get(partition, 1) - 1
        self._end_read()

    def abort_read(self, restart: Iterable[int]) -> None:
        """End a read that returned nothing: the same lanes must be read from their start next time."""
        self._end_read()
        for partition in restart:
            if (lane := self._lanes.get(partition)) is not None:
                lane.must_restart = lane.suspended = True

    def begin_due_read(self) -> None:
        """Begin a read of due messages. `accept` ends it."""
        self._reads += 1

    def choose_due(self, found: Iterable[DueMessage]) -> tuple[list[int], int]:
        """Return the ids of due messages to read now, and how many of those found were looked at.

        The window ends it. Of the others that were looked at it is noted that they are due.
        A retrying message goes only when it is the first that waits of its key. If that is not known, the key is to
        be read: that brings the message, with all that waits behind it.
        """
        chosen: list[int] = []
        size = seen = 0
        entries, released = self._in_flight.entries, self._released_meanwhile
        lanes = {partition for partition, lane in self._lanes.items() if not lane.suspended}
        room, room_bytes = self.room, self.room_bytes
        for due in found:
            if len(chosen) >= room or size >= room_bytes:
                break
            seen += 1
            if due.partition not in lanes or due.id in entries or due.id in released:
                continue
            if due.key is not None and due.waits is Waits.RETRY:
                queue = self._keys.get(due.key)
                if queue is None:
                    queue = self._keys[due.key] = KeyQueue(due.partition)
                if not self._is_next(due.id, queue):
                    self._review(due.key, queue)
                    continue
            chosen.append(due.id)
            size += due.size
        return chosen, seen

    def accept(self, messages: Iterable[Message]) -> ReadDecision:
        """Decide what to claim and to park of messages in id order, fresh or due. Ends a read."""
        take: list[Message] = []
        park: list[Message] = []
        entries, released = self._in_flight.entries, self._released_meanwhile
        lanes = {partition for partition, lane in self._lanes.items() if not lane.suspended}
        for message in messages:
            if message.partition not in lanes:
                continue
            if message.id in entries and self._is_id_taken(message):
                continue
            if released and released.get(message.id) == message.message_id:
                continue
            if message.key is None or self._enqueue(message, message.key, park):
                self._add_in_flight(message)
                take.append(message)
        self._end_read()
        return ReadDecision(take, park)

    def _is_id_taken(self, message: Message) -> bool:
        """Return whether a message, or another one under its id, is in flight. Of another one the lanes are noted."""
        held = self._in_flight.entries.get(message.id)
        if held is None:
            return False
        if held.message.message_id != message.message_id:
            self.reused_lanes |= {held.message.partition, message.partition}
        return True

    def _end_read(self) -> None:
        self._reads -= 1
        if not self._reads:
            self._released_meanwhile.clear()

    def _add_in_flight(self, message: Message) -> InFlightMessage:
        strikes = self._strikes.get(identify(message), 0) if self._strikes else 0
        entry = InFlightMessage(message, 0, strikes, self._lanes[message.partition].generation)
        self._in_flight.add(entry)
        return entry

    def _enqueue(self, message: Message, key: str, park: list[Message]) -> bool:
        """Queue a message behind the others of its key if it can be taken; park it or leave it otherwise."""
        queue = self._keys.get(key)
        if queue is None:
            queue = self._keys[key] = KeyQueue(message.partition)
        if message.waits is Waits.RETRY:
            if not self._is_next(message.id, queue):
                self._review(key, queue)
                return False
        elif (
            queue.blocked
            or len(queue.behind) >= self._key_share
            or queue.size >= self._key_share_bytes
            or queue.is_in_remainder(message.id)
        ):
            if not self._leave_in_table(message, key, queue):
                queue.park(message.id)
                park.append(message)
            return False
        queue.add(message)
        return True

    def _is_next(self, message_id: int, queue: KeyQueue) -> bool:
        """Return whether a due message comes before all others of its key, unread ones included."""
        if not queue.mark_due(message_id):
            return False
        lane = self._lanes[queue.partition]
        known_to = lane.read_to if queue.loaded_to is None else min(lane.read_to, queue.loaded_to)
        if message_id > known_to:
            queue.front = None  # something unread may come before it: the key must be read
            return False
        return True

    def _leave_in_table(self, message: Message, key: str, queue: KeyQueue) -> bool:
        """Leave a fresh message of a hot key in the table as it is; return False where that is not possible."""
        if message.waits is not None or not self._skips_keys:
            return False
        if not queue.blocked and not queue.is_in_remainder(message.id):
            self._hot_keys.add(key, queue, loaded_to=message.id - 1)
        return queue.is_in_remainder(message.id)

    def confirm_parks(self, messages: Iterable[Message]) -> None:
        """Note that these parks are committed."""
        for message in messages:
            if message.key is not None and (queue := self._keys.get(message.key)) is not None:
                queue.parking -= 1
                self._review(message.key, queue)

    # --- reading blocked keys ---

    def block(self, partition: int, key: str, *, front: Waits) -> None:
        """Note that the table holds waiting messages of a key, and what the first of them waits for."""
        if partition not in self._lanes:
            return
        queue = self._keys.setdefault(key, KeyQueue(partition))
        queue.blocked = True
        if queue.is_quiet and (front is Waits.PARKED or (front is Waits.RETRY and queue.due)):
            queue.front = None
            self._review(key, queue)

    def note_astray(self, partition: int, key: str) -> None:
        """Note that messages wait under a key that is none, or that stands in the lane of another.

        It blocks nothing. Its rows were written by others, and are read to be closed.
        """
        self._astray[partition, key] = None

    def next_astray(self, limit: int) -> list[KeyRead]:
        """Return the keys astray to read now. `begin_due_read` and `accept` go with each read."""
        chosen = list(self._astray)[:limit]
        for one in chosen:
            del self._astray[one]
        return [KeyRead(key, partition) for partition, key in chosen if partition in self._lanes]

    @property
    def key_reads(self) -> int:
        """How many keys are to be read."""
        return len(self._key_reads)

    @property
    def has_more_due(self) -> bool:
        """More of a key is due, behind what is in flight of it."""
        return any(
            queue.blocked and not queue.is_quiet and (queue.front is None or queue.front in queue.due)
            for queue in self._keys.values()
        )

    def count_unsent_retries(self) -> int:
        """Return how many of the messages in flight waited in the table before, and are not being sent yet."""
        entries, aside = self._in_flight.entries, self._in_flight.aside
        return sum(
            entry.message.waits is not None and entry.stage < _SENT and message_id not in aside
            for message_id, entry in entries.items()
        )

    def next_key_reads(self, limit: int) -> list[KeyRead]:
        """Return the keys to read now. Each comes back by `accept_key` or `abort_key_read`."""
        chosen: list[KeyRead] = []
        for key in list(self._key_reads):
            queue = self._keys[key]
            if self._lanes[queue.partition].suspended:
                continue
            del self._key_reads[key]
            if not queue.needs_read:
                continue
            queue.begin_read()
            chosen.append(KeyRead(key, queue.partition))
            if len(chosen) == limit:
                break
        return chosen

    def accept_key(self, read: KeyRead, found: KeyMessages) -> ReadDecision:
        """Decide what to claim of the waiting messages of one key, up to its share of the window."""
        queue = self._keys.get(read.key)
        if queue is None or not queue.reading:  # its lane was lost meanwhile, and may have been taken again
            return ReadDecision(())
        queue.reading = False
        waiting = [message for message in found.messages if not self._is_id_taken(message)]
        take = self._choose_waiting(read.key, queue, cut_by_bytes(waiting, self._key_share_bytes))
        for message in take:
            if message.key is not None:  # None: the key of an unreadable row, whose order nobody can keep
                queue.add(message)
            self._add_in_flight(message)
        if len(take) == len(waiting) and found.complete and not queue.has_unread_parks:
            queue.unblock()
        self._review(read.key, queue)
        return ReadDecision(take)

    def _choose_waiting(self, key: str, queue: KeyQueue, messages: Sequence[Message]) -> list[Message]:
        """Return the messages before the first that has to go on waiting."""
        take: list[Message] = []
        lane = self._lanes.get(queue.partition)
        if lane is None or lane.suspended:
            return take
        for message in messages:
            if message.id > queue.parked_from:
                break
            if queue.is_in_remainder(message.id):
                queue.remainder_first = not take
                break
            if message.id > lane.read_to:
                if not take:
                    lane.unread_keys[key] = None
                break
            if message.waits is Waits.HELD or (message.waits is Waits.RETRY and message.id not in queue.due):
                queue.front = message.id
                break
            take.append(message)
        return take

    def abort_key_read(self, read: KeyRead) -> None:
        """End a read of a key that failed: it must be read again."""
        self._end_key_read(read.key)

    def _end_key_read(self, key: str) -> None:
        if (queue := self._keys.get(key)) is not None:
            queue.reading = False
            self._review(key, queue)

    def _review(self, key: str, queue: KeyQueue) -> None:
        """Schedule a read of the key's waiting messages if one is needed now; forget the key if it is done with."""
        lane = self._lanes.get(queue.partition)
        if lane is not None and queue.needs_read:
            if key not in lane.unread_keys:
                self._key_reads[key] = None
        elif queue.is_forgettable or (lane is None and queue.is_quiet):
            del self._keys[key]

    # --- reading hot keys ---

    @property
    def hot_keys(self) -> list[str]:
        """Keys whose share is in flight while more is known to wait: reads should skip them."""
        return self._hot_keys.names

    def load_hot_keys(self, partitions: Collection[int]) -> None:
        """Skip no key of these lanes any more: they are about to be read from their start."""
        for key, queue in self._hot_keys.remove_lanes(partitions):
            self._review(key, queue)

    def recheck_hot_keys(self, blocked: Collection[str]) -> None:
        """Read every hot key again that the table no longer reports as blocked: a person may have closed its front.

        A blocked hot key may have nothing parked, and then the table does not report it once its front is gone.
        """
        for key, queue in self._hot_keys.items():
            if key not in blocked and queue.blocked and queue.front is not None and queue.is_quiet:
                queue.front = None
                self._review(key, queue)

    def next_remainders(self, limit: int) -> list[HotKeyRemainder]:
        """Return hot keys to load more of. Each comes back by `accept_remainder` or `abort_remainder`."""
        chosen: list[HotKeyRemainder] = []
        for key, queue in self._hot_keys.items():
            if queue.loaded_to is not None and queue.can_load_remainder and not self._lanes[queue.partition].suspended:
                queue.reading = True
                remainder = HotKeyRemainder(key, queue.partition, queue.loaded_to, self._key_share_bytes)
                chosen.append(remainder)
                if len(chosen) == limit:
                    break
        return chosen

    def accept_remainder(self, remainder: HotKeyRemainder, result: ReadResult) -> ReadDecision:
        """Decide what to claim and to park of one hot key, from a read of its lane. Other keys are ignored."""
        queue = self._keys.get(remainder.key)
        if queue is None or not queue.reading:
            return ReadDecision(())
        queue.reading = False
        decision = ReadDecision(())
        lane = self._lanes.get(queue.partition)
        if queue.loaded_to is not None and lane is not None and not lane.suspended:
            queue.remainder_first = False
            decision = self._load_remainder(remainder.key, queue, queue.loaded_to, lane.mark, result)
        self._review(remainder.key, queue)
        return decision

    def abort_remainder(self, remainder: HotKeyRemainder) -> None:
        """End a read of a hot key that failed: it must be read again."""
        self._end_key_read(remainder.key)

    def _load_remainder(self, key: str, queue: KeyQueue, loaded_to: int, mark: int, result: ReadResult) -> ReadDecision:
        # Not above the mark of the lane: what becomes visible there later would be passed over.
        found = [m for m in result.messages if m.key == key and loaded_to < m.id <= mark and not self._is_id_taken(m)]
        share = cut_by_bytes(found[: self._key_share], self._key_share_bytes)
        for message in share:
            if queue.blocked:
                queue.park(message.id)
            else:
                queue.add(message)
                self._add_in_flight(message)
        decision = ReadDecision((), share) if queue.blocked else ReadDecision(share)
        if len(share) < len(found):
            queue.loaded_to = share[-1].id
        elif queue.partition in result.complete or (result.messages and result.messages[-1].id >= mark):
            self._hot_keys.remove(key)
        elif result.messages:
            queue.loaded_to = max(loaded_to, result.messages[-1].id)
        return decision

    # --- claims ---

    def confirm_claim(self, number: int, messages: Sequence[Message], *, strikes: int = 0) -> None:
        """Note that a claim is committed: the first of each key may be sent."""
        find = self._in_flight.find
        entries = [entry for message in messages if (entry := find(message)) is not None]
        if entries:
            self._in_flight.assign_claim(number, entries, strikes=strikes)
            # Something may have returned since these were read, and must come before them: then they return too.
            current = {partition: lane.generation for partition, lane in self._lanes.items()}
            self._return_unsent([e for e in entries if e.generation != current.get(e.message.partition)])
            self._admit(entries)

    def recover_claim(self, number: int, messages: Sequence[Message], *, strikes: int) -> None:
        """Return the messages of a dead relay's claim to the table, to be read again in their order.

        They are not sent from here: an earlier message of a key may wait in the table, or may have returned there while
        a later one was being claimed. Their strikes stay, also where a takeover put messages into one claim that had
        been sent alone: above `LONE_STRIKES` only deaths count of relays that sent a message alone.
        """
        entries = []
        for message in messages:
            if not self._is_id_taken(message):
                self._strikes[identify(message)] = strikes
                entries.append(self._add_in_flight(message))
                if message.key is not None:
                    self._keys.setdefault(message.key, KeyQueue(message.partition)).add(message)
        if entries:
            self._in_flight.assign_claim(number, entries, strikes=strikes)
            self._return_unsent(entries)

    def confirm_group_claim(self, messages: Iterable[Message], number: int) -> Settlement:
        """Note that a group has a claim of its own; return the settlement that takes it out of its old ones."""
        return self._in_flight.reassign_claim([self._in_flight.entries[message.id] for message in messages], number)

    def _admit(self, entries: Iterable[InFlightMessage]) -> None:
        keys, lanes = self._keys, self._lanes if self.is_open else ()
        for entry in entries:
            if entry.stage is not _WAITING:
                continue
            message = entry.message
            if message.partition not in lanes:
                self._return_unsent([entry])
            elif message.key is None:
                self._make_ready(entry)
            else:
                queue = keys[message.key]
                if queue.front is not None:
                    self._park_behind_front(queue)
                if queue.current is None:
                    self._advance(queue)

    # --- sending ---

    def _advance(self, queue: KeyQueue) -> None:
        """Make the first of a queue current, if there is no current one and its claim is committed."""
        if queue.current is None and queue.behind and not queue.stopped:
            message_id = queue.behind[0]
            entry = self._in_flight.entries[message_id]
            if entry.claim and (queue.front is None or queue.may_send(message_id)):
                del queue.behind[0]
                queue.current = message_id
                self._make_ready(entry)

    def _make_ready(self, entry: InFlightMessage) -> None:
        entry.stage = _READY
        (self._ready if entry.strikes < SUSPECT_STRIKES else self._suspects).append(entry)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def has_suspects(self) -> bool:
        return bool(self._suspects)

    @property
    def waiting_suspects(self) -> int:
        """How many of those in flight are suspects that were not sent yet."""
        entries = self._in_flight.entries
        return sum(e.stage is _READY and entries.get(e.message.id) is e for e in self._suspects)

    def next_batch(self, limit: int) -> list[Message]:
        """Return messages to send now, no two of one key."""
        batch: list[Message] = []
        ready, entries = self._ready, self._in_flight.entries
        while ready and len(batch) < limit:
            entry = ready.popleft()
            # It may have returned to the table since it became ready, and even be in flight anew.
            if entry.stage is _READY and entries.get(entry.message.id) is entry:
                entry.stage = _SENT
                batch.append(entry.message)
        return batch

    def extend_runs(
        self,
        batch: list[Message],
        limit: int,
        *,
        least: int = 1,
        get_address: Callable[[Message], str | None] | None = None,
    ) -> list[Message]:
        """Let the next messages of the same keys go with those of `next_batch`; return at most `limit` in all.

        Each run stands together, in id order. Only keys with at least so many messages behind the next one have runs.
        The addresses of messages are asked for only where there is a run.
        """
        room, keys = limit - len(batch), self._keys
        if room <= 0 or not any(m.key is not None and len(keys[m.key].behind) >= least for m in batch):
            return batch
        extended: list[Message] = []
        for message in batch:
            extended.append(message)
            if room > 0 and message.key is not None and len((queue := keys[message.key]).behind) >= least:
                run = self._choose_run(message, queue, room, get_address)
                extended += run
                room -= len(run)
        return extended

    def _choose_run(
        self, first: Message, queue: KeyQueue, room: int, get_address: Callable[[Message], str | None] | None
    ) -> list[Message]:
        """Return the messages that may go in one send with the first of their key, which is being sent."""
        entries, run = self._in_flight.entries, list[Message]()
        if not _may_run(entries[first.id], queue):
            return run
        address = None if get_address is None else get_address(first)
        size = len(first.payload)
        for message_id in queue.behind[:room]:
            entry = entries[message_id]
            message = entry.message
            size += len(message.payload)
            # A late one that comes before the first of the run goes by itself, behind it.
            if not entry.claim or message_id < first.id or size > _RUN_BYTES or not _may_run(entry, queue):
                break
            if get_address is not None and (address is None or get_address(message) != address):
                break
            entry.stage = _SENT
            run.append(message)
        if run:
            queue.extend_run(len(run))
        return run

    def next_probe(self, dice: float, *, new_first: bool = False, only_new: bool = False) -> list[Message]:
        """Return one of the messages that are ready, or none: every other time one that was not tried before.

        Many that were refused may wait, as those of throttled tenants. A new message of another must not have to be
        drawn among all of them. With `new_first` it is such a one each time, for as long as there is one.
        """
        new = [entry for entry in self._ready if entry.message.last_error is None]
        if only_new and not new:
            return []
        dice, is_for_new = 2 * dice % 1, new_first or dice < 0.5
        if new and is_for_new:
            chosen = new[int(dice * len(new))]
            self._ready.remove(chosen)
            self._ready.appendleft(chosen)
        else:
            self._ready.rotate(-int(dice * len(self._ready)))
        return self.next_batch(1)

    def rotate_suspects(self, by: int) -> None:
        """Begin so many places later among the suspects that wait."""
        self._suspects.rotate(-by)

    def next_suspects(self, limit: int) -> list[Message]:
        """Return a group of suspects to send now: no two of one key, and all with as many strikes.

        Their strikes become those of a group of that size. So a small group is not sent twice before it is split, and
        a suspect that is alone by chance counts as alone.
        """
        entries = self._in_flight.entries
        waiting = [e for e in self._suspects if e.stage is _READY and entries.get(e.message.id) is e]
        alike = [entry for entry in waiting if entry.strikes == waiting[0].strikes]
        group = alike[: min(limit, _max_group(alike[0].strikes))] if alike else []
        for entry in group:
            entry.stage = _SENT
            entry.strikes = _raise_to_group(entry.strikes, len(group))
        self._suspects = deque(entry for entry in waiting if entry.stage is _READY)
        return [entry.message for entry in group]

    # --- outcomes ---

    def mark_delivered(self, messages: Iterable[Message]) -> None:
        """Queue acknowledged messages to be recorded, and let the next of their keys go at once."""
        find, keys, strikes, done = self._in_flight.find, self._keys, self._strikes, []
        for message in messages:
            message_id = message.id
            entry = find(message)
            if entry is None or entry.stage is not _SENT:
                continue
            entry.stage = _DONE
            done.append(message_id)
            if strikes:
                strikes.pop(identify(message), None)
            if message.key is not None:
                queue = keys[message.key]
                queue.remove(entry.message)
                if queue.behind:
                    self._advance(queue)
        self._in_flight.add_delivered(done)

    def mark_failed(self, message: Message, failure: FailedOutcome) -> None:
        """Queue a failure to be recorded: the message closes or waits. Its key stands still until that is done."""
        entry = self._in_flight.find(message)
        if entry is None or entry.stage is not _SENT:
            return
        if failure.spends:
            self._strikes.pop(identify(message), None)
        self._in_flight.add_failure(entry, failure)
        if message.key is None:
            return
        queue = self._keys[message.key]
        queue.remove(entry.message)
        queue.stopped = True
        rest = self._end_run(queue, after=message.id, is_failed=True)
        if failure.waits is not None:
            queue.blocked, queue.front = True, message.id
            self._park_behind_front(queue)
        self._admit(rest)

    def mark_unsent(self, message: Message) -> None:
        """Queue the rest of a run again, from this message on: the transport did not try it, and nothing failed."""
        entry = self._in_flight.find(message)
        if entry is not None and entry.stage is _SENT and message.key is not None:
            self._admit(self._end_run(self._keys[message.key], after=message.id - 1))

    def _end_run(self, queue: KeyQueue, *, after: int, is_failed: bool = False) -> list[InFlightMessage]:
        """Queue what was sent in a run behind this id again, as not sent; return it."""
        rest = queue.end_run(after=after)
        if rest and is_failed:
            queue.single_to = max(queue.single_to, rest[-1])
        entries = [self._in_flight.entries[message_id] for message_id in rest]
        for entry in entries:
            entry.stage = _WAITING
        return entries

    def mark_returned(self, messages: Iterable[Message]) -> None:
        """Return messages that were not delivered through no fault of theirs, with all that is queued behind them."""
        for message in messages:
            entry = self._in_flight.find(message)
            if entry is not None and entry.stage is _SENT:
                entry.stage = _READY
                if message.key is not None:
                    self._end_run(self._keys[message.key], after=message.id, is_failed=True)
                self._return_unsent([entry])

    def add_strikes(self, messages: Iterable[Message]) -> None:
        """Count a strike against each message: a connection broke while they were being sent."""
        for message in messages:
            if (entry := self._in_flight.find(message)) is not None:
                entry.strikes += 1
                self._strikes[identify(message)] = entry.strikes

    def _park_behind_front(self, queue: KeyQueue) -> None:
        """Park what is queued behind a message that waits in the table, as if it were read only now."""
        for message_id in [i for i in queue.behind if not queue.may_send(i)]:
            entry = self._in_flight.entries[message_id]
            if not entry.claim:
                continue
            queue.remove(entry.message)
            if entry.message.waits in (Waits.PARKED, Waits.RETRY):
                self._return_entry(entry)  # the table says already that it waits
            else:
                self._in_flight.add_failure(entry, _build_park(entry.message))

    # --- returning to the table ---

    def close(self) -> None:
        """Stop sending, because the destination is down or paused: all that is not being sent returns."""
        self.is_open = False
        self._return_unsent(list(self._in_flight.entries.values()))

    def reopen(self) -> None:
        """Send again, and read the blocked keys and then every lane from its start.

        What is being read or claimed now was chosen before a person may have changed the table, so none of it is sent.
        Lanes that are granted later bring their blocked keys.
        """
        self.is_open = True
        self.must_read_blocked |= bool(self._lanes)
        for partition, lane in self._lanes.items():
            lane.must_restart = True
            self._suspend(partition)

    def restart(self, partitions: Iterable[int]) -> None:
        """Read the blocked keys and then these lanes from their start: an operator changed messages in them.

        What is being read or claimed of them now was chosen before, so none of it is sent.
        """
        self.must_read_blocked = True
        for partition in partitions:
            if (lane := self._lanes.get(partition)) is not None:
                lane.must_restart = True
                self._suspend(partition)

    def reread(self, message_ids: Iterable[int]) -> None:
        """Read the lanes of these messages from their start: the store left their outcomes unrecorded.

        It has them in no claim, because a crash lost the claim, or because an earlier try recorded the outcome. What is
        queued behind them returns first, so that it does not overtake one that is still open.
        """
        lanes: set[int] = set()
        for message_id in message_ids:
            if (entry := self._in_flight.entries.get(message_id)) is None:
                continue
            lanes.add(entry.message.partition)
            queue = None if entry.message.key is None else self._keys.get(entry.message.key)
            if queue is not None:
                self._return_unsent([self._in_flight.entries[i] for i in queue.behind])
                if queue.front == message_id:
                    queue.front = None  # it may not wait in the table: the key must be read
        self.restart(lanes)

    def drop_unanswered(self) -> None:
        """Forget what is still being sent: nobody waits for the answer any more, and another relay will send it."""
        for entry in list(self._in_flight.entries.values()):
            if entry.stage < _DONE and entry.message.id not in self._in_flight.aside:
                self._in_flight.release(entry.message.id)
                if entry.message.key is not None:
                    self._keys[entry.message.key].forget(entry.message)

    def _return_unsent(self, entries: Iterable[InFlightMessage]) -> None:
        """Return what is claimed and not being sent, and with each message of a key all that is queued behind it."""
        for entry in entries:
            if entry.claim and entry.stage <= _READY:
                queue = None if entry.message.key is None else self._keys[entry.message.key]
                behind = [] if queue is None else [self._in_flight.entries[i] for i in queue.behind]
                for other in (entry, *(other for other in behind if other is not entry and other.claim)):
                    if queue is not None:
                        queue.remove(other.message)
                        if other.message.waits in (Waits.PARKED, Waits.RETRY):
                            queue.blocked, queue.front = True, None
                    self._return_entry(other)
                    self._suspend(other.message.partition)

    def _return_entry(self, entry: InFlightMessage) -> None:
        self._in_flight.add_return(entry)
        if (lane := self._lanes.get(entry.message.partition)) is not None:
            lane.returning += 1

    # --- settling ---

    @property
    def has_outcomes(self) -> bool:
        return self._in_flight.has_outcomes

    def next_settlement(self, limit: int) -> tuple[Settlement, set[int]]:
        """Take the next outcomes to record, with their lanes. Comes back by confirm or abort."""
        return self._in_flight.next_settlement(limit)

    def confirm_settlement(self, settlement: Settlement) -> None:
        """Note that outcomes are recorded durably: stopped keys go on, and what returned can be read again.

        What left meanwhile, because its lane was lost, is left out, also where the message or its id came back since.
        """
        self._release_delivered(settlement.delivered)
        for message_id in settlement.returned:
            if (entry := self._release(message_id)) is None:
                continue
            if (lane := self._lanes.get(entry.message.partition)) is not None:
                lane.returning = max(0, lane.returning - 1)
                lane.must_restart = True
        for failure in settlement.failures:
            self._release(failure.message_id, resumes=failure.waits is not Waits.PARKED)

    def abort_settlement(self, settlement: Settlement) -> None:
        """Keep outcomes that could not be recorded for the next settlement."""
        self._in_flight.restore_outcomes(settlement)

    def rebuild_settlement(self, part: Settlement) -> tuple[Settlement, set[int]]:
        """Build a part of a refused settlement anew, with its lanes. It comes back as the whole does."""
        return self._in_flight.rebuild_settlement(part)

    def confirm_close(self, part: Settlement) -> None:
        """Note that the one message of a refused settlement is closed as failed, whatever its outcome was."""
        for failure in part.failures:
            message = self.find_settling(failure.message_id)
            queue = None if message is None or message.key is None else self._keys.get(message.key)
            if queue is not None and queue.front == failure.message_id:
                queue.front = None  # it does not wait in the table: what is parked behind it must be read
        self.confirm_settlement(part)

    # --- what the store refuses for good ---

    def set_aside(self, message_id: int, outcome: Settlement) -> None:
        """Keep a message in flight, out of the way: the store refuses to record its outcome, or its claim.

        It is not sent again and takes no room. After a delivery its key goes on; after anything else it stands still.
        """
        entry = self._in_flight.entries.get(message_id)
        if entry is None or message_id in self._in_flight.aside:
            return
        # Its lane may have been lost and taken again meanwhile. What came back is tried again before it is set aside.
        is_settling = entry.stage is Stage.SETTLING
        if entry.stage is _DONE or is_settling != bool(outcome.delivered or outcome.failures):
            return
        self._in_flight.aside[message_id] = outcome
        if outcome.delivered and (key := entry.message.key) is not None and (queue := self._keys.get(key)) is not None:
            queue.unsettled -= 1
            self._review(key, queue)

    def retry_aside(self) -> None:
        """Queue the outcomes that were set aside again: a person may have removed what the store refused them for."""
        aside = self._in_flight.aside
        for message_id, outcome in list(aside.items()):
            if not (outcome.delivered or outcome.failures):
                continue
            del aside[message_id]
            message = self._in_flight.entries[message_id].message
            if outcome.delivered and message.key is not None:
                self._keys.setdefault(message.key, KeyQueue(message.partition)).unsettled += 1
            self._in_flight.restore_outcomes(outcome)

    @property
    def has_aside(self) -> bool:
        return bool(self._in_flight.aside)

    def _release_delivered(self, message_ids: Sequence[int]) -> None:
        """Do as `_release` does, for very many messages at once."""
        keys, entries = self._keys, self._in_flight.release_settled(message_ids)
        if self._reads:
            self._released_meanwhile.update({entry.message.id: entry.message.message_id for entry in entries})
        for entry in entries:
            key = entry.message.key
            if key is not None and (queue := keys.get(key)) is not None:
                queue.unsettled -= 1
                if not queue.unsettled and queue.current is None:
                    self._review(key, queue)

    def _release(self, message_id: int, *, resumes: bool = False) -> InFlightMessage | None:
        entry = self._in_flight.find_settling(message_id)
        if entry is None:
            return None
        self._in_flight.release(message_id)
        if self._reads:
            self._released_meanwhile[message_id] = entry.message.message_id
        if (key := entry.message.key) is not None and (queue := self._keys.get(key)) is not None:
            queue.unsettled -= 1
            if resumes:
                queue.stopped = False
                self._advance(queue)
            if not queue.unsettled and queue.current is None:
                self._review(key, queue)
        return entry


def _max_group(strikes: int) -> int:
    """Return how many suspects with so many strikes may be sent together."""
    return _GROUP_SIZES[min(strikes, LONE_STRIKES) - SUSPECT_STRIKES]


def _raise_to_group(strikes: int, size: int) -> int:
    """Return the strikes of a suspect in a group of that size: with one more, the group would have to be smaller."""
    while strikes < LONE_STRIKES and _max_group(strikes + 1) >= size:
        strikes += 1
    return strikes


def _may_run(entry: InFlightMessage, queue: KeyQueue) -> bool:
    """Return whether a message may be in a run: nothing is known against it, and it comes before all that waits."""
    message = entry.message
    return (
        not (entry.strikes or message.attempts or message.last_error or message.unreadable)
        and message.id > queue.single_to
        and queue.may_send(message.id)
    )


def _build_park(message: Message) -> FailedOutcome:
    return FailedOutcome(message_id=message.id, state=State.PENDING, waits=Waits.PARKED, attempts=message.attempts)
