"""`make simulate`: seeds, then the broken variants. The last line is JSON; everything else is for people."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from proof.simulation.checker import Breach
from proof.simulation.runner import Catch, Total, run_seeds, run_variants
from proof.simulation.scenario import Scenario
from proof.simulation.variants import VARIANTS
from proof.simulation.world import simulate

_NAMED: Final = (Breach.LOST, Breach.GHOST, Breach.OUT_OF_ORDER)
_MOST_TOLD: Final = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 0 when every promise held and every broken variant was caught."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if min(asked.seeds, asked.first, asked.limit) < 0 or (asked.workers is not None and asked.workers < 1):
        parser.error("--seeds, --first and --limit count from 0, and --workers from 1.")
    if asked.seed is not None:
        return _replay(asked.seed, asked.variant)
    seeds = range(asked.first, asked.first + asked.seeds)
    total = run_seeds(seeds, progress=lambda done: _say(f"\r{done} of {len(seeds)} seeds"), workers=asked.workers)
    _say(f"\n{total.messages:,} messages, {total.simulated:,.0f} simulated seconds in {total.elapsed:.0f} s\n")
    _say(f"a thousand seeds take {1_000 * total.elapsed / max(total.seeds, 1):.0f} s\n")
    for seed, fault in total.faulty[:_MOST_TOLD]:
        print(f"seed {seed}: {fault} (make simulate SEED={seed} tells how)")
    catches = [] if asked.no_variants else list(run_variants(list(VARIANTS), limit=asked.limit, workers=asked.workers))
    if catches:
        print(_table(catches))
    print(json.dumps(_document(total, catches)))
    return 1 if total.faulty or any(catch.seed is None for catch in catches) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this one alone, line by line")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="with --seed: broken in this way")
    parser.add_argument("--limit", type=int, default=2_000, help="seeds in which each broken variant must be caught")
    parser.add_argument("--no-variants", action="store_true", help="only the seeds")
    parser.add_argument("--workers", type=int, help="processes; one per core if not given")
    return parser


def _replay(seed: int, variant: str | None) -> int:
    """Tell one seed from beginning to end, whole or broken."""
    for line in Scenario.drawn(seed).told():
        print(line)
    with nullcontext() if variant is None else VARIANTS[variant].switched_in():
        result = simulate(seed, tell=print)
    total = Total(seeds=1, messages=result.messages, duplicates=result.duplicates, simulated=result.seconds)
    for fault in result.faults:
        print(f"BROKEN: {fault}")
        total.breaches[fault.breach.value] += 1
    print(json.dumps(_document(total, [])))
    return 1 if result.faults else 0


def _table(catches: Sequence[Catch]) -> str:
    width = max(len(catch.variant) for catch in catches)
    return "\n".join(
        f"{catch.variant:{width}}  {'NOT CAUGHT' if catch.seed is None else f'seed {catch.seed}: {catch.fault}'}"
        for catch in catches
    )


def _document(total: Total, catches: Sequence[Catch]) -> dict[str, object]:
    thousandth = 1_000 / max(total.seeds, 1)
    return {
        "seeds": total.seeds,
        "lost": total.count(Breach.LOST),
        "ghosts": total.count(Breach.GHOST),
        "out_of_order": total.count(Breach.OUT_OF_ORDER),
        "other_breaches": sum(total.count(breach) for breach in Breach if breach not in _NAMED),
        "breaches": dict(total.breaches),
        "broken_seeds": [seed for seed, _ in total.faulty[:_MOST_TOLD]],
        "duplicates": total.duplicates,
        "messages": total.messages,
        "variants": len(catches),
        "variants_caught": sum(catch.seed is not None for catch in catches),
        "caught_by_seed": {catch.variant: catch.seed for catch in catches},
        "seconds_per_1000_seeds": round(total.elapsed * thousandth, 1),
        "processor_seconds_per_1000_seeds": round(total.seconds * thousandth, 1),
        "simulated_seconds_per_1000_seeds": round(total.simulated * thousandth),
    }


def _say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
