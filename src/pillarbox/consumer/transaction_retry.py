"""Repetition of transactions that conflicted with another, or whose database is away. Neither costs an attempt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from pillarbox.database_errors import ErrorClass, classify_error
from pillarbox.retry import Backoff

__all__ = ["Losses", "TransactionRetry"]

T = TypeVar("T")
_FIRST_CONFLICT_WAIT: Final = 0.02
_LONGEST_CONFLICT_WAIT: Final = 1.0
_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 10.0
_MAX_LOSSES: Final = 5


class Losses(msgspec.Struct):
    """How often the transaction of one message was lost while the database answered others."""

    count: int = 0


class TransactionRetry:
    """Repeats calls. `probe` asks the database for nothing, and is the witness that it answers."""

    def __init__(
        self,
        *,
        probe: Callable[[], Awaitable[object]],
        dice: random.Random,
        on_outage: Callable[[Exception], None],
    ) -> None:
        self._probe = probe
        self._dice = dice
        self._on_outage = on_outage

    async def run(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        losses: Losses | None = None,
        on_conflict: Callable[[Exception], None] | None = None,
    ) -> T:
        """Call until it neither conflicts nor meets an outage; raise every other error.

        With `losses` the call may itself be what ends its connection, as a statement does that the server always
        interrupts. After each outage the database is waited for. When it answers and the call loses its connection
        again, five times in all, that is an error of the call.
        """
        backoff = Backoff(first=_FIRST_WAIT, longest=_LONGEST_WAIT, dice=self._dice)
        conflicts = Backoff(first=_FIRST_CONFLICT_WAIT, longest=_LONGEST_CONFLICT_WAIT, dice=self._dice)
        while True:
            try:
                return await call()
            except Exception as error:
                found = classify_error(error)
                is_used_up = losses is not None and losses.count >= _MAX_LOSSES
                if found is ErrorClass.FAILURE or (found is ErrorClass.OUTAGE and is_used_up):
                    raise
                if found is ErrorClass.OUTAGE:
                    self._on_outage(error)
                elif on_conflict is not None:
                    on_conflict(error)
            if found is ErrorClass.CONFLICT:
                await asyncio.sleep(conflicts.next_wait())
                continue
            await asyncio.sleep(backoff.next_wait())
            if losses is not None:
                await self._wait_for_database(backoff)
                losses.count += 1

    async def _wait_for_database(self, backoff: Backoff) -> None:
        while True:
            try:
                await self._probe()
            except Exception as error:
                if classify_error(error) is ErrorClass.FAILURE:
                    return  # it answers
                self._on_outage(error)
            else:
                return
            await asyncio.sleep(backoff.next_wait())
