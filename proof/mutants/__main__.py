"""`python -m proof.mutants [--only AREA] [--jobs 2] [--page docs/mutants.md]`: breaks that tests must notice."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from proof.mutants.breaks import Break, load_breaks, select_breaks
from proof.mutants.report import count_results, format_line, format_page, format_score, is_good
from proof.mutants.results import KnownResults
from proof.mutants.runner import Result, run_breaks

__all__ = ["main"]

_ROOT = Path(__file__).parents[2]
_EPILOG = """\
The last line of standard output is a JSON object. Exit codes: 0 at least nine tenths were caught and all could be
tried; 1 not; 2 nothing was selected.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what the options select. Return the exit code."""
    options = _build_parser().parse_args(arguments)
    breaks = load_breaks()
    if options.only:
        breaks = select_breaks(breaks, options.only)
    if not breaks:
        print(f"No area and no break has {options.only!r} in its name.", file=sys.stderr)
        return 2
    started = time.monotonic()
    results = _run(breaks, options)
    if options.page is not None and not options.only:
        options.page.write_text(format_page(results), encoding="utf-8")
    print(format_score(results))
    print(json.dumps({**count_results(results), "seconds": round(time.monotonic() - started)}))
    return 0 if is_good(results) else 1


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
    parser.add_argument("--verbose", action="store_true", help="print what the tests printed")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
