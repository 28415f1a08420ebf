"""Who should own which lanes: even shares, no thrashing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

import msgspec

from pillarbox.message import PARTITIONS
from pillarbox.protocols import Registry

__all__ = ["Moves", "moves"]


class Moves(msgspec.Struct, frozen=True):
    """What a relay should do about one destination's lanes."""

    take: frozenset[int] = frozenset()
    release: frozenset[int] = frozenset()


def moves(
    registry: Registry, *, me: UUID, destination: str, mine: Collection[int], max_lanes: int | None = None
) -> Moves:
    """Free lanes to take and surplus to hand over, so that the relays that can reach the destination share it evenly.

    `mine` are the lanes in hand, which may be ahead of the registry. Nobody takes a lane that a live relay owns;
    its owner hands surplus over by itself, so that two relays never pull at one lane. What the registry says is one's
    own and is not in hand (the answer to its taking was lost) is taken again, wanted or not: nobody else could free it.
    """
    target = _targets(registry, destination, max_lanes).get(me, 0)
    owned, owners = frozenset(mine), registry.owners.get(destination, {})
    astray = frozenset(partition for partition, owner in owners.items() if owner == me) - owned
    if len(owned) > target:
        surplus = sorted(owned, reverse=True)[: len(owned) - target]
        return Moves(take=astray, release=frozenset(surplus))
    free = [partition for partition in range(PARTITIONS) if partition not in owners and partition not in owned]
    room = max(0, target - len(owned) - len(astray))
    return Moves(take=astray.union(_rotated(free, me)[:room]))


def _targets(registry: Registry, destination: str, max_lanes: int | None) -> Mapping[UUID, int]:
    serving = [relay for relay in registry.relays if destination in relay.destinations]
    able = [relay for relay in serving if destination in relay.reachable] or serving
    ids = sorted(relay.relay_id for relay in able)
    share, rest = divmod(PARTITIONS, len(ids)) if ids else (0, 0)
    even = {relay_id: share + (place < rest) for place, relay_id in enumerate(ids)}
    return even if max_lanes is None else {relay_id: min(lanes, max_lanes) for relay_id, lanes in even.items()}


def _rotated(free: list[int], me: UUID) -> list[int]:
    """Begin at a place of one's own, so that relays which start together do not reach for the same lanes first."""
    start = me.int % len(free) if free else 0
    return free[start:] + free[:start]
