"""Reader of one destination: reads and claims ahead of the sender, and probes a destination that is down."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from pillarbox.contracts.store import (
    NO_BYTE_LIMIT,
    Claim,
    Cursor,
    DueMark,
    FailedOutcome,
    IdleLanes,
    KeyMessages,
    QuietLanes,
    Settlement,
)
from pillarbox.contracts.transport import Transport, find_addressing
from pillarbox.errors import StoreError, StoreRefused
from pillarbox.message import PARTITIONS, Message, State, Waits
from pillarbox.relay.breaker import HELD_PER_SECOND, PingTimer
from pillarbox.relay.destination import AsideTimer, DestinationState
from pillarbox.relay.ordering import SUSPECT_STRIKES, KeyRead, ReadDecision
from pillarbox.relay.outcome_policy import build_refusal
from pillarbox.relay.polling import PollBackoff
from pillarbox.relay.priority import ReadPriority, survey_lanes
from pillarbox.relay.settings import DEFAULT_SETTINGS

__all__ = ["Reader"]

_REUSED: Final = (
    "The database has given ids to new messages that others had before, as after a failover which lost commits: what "
    "was in hand in these lanes is dropped."
)
_KEYS_PER_ROUND: Final = 32
"""Most hot keys, or keys astray, that are read one by one in a round: the other lanes must not wait long.

