"""State of one destination in one relay, shared by its reader, its sender and its settler."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from uuid import UUID

from pillarbox.clock import Clock
from pillarbox.contracts.store import Action, BlockedKey, FailedOutcome, Fence, RelayStore, Settlement
from pillarbox.errors import Fenced, StoreError, StoreRefused, StoreUnavailable
from pillarbox.message import Message
from pillarbox.redaction import redact_line
from pillarbox.relay.breaker import AddressBreakers, Breaker, BreakerState
from pillarbox.relay.journal import Note
from pillarbox.relay.lease import Lease, StoreFailures
from pillarbox.relay.ordering import LaneOrdering
from pillarbox.relay.outcome_policy import OutcomePolicy
from pillarbox.relay.settings import DestinationSettings
from pillarbox.retry import Backoff
from pillarbox.telemetry import Telemetry

__all__ = ["AsideTimer", "DestinationState", "LaneWrites"]

_KEY_SHARE: Final = 8
"""One key holds at most this part of the window."""
_KEY_SHARE_OF_RUNS: Final = 4
"""The same where the transport takes runs.

More of a hot key is read only when its share is delivered, so its pace is a share per round of read, claim, send and
settle. Sent in runs the share is soon gone, and keeps nothing from the others.
"""
_PROBE_CANDIDATES: Final = 32
"""Most messages that are claimed for a probe. One of them is sent: another each time, lest the first fail every one."""
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 2.0
_NOT_WATCHED: Final = "the relay that reported the outage has stopped"
ASIDE_INTERVAL: Final = 30.0
"""Seconds after which writes that the store refused are tried again: a person may have removed the cause."""


class DestinationState:
    """Ordering, breaker, lanes and wake-up events of one destination."""

    def __init__(
        self,
        settings: DestinationSettings,
        *,
        store: RelayStore,
        lease: Lease,
        policy: OutcomePolicy,
        clock: Clock,
        telemetry: Telemetry,
        dice: random.Random,
        has_runs: bool = False,
        note: Note | None = None,
    ) -> None:
        self.settings, self.name = settings, settings.name
        self.store = store
        self.lease = lease
        self.policy = policy
        self.clock = clock
        self.telemetry = telemetry
        self.dice = dice
        self._note = note
        self.failed_reads, self.failed_writes = StoreFailures(clock), StoreFailures(clock)
        self.breaker = Breaker()
        self.addresses = AddressBreakers()
        self.may_probe = False
        """The messages of which one is sent as a probe are all claimed."""
        self._is_down = False
        """An outage was reported, and its end was not."""
        self._is_reachable = True
        """In the last outage the destination answered, and acknowledged nothing."""
        self._refused_since: set[UUID] = set()
        """Messages that it did not acknowledge since it last acknowledged something."""
        self._key_share = _KEY_SHARE_OF_RUNS if has_runs else _KEY_SHARE
        self.window = settings.window
        """Most messages in flight: the setting, or less where several stores share one window."""
        self.ordering = LaneOrdering(
            window=settings.window,
            key_share=settings.window // self._key_share,
            window_bytes=settings.window_bytes,
            skips_keys=store.features.skips_keys,
        )
        self.epochs: dict[int, int] = {}
        """Owned lanes, and the epoch under which each was taken."""
        self.writes = LaneWrites()
        self.revisions: dict[int, int] = {}
        """Lanes to the revision that was known before they were last read."""
        self.pause_reason: str | None = None
        self.is_connected = False
        """The transport was opened once. After that it reconnects by itself."""
        self.is_stopping = False
        self._refused: set[UUID] = set()
        """Messages that are set aside and were reported."""
        self.read_event = asyncio.Event()
        """There may be something to read, or room for it."""
        self.send_event = asyncio.Event()
        """There may be something to send."""
        self.settle_event = asyncio.Event()
        """There may be something to settle."""

    # --- may messages flow? ---

    @property
    def is_open(self) -> bool:
        """Messages may flow, up to the full window."""
        return self.breaker.is_closed and self.pause_reason is None and not self.is_stopping

    def close(self) -> None:
        """Send nothing more. What is unsent returns to the table."""
        self.ordering.close()
        self.settle_event.set()

    def reopen(self) -> None:
        """Send again, if nothing else forbids it: with the full window, from the start of every lane."""
        if self.is_open:
            self.ordering.window = self.window
            self.ordering.reopen()
            self.read_event.set()

    def resize(self, *, window: int, window_bytes: int) -> None:
        """Change the window to a share of one that several stores have together."""
        window = min(window, self.settings.window)
        window_bytes = min(window_bytes, self.settings.window_bytes)
        has_grown = window > self.window or window_bytes > self.ordering.window_bytes
        probing = None if self.breaker.is_closed else self.ordering.window
        self.window = window
        self.ordering.resize(window=window, window_bytes=window_bytes, key_share=window // self._key_share)
        if probing is not None:  # a probe has a window of its own, until the destination is open again
            self.ordering.window = min(probing, window)
        if has_grown:
            self.read_event.set()

    @property
    def is_doubtful(self) -> bool:
        """The destination answers, and has acknowledged nothing since a message failed.

        Messages go on, one at a time: a bad one must not delay others, and what is down must not be flooded. Functions
        in this process cannot be flooded.
        """
        return self.breaker.is_closed and bool(self.policy.row) and not self.policy.in_process

    @property
    def is_reachable(self) -> bool:
        """What runs in this process can be reached at any time; everything else unless its breaker is open."""
        return self.policy.in_process or self.breaker.is_closed

    @property
    def is_probing(self) -> bool:
        """One message may be sent, to find out whether the destination works again."""
        return self.breaker.state is BreakerState.HALF_OPEN

    def begin_probe(self) -> None:
        """Let a few messages be read and claimed, of which one is sent."""
        self.ordering.window = min(_PROBE_CANDIDATES, self.window)
        self.ordering.reopen()

    def open_breaker(
        self, reason: str, *, at_least: timedelta | None = None, refused: Iterable[UUID] | None = None
    ) -> None:
        """Note an outage: nothing is tried for a while. The reason may come from outside.

        `refused` are the messages that a destination did not acknowledge which answers. It is reported as down only
        when a probe failed too, and not by the same message: one message that fails is no outage.
        """
        is_answered = refused is not None
        is_reachable = is_answered or self.policy.in_process
        self._refused_since.update(refused or ())
        reason = redact_line(reason)
        seconds = self.breaker.open(self.clock.monotonic(), reason=reason, dice=self.dice.random(), at_least=at_least)
        self.telemetry.on_breaker_opened(self.name, reason=reason, seconds=seconds)
        is_proven = not is_answered or (self.breaker.opened > 1 and len(self._refused_since) > 1)
        if not self._is_down and is_proven:
            self._is_down = True
            self.telemetry.on_outage(self.name, reason=reason, is_reachable=is_reachable)
            self._write_line(Action.OUTAGE, reason)
        self._is_reachable = is_reachable

    def close_breaker(self, *, is_proven: bool = True) -> bool:
        """Note that the destination answers; return whether it did not before. A ping alone is no proof."""
        was_open = self.breaker.close(is_proven=is_proven)
        if is_proven:
            self._refused_since.clear()
        if was_open:
            self.telemetry.on_breaker_closed(self.name)
        # A ping shows that a destination is there, and not that it acknowledges messages.
        if self._is_down and (is_proven or not self._is_reachable):
            self._is_down = False
            self.telemetry.on_recovered(self.name)
            self._write_line(Action.RECOVERED, "it answers again")
        return was_open

    def end_outage(self) -> None:
        """Note in the journal that this relay reports an outage no longer, because it stops: nobody else would."""
        if self._is_down:
            self._is_down = False
            self._write_line(Action.RECOVERED, _NOT_WATCHED)

    def _write_line(self, action: Action, detail: str) -> None:
        if self._note is not None:
            self._note(action, self.name, detail)

    def probe_now(self) -> None:
        """Try the destination and its blocked addresses at once, where they are known to be down: a person asked."""
        now = self.clock.monotonic()
        self.addresses.hurry(now)
        if self.breaker.hurry(now):
            self.read_event.set()

    def forget_unused_addresses(self) -> None:
        """Report the blocked addresses as unblocked for which nothing comes any more."""
        for address in self.addresses.forget_unused(self.clock.monotonic()):
            self.telemetry.on_address_unblocked(self.name, address)

    def pause(self, reason: str) -> None:
        """Stop serving the destination, because a person paused it."""
        if self.pause_reason is None:
            self.pause_reason = reason
            self.telemetry.on_paused(self.name, reason=reason)
            self.close()

    def resume(self) -> None:
        """Serve the destination again."""
        if self.pause_reason is not None:
            self.pause_reason = None
            self.telemetry.on_resumed(self.name)
            self.reopen()

    # --- lanes ---

    def fence(self, partitions: Iterable[int]) -> Fence:
        """Build the proof of ownership for a write in these lanes."""
        return Fence(self.lease.relay_id, self.name, {p: self.epochs[p] for p in partitions if self.may_write(p)})

    def may_write(self, partition: int) -> bool:
        """Return whether a write may begin in a lane: it is this relay's, and is not being released."""
        return partition in self.epochs and partition not in self.writes.stopped

    def drop_lanes(self, partitions: Iterable[int], *, is_fenced: bool = True) -> None:
        """Forget lanes that another relay owns, or that must be taken anew."""
        lost = [partition for partition in partitions if partition in self.epochs]
        for partition in lost:
            del self.epochs[partition]
        self.ordering.drop(lost)
        if lost and is_fenced:
            self.telemetry.on_fenced(self.name, lost)

    def block_keys(self, blocked: Iterable[BlockedKey]) -> None:
        """Note the keys of which messages wait in the table."""
        for one in blocked:
            if one.astray:
                self.ordering.note_astray(one.partition, one.key)
            else:
                self.ordering.block(one.partition, one.key, front=one.front)

    def note_revisions(self, revisions: Mapping[int, int]) -> None:
        """Note the revisions that a claim returned, before the claim is confirmed.

        Where an operator changed messages since the lane was read, what was read of it before is not sent.
        """
        changed = [lane for lane, revision in revisions.items() if self.revisions.get(lane, revision) != revision]
        self.revisions.update(revisions)
        if changed:
            self.ordering.restart(changed)
            self.read_event.set()

    def may_act(self) -> bool:
        """Return whether the lease surely holds."""
        return self.lease.may_act(self.clock.monotonic())

    async def retry_write(self, what: str, write: Callable[[], Awaitable[object]]) -> bool:
        """Repeat a write until it succeeds; return False once the lease, or one of its lanes, is lost.

        Writes are idempotent, so one whose answer was lost can be repeated too. `StoreRefused` is the caller's: a
        repeat would be refused too.
        """
        backoff = Backoff(first=_FIRST_WAIT, longest=_LONGEST_WAIT, dice=self.dice)
        while True:
            try:
                await write()
                self.failed_writes.end()
                return True
            except Fenced as error:
                self.drop_lanes(error.partitions)
                return False
            except StoreRefused:
                raise
            except StoreError as error:
                self.telemetry.on_store_failed(what, error)
                self.failed_writes.note(error)
                if not isinstance(error, StoreUnavailable):
                    backoff.slow_down()
            if not self.may_act():
                return False
            await asyncio.sleep(backoff.next_wait())

    async def write_in(self, fence: Fence, what: str, write: Callable[[], Awaitable[object]]) -> bool:
        """Do as `retry_write` does for a write in these lanes. They are not released before it has ended."""
        with self.writes.count(fence.epochs.keys()):
            return await self.retry_write(what, write)

    async def settle(self, settlement: Settlement, lanes: Iterable[int]) -> bool:
        """Record outcomes as `retry_write` does; return False once the lease, or one of the lanes, is lost.

        Messages that the store has in none of the claims are read anew: what became of them stands in the table alone.
        """
        fence, unclaimed = self.fence(lanes), set[int]()

        async def write() -> None:
            unclaimed.clear()
            unclaimed.update(await self.store.settle(fence, settlement))

        if not await self.write_in(fence, "settling", write):
            return False
        if unclaimed:
            self.ordering.reread(unclaimed)
            self.read_event.set()
        return True

    # --- what the store refuses for good ---

    async def close_refused(self, message: Message, failure: FailedOutcome, settlement: Settlement) -> bool:
        """Close a message as failed whose own outcome was refused; return False once its lane or the lease is lost.

        Raises `StoreRefused` if it cannot be closed either.
        """
        if not await self.settle(settlement, [message.partition]):
            return False
        self._refused.discard(message.message_id)
        self.telemetry.on_failed(self.name, message, failure)
        return True

    def set_aside(self, message: Message, outcome: Settlement, *, reason: Exception) -> None:
        """Keep a message in flight, out of the way of the others: nothing about it can be recorded."""
        self.ordering.set_aside(message.id, outcome)
        if message.message_id not in self._refused:  # it is tried again now and then, and reported once
            self._refused.add(message.message_id)
            self.telemetry.on_set_aside(self.name, message, reason=str(reason))


