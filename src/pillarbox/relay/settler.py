"""Records outcomes, in batches, repeating until they are recorded or the lane is another's."""

from __future__ import annotations

import asyncio
from typing import Final

from pillarbox.protocols import Settlement
from pillarbox.relay.work import Work

__all__ = ["Settler"]

_MOST: Final = 1_000


class Settler:
    """One settlement at a time; outcomes that come meanwhile are in the next."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._turn = asyncio.Lock()

    async def run_once(self) -> bool:
        """Record what is there, after what is being recorded. Answers whether there was anything."""
        async with self._turn:
            return await self._settle()

    async def _settle(self) -> bool:
        work = self._work
        work.outcomes.clear()
        if not work.core.has_outcomes:
            return False
        settlement, lanes = work.core.settlement(_MOST)
        fence = work.fence(lanes)
        if await work.carried_through("settling", lambda: work.store.settle(fence, settlement)):
            self._recorded(settlement)
        else:
            work.core.unsettled(settlement)
        return True

    def _recorded(self, settlement: Settlement) -> None:
        work = self._work
        work.core.settled(settlement)
        work.telemetry.settled(work.name, delivered=len(settlement.delivered), troubled=len(settlement.troubles))
        work.intake.set()
        if work.core.has_ready or work.core.has_lone:
            work.ready.set()
