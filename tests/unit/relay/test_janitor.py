"""Janitor: each kind of record goes by its own retention, and none by that of another."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from pillarbox.contracts.store import Selection
from pillarbox.durations import FOREVER
from pillarbox.message import State
from pillarbox.relay.janitor import Janitor
from pillarbox.relay.settings import Retention
from pillarbox.stores.memory import MemoryData
from pillarbox.telemetry import Telemetry
from pillarbox.testing import MemoryHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import LANE, NEAR, close, own, put

HOUR = timedelta(hours=1)
NOTHING = Retention(
    delivered=FOREVER, failed=FOREVER, skipped=FOREVER, discarded=FOREVER, inbox=FOREVER, inbox_failed=FOREVER,
    rollups=FOREVER,
)  # fmt: skip
EVERYTHING = {"delivered", "failed", "skipped", "discarded", "inbox", "inbox_failed", "rollups"}
YEAR = timedelta(days=365)


class Harness(MemoryHarness):
    def __init__(self) -> None:
        self.data = MemoryData()
        super().__init__(make_data=lambda: self.data)


async def fill() -> Harness:
    """Build a store with one record of each kind."""
    harness = Harness()
    store = harness.store
    fence = await own(store, LANE)
    closed = (State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED)
    for number, state in enumerate(closed):
        (message,) = await put(harness, sample(key=NEAR))
        await close(store, fence, message, state, number=number + 1)
    await harness.accept("billing", "/shop", "1")
    await harness.fail_inbox("billing", "2", content=b"x")
    return harness


async def list_left(harness: Harness) -> set[str]:
    """List the kinds of records that are still there."""
    found = {message.state.value for message in await harness.store.find(Selection(), limit=10)}
    kept = {"done": "inbox", "failed": "inbox_failed"}
    found |= {kept[row.status] for row in harness.data.inbox.values()}
    return found | ({"rollups"} if await harness.store.rollups(window=10 * YEAR) else set())


async def clean(harness: Harness, retention: Retention) -> int:
    return await Janitor(harness.store, retention=retention, telemetry=Telemetry()).run_once()


@pytest.mark.parametrize("kind", sorted(EVERYTHING))
async def test_each_kind_goes_by_its_own_retention_alone(kind: str) -> None:
    harness = await fill()
    assert await list_left(harness) == EVERYTHING
    retention = replace(NOTHING, **{kind: 2 * HOUR})
    harness.clock.advance(HOUR)
    await clean(harness, retention)
    assert await list_left(harness) == EVERYTHING, "it is too young"
    harness.clock.advance(2 * HOUR)
    await clean(harness, retention)
    assert await list_left(harness) == EVERYTHING - {kind}


async def test_by_default_failed_and_skipped_messages_stay_and_the_rest_goes() -> None:
    harness = await fill()
    harness.clock.advance(50 * YEAR)
    await clean(harness, Retention())
    assert await list_left(harness) == {"failed", "skipped"}


async def test_more_than_one_batch_goes_in_one_run() -> None:
    harness = Harness()
    fence = await own(harness.store, LANE)
    for number in range(7):
        (message,) = await put(harness, sample(key=NEAR))
        await close(harness.store, fence, message, State.DELIVERED, number=number + 1)
        await harness.accept("billing", "/shop", str(number))
    assert await clean(harness, replace(NOTHING, delivered=timedelta(0), inbox=timedelta(0), batch=2)) == 14
