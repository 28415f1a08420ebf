"""`python -m proof.crash [--points NAME,NAME] [--stores NAME,NAME] [--page FILE]`: the crash matrix."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from proof.crash.matrix import Result, run_matrix
from proof.crash.points import REQUIRED, KillPoint
from proof.databases import BACKENDS, ServerMissing
from proof.published import write_table
from proof.report import count_verdicts, format_columns, format_markdown, parse_names

__all__ = ["main"]

Key = TypeVar("Key")
_EPILOG = """\
The last line of standard output is a JSON object. Exit codes: 0 every point was reached and every promise held; 1 not;
2 it could not be run.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options select. Return the exit code."""
    options = _build_parser().parse_args(arguments)
    started = time.monotonic()
    try:
        draw = Random(options.sample) if options.sample is not None else None
        results = run_matrix(options.points, options.stores, on_result=_print_progress, draw=draw)
    except ServerMissing as reason:
        print(f"{reason} Without it: --stores sqlite.", file=sys.stderr)
        return 2
    print(_format_table(results))
    if options.page is not None:
        write_table(options.page, "make crash", _format_page(results))
    print(json.dumps(_count_results(results, seconds=time.monotonic() - started)))
    return 0 if all(result.holds for result in results) else 1


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.crash", description=__doc__, epilog=_EPILOG)
    titles = [point.title for point in KillPoint]
    parser.add_argument("--points", metavar="NAME,NAME", type=parse_names(titles, KillPoint.find),
                        default=list(KillPoint), help="only these points (default: all)")  # fmt: skip
    parser.add_argument("--stores", metavar="NAME,NAME", type=parse_names(BACKENDS, str), default=list(BACKENDS),
                        help=f"only these of {', '.join(BACKENDS)} (default: all)")  # fmt: skip
    parser.add_argument("--sample", metavar="SEED", type=int,
                        help="run each point once, on a store and at an occurrence that this seed draws")  # fmt: skip
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the table there, such as docs/crash.md")
    return parser


def _print_progress(result: Result) -> None:
    """Print each result as it comes, on stderr: stdout is for the table."""
    print(f"{result.store:<9} {_format_name(result):<24} {_format_result(result)}", file=sys.stderr, flush=True)
    if not result.holds:
        faults = [] if result.verdict is None else result.verdict.faults
        print(*faults, result.log, sep="\n", file=sys.stderr, flush=True)


# --- the report ---


def _format_table(results: Sequence[Result]) -> str:
    """Format point by store, for a terminal."""
    stores = _list_stores(results)
    rows = [["point", *stores]]
    for name, of_point in _group(results, _format_name).items():
        by_store = _group(of_point, lambda result: result.store)
        rows.append([name, *(_format_result(by_store[store][0]) if store in by_store else "-" for store in stores)])
    return format_columns(rows)


def _format_page(results: Sequence[Result]) -> str:
    """Format the table for a page, with what each point means. Occurrences of a point share a row."""
    stores = _list_stores(results)
    head = ["point", "dies", "what must happen", *(f"{store}: repeated" for store in stores)]
    head += [f"{store}: leases" for store in stores]
    rows = []
    for point, of_point in _group(results, lambda result: result.point).items():
        by_store = _group(of_point, lambda result: result.store)
        repeated = [", ".join(map(_format_repeated, by_store.get(store, ()))) for store in stores]
        leases = [", ".join(map(_format_leases, by_store.get(store, ()))) for store in stores]
        title = f"**{point.title}**" if point in REQUIRED.values() else point.title
        rows.append([title, point.dies, point.then, *repeated, *leases])
    return format_markdown(head, rows, right=3)


def _count_results(results: Sequence[Result], *, seconds: float) -> dict[str, object]:
    verdicts = [result.verdict for result in results if result.verdict is not None]
    counts = count_verdicts(verdicts)
    del counts["twice"]  # the consumer has no effects that could happen twice
    return {
        "points": len(results),
        "hit": len(verdicts),
        **counts,
        "stores": _list_stores(results),
        "seconds": round(seconds),
    }


def _list_stores(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.store for result in results))


def _group(results: Sequence[Result], key: Callable[[Result], Key]) -> dict[Key, list[Result]]:
    groups: dict[Key, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


def _format_name(result: Result) -> str:
    if result.nth == 1:
        return result.point.title
    ordinal = {2: "2nd", 3: "3rd"}.get(result.nth, f"{result.nth}th")
    return f"{result.point.title}, {ordinal}"


def _format_result(result: Result) -> str:
    if result.verdict is None:
        return f"NOT REACHED: {result.not_reached}"
    return "; ".join([*_format_faults(result), f"{_format_repeated(result)} repeated, {_format_leases(result)} leases"])


def _format_faults(result: Result) -> Iterator[str]:
    verdict = result.verdict
    if verdict is not None:
        for what in ("lost", "ghosts", "out_of_order"):
            if count := getattr(verdict, what):
                yield f"{count} {what.upper().replace('_', ' ')}"
        if verdict.faults:
            more = f" (and {len(verdict.faults) - 1} more)" if len(verdict.faults) > 1 else ""
            yield f"FAULT: {verdict.faults[0]}{more}"


def _format_repeated(result: Result) -> str:
    return "NOT REACHED" if result.verdict is None else str(result.verdict.duplicates)


def _format_leases(result: Result) -> str:
    return "-" if result.recovery is None else f"{result.recovery:.1f}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
