"""The line to the store: what is late on it, and what does not get through."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import cast
from uuid import UUID

from pillarbox.errors import StoreUnavailable
from proof.simulation.environment import Place
from proof.simulation.network import StoreLine
from proof.simulation.scenario import Scenario
from proof.simulation.virtual_time import ProcessClock, ProcessLoop

LEASE = timedelta(seconds=1)
SOON = 0.2
LATE = 5.0


class Case:
    """A process and its line, on a fair day."""

    def __init__(self) -> None:
        self.place = Place(replace(Scenario.drawn(0), weather={}))
        clock = ProcessClock(self.place.timeline, rate=1.0, offset=0.0)
        loop = ProcessLoop(self.place.timeline, clock, told=print)  # type: ignore[abstract]
        self.line = StoreLine(
            self.place.connect(), self.place.network, name="r1", loop=loop, notifies=False, moment=lambda: None
        )

    def asked(self) -> list[asyncio.Future[object]]:
        """A renewal and another call."""
        store = self.line.store
        calls = [store.renew(UUID(int=1), lease=LEASE, reachable=[]), store.pauses()]
        return cast("list[asyncio.Future[object]]", calls)

    def answered(self, calls: list[asyncio.Future[object]], *, by: float) -> list[bool]:
        self.place.timeline.run(until=by)
        return [call.done() for call in calls]


def test_everything_is_answered_soon() -> None:
    case = Case()
    assert case.answered(case.asked(), by=SOON) == [True, True]


def test_renewals_alone_are_heard_late() -> None:
    case = Case()
    case.line.lag = 1.0
    calls = case.asked()
    assert case.answered(calls, by=SOON) == [False, True]
    assert case.answered(calls, by=LATE) == [True, True]


def test_renewals_alone_do_not_get_through() -> None:
    case = Case()
    case.line.is_starved = True
    renewal, other = calls = case.asked()
    assert case.answered(calls, by=LATE) == [True, True]
    assert isinstance(renewal.exception(), StoreUnavailable)
    assert other.exception() is None


def test_nothing_gets_through_a_line_that_is_cut() -> None:
    case = Case()
    case.line.is_cut = True
    calls = case.asked()
    assert case.answered(calls, by=LATE) == [True, True]
    assert all(isinstance(call.exception(), StoreUnavailable) for call in calls)


def test_a_line_is_mended_in_every_respect() -> None:
    case = Case()
    case.line.is_cut, case.line.is_starved, case.line.lag, case.line.slowness = True, True, 1.0, 1.0
    case.line.mend()
    calls = case.asked()
    assert case.answered(calls, by=SOON) == [True, True]
    assert [call.exception() for call in calls] == [None, None]
