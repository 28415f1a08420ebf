"""Pipeline of one destination: reading ahead, sending and settling overlap, bounded by the window."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pillarbox.contracts.store import BlockedKey, Lane, RecoveredClaim, Settlement
from pillarbox.contracts.transport import Transport
from pillarbox.errors import StoreRefused
from pillarbox.relay.destination import AsideTimer, DestinationState
from pillarbox.relay.in_flight import halve_settlement
from pillarbox.relay.lease import LoopProgress
from pillarbox.relay.outcome_policy import build_refusal
from pillarbox.relay.polling import PollBackoff, wait_for_event
from pillarbox.relay.reader import Reader
from pillarbox.relay.sender import RateLimit, Sender
from pillarbox.relay.settings import DEFAULT_SETTINGS, RelaySettings
from pillarbox.relay.shares import Demand

__all__ = ["Pipeline", "Settler"]

_TICK: Final = 0.5
"""Longest wait of the loops that send and settle: an event that was missed costs no more than this."""
_LONGEST_REST: Final = 10.0
"""Seconds after which a reader makes a round though the shared poll sent it on none."""
_IDLE_ROUNDS: Final = 2
_MAX_SETTLEMENT: Final = 1_000


class Pipeline:
    """Delivers one destination's messages for as long as `run` runs."""

    def __init__(
        self,
        state: DestinationState,
        *,
        transport: Transport,
        open_transport: Callable[[], Transport],
        backoff: PollBackoff,
        settings: RelaySettings = DEFAULT_SETTINGS,
        rate: RateLimit | None = None,
        pace: float = 1.0,
    ) -> None:
        self.state = state
        self._tick = _TICK * pace
        self._patience = settings.lease.total_seconds()
        """Seconds for which the destination may be down for this relay before relays that reach it are preferred."""
        self._transport = transport
        self.backoff = backoff
        self.reader = Reader(
            state, transport=transport, backoff=backoff, retry_interval=settings.retry_interval,
            sends_first=settings.sends_first,
        )  # fmt: skip
        self._sender = Sender(
            state, transport=transport, open_transport=open_transport, lone_cap=settings.lone_cap, rate=rate
        )
        self._settler = Settler(state)
        self._release_lock = asyncio.Lock()
        self._releases: dict[int, float] = {}
        """Lanes being handed over, and until when their messages in flight are waited for."""
        self.progress = LoopProgress(state.clock)
        """Progress of the settling loop, which waits for nothing but the store."""

    # --- lanes ---

    def grant(self, lanes: Iterable[Lane], recovered: Sequence[RecoveredClaim], blocked: Iterable[BlockedKey]) -> None:
        """Serve these lanes too, beginning with the claims that were recovered with them."""
        state = self.state
        for lane in lanes:
            state.epochs[lane.partition] = lane.epoch
            state.revisions[lane.partition] = lane.revision
            self._releases.pop(lane.partition, None)
            state.ordering.grant(lane.partition)
        for part in recovered:
            state.ordering.recover_claim(part.claim.number, part.messages, strikes=part.claim.strikes)
            state.lease.pause_for_claims(part.claim.message_ids, now=state.clock.monotonic())
        state.block_keys(blocked)
        self.wake()
        state.send_event.set()
        state.settle_event.set()

    def revoke(self, partitions: Iterable[int]) -> None:
        """Hand lanes over: stop reading them, finish what is being sent, then release them."""
        until = self.state.clock.monotonic() + self.state.settings.send_timeout.total_seconds()
        for partition in partitions:
            if partition in self.state.epochs and partition not in self._releases:
                self._releases[partition] = until
                self.state.ordering.revoke(partition)
        self.state.settle_event.set()

    @property
    def lanes(self) -> Mapping[int, int]:
        """The lanes that it serves and will keep, with their epochs."""
        return {p: epoch for p, epoch in self.state.epochs.items() if p not in self._releases}

    @property
    def is_reachable(self) -> bool:
        """The destination answers, or did so a short time ago: a short outage moves no lanes."""
        state = self.state
        return state.is_reachable or state.breaker.open_for(state.clock.monotonic()) < self._patience

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight, and the last rounds found nothing that could be sent now."""
        return self.reader.empty_rounds >= _IDLE_ROUNDS and not self.state.ordering.in_flight

    def measure_demand(self) -> Demand:
        """Return what is in flight, and whether there would be more if there were room."""
        ordering = self.state.ordering
        wants = self.backoff.is_full or self.backoff.is_busy or ordering.in_flight > 0
        return Demand(ordering.in_flight, ordering.bytes_in_flight, wants)

    def wake(self) -> None:
        """Read now, and often for a while: there is something new."""
        self.backoff.reset()
        self.poll()

    def poll(self) -> None:
        """Read once now, and keep the backoff if there is nothing."""
        self.state.read_event.set()

    # --- running ---

    async def run(self) -> None:
        """Open the transport, then read, send and settle until cancelled."""
        try:
            async with asyncio.TaskGroup() as loops:
                # Started first: while a transport is slow to open, it shows the heartbeat that this loop is alive.
                loops.create_task(self._run_settler())
                await self._connect()
                loops.create_task(self._run_reader())
                loops.create_task(self._run_sender())
        finally:
            self.reader.abandon()
            self._sender.abandon()
            with contextlib.suppress(Exception):
                await self._transport.close()

    async def drain(self, *, within: float) -> None:
        """Finish gracefully: take nothing more, let what is being sent finish, record it all."""
        state = self.state
        state.is_stopping = True
        state.close()
        await self.reader.finish()
        await self._sender.finish(within=within)
        self._sender.abandon()
        async with self._release_lock:  # a release that had begun; none begins any more
            state.ordering.drop_unanswered()
        until = state.clock.monotonic() + within
        while await self._settler.run_once() and state.may_act() and state.clock.monotonic() < until:
            pass

    async def _connect(self) -> None:
        state = self.state
        try:
            async with asyncio.timeout(state.settings.send_timeout.total_seconds()):
                await self._transport.open()
            state.is_connected = True
        except Exception as error:
            state.open_breaker(str(error) or "no connection in time")
            state.close()

    async def _run_reader(self) -> None:
        state = self.state
        while True:
            found = await self.reader.run_once()
            wait = self.backoff.next_wait(found)
            if not state.breaker.is_closed:
                wait = min(wait, state.breaker.wait(state.clock.monotonic()) or wait)
            elif wait >= self.backoff.longest and self.reader.get_idle_lanes() is not None:
                self.reader.is_resting = True
                wait = max(wait, _LONGEST_REST)
            if wait:
                await wait_for_event(state.read_event, wait)
            self.reader.is_resting = False

    async def _run_sender(self) -> None:
        state = self.state
        while True:
            await wait_for_event(state.send_event, self._tick)
            state.send_event.clear()
            if delay := self._sender.send_ready():
                await asyncio.sleep(delay)
                state.send_event.set()

    async def _run_settler(self) -> None:
        state = self.state
        while True:
            await wait_for_event(state.settle_event, self._tick)
            with self.progress.wait_for_store():
                while await self._settler.run_once() and state.may_act():
                    pass
                await self._release_lanes()
            if not state.may_act():
                await asyncio.sleep(_TICK / 10)

    async def _release_lanes(self) -> None:
        """Release the revoked lanes that are drained, or were waited for long enough."""
        async with self._release_lock:
            if not self.state.is_stopping:  # a relay that stops gives all of them up together
                await self._release_drained()

    async def _release_drained(self) -> None:
        state = self.state
        now = state.clock.monotonic()
        late = [partition for partition, until in self._releases.items() if now >= until]
        done = late + [p for p in self._releases if p not in late and state.ordering.is_drained(p)]
        if not done:
            return
        fence = state.fence(done)
        try:
            # Parks of these lanes may be under way or next in turn, which nothing in flight tells, and claims of those
            # that are late.
            await state.writes.stop(done)
            state.ordering.drop(late)  # the answers will not be recorded: the next owner sends these messages again
            if await state.retry_write("releasing", lambda: state.store.release(fence)):
                state.telemetry.on_lanes_released(state.name, done)
            state.ordering.drop(done)  # what was set aside
            for partition in done:
                self._releases.pop(partition, None)
                state.epochs.pop(partition, None)
        except StoreRefused as error:
            state.telemetry.on_store_failed("releasing", error)
        finally:
            state.writes.allow(done)


class Settler:
    """Records outcomes, one settlement at a time. Outcomes that come meanwhile are in the next."""

    def __init__(self, state: DestinationState) -> None:
        self._state = state
        # The settling loop may be in the middle of a settlement when `drain` settles the rest.
        self._lock = asyncio.Lock()
        self._aside = AsideTimer(state.clock)

    async def run_once(self) -> bool:
        """Record the outcomes that are there; return whether there were any."""
        async with self._lock:
            return await self._settle()

    async def _settle(self) -> bool:
        state = self._state
        state.settle_event.clear()
        if state.ordering.has_aside and self._aside.is_due():
            state.ordering.retry_aside()
        if not state.ordering.has_outcomes:
            return False
        await self._record(*state.ordering.next_settlement(_MAX_SETTLEMENT))
        return True

    async def _record(self, settlement: Settlement, lanes: Iterable[int]) -> None:
        """Record outcomes. What the store refuses is split down to the messages that are the cause."""
        state = self._state
        try:
            is_recorded = await state.settle(settlement, lanes)
        except StoreRefused as error:
            await self._split(settlement, error)
            return
        if not is_recorded:
            state.ordering.abort_settlement(settlement)
            return
        state.ordering.confirm_settlement(settlement)
        state.telemetry.on_settled(state.name, delivered=len(settlement.delivered), failed=len(settlement.failures))
        self._wake_others()

    async def _split(self, settlement: Settlement, refusal: StoreRefused) -> None:
        halves = halve_settlement(settlement)
        if len(halves) == 1:
            await self._close_refused(halves[0], refusal)
            return
        for half in halves:
            part, lanes = self._state.ordering.rebuild_settlement(half)
            if lanes:  # none: they were lost meanwhile
                await self._record(part, lanes)

    async def _close_refused(self, outcome: Settlement, refusal: StoreRefused) -> None:
        """Close the one message whose outcome was refused as failed; where that is refused too, set it aside."""
        state = self._state
        if outcome.returned:
            # Only its claim would change. Without that it counts as sending a little longer, and is read again.
            state.telemetry.on_store_failed("giving a message back", refusal)
            state.ordering.confirm_settlement(outcome)
            return
        failure = outcome.failures[0] if outcome.failures else None
        message = state.ordering.find_settling(outcome.delivered[0] if failure is None else failure.message_id)
        if message is None:
            return  # its lane was lost
        closed = build_refusal(message, refusal, outcome=failure)
        settlement, _ = state.ordering.rebuild_settlement(Settlement(failures=[closed]))
        try:
            is_recorded = await state.close_refused(message, closed, settlement)
        except StoreRefused as error:
            self._aside.begin()
            state.set_aside(message, outcome, reason=error)
            return
        if is_recorded:
            state.ordering.confirm_close(outcome)
            self._wake_others()
        else:
            state.ordering.abort_settlement(outcome)

    def _wake_others(self) -> None:
        self._state.read_event.set()
        if self._state.ordering.has_ready or self._state.ordering.has_suspects:
            self._state.send_event.set()