class LaneWrites:
    """Fenced writes under way, by lane, so that a lane is released after them.

    A write that reaches the store behind the release of its lane is refused, and looks like a takeover.
    """

    def __init__(self) -> None:
        self.stopped: set[int] = set()
        """Lanes that are being released: no write begins in them."""
        self._under_way = Counter[int]()
        self._ended = asyncio.Event()

    @contextmanager
    def count(self, partitions: Collection[int]) -> Iterator[None]:
        """Count a write in these lanes as under way while the block runs."""
        self._under_way.update(partitions)
        try:
            yield
        finally:
            self._under_way.subtract(partitions)
            self._ended.set()

    async def stop(self, partitions: Collection[int]) -> None:
        """Begin no more writes in these lanes, and wait for those under way. `allow` ends it."""
        self.stopped.update(partitions)
        while any(self._under_way[partition] for partition in partitions):
            self._ended.clear()
            await self._ended.wait()

    def allow(self, partitions: Iterable[int]) -> None:
        """Let writes begin in these lanes again."""
        self.stopped.difference_update(partitions)


class AsideTimer:
    """Time at which writes that the store refused for good are tried again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_at: float | None = None

    def begin(self) -> None:
        """Begin the interval, unless it has begun."""
        if self._due_at is None:
            self._due_at = self._clock.monotonic() + ASIDE_INTERVAL

    def is_due(self) -> bool:
        """Return whether the interval is over, and end it."""
        if self._due_at is None or self._clock.monotonic() < self._due_at:
            return False
        self._due_at = None
        return True
