"""Comparisons: interleaved runs of two sides, the median of their ratios, one line of JSON."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

__all__ = [
    "RUNS",
    "Pair",
    "Rate",
    "Target",
    "at_least",
    "at_most",
    "compare",
    "compute_medians",
    "log",
    "missed",
    "report",
    "run_pairs",
]

RUNS: Final = 5
_FEW: Final = 25
"""Up to so many pairs are listed in the line."""

Rate = Callable[[], Awaitable[float]]
"""One run; it returns a rate per second."""


missed: Final[list[str]] = []
"""Names of the benchmarks of this run that missed their target."""


class Pair(NamedTuple):
    """The rates of two neighbouring runs."""

    ours: float
    bare: float


class Target(NamedTuple):
    """The ratio that a benchmark has to reach, or must not exceed."""

    ratio: float
    is_ceiling: bool = False

    def is_met(self, ratio: float) -> bool:
        return ratio <= self.ratio if self.is_ceiling else ratio >= self.ratio


def at_least(ratio: float) -> Target:
    return Target(ratio)


def at_most(ratio: float) -> Target:
    return Target(ratio, is_ceiling=True)


async def compare(
    name: str,
    *,
    ours: Rate,
    bare: Rate,
    target: Target,
    settings: Mapping[str, object],
    runs: int = RUNS,
    slices: int = 1,
) -> None:
    """Run both in turn, so that a noisy minute hits both, and print the medians."""
    pairs = await run_pairs(name, ours=ours, bare=bare, runs=runs, slices=slices)
    report(name, pairs, target=target, settings={"runs": runs, "slices": slices} | dict(settings))


async def run_pairs(name: str, *, ours: Rate, bare: Rate, runs: int = RUNS, slices: int = 1) -> list[Pair]:
    """Run both sides in turn. With `slices`, each run is divided into shorter ones, again in turn."""
    pairs: list[Pair] = []
    for run in range(runs):
        latest = [await _pair(ours, bare, turn=run + slice) for slice in range(slices)]
        pairs += latest
        rate, ceiling, ratio = compute_medians(latest)
        log(f"{name}: run {run + 1} of {runs}: {rate:,.0f} against {ceiling:,.0f}, ratio {ratio:.2f}")
    return pairs


async def _pair(ours: Rate, bare: Rate, *, turn: int) -> Pair:
    """Run both. Which goes first changes with the turn."""
    if turn % 2:
        ceiling = await bare()
        return Pair(await ours(), ceiling)
    return Pair(await ours(), await bare())


def compute_medians(pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """Both figures and their ratio.

    The ratio is the median of the ratios of neighbours, not the ratio of the medians: what slows the machine down
    mostly slows both of two neighbours down.
    """
    rates, ceilings = zip(*pairs, strict=True)
    ratios = [pair.ours / pair.bare for pair in pairs]
    return statistics.median(rates), statistics.median(ceilings), statistics.median(ratios)


def report(
    name: str,
    pairs: Sequence[Pair],
    *,
    target: Target | None,
    settings: Mapping[str, object],
    fields: tuple[str, str] = ("rate", "ceiling"),
) -> None:
    """Print one line of JSON: the two figures, their ratio, whether it meets the target, and the settings.

    Without a target the figures are only printed.
    """
    ours, bare, ratio = compute_medians(pairs)
    line: dict[str, object] = {
        "name": name,
        fields[0]: round(ours, 3),
        fields[1]: round(bare, 3),
        "ratio": round(ratio, 3),
    }
    if target is not None:
        line |= {
            "wanted": target.ratio,
            "bound": "at most" if target.is_ceiling else "at least",
            "passed": target.is_met(ratio),
        }
    if len(pairs) <= _FEW:
        line["pairs"] = [[round(pair.ours, 1), round(pair.bare, 1)] for pair in pairs]
    print(json.dumps(line | dict(settings)), flush=True)
    if target is None:
        log(f"{name}: ratio {ratio:.2f}")
        return
    if not target.is_met(ratio):
        missed.append(name)
    word = "met" if target.is_met(ratio) else "MISSED"
    log(f"{name}: ratio {ratio:.2f}, target {line['bound']} {target.ratio:g}: {word}")


def log(line: str) -> None:
    """Print a line for whoever watches, on stderr: stdout is for the figures."""
    print(line, file=sys.stderr, flush=True)
