"""`make simulate-membership`: run the fleet, then a smaller one with each broken variant. The last line is JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Final

from pillarbox.message import PARTITIONS
from proof.membership.run import VARIANTS, Phase, Result, Size, run_fleet
from proof.report import format_columns

SMALL: Final = Size(relays=100, destinations=12, groups=1, waves=4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if the fleet behaved, and every broken variant was caught."""
    parser = argparse.ArgumentParser(prog="python -m proof.membership", description=__doc__)
    parser.add_argument("--relays", type=int, default=1_000)
    parser.add_argument("--destinations", type=int, default=200)
    parser.add_argument("--groups", type=int, default=20, help="relays of one group serve the same destinations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-variants", action="store_true")
    options = parser.parse_args(arguments)
    if min(options.relays, options.destinations, options.groups) < 1 or options.relays < 10 * options.groups:
        parser.error("there are at least ten relays in a group, and one destination.")
    size = Size(relays=options.relays, destinations=options.destinations, groups=options.groups)
    began = time.monotonic()
    result = run_fleet(size, seed=options.seed)
    lanes = size.destinations * PARTITIONS
    print(f"{size.relays} relays in {size.groups} groups, {size.destinations} destinations, {lanes:,} lanes")
    print(_format_phases(result))
    for violation in result.violations:
        print(f"BROKEN: {violation}")
    caught = {} if options.no_variants else {name: _catch(name, options.seed) for name in VARIANTS}
    for name, found in caught.items():
        print(f"{name}: {found or 'NOT CAUGHT'}")
    document = {
        "relays": size.relays,
        "destinations": size.destinations,
        "violations": len(result.violations),
        "idle_statements_per_second": _find_rate(result),
        "peak_statements_per_second": max(phase.peak for phase in result.phases),
        "variants": len(caught),
        "variants_caught": sum(found is not None for found in caught.values()),
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(document))
    return 1 if result.violations or None in caught.values() else 0


def _catch(name: str, seed: int) -> str | None:
    """Return what was said of a broken variant, and is its fault; None if it was not noticed."""
    break_product, expected = VARIANTS[name]
    with break_product():
        violations = run_fleet(SMALL, seed=seed).violations
    return next((violation for violation in violations if expected in violation), None)


def _find_rate(result: Result) -> int:
    quiet = next(phase for phase in result.phases if phase.name == "nothing happens")
    return round(quiet.statements.total() / quiet.seconds)


def _format_phases(result: Result) -> str:
    heads = [
        "phase",
        "s",
        "statements/s",
        "busiest second",
        "registry/s",
        "takes",
        "herd",
        "take herd",
        "all served after",
        "longest gap",
        "lanes of a relay",
    ]
    return format_columns([heads, *(_format_phase(phase) for phase in result.phases)])


def _format_phase(phase: Phase) -> list[str]:
    return [
        phase.name, f"{phase.seconds:.0f}", f"{phase.statements.total() / phase.seconds:,.0f}", f"{phase.peak:,}",
        f"{phase.statements['registry'] / phase.seconds:,.0f}", f"{phase.statements['take']:,}", f"{phase.herd:.1f}",
        f"{phase.take_herd:.1f}", "never" if phase.served_after is None else f"{phase.served_after:.1f} s",
        f"{phase.longest_gap:.1f} s", f"{phase.lanes[0]} to {phase.lanes[1]}",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
