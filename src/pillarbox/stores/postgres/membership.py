"""Who is alive, who owns what, and how a lane changes hands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pillarbox.message import Message
from pillarbox.protocols import Claim, Fence, Inherited, Lane, Registry, RelayInfo
from pillarbox.stores.postgres.parts import Parts
from pillarbox.stores.postgres.rows import message_of

__all__ = ["Membership"]


class Membership(Parts):
    """The membership part of the store."""

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        async with self._database.durable() as connection:
            await connection.execute(
                self._sql["register"], relay.relay_id, relay.service, relay.host, relay.pid, relay.version,
                list(relay.destinations), list(relay.reachable), relay.asleep, lease, self._now(),
            )  # fmt: skip

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        async with self._database.quick() as connection:
            renewed = await connection.fetchval(
                self._sql["renew"], relay_id, lease, list(reachable), asleep, self._now()
            )
        return renewed is not None

    async def registry(self, *, lease: timedelta) -> Registry:
        async with self._database.quick() as connection:
            rows = await connection.fetch(self._sql["registry"], self._now(), lease)
        return _registry(rows)

    async def take(
        self,
        relay_id: UUID,
        destination: str,
        *,
        partitions: Sequence[int],
        lease: timedelta,
        claim_number: int,
    ) -> tuple[Sequence[Lane], Sequence[Inherited]]:
        async with self._database.durable() as connection:
            await connection.execute(self._sql["lanes_create"], destination, list(partitions))
            owners = dict(await connection.fetch(self._sql["lanes_lock"], destination, list(partitions)))
            dead = await self._dead(connection, owners, relay_id, lease)
            free = [p for p, owner in owners.items() if owner is None or owner in dead or owner == relay_id]
            lanes = [
                Lane(destination, partition, epoch)
                for partition, epoch in await connection.fetch(self._sql["lanes_take"], relay_id, destination, free)
            ]
            inherited = await self._inherit(
                connection, relay_id, {*dead, relay_id}, destination, free, claim_number=claim_number
            )
            await connection.execute(self._sql["relays_forget"], list(dead), timedelta(0), lease, self._now())
        return lanes, inherited

    async def _dead(
        self, connection: Any, owners: Mapping[int, UUID | None], relay_id: UUID, lease: timedelta
    ) -> set[UUID]:
        others = {owner for owner in owners.values() if owner is not None and owner != relay_id}
        live = await connection.fetch(self._sql["relays_live"], list(others), lease, self._now())
        return others - {row[0] for row in live}

    async def _inherit(
        self,
        connection: Any,
        relay_id: UUID,
        owners: set[UUID],
        destination: str,
        partitions: Sequence[int],
        *,
        claim_number: int,
    ) -> Sequence[Inherited]:
        claims = await connection.fetch(self._sql["claims_lock"], list(owners))
        strikes: dict[int, int] = {}
        for _, _, struck, ids in claims:
            for message_id in ids:
                strikes[message_id] = max(strikes.get(message_id, 0), struck + 1)
        rows = await connection.fetch(self._sql["claims_open"], list(strikes), destination, list(partitions))
        moved = [message_of(row) for row in rows]
        for owner in owners:
            await connection.execute(self._sql["claims_lessen"], owner, [message.id for message in moved])
        inherited = grouped_by_strikes(moved, strikes, claim_number=claim_number)
        for claim in (part.claim for part in inherited):
            # One strike less than is told: it is not under way before it is claimed anew.
            kept = claim.strikes - 1
            await connection.execute(
                self._sql["claims_inherit"], relay_id, claim.number, claim.message_ids, kept, self._now()
            )
        return inherited

    async def release(self, fence: Fence) -> None:
        proof = (fence.relay_id, fence.destination, list(fence.epochs), list(fence.epochs.values()))
        async with self._database.durable() as connection:
            released = [row[0] for row in await connection.fetch(self._sql["lanes_release"], *proof)]
            rows = await connection.fetch(self._sql["claims_in_lanes"], fence.relay_id, fence.destination, released)
            await connection.execute(self._sql["claims_lessen"], fence.relay_id, [row[0] for row in rows])

    async def leave(self, relay_id: UUID) -> None:
        async with self._database.durable() as connection:
            await connection.execute(self._sql["leave"], relay_id)

    async def forget(self, *, stale_after: timedelta) -> int:
        async with self._database.durable() as connection:
            status: str = await connection.execute(self._sql["relays_forget"], None, stale_after, None, self._now())
            await connection.execute(self._sql["claims_forget"])
        return int(status.rsplit(" ", 1)[1])

    async def now(self) -> datetime:
        """The injected clock, or the server's."""
        if (now := self._now()) is not None:
            return now
        async with self._database.quick() as connection:
            told: datetime = await connection.fetchval("select statement_timestamp()")
        return told


def grouped_by_strikes(
    messages: Sequence[Message], strikes: Mapping[int, int], *, claim_number: int
) -> Sequence[Inherited]:
    """One claim per count of strikes, numbered from `claim_number`."""
    groups: dict[int, list[Message]] = defaultdict(list)
    for message in messages:
        groups[strikes[message.id]].append(message)
    return [
        Inherited(Claim(number, [message.id for message in group], struck), group)
        for number, (struck, group) in enumerate(sorted(groups.items()), start=claim_number)
    ]


def _registry(rows: Sequence[Any]) -> Registry:
    relays: list[RelayInfo] = []
    owners: dict[str, dict[int, UUID]] = defaultdict(dict)
    for _, *told, owned in rows:
        if (relay_id := told[0]) is not None:
            relays.append(_relay(told))
            for destination, partitions in msgspec.json.decode(owned or "{}").items():
                owners[destination].update(dict.fromkeys(partitions, relay_id))
    return Registry(rows[0][0], sorted(relays, key=_by_name), owners)


def _by_name(relay: RelayInfo) -> UUID:
    return relay.relay_id


def _relay(row: Sequence[Any]) -> RelayInfo:
    relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at = row
    return RelayInfo(
        relay_id=relay_id, service=service, host=host, pid=pid, version=version, destinations=destinations,
        reachable=reachable, asleep=asleep, started_at=started_at, expires_at=expires_at,
    )  # fmt: skip
