"""`python -m proof.mutants [--only AREA] [--draw 200 --seed 7]`: breaks that tests must notice."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from proof.mutants.breaks import Break, load_breaks, select_breaks
from proof.mutants.covering_tests import CoveringTests, record
from proof.mutants.draw import draw_breaks, load_reasons
from proof.mutants.report import (
    count_results,
    format_line,
    format_score,
    format_survivors,
    format_table,
    is_good,
    is_good_draw,
)
from proof.mutants.results import KnownResults
from proof.mutants.runner import Result, judge_untested, run_breaks
from proof.published import write_table

__all__ = ["main"]

_ROOT = Path(__file__).parents[2]
_EPILOG = """\
The last line of standard output is a JSON object. Exit codes: 0 at least nine tenths were caught and all could be
tried (of drawn ones 85 %, and 70 % of each package); 1 not; 2 nothing was selected.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what the options select. Return the exit code."""
    options = _build_parser().parse_args(arguments)
    if options.draw:
        return _try_drawn(options)
    breaks = load_breaks()
    if options.only:
        breaks = select_breaks(breaks, options.only)
    if not breaks:
        print(f"No area and no break has {options.only!r} in its name.", file=sys.stderr)
        return 2
    started = time.monotonic()
    results = _run(breaks, options)
    if options.page is not None and not options.only:
        write_table(options.page, "make mutants", format_table(results))
    print(format_score(results))
    print(json.dumps({**count_results(results), "seconds": round(time.monotonic() - started)}))
    return 0 if is_good(results) else 1


def _try_drawn(options: argparse.Namespace) -> int:
    """Try breaks that are drawn at random, with the tests that run their lines."""
    if not (options.covering / "all").exists():
        print(
            f"Recording in {options.covering} which test runs which line: the whole suite, about an hour.", flush=True
        )
        record(_ROOT, options.covering, jobs=options.jobs)
    covering = CoveringTests(options.covering, _ROOT)
    drawn = draw_breaks(_ROOT, number=options.draw, seed=options.seed, find_tests=covering.find, reasons=load_reasons())
    started = time.monotonic()
    untested = [judge_untested(one) for one in drawn.uncovered]
    results = sorted([*untested, *_run(drawn.breaks, options)], key=lambda result: result.mutant.name)
    if options.page is not None:
        command = f"make mutants DRAW={options.draw} SEED={options.seed}"
        write_table(options.page, command, format_table(results, of=" of the draw"))
    print(format_score(results))
    print(format_survivors(results))
    print(json.dumps({**count_results(results), "seed": options.seed, "seconds": round(time.monotonic() - started)}))
    return 0 if is_good_draw(results) else 1


def _run(breaks: Sequence[Break], options: argparse.Namespace) -> Sequence[Result]:
    """Try the breaks, without those whose result is known."""
    known = None if options.resume is None else KnownResults(options.resume, _ROOT)
    results = {} if known is None else {one.name: found for one in breaks if (found := known.find(one)) is not None}
    left = [one for one in breaks if one.name not in results]
    progress = _Progress(left, verbose=options.verbose)

    def on_result(result: Result) -> None:
        progress(result)
        if known is not None:
            known.add(result)

    results |= {
        result.mutant.name: result for result in run_breaks(left, _ROOT, jobs=options.jobs, on_result=on_result)
    }
    return [results[one.name] for one in breaks]


class _Progress:
    """Prints each result as it comes, on stderr: stdout is for the score."""

    def __init__(self, breaks: Sequence[Break], *, verbose: bool) -> None:
        self._all = len(breaks)
        self._done = 0
        self._verbose = verbose

    def __call__(self, result: Result) -> None:
        self._done += 1
        print(f"{self._done:>4}/{self._all} {format_line(result)}", file=sys.stderr, flush=True)
        if self._verbose:
            print(result.output, file=sys.stderr, flush=True)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.mutants", description=__doc__, epilog=_EPILOG)
    parser.add_argument("--only", metavar="NAME", default="", help="one area, or the breaks whose name contains this")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="how many to try at a time (default: 2)")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the page here, if all were tried")
    parser.add_argument("--resume", metavar="FILE", type=Path,
                        help="keep results there, and do not try again what has the same file and tests")  # fmt: skip
    parser.add_argument("--draw", metavar="N", type=int, default=0, help="draw this number of breaks from all of src")
    parser.add_argument("--seed", metavar="N", type=int, default=7, help="what to draw (default: 7)")
    parser.add_argument("--covering", metavar="FOLDER", type=Path, default=_ROOT / ".mutants",
                        help="which test runs which line; recorded there if it is missing")  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="print what the tests printed")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
