from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pillarbox.stores.liveness import AnswerLimit, limit_answers, limit_heartbeats
from pillarbox.stores.postgres.connection import LentPool


def test_calls_that_waited_beside_each_other_double_the_limit_once() -> None:
    limit = AnswerLimit(3.0, longest=30.0)
    for began_at in (0.0, 0.5, 1.0, 2.9):
        limit.double(began_at + 3.0, began_at=began_at)
    assert limit.get(6.0) == 6.0


def test_the_next_event_doubles_it_again_up_to_the_longest() -> None:
    limit, now = AnswerLimit(3.0, longest=10.0), 0.0
    for expected in (6.0, 10.0, 10.0):
        limit.double(now + 3.0, began_at=now)
        now += 4.0
        assert limit.get(now) == expected
    assert limit.get(now + 61.0) == 3.0, "after a calm minute it is what it was"


def test_connections_that_are_dropped_several_times_a_minute_are_replaced_within_a_lease_each_time() -> None:
    """It took 30 seconds from the fourth on."""
    limit, now, took = limit_answers(10.0, timeout=30.0), 0.0, []
    for _ in range(6):
        took.append(limit.get(now))
        limit.double(now + took[-1], began_at=now)
        now += took[-1]
        limit.note(0.01, now + 0.01)  # the repeat, on a connection that is new
        now += 3.0
    assert max(took) < 10.0
    now += 20.0
    assert limit.get(now) == 10.0 / 3, "there was no slow answer, so it was the connections"


def test_a_server_that_is_only_slow_keeps_its_time_for_a_minute() -> None:
    limit = limit_answers(10.0, timeout=30.0)
    limit.double(3.4, began_at=0.0)
    limit.note(5.0, 8.5)
    assert limit.get(60.0) > 5.0
    assert limit.get(69.0) == 10.0 / 3


@pytest.mark.parametrize("lease", [3.0, 10.0, 60.0])
def test_a_heartbeat_never_waits_longer_than_a_third_of_the_lease(lease: float) -> None:
    limit, now = limit_heartbeats(lease, timeout=30.0), 0.0
    for _ in range(5):
        limit.double(now + 1.0, began_at=now)
        now += 2.0
    assert limit.get(now) <= lease / 3
    assert limit_answers(lease, timeout=30.0).get(0.0) >= 3.0


class SilentPool:
    """Lends connections on which no answer comes until they are dropped."""

    def __init__(self) -> None:
        self.dropped = asyncio.Event()

    @asynccontextmanager
    async def acquire(self, *, timeout: float) -> AsyncIterator[Any]:
        yield object()

    def abort(self) -> None:
        self.dropped.set()


class Driver:
    errors = (OSError,)

    def abort(self, connection: Any) -> None:
        pass


async def test_a_dropped_pool_with_four_calls_is_one_event() -> None:
    silent = SilentPool()
    pool = LentPool(silent, Driver(), timeout=30.0)  # type: ignore[arg-type]
    pool.limit = AnswerLimit(0.02, longest=30.0)

    async def ask() -> None:
        async with pool.lend(limited=True):
            await asyncio.sleep(0.1)  # every alarm has gone off
            raise ConnectionResetError

    ends = await asyncio.gather(*(ask() for _ in range(4)), return_exceptions=True)
    assert [type(end) for end in ends] == [ConnectionResetError] * 4
    assert silent.dropped.is_set()
    assert pool.limit._seconds == 0.04, "doubled once"
