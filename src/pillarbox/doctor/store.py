"""Looking at the store: opened as a relay opens it, asked several things at once, closed again. Changes no row."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import msgspec

from pillarbox.clock import Clock
from pillarbox.doctor.bounds import Bounds, Unanswered
from pillarbox.doctor.store_findings import (
    Skew,
    closed_to,
    differing,
    feature_findings,
    not_checked,
    pause_findings,
    skew_findings,
    topics_by_destination,
    unserved_findings,
)
from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.names import Names
from pillarbox.protocols import Finding, Store, StoreInspector
from pillarbox.stores.opening import open_store
from pillarbox.stores.schema import schema_at
from pillarbox.stores.urls import StoreUrl

__all__ = ["StoreCheck", "StoreSeen"]

_COUNTED: Final = 10_000
"""Rows of a kind that are looked at: whether messages wait matters here, not how many."""
_LOOKS: Final = 3
"""At the clock: the quickest answer tells it best."""


class StoreSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and the topics that each destination is sent."""

    findings: Sequence[Finding]
    topics: Mapping[str, Sequence[str]] = {}


class StoreCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Which store, and what the rest of the configuration says."""

    url: StoreUrl
    names: Names
    known: Collection[str]
    """Destinations that are configured."""
    lease: timedelta
    clock: Clock
    """This machine's."""

    async def run(self, bounds: Bounds) -> StoreSeen:
        """What was found. Whatever goes wrong, also in a store that is not ours, is a finding too."""
        try:
            store = open_store(self.url, names=self.names)
            await bounds.run(store.open())
        except Unanswered as error:
            return StoreSeen(findings=[closed_to(StoreUnavailable(f"The store does not answer: {error}."))])
        except Exception as error:
            return StoreSeen(findings=[closed_to(error)])
        try:
            return await self._seen(store, bounds)
        finally:
            with suppress(Exception):
                await bounds.run(store.close())

    async def _seen(self, store: Store, bounds: Bounds) -> StoreSeen:
        asked: dict[str, Coroutine[Any, Any, Sequence[Finding] | StoreSeen]] = {
            "The settings": self._settings(store),
            "The shape of the tables": self._tables(),
            "The clock": self._clock(store),
            "What waits": self._messages(store),
        }
        answers = await asyncio.gather(*(_answered(bounds, what, check) for what, check in asked.items()))
        seen = [one if isinstance(one, StoreSeen) else StoreSeen(findings=one) for one in answers]
        findings = [*feature_findings(store.features), *(finding for one in seen for finding in one.findings)]
        return StoreSeen(findings=findings, topics=seen[-1].topics)

    async def _settings(self, store: Store) -> Sequence[Finding]:
        return await store.inspect() if isinstance(store, StoreInspector) else []

    async def _tables(self) -> Sequence[Finding]:
        try:
            schema = schema_at(self.url, names=self.names)
        except ConfigError:  # a store without tables of ours
            return []
        return list(differing(await schema.verify()))

    async def _clock(self, store: Store) -> Sequence[Finding]:
        looks = [await _skew(store, self.clock) for _ in range(_LOOKS)]
        return list(skew_findings(min(looks, key=lambda skew: skew.give_or_take)))

    async def _messages(self, store: Store) -> StoreSeen:
        counts = await store.counts(limit=_COUNTED)
        registry = await store.registry(lease=self.lease)
        served = {name for relay in registry.relays for name in relay.destinations}
        findings = [
            *unserved_findings(counts, known={*self.known, *served}, limit=_COUNTED),
            *pause_findings(await store.pauses(), counts=counts, limit=_COUNTED),
        ]
        return StoreSeen(findings=findings, topics=topics_by_destination(counts))


async def _answered(
    bounds: Bounds, what: str, check: Coroutine[Any, Any, Sequence[Finding] | StoreSeen]
) -> Sequence[Finding] | StoreSeen:
    try:
        return await bounds.run(check)
    except Exception as error:
        return [not_checked(what, error)]


async def _skew(store: Store, clock: Clock) -> Skew:
    asked_at, began = clock.now(), clock.monotonic()
    there = await store.now()
    half = timedelta(seconds=clock.monotonic() - began) / 2
    return Skew(there - (asked_at + half), half)
