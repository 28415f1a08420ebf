"""Watch over the version of the tables, which somebody may upgrade or downgrade while a relay runs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from pillarbox.contracts.store import VersionedStore
from pillarbox.errors import PillarboxError, SchemaNewer, SchemaOutdated, StoreError, StoreUnavailable
from pillarbox.telemetry import Telemetry

__all__ = ["SchemaWatch"]

_LEAST_WAIT: Final = 0.5
"""Seconds between two looks, however many statements fail."""


class SchemaWatch(Telemetry):
    """Has the store look at the version of its tables again and again, and at once when a statement did not fit them.

    The store goes on with what the tables have. Where the release may not use them any longer, `run` raises the
    sentence for people: nothing may be written then, so the relay ends without recording anything, and others take its
    lanes over. Tables that are missing are waited for, as every relay waits for its store.
    """

    def __init__(self, store: object, *, interval: float, telemetry: Telemetry) -> None:
        self._store = store if isinstance(store, VersionedStore) else None
        self._interval = interval
        self._telemetry = telemetry
        self._is_due = asyncio.Event()

    def on_store_failed(self, what: str, error: Exception) -> None:  # noqa: ARG002 - as every telemetry
        """Look soon: a column or table that a statement names may be gone."""
        if isinstance(error, StoreError) and not isinstance(error, StoreUnavailable):
            self._is_due.set()

    def on_duty_failed(self, what: str, error: Exception) -> None:
        """Look soon, as after every other statement."""
        self.on_store_failed(what, error)

    async def run_once(self) -> None:
        """Look once. Raise `SchemaNewer` or `SchemaOutdated` if this release may not use the tables."""
        if self._store is None:
            return
        try:
            await self._store.check_schema()
        except (SchemaNewer, SchemaOutdated):
            raise
        except PillarboxError as error:
            self._telemetry.on_store_failed("reading the version of the tables", error)

    async def run(self) -> None:
        """Look until cancelled, or until the tables do not fit."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._is_due.wait()
            await self.run_once()
            await asyncio.sleep(_LEAST_WAIT)
            self._is_due.clear()
