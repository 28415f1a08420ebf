"""How a figure comes about: interleaved runs, medians, one JSON line."""

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
    "Wanted",
    "at_least",
    "at_most",
    "compare",
    "interleaved",
    "medians",
    "report",
    "talk",
]

RUNS: Final = 5
_FEW: Final = 25
"""So many pairs are told one by one."""

Rate = Callable[[], Awaitable[float]]
"""One run; its answer is how many per second."""


class Pair(NamedTuple):
    """What two neighbouring runs came to."""

    ours: float
    bare: float


class Wanted(NamedTuple):
    """The ratio that a benchmark has to reach, or must not pass."""

    ratio: float
    is_ceiling: bool = False

    def is_met(self, ratio: float) -> bool:
        return ratio <= self.ratio if self.is_ceiling else ratio >= self.ratio


def at_least(ratio: float) -> Wanted:
    return Wanted(ratio)


def at_most(ratio: float) -> Wanted:
    return Wanted(ratio, is_ceiling=True)


async def compare(
    name: str,
    *,
    ours: Rate,
    bare: Rate,
    wanted: Wanted,
    settings: Mapping[str, object],
    runs: int = RUNS,
    slices: int = 1,
) -> None:
    """Run both in turn, so that a noisy minute hits both, and print the medians."""
    pairs = await interleaved(name, ours=ours, bare=bare, runs=runs, slices=slices)
    report(name, pairs, wanted=wanted, settings={"runs": runs, "slices": slices} | dict(settings))


async def interleaved(name: str, *, ours: Rate, bare: Rate, runs: int = RUNS, slices: int = 1) -> list[Pair]:
    """Both, in turn, as often as asked. Where a noisy second matters, a run is cut into slices, again in turn."""
    pairs: list[Pair] = []
    for run in range(runs):
        latest = [await _pair(ours, bare, turn=run + slice) for slice in range(slices)]
        pairs += latest
        rate, ceiling, ratio = medians(latest)
        talk(f"{name}: run {run + 1} of {runs}: {rate:,.0f} against {ceiling:,.0f}, ratio {ratio:.2f}")
    return pairs


async def _pair(ours: Rate, bare: Rate, *, turn: int) -> Pair:
    """Both rates. Who goes first changes with the turn."""
    if turn % 2:
        ceiling = await bare()
        return Pair(await ours(), ceiling)
    return Pair(await ours(), await bare())


def medians(pairs: Sequence[Pair]) -> tuple[float, float, float]:
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
    wanted: Wanted,
    settings: Mapping[str, object],
    fields: tuple[str, str] = ("rate", "ceiling"),
) -> None:
    """One line of JSON on stdout: the two figures, the ratio and whether it is what was wanted, the settings."""
    ours, bare, ratio = medians(pairs)
    line: dict[str, object] = {
        "name": name,
        fields[0]: round(ours, 3),
        fields[1]: round(bare, 3),
        "ratio": round(ratio, 3),
        "wanted": wanted.ratio,
        "bound": "at most" if wanted.is_ceiling else "at least",
        "passed": wanted.is_met(ratio),
    }
    if len(pairs) <= _FEW:
        line["pairs"] = [[round(pair.ours, 1), round(pair.bare, 1)] for pair in pairs]
    print(json.dumps(line | dict(settings)), flush=True)
    word = "as wanted" if wanted.is_met(ratio) else "SHORT"
    talk(f"{name}: ratio {ratio:.2f}, wanted {line['bound']} {wanted.ratio:g}: {word}")


def talk(line: str) -> None:
    """What a person watching wants to know; stdout is for the figures."""
    print(line, file=sys.stderr, flush=True)
