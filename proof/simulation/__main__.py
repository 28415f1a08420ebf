"""`make simulate`: run seeds, then the broken variants. The last line of output is JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from random import SystemRandom
from typing import Final

from proof.published import write_table
from proof.report import format_columns, format_markdown
from proof.simulation.checker import Promise
from proof.simulation.runner import Catch, Total, run_seeds, run_variants
from proof.simulation.scenario import Scenario
from proof.simulation.variants import VARIANTS
from proof.simulation.world import simulate

_NAMED: Final = (Promise.LOST, Promise.GHOST, Promise.OUT_OF_ORDER)
_MOST_PRINTED: Final = 20
_FIRST_NEW: Final = 1_000_000
_LAST_NEW: Final = 1_000_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options select. Return 0 if every promise held and every broken variant was caught."""
    parser = _build_parser()
    options = parser.parse_args(arguments)
    if min(options.seeds, options.first, options.new, options.limit) < 0 or (
        options.workers is not None and options.workers < 1
    ):
        parser.error("--seeds, --first, --new and --limit count from 0, and --workers from 1.")
    if options.seed is not None:
        return _replay(options.seed, options.variant)
    seeds = [*range(options.first, options.first + options.seeds), *draw_seeds(options.new)]
    total = run_seeds(
        seeds, progress=lambda done: _print_note(f"\r{done} of {len(seeds)} seeds"), workers=options.workers
    )
    _print_note(f"\n{total.messages:,} messages, {total.simulated:,.0f} simulated seconds in {total.elapsed:.0f} s\n")
    _print_note(f"a thousand seeds take {1_000 * total.elapsed / max(total.seeds, 1):.0f} s\n")
    for seed, violation in total.broken_seeds[:_MOST_PRINTED]:
        print(f"seed {seed}: {violation} (make simulate SEED={seed} shows how)")
    catches = (
        [] if options.no_variants else list(run_variants(list(VARIANTS), limit=options.limit, workers=options.workers))
    )
    if catches:
        print(_format_catches(catches))
    if options.page is not None:
        write_table(options.page, "make simulate", _format_page(total, catches))
    print(json.dumps(_count_results(total, catches)))
    return 1 if total.broken_seeds or any(catch.seed is None for catch in catches) else 0


def draw_seeds(count: int) -> range:
    """Draw a range of seeds that hardly anyone has run before. A failure prints the seed, which replays it."""
    first = SystemRandom().randrange(_FIRST_NEW, _LAST_NEW)
    return range(first, first + count)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--new", type=int, default=0, help="more of them, another range each time")
    parser.add_argument("--seed", type=int, help="replay this one alone, line by line")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="with --seed: broken in this way")
    parser.add_argument("--limit", type=int, default=2_000, help="seeds in which each broken variant must be caught")
    parser.add_argument("--no-variants", action="store_true", help="only the seeds")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the counts there, such as docs/simulation.md")
    parser.add_argument("--workers", type=int, help="processes; one per core if not given")
    return parser


def _replay(seed: int, variant: str | None) -> int:
    """Print one seed line by line, with a variant if one is named."""
    for line in Scenario.draw(seed).describe():
        print(line)
    with nullcontext() if variant is None else VARIANTS[variant].apply():
        result = simulate(seed, print_line=print)
    total = Total(seeds=1, messages=result.messages, duplicates=result.duplicates, simulated=result.seconds)
    for violation in result.violations:
        print(f"BROKEN: {violation}")
        total.violations[violation.promise.value] += 1
    print(json.dumps(_count_results(total, [])))
    return 1 if result.violations else 0


def _format_catches(catches: Sequence[Catch]) -> str:
    return format_columns(
        [
            [catch.variant, "NOT CAUGHT" if catch.seed is None else f"seed {catch.seed}: {catch.violation}"]
            for catch in catches
        ]
    )


def _format_page(total: Total, catches: Sequence[Catch]) -> str:
    """Format the counts of a run for its page."""
    head = [
        "seeds",
        "messages",
        "repeated",
        *(promise.value for promise in _NAMED),
        "other breaches",
        "variants caught",
    ]
    counts = [total.seeds, total.messages, total.duplicates, *(total.count(promise) for promise in _NAMED)]
    others = sum(total.count(promise) for promise in Promise if promise not in _NAMED)
    caught = f"{sum(catch.seed is not None for catch in catches)} of {len(catches)}"
    return format_markdown(head, [[*(f"{count:,}" for count in (*counts, others)), caught]], right=0)


def _count_results(total: Total, catches: Sequence[Catch]) -> dict[str, object]:
    thousandth = 1_000 / max(total.seeds, 1)
    return {
        "seeds": total.seeds,
        "lost": total.count(Promise.LOST),
        "ghosts": total.count(Promise.GHOST),
        "out_of_order": total.count(Promise.OUT_OF_ORDER),
        "other_violations": sum(total.count(promise) for promise in Promise if promise not in _NAMED),
        "violations": dict(total.violations),
        "broken_seeds": [seed for seed, _ in total.broken_seeds[:_MOST_PRINTED]],
        "duplicates": total.duplicates,
        "messages": total.messages,
        "variants": len(catches),
        "variants_caught": sum(catch.seed is not None for catch in catches),
        "caught_by_seed": {catch.variant: catch.seed for catch in catches},
        "seconds_per_1000_seeds": round(total.elapsed * thousandth, 1),
        "processor_seconds_per_1000_seeds": round(total.seconds * thousandth, 1),
        "simulated_seconds_per_1000_seeds": round(total.simulated * thousandth),
    }


def _print_note(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
