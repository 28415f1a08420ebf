"""The whole examination: the store and every destination at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from pillarbox.clock import Clock, SystemClock
from pillarbox.config import Config
from pillarbox.doctor.bounds import Bounds
from pillarbox.doctor.destinations import examine_destination
from pillarbox.doctor.report import Examined, Report, examined
from pillarbox.doctor.store import StoreCheck
from pillarbox.relay.configured import (
    ConfiguredDestination,
    configured_destinations,
    configured_store,
    relay_section,
    served_destinations,
)

__all__ = ["Examination", "examination"]

Topics = Mapping[str, Sequence[str]]


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be looked at."""

    store: StoreCheck
    destinations: Sequence[ConfiguredDestination]

    async def run(self, bounds: Bounds, *, progress: Callable[[Examined], None] = lambda _: None) -> Report:
        """Look at everything at once. `progress` hears of each part when it is done."""
        topics: asyncio.Future[Topics] = asyncio.get_running_loop().create_future()
        parts = [self._store(bounds, topics), *(self._destination(one, bounds, topics) for one in self.destinations)]
        return Report(await asyncio.gather(*(_told(part, progress) for part in parts)))

    async def _store(self, bounds: Bounds, topics: asyncio.Future[Topics]) -> Examined:
        seen = await self.store.run(bounds)
        topics.set_result(seen.topics)
        return examined("store", str(self.store.url), seen.findings)

    async def _destination(
        self, one: ConfiguredDestination, bounds: Bounds, topics: asyncio.Future[Topics]
    ) -> Examined:
        async def own_topics() -> Sequence[str]:
            return (await asyncio.shield(topics)).get(one.name, [])

        findings = await examine_destination(one.told.transport, topics=own_topics, bounds=bounds)
        return examined(f"destination {one.name}", one.told.shown_url() or "no url", findings)


async def _told(part: Awaitable[Examined], progress: Callable[[Examined], None]) -> Examined:
    result = await part
    progress(result)
    return result


def examination(config: Config, *, clock: Clock | None = None) -> Examination:
    """What a relay with this configuration would use; `ConfigError` where it would not start."""
    url, names = configured_store(config)
    store = StoreCheck(
        url=url,
        names=names,
        known=configured_destinations(config).keys(),
        lease=relay_section(config).settings.lease,
        clock=SystemClock() if clock is None else clock,
    )
    return Examination(store=store, destinations=served_destinations(config))
