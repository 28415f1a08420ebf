"""The heartbeat: a lease is believed for as long as the store surely keeps it, and no longer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import RelayInfo
from pillarbox.errors import StoreUnavailable
from pillarbox.relay.lease import Lease
from pillarbox.relay.membership import Heartbeat, LeaseLost
from pillarbox.relay.settings import RelaySettings
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry

LEASE = timedelta(seconds=10)
SURE = 9.0
"""Seconds of it that a relay makes use of."""


class _Slow(MemoryStore):
    """Takes effect at once and answers later, or not at all."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.renewals = 0
        self.answers_after = timedelta(0)
        self.is_cut = False
        self._frozen = clock

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        await super().register(relay, lease=lease)
        self._frozen.advance(self.answers_after)

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        self.renewals += 1
        renewed = await super().renew(relay_id, lease=lease, reachable=reachable, asleep=asleep)
        self._frozen.advance(self.answers_after)
        if self.is_cut:
            raise StoreUnavailable("the line broke")
        return renewed


class _Relay:
    """A lease and its heartbeat. `acts_until` checks by the monotonic clock until when the relay may act."""

    def __init__(self) -> None:
        self.clock = FrozenClock()
        self.store = _Slow(self.clock)
        self.lease = Lease(duration=LEASE)
        self.progress = 0.0
        self.heartbeat = Heartbeat(
            self.store, self.lease, settings=RelaySettings(lease=LEASE), clock=self.clock, telemetry=Telemetry(),
            reachable=list, progress=lambda: self.progress,
        )  # fmt: skip

    async def register(self) -> None:
        info = RelayInfo(
            relay_id=self.lease.relay_id, service="s", host="h", pid=1, version="1", destinations=[], reachable=[]
        )
        await self.heartbeat.register(info)

    def pass_by(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        self.progress = self.clock.monotonic()

    def acts_until(self, moment: float) -> bool:
        return self.lease.may_act(moment - 0.01) and not self.lease.may_act(moment + 0.01)


async def _registered() -> _Relay:
    relay = _Relay()
    await relay.register()
    return relay


async def test_the_first_lease_is_counted_from_when_it_was_asked_for() -> None:
    relay = _Relay()
    relay.store.answers_after = timedelta(seconds=4)
    await relay.register()
    assert relay.acts_until(SURE)


async def test_a_renewed_lease_is_counted_from_when_it_was_asked_for() -> None:
    relay = await _registered()
    relay.pass_by(3)
    relay.store.answers_after = timedelta(seconds=4)
    await relay.heartbeat.run_once()
    assert relay.acts_until(3 + SURE)


async def test_a_renewal_that_is_answered_when_the_lease_has_ended_is_too_late() -> None:
    """What was under way has been given up by then, and somebody else may have taken it."""
    relay = await _registered()
    relay.store.answers_after = LEASE
    with pytest.raises(LeaseLost):
        await relay.heartbeat.run_once()


async def test_a_renewal_that_is_refused_ends_the_lease() -> None:
    relay = await _registered()
    await relay.store.leave(relay.lease.relay_id)
    with pytest.raises(LeaseLost):
        await relay.heartbeat.run_once()


async def test_a_renewal_of_unknown_outcome_prolongs_nothing() -> None:
    relay = await _registered()
    relay.pass_by(3)
    relay.store.is_cut = True
    await relay.heartbeat.run_once()
    assert relay.acts_until(SURE)


async def test_a_relay_whose_work_stands_still_lets_its_lease_run_out() -> None:
    relay = await _registered()
    relay.clock.advance(LEASE + timedelta(seconds=1))
    await relay.heartbeat.run_once()
    assert relay.store.renewals == 0
