"""Fair shares of one window: bounded, even among those with work, and something for everybody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pillarbox.relay.shares import Demand, Window, divide_window

WINDOW = Window(1_000, 1_000_000)


def build_demands(used: list[tuple[int, bool]]) -> dict[str, Demand]:
    return {f"t{place}": Demand(count, count, wants or count > 0) for place, (count, wants) in enumerate(used)}


def test_a_lone_taker_with_work_gets_all_but_what_is_kept_for_the_others() -> None:
    shares = divide_window(WINDOW, build_demands([(0, True), *[(0, False)] * 9]))
    assert [share.messages for share in shares.values()] == [550, *[50] * 9]


def test_takers_with_work_share_evenly() -> None:
    shares = divide_window(WINDOW, build_demands([(100, True), (0, True), *[(0, False)] * 8]))
    assert [share.messages for share in shares.values()][:2] == [300, 300]


def test_a_flood_shrinks_to_its_share_when_others_have_work() -> None:
    shares = divide_window(WINDOW, build_demands([(550, True), *[(0, True)] * 9]))
    assert shares["t0"].messages == 100


def test_what_a_flood_holds_is_not_given_away_before_it_comes_back() -> None:
    demands = build_demands([(550, True), *[(0, True)] * 9])
    shares = divide_window(WINDOW, demands)
    assert [shares[f"t{place}"].messages for place in range(1, 10)] == [50] * 9


def test_a_new_taker_finds_its_part_as_soon_as_it_is_given_back() -> None:
    held = build_demands([(950, True), (0, False), (0, True)])
    assert [share.messages for share in divide_window(WINDOW, held).values()] == [417, 25, 25]
    held = build_demands([(600, True), (0, False), (25, True)])
    assert [share.messages for share in divide_window(WINDOW, held).values()] == [417, 166, 234]


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=300), st.integers(0, 1_000))
def test_what_may_be_in_flight_never_exceeds_the_window(used: list[tuple[int, bool]], room: int) -> None:
    """Whatever is in flight, and whatever each takes up to its new share: each has one message at any time."""
    demands, total = build_demands(used), sum(count for count, _ in used)
    window = Window(max(total + room, 1), 10**9)
    shares = divide_window(window, demands)
    grown = sum(max(share.messages, demands[name].messages) for name, share in shares.items())
    assert grown <= max(window.messages, sum(max(1, count) for count, _ in used))
    assert all(share.messages >= 1 for share in shares.values())


@given(st.lists(st.integers(0, 10), min_size=2, max_size=100))
def test_those_with_work_come_to_the_same_share(used: list[int]) -> None:
    """After a few divisions in which each fills its window, nobody has more than another one."""
    held = dict.fromkeys([f"t{place}" for place in range(len(used))], 0)
    for _ in range(4):
        shares = divide_window(WINDOW, {name: Demand(count, 0, True) for name, count in held.items()})
        held = {name: shares[name].messages for name in held}
    assert len(set(held.values())) == 1


def test_what_is_free_goes_first_to_the_one_that_is_furthest_from_its_share() -> None:
    demands = {"a": Demand(0, 0, wants=True), "b": Demand(1, 1, wants=True), "c": Demand(3, 3)}
    shares = divide_window(Window(10, 10), demands)
    assert {name: share.messages for name, share in shares.items()} == {"a": 4, "b": 3, "c": 1}
