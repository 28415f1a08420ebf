"""Duties are tuned each by itself, and what cannot work is refused in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import DueMessage, ReadResult
from pillarbox.errors import ConfigError
from pillarbox.relay.polling import PollBackoff
from pillarbox.relay.reader import Reader
from pillarbox.relay.settings import Duty, RelaySettings
from pillarbox.stores.memory import MemoryStore
from tests.support.lanes.destination_bench import build_state, grant


class Counting(MemoryStore):
    """Counts the reads of each duty."""

    sends = retries = 0

    async def read(self, destination: str, **more: Any) -> ReadResult:
        self.sends += 1
        return await super().read(destination, **more)

    async def find_due(self, destination: str, **more: Any) -> Sequence[DueMessage]:
        self.retries += 1
        return await super().find_due(destination, **more)


@pytest.mark.parametrize(("tenths", "retries"), [(1, 20), (5, 4), (10, 2)])
async def test_retry_has_a_pace_of_its_own(tenths: int, retries: int) -> None:
    clock = FrozenClock()
    store = Counting(clock=clock)
    state = build_state(store, clock)
    await grant(state, 0)
    reader = Reader(
        state, transport=MemoryTransport(), backoff=PollBackoff(poll_interval=timedelta(seconds=1)),
        retry_interval=timedelta(milliseconds=100 * tenths),
    )  # fmt: skip
    for _ in range(20):
        await reader.run_once()
        await reader.finish()
        clock.advance(timedelta(milliseconds=101))
    assert (store.sends, store.retries) == (20, retries)


@pytest.mark.parametrize("alone", [Duty.SEND, Duty.RETRY])
def test_send_or_retry_alone_is_refused_with_the_reason(alone: Duty) -> None:
    with pytest.raises(ConfigError, match=r"go together: .* messages of a key would overtake each other"):
        RelaySettings(duties=[alone, Duty.CLEAN])


def test_the_order_of_send_and_retry_is_their_priority_wherever_the_others_stand() -> None:
    assert RelaySettings(duties=[Duty.CLEAN, Duty.SEND, Duty.RECOVER, Duty.RETRY]).sends_first
    assert not RelaySettings(duties=[Duty.RETRY, Duty.CLEAN, Duty.SEND]).sends_first
    assert not RelaySettings(duties=[Duty.CLEAN, Duty.RECOVER]).owns_lanes
