"""One destination: reading ahead, sending and settling, side by side, bounded by the window."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from pillarbox.errors import StoreError
from pillarbox.protocols import BlockedKey, Inherited, Lane, Transport
from pillarbox.relay.dispatch import Dispatch
from pillarbox.relay.intake import Intake
from pillarbox.relay.settler import Settler
from pillarbox.relay.wake import Sleeper, wait_within
from pillarbox.relay.work import Work

__all__ = ["Pipeline"]

_TICK: Final = 0.5
"""The longest any loop waits without a look around."""
_IDLE_ROUNDS: Final = 2


class Pipeline:
    """Delivers one destination's messages for as long as `run` runs."""

    def __init__(
        self,
        work: Work,
        *,
        transport: Transport,
        open_lone: Callable[[], Transport],
        sleeper: Sleeper,
        lone_cap: int,
        patience: timedelta,
    ) -> None:
        self.work = work
        self._patience = patience.total_seconds()
        """How long the destination may be out of this relay's reach before relays that reach it are preferred."""
        self._transport = transport
        self.sleeper = sleeper
        self._dispatch = Dispatch(work, transport=transport, open_lone=open_lone, lone_cap=lone_cap)
        self._intake = Intake(work, transport=transport, sleeper=sleeper)
        self._settler = Settler(work)
        self._leaving: dict[int, float] = {}
        """Lanes being handed over, and until when their messages under way are waited for."""
        self.beat = work.clock.monotonic()
        """When the loop that waits for nobody but the store last turned."""

    # --- lanes ---

    def grant(self, lanes: Iterable[Lane], inherited: Sequence[Inherited], blocked: Iterable[BlockedKey]) -> None:
        """Serve these lanes too, beginning with what came with them."""
        core = self.work.core
        for lane in lanes:
            self.work.epochs[lane.partition] = lane.epoch
            self._leaving.pop(lane.partition, None)
            core.grant(lane.partition)
        for part in inherited:
            core.inherit(part.claim.number, part.messages, strikes=part.claim.strikes)
            self.work.standing.inherited(part.claim.message_ids, now=self.work.clock.monotonic())
        for key in blocked:
            core.block(key.partition, key.key, front=key.front)
        self.wake()
        self.work.ready.set()
        self.work.outcomes.set()

    def revoke(self, partitions: Iterable[int]) -> None:
        """Hand lanes over: read them no more, finish what is under way, then release them."""
        until = self.work.clock.monotonic() + self.work.settings.send_timeout.total_seconds()
        for partition in partitions:
            if partition in self.work.epochs and partition not in self._leaving:
                self._leaving[partition] = until
                self.work.core.revoke(partition)
        self.work.outcomes.set()

    @property
    def lanes(self) -> Mapping[int, int]:
        """The lanes it serves and means to keep."""
        return {p: epoch for p, epoch in self.work.epochs.items() if p not in self._leaving}

    @property
    def is_reachable(self) -> bool:
        """Whether the destination answers, or did not long ago: a short outage moves no lanes."""
        return self.work.breaker.was_open_for(self.work.clock.monotonic()) < self._patience

    def wake(self) -> None:
        """There is something new."""
        self.sleeper.woken()
        self.work.intake.set()

    def peek(self) -> None:
        """Have one look, and go on sleeping if there is nothing."""
        self.work.intake.set()

    @property
    def is_idle(self) -> bool:
        """Nothing is in hand, and the last looks at its lanes found nothing that could be sent now."""
        return self._intake.empty_rounds >= _IDLE_ROUNDS and not self.work.core.in_hand

    # --- running ---

    async def run(self) -> None:
        """Open the transport and turn until cancelled. A transport that is slow to open costs nobody the lease."""
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._settling())
                await self._connect()
                loops.create_task(self._reading())
                loops.create_task(self._sending())
        finally:
            self._intake.abandon()
            self._dispatch.abandon()
            with contextlib.suppress(Exception):
                await self._transport.close()

    async def _connect(self) -> None:
        work = self.work
        try:
            async with asyncio.timeout(work.settings.send_timeout.total_seconds()):
                await self._transport.open()
            work.is_connected = True
        except Exception as error:
            reason = str(error) or "no connection in time"
            seconds = work.breaker.open(work.clock.monotonic(), reason=reason, dice=work.dice.random())
            work.telemetry.breaker_opened(work.name, reason=reason, seconds=seconds)
            work.shut()

    async def _reading(self) -> None:
        work = self.work
        while True:
            found = await self._intake.run_once()
            wait = min(self.sleeper.after(found), _TICK)
            if not work.breaker.is_closed:
                wait = min(wait, work.breaker.wait(work.clock.monotonic()) or wait)
            if wait:
                await wait_within(work.intake, wait)

    async def _sending(self) -> None:
        work = self.work
        while True:
            await wait_within(work.ready, _TICK)
            work.ready.clear()
            if delay := self._dispatch.send_ready():
                await asyncio.sleep(delay)
                work.ready.set()

    async def _settling(self) -> None:
        work = self.work
        while True:
            await wait_within(work.outcomes, _TICK)
            self.beat = work.clock.monotonic()
            while await self._settler.run_once() and work.may_act():
                self.beat = work.clock.monotonic()
            await self._hand_over()
            if work.flooded:
                await self._pause_flooded()
            if not work.may_act():
                await asyncio.sleep(_TICK / 10)

    async def _hand_over(self) -> None:
        """Release the lanes that are drained, or were waited for long enough."""
        work = self.work
        now = work.clock.monotonic()
        late = [partition for partition, until in self._leaving.items() if now >= until]
        done = late + [p for p in self._leaving if p not in late and work.core.is_drained(p)]
        if not done:
            return
        work.core.drop(late)
        fence = work.fence(done)
        if await work.carried_through("releasing", lambda: work.store.release(fence)):
            work.telemetry.lanes_left(work.name, done)
        for partition in done:
            self._leaving.pop(partition, None)
            work.epochs.pop(partition, None)

    async def _pause_flooded(self) -> None:
        """Every message was refused, one after the other: that is no fault of the messages."""
        work = self.work
        reason = "many messages in a row were rejected and none was delivered"
        with contextlib.suppress(StoreError):
            await work.store.pause(work.name, by=f"relay {work.standing.relay_id}", reason=reason)
            work.flooded = False
        work.pause(reason)

    async def drain(self, *, within: float) -> None:
        """Finish gracefully: take nothing more, let what is under way finish, record it all."""
        work = self.work
        work.stopping = True
        work.shut()
        await self._intake.finish()
        await self._dispatch.finish(within=within)
        self._dispatch.abandon()
        work.core.drop_unanswered()
        until = work.clock.monotonic() + within
        while await self._settler.run_once() and work.may_act() and work.clock.monotonic() < until:
            pass
