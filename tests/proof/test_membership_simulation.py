"""The simulated fleet: it behaves, and what is broken in it is noticed."""

from __future__ import annotations

import pytest

from proof.membership.run import VARIANTS, Size, run_fleet

SMALL = Size(relays=70, destinations=6, groups=1, waves=2)
"""More relays than lanes."""


def test_a_fleet_behaves() -> None:
    result = run_fleet(SMALL, seed=3)
    assert result.violations == []
    assert {phase.served_after is not None for phase in result.phases} == {True}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_variant_is_noticed(name: str) -> None:
    break_product, expected = VARIANTS[name]
    with break_product():
        violations = run_fleet(SMALL, seed=3).violations
    assert [violation for violation in violations if expected in violation]