Of blocked keys, which are read together, at least so many: some have nothing any more."""
_TURN: Final = 8
"""In every so many rounds the duty without priority is first, so that it is never starved."""
_DUE_PAGES: Final = 4
"""So many batches are found at once while most of what is due is read by key: finding fetches no rows."""
_FRESH_REST: Final = 4
"""A read that found nothing fresh is followed by a rest of this many times its duration while waiting ones flow."""
_DUE_REST: Final = 4
"""A search for due messages is followed by a rest of at least this many times its duration."""
_BLOCKED_INTERVAL: Final = 5.0
_BLOCKED_REST: Final = 20
"""Reading the blocked keys is followed by a rest of at least this many times its duration."""
_REREAD_INTERVAL: Final = 10.0
"""Seconds between two reads of a lane from its start, as a safety net against a message that was passed over."""
_COLD_STEP: Final = 4
"""A read of lanes without a mark that failed is followed by one of so many times fewer, a quick one by one of more."""
_COLD_SECONDS: Final = 0.1
_LEAST_ROOM: Final = 8
"""Reading waits until an eighth of the window is free: many small reads cost more than a few large ones."""
_ROTATION: Final = 8
_BATCHES: Final = 2
"""Batches that are read and claimed at a time while there is more than one: a statement costs nearly the same."""
_IN_TURN: Final = 16
"""One of so many reads begins at the next lane, however far behind others are. A few large messages can fill a read
before its second lane."""
_EMPTY_PROBES: Final = 2
"""After so many reads in a row that found nothing, there is no message to probe a destination with."""


class Reader:
    """Keeps the window full, and records every claim before its messages are sent.

    `run_once` is one round; the pipeline repeats it.
    """

    def __init__(
        self,
        state: DestinationState,
        *,
        transport: Transport,
        backoff: PollBackoff,
        retry_interval: timedelta = DEFAULT_SETTINGS.retry_interval,
        sends_first: bool = True,
    ) -> None:
        self._state = state
        self._transport = transport
        self._backoff = backoff
        self._cursor: Cursor | None = None
        self._retry_interval = retry_interval.total_seconds()
        self._priority = ReadPriority(state.clock, sends_first=sends_first)
        self._rounds = self._first_lane = 0
        self._reads = int(state.dice.random() * _IN_TURN * PARTITIONS)  # relays that live for a short time differ
        self._due_at = self._reread_at = 0.0
        self._due_mark: DueMark | None = None
        """Where the search for due messages goes on; None at its start."""
        self._due_pages = 1
        self._due_reread_at = self._due_cost = 0.0
        """When the search looks at its start again; the seconds that it has taken."""
        self._fresh_at = 0.0
        """From when on fresh messages are read again while waiting ones flow."""
        self._addressing = find_addressing(transport)
        self._is_due_held = False
        """Most messages that were read last of those that waited have a blocked address."""
        # The blocked keys of a lane are read when it is taken. From then on they are read anew now and then.
        self._blocked_at = state.clock.monotonic() + _BLOCKED_INTERVAL
        self._reread_lane = 0
        self._claim_task: asyncio.Task[None] | None = None
        self._unparked: list[tuple[Message, int]] = []
        """Messages that can neither be parked nor closed, with the epochs of their lanes. Their keys stand still."""
        self._unparked_timer = AsideTimer(state.clock)
        self._ping_timer = PingTimer(interval=state.settings.ping_interval)
        self._ping_task: asyncio.Task[None] | None = None
        self._empty_probes = 0
        self._cursor_lanes: frozenset[int] = frozenset()
        """Lanes of the last read: the cursor is true of these alone."""
        self._cold_lanes = PARTITIONS
        """Most lanes without a mark that one read takes."""
        self._has_cold = False
        """The last read left lanes without a mark out."""
        self.is_behind = False
        """The last read of fresh messages came back full."""
        self.is_resting = False
        """The shared poll looks in place of its rounds."""
        self.empty_rounds = 0
        """How many rounds in a row, with lanes to read, found nothing to do."""

    async def run_once(self) -> bool:
        """Make one round; return whether it found something."""
        state = self._state
        state.read_event.clear()
        if not state.may_act() or state.is_stopping:
            return False
        if state.pause_reason is not None or not state.breaker.is_closed:
            self.empty_rounds += 1
            return state.pause_reason is None and await self._probe()
        state.forget_unused_addresses()
        if not state.epochs:
            return False
        if state.policy.needs_ping and state.is_doubtful and self._transport.features.ping_is_witness:
            state.policy.needs_ping = False
            self._start_ping()
        self._backoff.is_full = self._is_full()
        if self._backoff.is_full:
            return False
        try:
            found = await self._read_all()
            state.failed_reads.end()
        except StoreError as error:
            state.telemetry.on_store_failed("reading", error)
            state.failed_reads.note(error)
            self._cursor = None  # its connection may be broken
            await asyncio.sleep(self._backoff.shortest)
            found = False
        # At 0, due messages could not be taken before, and may be now, as those of a key that is to be read.
        has_more = self._due_at == 0.0 or state.ordering.key_reads > 0
        if found or state.ordering.in_flight or has_more:
            self.empty_rounds = 0
        else:
            self._note_empty_round()
        return found

    def poll(self) -> None:
        """Make a round now."""
        self._state.read_event.set()

    def get_idle_lanes(self) -> IdleLanes | None:
        """Return the lanes in which only something new in the table can give it something to do; None otherwise.

        What a round does without a change in the table is left to the round: keys and lanes that are to be read, a
        search for due messages that goes on, probes of a destination that is down, writes that were refused.
        """
        state = self._state
        if not state.is_open or not state.may_act() or state.ordering.in_flight or state.ordering.must_read:
            return None
        if self._due_at == 0.0 or self._due_mark is not None or self._is_due_held or self._unparked:
            return None
        if self._claim_task is not None and not self._claim_task.done():
            return None
        partitions = state.ordering.partitions
        if self._cursor is None or not partitions or self._cursor_lanes != frozenset(partitions):
            return None
        return IdleLanes(partitions, self._cursor)

    def note_quiet(self, lanes: IdleLanes, quiet: QuietLanes) -> None:
        """Note that its lanes had nothing to read: as good as a round that found nothing, unless it made one since.

        What a round does from time to time is still left to the round: to read a lane from its start, and blocked keys.
        """
        if not self.is_resting or self._cursor is not lanes.cursor:
            return
        now = self._state.clock.monotonic()
        self._cursor = quiet.cursor
        self._due_at = max(self._due_at, now + self._retry_interval)
        if not quiet.has_blocked:
            self._blocked_at = now + _BLOCKED_INTERVAL
        self._note_empty_round()
        if now >= min(self._reread_at, self._blocked_at):
            self.poll()

    def _note_empty_round(self) -> None:
        state = self._state
        self.empty_rounds += 1
        if self._ping_timer.is_due(state.clock.monotonic(), acknowledged=state.policy.acknowledged):
            self._start_ping()

    def _is_full(self) -> bool:
        ordering = self._state.ordering
        return (
            ordering.room * _LEAST_ROOM < ordering.window or ordering.room_bytes * _LEAST_ROOM < ordering.window_bytes
        )

    async def finish(self) -> None:
        """Wait for the claim that is being recorded."""
        if (task := self._claim_task) is not None:
            await task
            if self._claim_task is task:
                self._claim_task = None

    def abandon(self) -> None:
        """Cancel the claim that is being recorded, and the ping."""
        for task in (self._claim_task, self._ping_task):
            if task is not None:
                task.cancel()

    # --- reading ---

    async def _read_all(self) -> bool:
        now = self._state.clock.monotonic()
        if self._unparked_timer.is_due():
            await self._park_again()
        if now >= self._blocked_at:
            await self._read_blocked_keys()
        self._rounds += 1
        if (waiting := await self._read_waiting_first(now)) is not None:
            return waiting
        # A waiting message is taken only behind the fresh ones of its key, so lanes that were never read come first.
        is_first = self._cursor is None
        found = await self._read_fresh() if is_first else 0
        sends_first = not is_first and self._priority.sends_first != (self._rounds % _TURN == 0)
        if not sends_first:
            found += await self._read_due(now)
        found += await self._read_keys() + await self._read_remainders() + await self._read_astray()
        if self._state.ordering.has_room and not is_first and not (found and now < self._fresh_at):
            found += await self._read_fresh()
        if sends_first:
            found += await self._read_due(now)
        return found > 0

    async def _read_waiting_first(self, now: float) -> bool | None:
        """Where retries go before new messages: read what is due; return whether there was something.

        None: new messages may be read too, because nothing is due, or because they waited long.

        A retry goes before every new message that is not an earlier one of its lane: its key might be the same.
        """
        state, priority = self._state, self._priority
        if state.is_probing or not priority.holds_fresh(now):
            return None
        if self._cursor is None and priority.begin_survey(state.ordering.partitions):
            await survey_lanes(state, *await self._begin_read())
        if found := await self._read_due(now) + await self._read_keys() > 0:
            priority.note_waiting(now)
        unsent = state.ordering.count_unsent_retries()
        priority.note_unsent(now, unsent)
        return found if found or (priority.is_soon(now) and (unsent or state.ordering.has_more_due)) else None

    async def _read_blocked_keys(self) -> None:
        """Read which keys are blocked: a person may have redriven or discarded messages."""
        state, began_at = self._state, self._state.clock.monotonic()
        state.ordering.must_read_blocked = False
        try:
            found = await state.store.blocked_keys(state.name, partitions=state.ordering.partitions)
        except BaseException:
            state.ordering.must_read_blocked = True
            raise
        state.block_keys(found)
        state.ordering.recheck_hot_keys({blocked.key for blocked in found})
        now = state.clock.monotonic()
        self._blocked_at = now + max(_BLOCKED_INTERVAL, _BLOCKED_REST * (now - began_at))

    async def _begin_read(self) -> tuple[list[int], set[int]]:
        """Begin a read of fresh messages, after the blocked keys are known."""
        while self._state.ordering.must_read_blocked:  # again if a pause began and ended during the read of them
            await self._read_blocked_keys()
        return self._state.ordering.begin_read(most_restarts=self._cold_lanes)

    async def _read_fresh(self) -> int:
        """Read fresh messages of all lanes; those without a mark a few at a time, after a read of more of them failed.

        Such a read walks over every dead row of its lanes. All of them at once can take longer than the store may
        take to answer, and then would each time. What was read of some lanes is kept, and is sent meanwhile.
        """
        state = self._state
        found = await self._read_lanes()
        while self._has_cold and state.ordering.is_open and state.ordering.has_room and state.may_act():
            found += await self._read_lanes()
        return found

    async def _read_lanes(self) -> int:
        state = self._state
        self._has_cold = False
        self._priority.note_fresh()
        partitions, restart = await self._begin_read()
        if not partitions:
            state.ordering.abort_read(restart)
            return 0
        if restart:
            self._due_at = 0.0  # what returned may be due, and could not be taken before
        cursor, marked = self._cursor, self._cursor_lanes - restart
        if cursor is None:
            marked = frozenset()
        # Lanes with a mark are read each time: the cursor has one snapshot, which must be true of all of them.
        cold = [*sorted(restart), *(p for p in partitions if p not in marked and p not in restart)][: self._cold_lanes]
        read, lanes = {*marked, *cold}, len(partitions)
        partitions = [partition for partition in partitions if partition in read]
        order, reread = self._order_lanes(partitions), self._choose_reread(partitions)
        state.ordering.load_hot_keys(reread)
        if cursor is not None:
            cursor = cursor.restart(restart, whole=reread).skip_keys(state.ordering.hot_keys)
        limit, began_at = self._choose_limit(), state.clock.monotonic()
        try:
            result = await state.store.read(
                state.name, partitions=order, cursor=cursor, limit=limit, max_bytes=state.ordering.room_bytes
            )
        except BaseException:
            state.ordering.abort_read(restart)
            self._cold_lanes = max(1, len(cold) // _COLD_STEP)
            raise
        ended_at = state.clock.monotonic()
        self.is_behind = len(result.messages) >= limit
        self._fresh_at = ended_at if result.messages else ended_at + _FRESH_REST * (ended_at - began_at)
        self._cursor, self._cursor_lanes = result.cursor, frozenset(order)
        if not (result.messages or result.complete or result.cursor.low):
            self._cursor_lanes = frozenset()  # every lane starts over
        if state.clock.monotonic() - began_at < _COLD_SECONDS:
            self._cold_lanes = min(_COLD_STEP * self._cold_lanes, PARTITIONS)
        elif cold:
            self._cold_lanes = max(1, len(cold) // 2)
        self._has_cold = len(order) < lanes or state.ordering.can_restart
        decision = state.ordering.accept_read(result, order)
        await self._start_claim(decision)
        return len(decision.take) + len(decision.park)

    def _choose_limit(self) -> int:
        """Return how many fresh messages to read: more while reads come back full."""
        state = self._state
        batches = _BATCHES if self.is_behind and not state.is_probing else 1
        return min(batches * state.settings.batch, state.ordering.room)

    def _drop_reused_lanes(self) -> None:
        """Forget lanes in which ids were used again. They are still this relay's, so it takes them and reads anew."""
        state = self._state
        if lanes := state.ordering.reused_lanes:
            state.ordering.reused_lanes = set()
            state.telemetry.on_store_failed("reading", StoreError(_REUSED))
            state.drop_lanes(lanes, is_fenced=False)

    async def _read_due(self, now: float) -> int:
        state = self._state
        if now < self._due_at or not state.ordering.has_room:
            return 0
        if self._priority.sends_first and state.ordering.key_reads >= state.settings.batch:
            return 0  # enough is known that can be read
        limit, max_bytes = min(state.settings.batch, state.ordering.room), state.ordering.room_bytes
        if state.is_probing:
            # The rest is for fresh ones: what waits may be what fails.
            limit = limit // 2 if limit > 1 else round(state.dice.random())
            if not limit:
                return 0
        elif self._is_due_held:
            limit = min(limit, max(1, round(HELD_PER_SECOND * self._retry_interval)))
        elif self._priority.sends_first and self._due_pages > 1:
            limit, max_bytes = self._due_pages * state.settings.batch, NO_BYTE_LIMIT
        state.ordering.begin_due_read()
        try:
            ids = await self._find_due(limit, max_bytes)
            due = await state.store.read_due(state.name, ids) if ids else ()
        except BaseException:
            state.ordering.accept(())
            raise
        decision = state.ordering.accept(due)
        self._note_held(decision.take)
        await self._start_claim(decision)
        return len(decision.take) + (self._due_mark is not None and not self._is_due_held)

    def _note_held(self, messages: Sequence[Message]) -> None:
        """Rest from due messages if most of those that were read have a blocked address.

        To claim and put off again what waits for one costs more than a delivery. Thousands that are due at once must
        not take every other turn from the others.
        """
        if messages:
            self._is_due_held = 2 * sum(self._is_blocked(message) for message in messages) > len(messages)
        if self._is_due_held:
            self._due_at = max(self._due_at, self._state.clock.monotonic() + self._retry_interval)

    def _is_blocked(self, message: Message) -> bool:
        """Return whether the address of a message takes nothing at present."""
        addresses = self._state.addresses
        if self._addressing is None or not addresses.has_blocked:
            return False
        address = self._addressing.get_address(message)
        return address is not None and addresses.is_blocked(address)

    async def _find_due(self, limit: int, max_bytes: int) -> Sequence[int]:
        """Find the next due messages of a search that goes on from read to read, and begins anew at its end.

        Returns the ids to read now, as many as fit into the window. Where it is full, the search goes on behind them.

        Each search passes all that is due, also what is in flight or must wait behind another of its key. It rests in
        proportion, so that a key with very many retries does not keep the database busy.
        """
        state, began_at = self._state, self._state.clock.monotonic()
        if self._due_mark is None:
            self._due_cost, self._due_reread_at = 0.0, began_at + _REREAD_INTERVAL
        # While a long search goes on, what comes due before its mark is found by a look at the start.
        looks_back = began_at >= self._due_reread_at
        after = None if looks_back else self._due_mark
        found = await state.store.find_due(
            state.name, partitions=state.ordering.partitions, after=after, limit=limit, max_bytes=max_bytes
        )
        ids, seen = state.ordering.choose_due(found)
        self._due_pages = _DUE_PAGES if len(ids) * _DUE_PAGES < len(found) else 1
        now = state.clock.monotonic()
        self._due_cost += now - began_at
        if looks_back:
            self._due_reread_at = now + _REREAD_INTERVAL
        elif seen == len(found) < limit and sum(message.size for message in found) < max_bytes:
            self._due_mark = None
            self._due_at = now + max(self._retry_interval, _DUE_REST * self._due_cost)
        elif seen:
            self._due_mark = found[seen - 1].mark
        return ids

    async def _read_keys(self) -> int:
        """Read the next messages of keys that were blocked, all in one read and one claim."""
        state = self._state
        if not state.ordering.has_room:
            return 0
        reads = state.ordering.next_key_reads(max(_KEYS_PER_ROUND, _BATCHES * state.settings.batch))
        if not reads:
            return 0
        try:
            found = await self._read_key_messages(reads)
        except BaseException:
            for unread in reads:
                state.ordering.abort_key_read(unread)
            raise
        take: list[Message] = []
        for read, messages in zip(reads, found, strict=False):
            take += state.ordering.accept_key(read, messages).take
        for unread in reads[len(found) :]:
            state.ordering.abort_key_read(unread)
        if take:  # a read that finds nothing says nothing, and must not put off the due ones again and again
            self._note_held(take)
        await self._start_claim(ReadDecision(take))
        return len(take)

    async def _read_key_messages(self, reads: Sequence[KeyRead]) -> Sequence[KeyMessages]:
        state = self._state
        return await state.store.read_keys(
            state.name,
            [(read.partition, read.key) for read in reads],
            key_limit=state.ordering.key_share,
            limit=state.ordering.room,
            max_bytes=state.ordering.room_bytes,
        )

    async def _read_astray(self) -> int:
        """Read what waits under keys that are none: it blocks nothing, and is closed as unreadable."""
        state, found = self._state, 0
        for read in state.ordering.next_astray(_KEYS_PER_ROUND) if state.ordering.has_room else ():
            state.ordering.begin_due_read()
            try:
                (answer,) = await self._read_key_messages([read])
            except BaseException:
                state.ordering.accept(())
                raise
            decision = state.ordering.accept([one for one in answer.messages if one.unreadable is not None])
            await self._start_claim(decision)
            found += len(decision.take)
        return found

    async def _read_remainders(self) -> int:
        """Read more of the hot keys that were partly left in the table."""
        state, found = self._state, 0
        if self._cursor is None:
            return 0
        session = self._cursor.session
        remainders = state.ordering.next_remainders(_KEYS_PER_ROUND)
        for index, remainder in enumerate(remainders):
            if not state.ordering.has_room:
                for unread in remainders[index:]:
                    state.ordering.abort_remainder(unread)
                break
            above = Cursor({remainder.partition: remainder.after}, None, session)
            try:
                result = await state.store.read(
                    state.name,
                    partitions=[remainder.partition],
                    cursor=above,
                    limit=state.settings.batch,
                    max_bytes=remainder.max_bytes,
                )
            except BaseException:
                for unread in remainders[index:]:
                    state.ordering.abort_remainder(unread)
                raise
            decision = state.ordering.accept_remainder(remainder, result)
            await self._start_claim(decision)
            found += len(decision.take) + len(decision.park)
        return found

    def _order_lanes(self, partitions: Sequence[int]) -> list[int]:
        """Put the lanes first that are furthest behind: what was written first is sent first, and stands together.

        Now and then each lane is the first in its turn: one that comes no further must not hold the others up.
        """
        self._reads += 1
        turn, rest = divmod(self._reads, _IN_TURN)
        if not rest:
            first = turn % len(partitions)
            return [*partitions[first:], *partitions[:first]]
        low = {} if self._cursor is None else self._cursor.low
        return sorted(self._rotate(partitions), key=lambda partition: low.get(partition, 0))

    def _rotate(self, partitions: Sequence[int]) -> list[int]:
        """Begin at another lane each time, so that none is always last of those that are equally far."""
        self._first_lane += _ROTATION
        if self._first_lane >= len(partitions):
            self._first_lane = (self._first_lane + 1) % min(_ROTATION, len(partitions))
        return [*partitions[self._first_lane :], *partitions[: self._first_lane]]

    def _choose_reread(self, partitions: Sequence[int]) -> set[int]:
        """Return one lane to read from its start now and then, each in its turn."""
        now = self._state.clock.monotonic()
        if now < self._reread_at:
            return set()
        self._reread_at = now + _REREAD_INTERVAL
        self._reread_lane = (self._reread_lane + 1) % len(partitions)
        return {partitions[self._reread_lane]}

    # --- claiming ---

    async def _start_claim(self, decision: ReadDecision) -> None:
        """Record what to claim and to park in the background: one claim after the other, beside the next read."""
        self._drop_reused_lanes()
        epochs = dict(self._state.epochs)
        for part, strikes in self._split_by_strikes(decision):
            await self.finish()
            self._claim_task = asyncio.create_task(self._record_claim(part, strikes, epochs))

    def _split_by_strikes(self, decision: ReadDecision) -> list[tuple[ReadDecision, int]]:
        """Make one claim per count of strikes: a message that may be deadly must not mark its neighbours."""
        if not self._state.ordering.has_strikes:
            return [(decision, 0)] if decision.take or decision.park else []
        by_strikes: dict[int, list[Message]] = {0: []}
        for message in decision.take:
            by_strikes.setdefault(self._state.ordering.count_strikes(message.id), []).append(message)
        parts = [
            (ReadDecision(messages, () if strikes else decision.park), strikes)
            for strikes, messages in by_strikes.items()
        ]
        return [(part, strikes) for part, strikes in parts if part.take or part.park]

    async def _record_claim(self, decision: ReadDecision, strikes: int, epochs: Mapping[int, int]) -> None:
        """Record what is taken, before any of it is sent, and what is parked. Lanes may be lost at any moment.

        They may even be taken again meanwhile: then they are read again, and other claims have what was chosen under
        the `epochs` of before.

        Lanes that are being released are left out: what was to be claimed or parked there is the next owner's.

        A relay that stops claims nothing more: a round that had begun may end after the relay has left its lanes.
        """
        state, take, park = self._state, decision.take, decision.park
        while not state.is_stopping:
            take = [message for message in self._list_kept(take, epochs) if state.may_write(message.partition)]
            park = [message for message in self._list_kept(park, epochs) if state.may_write(message.partition)]
            if not (take or park):
                return
            number = state.lease.next_claim_number()
            claim = Claim(number, [message.id for message in take], _strikes_while_waiting(strikes))
            park_ids = {message.id: message.message_id for message in park}
            fence = state.fence({message.partition for message in (*take, *park)})
            revisions: dict[int, int] = {}

            async def write() -> None:
                revisions.update(await state.store.claim(fence, claim, park=park_ids))  # noqa: B023

            try:
                is_recorded = await state.write_in(fence, "claiming", write)
            except StoreRefused as error:
                kept = ReadDecision(self._list_kept(take, epochs), self._list_kept(park, epochs))
                await self._split_claim(kept, strikes, epochs, error)
                return
            if is_recorded:
                state.note_revisions(revisions)
                state.ordering.confirm_parks(self._list_kept(park, epochs))
                state.ordering.confirm_claim(number, self._list_kept(take, epochs))
                state.lease.note_claimed((*claim.message_ids, *park_ids))
                state.send_event.set()
                state.settle_event.set()
                return
            # A lane was lost and dropped. The messages of the other lanes are claimed without it, under a new number:
            # nothing of the refused claim was written.
            if not state.may_act():
                return

    def _list_kept(self, messages: Sequence[Message], epochs: Mapping[int, int]) -> list[Message]:
        """List the messages whose lanes are still held under these epochs."""
        held = self._state.epochs
        kept = {partition for partition, epoch in epochs.items() if held.get(partition) == epoch}
        return [message for message in messages if message.partition in kept]

    async def _split_claim(
        self, decision: ReadDecision, strikes: int, epochs: Mapping[int, int], refusal: StoreRefused
    ) -> None:
        """Record a refused claim in parts, down to the message that is the cause: that one alone is not recorded."""
        take, park = decision.take, decision.park
        if take and park:
            parts = [ReadDecision(take), ReadDecision((), park)]
        elif len(take) + len(park) > 1:
            middle_take, middle_park = len(take) // 2, len(park) // 2
            parts = [
                ReadDecision(take[:middle_take], park[:middle_park]),
                ReadDecision(take[middle_take:], park[middle_park:]),
            ]
        else:
            if take:
                self._state.set_aside(take[0], Settlement(), reason=refusal)
            elif park:
                await self._close_unparked(park[0], refusal)
            return
        for part in parts:
            await self._record_claim(part, strikes, epochs)

    async def _close_unparked(self, message: Message, refusal: StoreRefused) -> None:
        """Close a message as failed that must wait behind another and cannot be parked."""
        state = self._state
        if not state.may_write(message.partition):
            return  # the next owner of its lane parks it
        parked = FailedOutcome(
            message_id=message.id, state=State.PENDING, waits=Waits.PARKED, attempts=message.attempts
        )
        closed = build_refusal(message, refusal, outcome=parked)
        settlement = Settlement(failures=[closed], message_ids={message.id: message.message_id})
        epoch = state.epochs.get(message.partition, 0)
        try:
            is_closed = await state.close_refused(message, closed, settlement)
        except StoreRefused as error:
            state.set_aside(message, Settlement(), reason=error)
            self._unparked.append((message, epoch))
            self._unparked_timer.begin()
            return
        if is_closed:
            state.ordering.confirm_parks(self._list_kept([message], {message.partition: epoch}))
            state.lease.note_claimed([message.id])

    async def _park_again(self) -> None:
        """Try again to park what could be neither parked nor closed."""
        unparked, self._unparked = self._unparked, []
        served = set(self._state.ordering.partitions)  # without lanes that are being handed over
        owned = [
            message
            for message, epoch in unparked
            if message.partition in served and self._state.epochs.get(message.partition) == epoch
        ]
        await self._start_claim(ReadDecision((), owned))

    # --- probing ---

    def _start_ping(self) -> None:
        """Ping in the background: an answer may take long, and the lanes must be read meanwhile."""
        if self._ping_task is None or self._ping_task.done():
            self._ping_task = asyncio.create_task(self._ping_beside())

    async def _ping_beside(self) -> None:
        """Open the breaker if a quiet destination does not answer, unless messages showed meanwhile how it is."""
        state, acknowledged = self._state, self._state.policy.acknowledged
        try:
            async with asyncio.timeout(state.settings.send_timeout.total_seconds()):
                await self._transport.ping()
        except Exception as error:
            if state.policy.acknowledged == acknowledged and not state.ordering.in_flight and state.breaker.is_closed:
                state.open_breaker(str(error) or "no answer to a ping")
                state.close()
                self.poll()  # it may rest, and goes by the breaker's time now
        else:
            self._note_ping()

    async def _probe(self) -> bool:
        """Ping a destination whose breaker is open, once its time has come, and read messages to probe it with.

        They are read as always, fresh ones and all kinds of waiting ones. The sender sends one of them.
        """
        state = self._state
        # Suspects may have to wait for a lease, and others go before them: one that is new is the probe then.
        if state.ordering.in_flight > (state.ordering.waiting_suspects if state.is_probing else 0):
            return False
        if not state.is_probing and not (state.breaker.half_open(state.clock.monotonic()) and await self._ping_down()):
            return False
        if not state.ordering.is_open:  # at first, and after a pause in the middle of the probe
            self._cursor, self._due_at, self._due_mark, self._empty_probes = None, 0.0, None, 0
            state.begin_probe()
        # One of all that were read is sent. The first that is claimed would be the same each time.
        state.may_probe = False
        try:
            found = bool(state.epochs) and await self._read_all()
            await self.finish()
        except StoreError as error:
            state.telemetry.on_store_failed("reading", error)
            self._cursor = None
            # Nothing more is read before what was claimed until then is gone, so one of that must go.
            self._allow_probe()
            return False
        self._allow_probe()
        # Twice: the first read finds out which waiting messages are due, and the second takes them.
        self._empty_probes += not found
        if not state.epochs or (self._empty_probes >= _EMPTY_PROBES and not state.ordering.in_flight):
            state.policy.row.clear()
            state.close_breaker(is_proven=False)  # there is no message to probe with: the ping must do
            state.reopen()
        return found

    def _allow_probe(self) -> None:
        self._state.may_probe = True
        self._state.send_event.set()

    async def _ping_down(self) -> bool:
        """Ping a destination that is down; return whether it answers."""
        state = self._state
        try:
            async with asyncio.timeout(state.settings.send_timeout.total_seconds()):
                if not state.is_connected:
                    await self._transport.open()
                    state.is_connected = True
                await self._transport.ping()
        except Exception as error:
            state.open_breaker(str(error) or "no answer to a ping")
            return False
        self._note_ping()
        return True

    def _note_ping(self) -> None:
        """Note that the destination answered a ping, where that shows that messages could get through."""
        if self._transport.features.ping_is_witness:
            self._state.policy.note_ping()


def _strikes_while_waiting(strikes: int) -> int:
    """Return the strikes to record while a suspect only waits to be sent.

    Should the relay die meanwhile, the takeover adds one, and the message keeps the strikes that it has.
    """
    return strikes - 1 if strikes >= SUSPECT_STRIKES else strikes
