"""Some seeds of the simulation; `make simulate` runs many more. A seed that fails fails again."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from pillarbox.contracts.store import Action
from proof.simulation.checker import Promise
from proof.simulation.runner import catch_variant
from proof.simulation.scenario import FaultKind
from proof.simulation.trace import fingerprint
from proof.simulation.variants import VARIANTS
from proof.simulation.world import Result, simulate

SEEDS: Final = (*range(60), 691, 895, 1604, 5147, 249349814, 249350072)
"""The first ones, and those that found a defect: a write in a lane that the relay had just released, an answer to a
message whose id was given out again, an attempt that another row of the message paid for, and due messages that were
put off for ever."""
RARE: Final = (
    *(
        kind.value
        for kind in (
            FaultKind.KILL,
            FaultKind.FREEZE,
            FaultKind.STOP,
            FaultKind.DISCONNECT,
            FaultKind.RENEWAL_LAG,
            FaultKind.INTERRUPT,
            FaultKind.FAILOVER,
        )
    ),
    *(kind.value for kind in (FaultKind.OUTAGE, FaultKind.CLOCK_JUMP, FaultKind.RESTART)),
    *(action.value for action in (Action.REDRIVEN, Action.REPLAYED, Action.DISCARDED, Action.DEFERRED)),
    *("retry", "failed", "held", "skipped", "returned", "breaker", "paused", "inherited", "handed over"),
    *("refused by store", "set aside", "run", "run ended", "archived", "closed again", "mark above the sequence"),
    *("fenced", "lease lost", "store failed", "rolled back", "relay killed by message", "connection broken by message"),
)
CATCHING: Final = {
    "one failure is an outage": 15,
    "no fence": 26,
    "fence without epoch": 26,
    "unlocked fence": 20,
    "id cursor": 2,
    "no late rows": 9,
    "no late rows of old transactions": 9,
    "no late rows of young transactions": 75,
    "claim lost on crash": 7,
    "claim forgotten on crash": 6,
    "parking not written": 3,
    "dirty read": 3,
    "archive deletes what changed": 246,
    "server not noticed": 200,
    "marks above the sequence": 4,
    "parking forgotten": 13,
    "blocked keys not loaded": 3,
    "next before the failure is settled": 0,
    "two of a key at once": 0,
    "held key goes on": 15,
    "lane not suspended": 47,
    "never read again": 20,
    "head closed unnoticed": 0,
    "older claim sent": 199,
    "rest of a hot key forgotten": 2,
    "front gone unnoticed": 54,
    "acknowledged past a failure": 18,
    "run continued after a takeover": 139,
    "rest of a run counts as tried": 0,
    "rest of a run forgotten": 0,
    "settle before send": 16,
    "attempts spent on an outage": 0,
    "attempt counted twice": 3,
    "attempts not counted": 3,
    "not now spends an attempt": 23,
    "blocked address never probed": 23,
    "what waits for its address is overtaken": 3,
    "unknown is delivered": 35,
    "silence is delivered": 37,
    "settle not repeated": 25,
    "refused settlement repeated for ever": 25,
    "sent before it is claimed": 18,
    "strikes forgotten": 6,
    "neighbours struck": 36,
    "deaths without a witness": 111,
    "never given up": 6,
    "never alone": 6,
    "suspects not split": 36,
    "company is evidence": 31,
    "heartbeat blocked by work": 17,
    "lease counted from the answer": 8,
    "goes on without a lease": 5,
    "stale claim sent": 5,
    "lease lost unnoticed": 5,
}
"""A seed that catches each. A change of the relay may move them: then others are tried, which takes longer, and
`make simulate` prints the new ones."""
LIMIT: Final = 1_000


@cache
def get_result(seed: int) -> Result:
    return simulate(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(seed: int) -> None:
    result = get_result(seed)
    assert [str(violation) for violation in result.violations] == []
    assert result.messages > 0


def test_the_seeds_meet_every_kind_of_fault() -> None:
    """A simulation that never got there would prove nothing."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        seen += get_result(seed).seen
    assert [what for what in RARE if not seen[what]] == []


def test_a_seed_runs_the_same_way_twice() -> None:
    traces = []
    for _ in range(2):
        lines: list[str] = []
        simulate(7, print_line=lines.append)
        traces.append(fingerprint(lines))
    assert traces[0] == traces[1]


def test_tracing_changes_nothing() -> None:
    traced, untraced = simulate(7, print_line=lambda _: None), simulate(7)
    assert (traced.seconds, traced.duplicates, traced.seen) == (untraced.seconds, untraced.duplicates, untraced.seen)


def test_a_seed_runs_the_same_way_in_another_process() -> None:
    """Nothing hangs on the addresses or hashes of one process."""
    assert _replay(hash_seed="1") == _replay(hash_seed="2")


def _replay(*, hash_seed: str) -> str:
    command = [sys.executable, "-m", "proof.simulation", "--seed", "7"]
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
    output = subprocess.run(command, env=environ, check=True, capture_output=True, timeout=100).stdout
    return hashlib.sha256(output).hexdigest()


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_broken_variant_is_caught(name: str) -> None:
    """By the breach that it must show: another one would tell of another mistake, or of none."""
    catch = catch_variant(name, [CATCHING[name], *range(LIMIT)])
    assert catch.seed is not None, f"{name}: {catch.description}"


def test_another_breach_catches_nothing() -> None:
    """With another promise than the one that it breaks, a variant counts as not caught."""
    variant = VARIANTS["no fence"]
    with variant.apply():
        violations = simulate(CATCHING[variant.name]).violations
    assert variant.find_breach(violations) is not None
    assert replace(variant, shows=(Promise.GHOST,)).find_breach(violations) is None


def test_the_page_says_what_every_variant_breaks() -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text()
    rows = [
        f"| {variant.name} | {variant.description} | {' or '.join(variant.shows)} |" for variant in VARIANTS.values()
    ]
    assert [row for row in rows if row not in page] == []


def test_a_variant_leaves_nothing_behind() -> None:
    with VARIANTS["no fence"].apply():
        pass
    assert simulate(3).violations == []
