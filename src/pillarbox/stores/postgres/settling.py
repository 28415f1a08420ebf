"""Claiming and settling: the writes that a fence guards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pillarbox.errors import Fenced
from pillarbox.journal import action_of
from pillarbox.message import Waits
from pillarbox.protocols import Claim, Fence, Settlement, Trouble
from pillarbox.stores.postgres.parts import Parts

__all__ = ["Settling"]


class Settling(Parts):
    """The settling part of the store."""

    async def claim(self, fence: Fence, claim: Claim, *, park: Iterable[int] = ()) -> None:
        async with self._database.quick() as connection:
            passed = await connection.fetch(
                self._sql["claim"], *_proof(fence), claim.number, list(claim.message_ids), claim.strikes,
                list(park), self._now(),
            )  # fmt: skip
        _require(fence, passed)

    async def settle(self, fence: Fence, settlement: Settlement) -> None:
        if not settlement.troubles:
            async with self._database.quick() as connection:
                await self._close(connection, fence, settlement)
            return
        for trouble in settlement.troubles:
            trouble.check()
        async with self._database.durable() as connection:
            await self._close(connection, fence, settlement)
            await connection.execute(
                self._sql["trouble"], fence.relay_id, fence.destination, list(fence.epochs),
                *_columns(settlement.troubles), self._now(),
            )  # fmt: skip

    async def _close(self, connection: Any, fence: Fence, settlement: Settlement) -> None:
        taken_out = [*settlement.delivered, *(t.message_id for t in settlement.troubles), *settlement.returned]
        passed = await connection.fetch(
            self._sql["settle"], *_proof(fence), list(settlement.delivered), list(settlement.finished),
            list(settlement.touched), taken_out if settlement.touched else [], self._keep, self._now(),
        )  # fmt: skip
        _require(fence, passed)


def _proof(fence: Fence) -> tuple[object, ...]:
    return fence.relay_id, fence.destination, list(fence.epochs), list(fence.epochs.values())


def _require(fence: Fence, passed: Iterable[Any]) -> None:
    if lost := fence.epochs.keys() - {row[0] for row in passed}:
        raise Fenced(fence.destination, lost)


def _columns(troubles: Iterable[Trouble]) -> tuple[list[object], ...]:
    rows = [
        (
            trouble.message_id, trouble.state.value, _waits(trouble.waits), trouble.attempts, trouble.error,
            trouble.delay, trouble.detail, action_of(trouble),
        )
        for trouble in troubles
    ]  # fmt: skip
    return tuple(list(column) for column in zip(*rows, strict=True))


def _waits(waits: Waits | None) -> str | None:
    return None if waits is None else waits.value
