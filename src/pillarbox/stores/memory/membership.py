"""Who is alive, who owns what, and how a lane changes hands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from pillarbox.message import Message
from pillarbox.protocols import Claim, Fence, Inherited, Lane, Registry, RelayInfo
from pillarbox.stores.memory.data import LaneRow, Parts

__all__ = ["Membership"]


class Membership(Parts):
    """The membership part of the store."""

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        now = self._clock.now()
        known = self._data.relays.get(relay.relay_id)
        started_at = now if known is None else known.started_at
        self._data.relays[relay.relay_id] = replace(relay, started_at=started_at, expires_at=now + lease)

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        now = self._clock.now()
        relay = self._data.relays.get(relay_id)
        if relay is None or _expiry(relay) <= now:
            return False
        self._data.relays[relay_id] = replace(relay, expires_at=now + lease, reachable=reachable, asleep=asleep)
        return True

    async def registry(self, *, lease: timedelta) -> Registry:
        live = self._live(lease)
        owners: dict[str, dict[int, UUID]] = defaultdict(dict)
        for (destination, partition), lane in self._data.lanes.items():
            if lane.owner is not None and lane.owner in live:
                owners[destination][partition] = lane.owner
        return Registry(self._clock.now(), [live[relay_id] for relay_id in sorted(live)], dict(owners))

    async def take(
        self,
        relay_id: UUID,
        destination: str,
        *,
        partitions: Sequence[int],
        lease: timedelta,
        claim_number: int,
    ) -> tuple[Sequence[Lane], Sequence[Inherited]]:
        live = self._live(lease).keys() - {relay_id}
        lanes = [
            self._take_over(relay_id, destination, partition)
            for partition in partitions
            if self._owner(destination, partition) not in live
        ]
        return lanes, self._inherit(relay_id, lanes, claim_number)

    def _live(self, lease: timedelta) -> Mapping[UUID, RelayInfo]:
        """Not expired, and not promising to live longer than a lease: such a time was written by a wrong clock."""
        now = self._clock.now()
        return {id: relay for id, relay in self._data.relays.items() if now < _expiry(relay) <= now + lease}

    def _owner(self, destination: str, partition: int) -> UUID | None:
        return self._data.lanes.get((destination, partition), LaneRow()).owner

    def _take_over(self, relay_id: UUID, destination: str, partition: int) -> Lane:
        before = self._data.lanes.get((destination, partition), LaneRow())
        if before.owner is not None and before.owner != relay_id:
            self._data.relays.pop(before.owner, None)
        self._data.lanes[destination, partition] = LaneRow(relay_id, before.epoch + 1)
        return Lane(destination, partition, before.epoch + 1)

    def _inherit(self, relay_id: UUID, lanes: Sequence[Lane], claim_number: int) -> Sequence[Inherited]:
        """Move what anybody has in hand in these lanes: told with one strike more than its new claim keeps."""
        rows: dict[int, Message] = {}
        strikes: dict[int, int] = {}
        taken = {(lane.destination, lane.partition) for lane in lanes}
        for (holder, number), claim in list(self._data.claims.items()):
            moved = {row.id: row for row in self._open(claim) if (row.destination, row.partition) in taken}
            rows |= moved
            strikes |= {id: max(claim.strikes + 1, strikes.get(id, 0)) for id in moved}
            self._data.take_out(holder, number, set(moved))
        inherited = _numbered(rows, strikes, claim_number)
        for one in inherited:
            self._data.claims[relay_id, one.claim.number] = replace(one.claim, strikes=one.claim.strikes - 1)
            self._data.claimed_at[relay_id, one.claim.number] = self._clock.now()
        return inherited

    def _open(self, claim: Claim) -> Sequence[Message]:
        return [row for id in claim.message_ids if (row := self._data.open.get(id)) is not None]

    async def release(self, fence: Fence) -> None:
        lanes, none = self._data.lanes, LaneRow()
        for partition, epoch in fence.epochs.items():
            if lanes.get((fence.destination, partition), none) == LaneRow(fence.relay_id, epoch):
                self._give_up(fence.relay_id, fence.destination, partition)

    def _give_up(self, relay_id: UUID, destination: str, partition: int) -> None:
        lane = self._data.lanes[destination, partition]
        self._data.lanes[destination, partition] = LaneRow(None, lane.epoch)
        in_lane = {row.id for row in self._data.open.in_lane(destination, partition)}
        for holder, number in list(self._data.claims):
            if holder == relay_id:
                self._data.take_out(holder, number, in_lane)

    async def leave(self, relay_id: UUID) -> None:
        for (destination, partition), lane in list(self._data.lanes.items()):
            if lane.owner == relay_id:
                self._data.lanes[destination, partition] = LaneRow(None, lane.epoch)
        for holder, number in list(self._data.claims):
            if holder == relay_id:
                del self._data.claims[holder, number]
        self._data.relays.pop(relay_id, None)

    async def forget(self, *, stale_after: timedelta) -> int:
        now = self._clock.now()
        stale = [id for id, relay in self._data.relays.items() if now - _expiry(relay) >= stale_after]
        for relay_id in stale:
            del self._data.relays[relay_id]
        for (holder, number), claim in list(self._data.claims.items()):
            if holder not in self._data.relays and not self._open(claim):
                del self._data.claims[holder, number]
        return len(stale)


def _expiry(relay: RelayInfo) -> datetime:
    assert relay.expires_at is not None  # noqa: S101 - `register` writes it
    return relay.expires_at


def _numbered(rows: Mapping[int, Message], strikes: Mapping[int, int], first: int) -> Sequence[Inherited]:
    """One claim per count of strikes, its messages by id."""
    inherited = []
    for number, count in enumerate(sorted(set(strikes.values())), start=first):
        group = [rows[id] for id in sorted(rows) if strikes[id] == count]
        inherited.append(Inherited(Claim(number, [row.id for row in group], count), group))
    return inherited
