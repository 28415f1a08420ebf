"""The connection to the store: what is answered late, and what is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import cast
from uuid import UUID

from pillarbox.errors import StoreUnavailable
from proof.simulation.environment import Environment
from proof.simulation.network import StoreConnection
from proof.simulation.scenario import Scenario
from proof.simulation.virtual_time import ProcessClock, ProcessLoop

LEASE = timedelta(seconds=1)
SOON = 0.2
LATE = 5.0


class Case:
    """A process with its connection, without faults."""

    def __init__(self) -> None:
        self.env = Environment(replace(Scenario.draw(0), fault_rates={}))
        clock = ProcessClock(self.env.timeline, rate=1.0, offset=0.0)
        loop = ProcessLoop(self.env.timeline, clock, on_error=print)  # type: ignore[abstract]
        self.connection = StoreConnection(
            self.env.connect(), self.env.network, name="r1", loop=loop, notifies=False, on_step=lambda: None
        )

    def call_store(self) -> list[asyncio.Future[object]]:
        """Make a renewal and another call."""
        store = self.connection.store
        calls = [store.renew(UUID(int=1), lease=LEASE, reachable=[]), store.pauses()]
        return cast("list[asyncio.Future[object]]", calls)

    def run(self, calls: list[asyncio.Future[object]], *, by: float) -> list[bool]:
        self.env.timeline.run(until=by)
        return [call.done() for call in calls]


def test_everything_is_answered_soon() -> None:
    case = Case()
    assert case.run(case.call_store(), by=SOON) == [True, True]


def test_renewals_alone_are_answered_late() -> None:
    case = Case()
    case.connection.renewal_lag = 1.0
    calls = case.call_store()
    assert case.run(calls, by=SOON) == [False, True]
    assert case.run(calls, by=LATE) == [True, True]


def test_renewals_alone_are_lost() -> None:
    case = Case()
    case.connection.drops_renewals = True
    renewal, other = calls = case.call_store()
    assert case.run(calls, by=LATE) == [True, True]
    assert isinstance(renewal.exception(), StoreUnavailable)
    assert other.exception() is None


def test_nothing_gets_through_a_disconnected_one() -> None:
    case = Case()
    case.connection.is_disconnected = True
    calls = case.call_store()
    assert case.run(calls, by=LATE) == [True, True]
    assert all(isinstance(call.exception(), StoreUnavailable) for call in calls)


def test_restoring_ends_every_fault() -> None:
    case = Case()
    (
        case.connection.is_disconnected,
        case.connection.drops_renewals,
        case.connection.renewal_lag,
        case.connection.slowness,
    ) = True, True, 1.0, 1.0
    case.connection.restore()
    calls = case.call_store()
    assert case.run(calls, by=SOON) == [True, True]
    assert [call.exception() for call in calls] == [None, None]
