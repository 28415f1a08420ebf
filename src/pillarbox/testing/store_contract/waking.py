"""Being woken by writers. Silence is allowed, so a store that does not listen skips the first test."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from pillarbox.protocols import Wakeups
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample, sample_relay
from pillarbox.testing.store_contract.arrange import HOUR, NEAR

__all__ = ["WakingContract"]

_SECONDS = 10


async def _listening(wakeups: Wakeups) -> None:
    """Wait until a wake-up would arrive, or skip."""
    try:
        async with asyncio.timeout(_SECONDS):
            while not wakeups.is_listening:  # noqa: ASYNC110 - the protocol has a flag, no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.skip("This store wakes nobody.")


async def _asleep(harness: StoreHarness) -> None:
    """Somebody wants to be woken: some stores take no trouble otherwise."""
    await harness.store.register(replace(sample_relay(), asleep=True), lease=HOUR)


class WakingContract:
    """`Store.wakeups`."""

    async def test_a_commit_wakes_who_listens(self, harness: StoreHarness) -> None:
        await _asleep(harness)
        woken = asyncio.Event()
        async with harness.store.wakeups(woken.set) as wakeups:
            await _listening(wakeups)
            for _ in range(3):
                woken.clear()
                await harness.insert([sample(key=NEAR)])
                async with asyncio.timeout(_SECONDS):
                    await woken.wait()

    async def test_several_can_listen(self, harness: StoreHarness) -> None:
        await _asleep(harness)
        one, other = asyncio.Event(), asyncio.Event()
        second = await harness.second()
        async with harness.store.wakeups(one.set) as first, second.wakeups(other.set) as last:
            await _listening(first)
            await _listening(last)
            one.clear()
            other.clear()
            await harness.insert([sample(key=NEAR)])
            async with asyncio.timeout(_SECONDS):
                await one.wait()
                await other.wait()

    async def test_nobody_is_woken_after_the_end(self, harness: StoreHarness) -> None:
        await _asleep(harness)
        ended, still = asyncio.Event(), asyncio.Event()
        second = await harness.second()
        async with second.wakeups(still.set) as wakeups:
            async with harness.store.wakeups(ended.set):
                pass
            await _listening(wakeups)
            ended.clear()
            still.clear()
            await harness.insert([sample(key=NEAR)])
            async with asyncio.timeout(_SECONDS):
                await still.wait()
        assert not ended.is_set()
