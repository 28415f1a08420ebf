"""Reads and claims ahead: fresh messages, due ones, and the next of keys that were blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pillarbox.errors import StoreError
from pillarbox.message import Message
from pillarbox.protocols import Claim, Cursor, Reading, Transport
from pillarbox.relay.idling import Idling
from pillarbox.relay.lane import LONE_STRIKES, Left, Offer
from pillarbox.relay.wake import Sleeper
from pillarbox.relay.work import Work

__all__ = ["Intake"]

_KEYS_PER_ROUND: Final = 32
_DUE_INTERVAL: Final = 0.25
_SWEEP_INTERVAL: Final = 5.0
_SWEEP_REST: Final = 20
"""A sweep that took long is followed by a rest of this many times as long."""
_NET_INTERVAL: Final = 10.0
"""How often one lane is read from its start as a safety net."""
_LEAST_ROOM: Final = 8
"""Reading waits until this part of the window is free."""
_PROBES: Final = 32


class Intake:
    """Keeps the window full. `run_once` is one round; the pipeline repeats it."""

    def __init__(self, work: Work, *, transport: Transport, sleeper: Sleeper) -> None:
        self._work = work
        self._transport = transport
        self._sleeper = sleeper
        self._cursor: Cursor | None = None
        self._turn = 0
        self._due_at = 0.0
        self._sweep_at = 0.0
        self._net_at = 0.0
        self._net_turn = 0
        self._claiming: asyncio.Task[None] | None = None
        self._idling = Idling(every=work.settings.ping_interval)
        self._asking: asyncio.Task[None] | None = None
        self.empty_rounds = 0
        """How many rounds in a row, with lanes to read, found nothing to do."""

    async def run_once(self) -> bool:
        """One round. Answers whether it found something."""
        work = self._work
        work.intake.clear()
        if not work.may_act() or work.stopping:
            return False
        if work.pause_reason is not None or not work.breaker.is_closed:
            self.empty_rounds += 1
            self._sweep_at = 0.0
            return work.pause_reason is None and await self._probe()
        if not work.epochs:
            return False
        self._sleeper.is_full = work.core.room * _LEAST_ROOM < work.core.window
        if self._sleeper.is_full:
            return False
        found = await self._read_safely()
        self.empty_rounds = 0 if found or work.core.in_hand or self._must_ask_for_due else self.empty_rounds + 1
        if self.empty_rounds and self._idling.is_due(work.clock.monotonic(), acknowledged=work.judge.acknowledged):
            self._ask()
        return found

    @property
    def _must_ask_for_due(self) -> bool:
        """What is due could not be taken before, and may be now."""
        return self._due_at == 0.0

    async def _read_safely(self) -> bool:
        work = self._work
        try:
            return await self._read_all()
        except StoreError as error:
            work.telemetry.store_failed("reading", error)
            self._cursor = None
            await asyncio.sleep(self._sleeper.shortest)
            return False

    async def _read_all(self) -> bool:
        now = self._work.clock.monotonic()
        if now >= self._sweep_at:
            await self._sweep()
        # What waited is taken only behind what is fresh: of lanes that were never read, that must be known first.
        is_first = self._cursor is None
        found = await self._read_fresh() if is_first else 0
        found += await self._read_due() if now >= self._due_at else 0
        found += await self._read_keys() + await self._read_left()
        if self._work.core.room > 0 and not is_first:
            found += await self._read_fresh()
        return found > 0

    async def _sweep(self) -> None:
        """Learn from the table which keys are blocked: a person may have changed it."""
        work, began = self._work, self._work.clock.monotonic()
        found = await work.store.blocked_keys(work.name, partitions=work.core.partitions)
        for blocked in found:
            work.core.block(blocked.partition, blocked.key, front=blocked.front)
        work.core.look_again({blocked.key for blocked in found})
        took = work.clock.monotonic() - began
        self._sweep_at = work.clock.monotonic() + max(_SWEEP_INTERVAL, _SWEEP_REST * took)

    async def _read_due(self) -> int:
        work = self._work
        limit = min(work.settings.batch, work.core.room)
        skip = work.core.begin_due()
        try:
            due = await work.store.read_due(work.name, partitions=work.core.partitions, limit=limit, skip=skip)
        except BaseException:
            work.core.offer(())
            raise
        if len(due) < limit:
            self._due_at = work.clock.monotonic() + _DUE_INTERVAL
        offer = work.core.offer(sorted(due, key=_by_id))
        await self._claim(offer)
        return len(offer.take)

    async def _read_keys(self) -> int:
        work, found = self._work, 0
        keys = work.core.wanted(_KEYS_PER_ROUND)
        for place, wanted in enumerate(keys):
            try:
                messages = await work.store.read_key(
                    work.name, partition=wanted.partition, key=wanted.key, after=0, limit=wanted.limit
                )
            except BaseException:
                for unread in keys[place:]:
                    work.core.fetching_failed(unread)
                raise
            offer = work.core.offer_key(wanted, messages)
            await self._claim(offer)
            found += len(offer.take)
        return found

    async def _read_left(self) -> int:
        """More of the hot keys of which something was left."""
        work, found = self._work, 0
        keys = [] if self._cursor is None else work.core.left(_KEYS_PER_ROUND)
        for place, left in enumerate(keys):
            try:
                reading = await self._read_lane(left)
            except BaseException:
                for unread in keys[place:]:
                    work.core.left_failed(unread)
                raise
            offer = work.core.offer_left(left, reading)
            await self._claim(offer)
            found += len(offer.take) + len(offer.park)
        return found

    async def _read_lane(self, left: Left) -> Reading:
        session = None if self._cursor is None else self._cursor.session
        above = Cursor({left.partition: left.after}, None, session)
        return await self._work.store.read(
            self._work.name, partitions=[left.partition], cursor=above, limit=self._work.settings.batch
        )

    async def _read_fresh(self) -> int:
        work = self._work
        partitions, restart = work.core.begin_reading()
        if not partitions:
            work.core.reading_failed(restart)
            return 0
        if restart:
            self._due_at = 0.0  # what went back may be due, and could not be taken before
        order, netted = self._rotated(partitions), self._netted(partitions)
        work.core.meet_again(netted)
        cursor = None if self._cursor is None else self._cursor.restarted(restart | netted).skipping(work.core.crowded)
        try:
            reading = await work.store.read(
                work.name, partitions=order, cursor=cursor, limit=min(work.settings.batch, work.core.room)
            )
        except BaseException:
            work.core.reading_failed(restart)
            raise
        self._cursor = reading.cursor
        offer = work.core.offer_read(reading, order)
        await self._claim(offer)
        return len(offer.take) + len(offer.park)

    def _rotated(self, partitions: Sequence[int]) -> list[int]:
        self._turn = (self._turn + 8) % len(partitions)
        return [*partitions[self._turn :], *partitions[: self._turn]]

    def _netted(self, partitions: Sequence[int]) -> set[int]:
        now = self._work.clock.monotonic()
        if now < self._net_at:
            return set()
        self._net_at = now + _NET_INTERVAL
        self._net_turn = (self._net_turn + 1) % len(partitions)
        return {partitions[self._net_turn]}

    async def _claim(self, offer: Offer) -> None:
        """Have it recorded, one claim after the other, while the next read is already under way."""
        for part, strikes in self._by_strikes(offer):
            await self.finish()
            self._claiming = asyncio.create_task(self._record(part, strikes))

    def _by_strikes(self, offer: Offer) -> list[tuple[Offer, int]]:
        """One claim per count of strikes: a message that may be deadly must not mark its neighbours."""
        if not self._work.core.has_strikes:
            return [(offer, 0)] if offer.take or offer.park else []
        struck: dict[int, list[Message]] = {0: []}
        for message in offer.take:
            struck.setdefault(self._work.core.strikes(message.id), []).append(message)
        parts = [(Offer(messages, () if strikes else offer.park), strikes) for strikes, messages in struck.items()]
        return [(part, strikes) for part, strikes in parts if part.take or part.park]

    async def finish(self) -> None:
        """Wait for the claim that is being recorded."""
        if self._claiming is not None:
            claiming, self._claiming = self._claiming, None
            await claiming

    def abandon(self) -> None:
        """Wait for no claim and for no answer any more."""
        for task in (self._claiming, self._asking):
            if task is not None:
                task.cancel()

    async def _record(self, offer: Offer, strikes: int) -> None:
        """Record what is taken before any of it is sent, and what is parked. Lanes may be lost at any moment."""
        work = self._work
        while True:
            offer = Offer(_ours(offer.take, work), _ours(offer.park, work))
            if not (offer.take or offer.park):
                return
            number = work.standing.next_claim()
            claim = Claim(number, [message.id for message in offer.take], _while_waiting(strikes))
            park = [message.id for message in offer.park]
            fence = work.fence({message.partition for message in (*offer.take, *offer.park)})
            if await work.carried_through("claiming", lambda: work.store.claim(fence, claim, park=park)):  # noqa: B023
                work.core.parked(offer.park)
                work.core.claimed(number, offer.take)
                work.standing.claimed((*claim.message_ids, *park))
                work.ready.set()
                work.outcomes.set()
                return
            if not work.may_act():
                return

    def _ask(self) -> None:
        """Find out whether the destination is there, while the lanes are read on: an answer may take its time."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_idly())

    async def _ask_idly(self) -> None:
        """Only while nothing else is known: what was acknowledged meanwhile, or is under way, has the better word."""
        work, acknowledged = self._work, self._work.judge.acknowledged
        try:
            async with asyncio.timeout(work.settings.send_timeout.total_seconds()):
                await self._transport.ping()
        except Exception as error:
            is_known = work.judge.acknowledged > acknowledged or work.core.in_hand or not work.breaker.is_closed
            if not is_known:
                self._open_again(str(error) or "no answer to a ping")
                work.shut()

    async def _probe(self) -> bool:
        """The breaker is open: once its time has come, ask, and let one message find out."""
        work = self._work
        if work.core.in_hand or not work.breaker.half_open(work.clock.monotonic()):
            return False
        try:
            async with asyncio.timeout(work.settings.send_timeout.total_seconds()):
                if not work.is_connected:
                    await self._transport.open()
                    work.is_connected = True
                await self._transport.ping()
        except Exception as error:
            self._open_again(str(error) or "no answer to a ping")
            return False
        if not work.epochs:
            self._recover()
            return False
        try:
            return await self._send_probe()
        except StoreError as error:
            work.telemetry.store_failed("reading", error)
            return False

    def _open_again(self, reason: str) -> None:
        work = self._work
        seconds = work.breaker.open(work.clock.monotonic(), reason=reason, dice=work.dice.random())
        work.telemetry.breaker_opened(work.name, reason=reason, seconds=seconds)

    def _recover(self) -> None:
        """It answers, and there is no message to ask more with."""
        if self._work.breaker.close():
            self._work.telemetry.breaker_closed(self._work.name)
        self._work.open_up()

    async def _send_probe(self) -> bool:
        """One message, another one each time: if the first in line were the cause, it alone would fail."""
        work = self._work
        work.core.window = 1
        work.core.reopen()
        partitions, restart = work.core.begin_reading()
        if not partitions:
            work.core.reading_failed(restart)
            return False
        try:
            order = self._rotated(partitions)
            reading = await work.store.read(work.name, partitions=order, cursor=None, limit=_PROBES)
        except BaseException:
            work.core.reading_failed(restart)
            raise
        firsts = _first_of_keys(reading.messages)
        if not firsts:
            work.core.offer(())
            self._recover()
            return True
        offer = work.core.offer([work.dice.choice(firsts)])
        self._cursor = None
        await self._claim(offer)
        return True


def _first_of_keys(messages: Sequence[Message]) -> list[Message]:
    seen: set[str] = set()
    firsts = []
    for message in messages:
        if message.key is None or message.key not in seen:
            firsts.append(message)
        if message.key is not None:
            seen.add(message.key)
    return firsts


def _while_waiting(strikes: int) -> int:
    """What only waits to be sent alone when the relay dies must come out of it with the strikes it has."""
    return strikes - 1 if strikes >= LONE_STRIKES else strikes


def _ours(messages: Sequence[Message], work: Work) -> list[Message]:
    return [message for message in messages if message.partition in work.epochs]


def _by_id(message: Message) -> int:
    return message.id
