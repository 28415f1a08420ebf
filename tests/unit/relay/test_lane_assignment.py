"""Even shares of the lanes, reached without pulling at each other's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.contracts.store import Registry, RelayInfo
from pillarbox.message import PARTITIONS
from pillarbox.relay.membership import Assignment, compute_spread, compute_targets, plan_assignment

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = (UUID(int=number) for number in (1, 2, 3))


def relay(relay_id: UUID, *, serves: Sequence[str] = ("d",), reaches: Sequence[str] = ("d",)) -> RelayInfo:
    return RelayInfo(
        relay_id=relay_id, service="s", host="h", pid=1, version="1", destinations=serves, reachable=reaches
    )


def registry(*relays: RelayInfo, owners: Mapping[int, UUID] | None = None) -> Registry:
    return Registry(NOW, relays, {"d": owners or {}})


def wanted(me: UUID, registry: Registry, *, mine: Sequence[int] = (), max_lanes: int | None = None) -> Assignment:
    target = compute_targets(registry, me, max_lanes=max_lanes).get("d", 0)
    return plan_assignment(registry.owners.get("d", {}), relay_id=me, owned=mine, target=target)


def test_one_relay_takes_everything() -> None:
    assert wanted(A, registry(relay(A))).take == frozenset(range(PARTITIONS))


def test_two_relays_that_start_together_reach_for_half_each() -> None:
    both = registry(relay(A), relay(B))
    assert [len(wanted(me, both).take) for me in (A, B)] == [32, 32]


def test_the_odd_lanes_go_to_somebody() -> None:
    three = registry(relay(A), relay(B), relay(C))
    assert sum(len(wanted(me, three).take) for me in (A, B, C)) == PARTITIONS


def test_a_newcomer_waits_for_the_owner_to_hand_over() -> None:
    full = registry(relay(A), relay(B), owners=dict.fromkeys(range(PARTITIONS), A))
    assert wanted(B, full) == Assignment()
    assert len(wanted(A, full, mine=range(PARTITIONS)).release) == 32


def test_what_a_live_relay_owns_is_never_taken() -> None:
    half = registry(relay(A), relay(B), owners=dict.fromkeys(range(40), A))
    assert wanted(B, half).take <= frozenset(range(40, PARTITIONS))


def test_what_a_dead_relay_owned_is_free() -> None:
    """The registry names live owners only, so a dead one's lanes are simply not in it."""
    assert wanted(A, registry(relay(A), owners={}), mine=range(32)).take == frozenset(range(32, PARTITIONS))


def test_an_own_lane_that_is_not_in_hand_is_taken_again() -> None:
    """The take was recorded, but its answer lost."""
    assert 5 in wanted(A, registry(relay(A), owners={5: A})).take


def test_an_own_lane_that_is_not_in_hand_is_taken_again_even_if_it_is_one_too_many() -> None:
    """Nobody else may take what a live relay owns: unless its owner frees it, it is served by nobody for ever."""
    both = registry(relay(A), relay(B), owners=dict.fromkeys(range(40), A))
    assert wanted(A, both, mine=range(32)) == Assignment(take=frozenset(range(32, 40)))
    assert 39 in wanted(A, both, mine=range(39)).take


def test_a_fair_share_moves_nothing() -> None:
    owners = dict.fromkeys(range(32), A) | dict.fromkeys(range(32, PARTITIONS), B)
    settled = registry(relay(A), relay(B), owners=owners)
    assert wanted(A, settled, mine=range(32)) == Assignment()
    assert wanted(B, settled, mine=range(32, PARTITIONS)) == Assignment()


def test_a_relay_that_cannot_reach_the_destination_gives_it_to_one_that_can() -> None:
    split = registry(relay(A, reaches=[]), relay(B))
    assert len(wanted(A, split, mine=range(PARTITIONS)).release) == PARTITIONS
    assert len(wanted(B, split).take) == PARTITIONS


def test_when_nobody_reaches_it_everybody_keeps_a_share() -> None:
    down = registry(relay(A, reaches=[]), relay(B, reaches=[]))
    assert len(wanted(A, down).take) == 32


def test_relays_that_do_not_serve_it_do_not_count() -> None:
    other = registry(relay(A), relay(B, serves=["other"], reaches=["other"]))
    assert len(wanted(A, other).take) == PARTITIONS
    assert wanted(B, other) == Assignment()
    down = registry(relay(A, reaches=[]), relay(B, serves=["other"], reaches=["other"]))
    assert (len(wanted(A, down).take), wanted(B, down)) == (PARTITIONS, Assignment())


def test_a_relay_that_is_not_in_the_registry_owns_nothing() -> None:
    assert len(wanted(C, registry(relay(A)), mine=[1, 2]).release) == 2


@pytest.mark.parametrize(("mine", "taken", "released"), [((), 10, 0), (range(20), 0, 10)])
def test_max_lanes_is_a_ceiling(mine: Sequence[int], taken: int, released: int) -> None:
    move = wanted(A, registry(relay(A)), mine=mine, max_lanes=10)
    assert (len(move.take), len(move.release)) == (taken, released)


@given(st.integers(1, 9), st.data())
def test_relays_that_move_in_turn_end_with_even_shares(count: int, data: st.DataObject) -> None:
    """From any distribution, in any order of turns; and then nobody moves any more."""
    relays = [UUID(int=number + 1) for number in range(count)]
    owners = {
        lane: owner
        for lane in range(PARTITIONS)
        if (owner := data.draw(st.sampled_from([*relays, None]), label=f"owner of {lane}")) is not None
    }
    for _ in range(3):
        for me in data.draw(st.permutations(relays), label="turns"):
            mine = [lane for lane, owner in owners.items() if owner == me]
            move = wanted(me, registry(*map(relay, relays), owners=owners), mine=mine)
            for lane in move.release:
                del owners[lane]
            owners |= dict.fromkeys(move.take, me)
    shares = sorted(list(owners.values()).count(me) for me in relays)
    assert (sum(shares), shares[-1] - shares[0] <= 1) == (PARTITIONS, True)


# --- many relays at once ---


def fleet(relays: int, destinations: int, *, taken: int = 0) -> Registry:
    names = [f"d{number}" for number in range(destinations)]
    members = [relay(UUID(int=number + 1), serves=names, reaches=names) for number in range(relays)]
    return Registry(NOW, members, {name: dict.fromkeys(range(taken), A) for name in names})


@pytest.mark.parametrize(("relays", "destinations"), [(1, 1), (1, 100), (10, 10), (100, 1)])
def test_few_takeovers_begin_at_once(relays: int, destinations: int) -> None:
    assert compute_spread(fleet(relays, destinations), lease=10) == 0


def test_takeovers_of_a_fleet_that_starts_are_spread_by_their_number() -> None:
    assert compute_spread(fleet(100, 60), lease=10) == 60 * PARTITIONS / 4_000
    assert compute_spread(fleet(40, 100), lease=10) == 40 * 100 / 4_000  # one takes all that it wants of a destination


def test_a_long_spread_ends_well_before_the_lease() -> None:
    assert compute_spread(fleet(200, 1_000), lease=10) == 2.5


def test_what_is_owned_needs_no_takeover() -> None:
    assert compute_spread(fleet(100, 60, taken=PARTITIONS), lease=10) == 0
    assert compute_spread(fleet(100, 60, taken=PARTITIONS - 1), lease=10) == 0
