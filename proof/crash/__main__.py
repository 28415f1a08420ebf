"""`python -m proof.crash [--points NAME,NAME] [--stores NAME,NAME] [--markdown]`: the crash matrix."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from proof.crash.matrix import Result, run_all
from proof.crash.points import Point
from proof.databases import BACKENDS, Unserved
from proof.report import count_results, format_line, format_markdown, format_table

__all__ = ["main"]

_EPILOG = """\
The last line of standard output is a JSON object. Exit codes: 0 every point was reached and every promise held; 1 not;
2 it could not be run.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options choose. Answers the exit code."""
    chosen = _options().parse_args(arguments)
    started = time.monotonic()
    try:
        results = run_all(chosen.points, chosen.stores, told=_tell)
    except Unserved as reason:
        print(f"{reason} Without it: --stores sqlite.", file=sys.stderr)
        return 2
    print((format_markdown if chosen.markdown else format_table)(results))
    print(json.dumps(count_results(results, seconds=time.monotonic() - started)))
    return 0 if all(result.holds for result in results) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.crash", description=__doc__, epilog=_EPILOG)
    titles = [point.title for point in Point]
    parser.add_argument("--points", metavar="NAME,NAME", type=_several(titles, Point.titled), default=list(Point),
                        help="only these points (default: all)")  # fmt: skip
    parser.add_argument("--stores", metavar="NAME,NAME", type=_several(BACKENDS, str), default=list(BACKENDS),
                        help=f"only these of {', '.join(BACKENDS)} (default: all)")  # fmt: skip
    parser.add_argument("--markdown", action="store_true", help="print the table as it stands in docs/crash.md")
    return parser


def _several(known: Iterable[str], made: Callable[[str], object]) -> Callable[[str], list[object]]:
    """Reads a list of names; an unknown one is told with all that there are."""
    names = list(known)

    def read(text: str) -> list[object]:
        for name in text.split(","):
            if name not in names:
                raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {', '.join(names)}")
        return [made(name) for name in text.split(",")]

    return read


def _tell(result: Result) -> None:
    """While it runs, on stderr: stdout is for the table."""
    print(format_line(result), file=sys.stderr, flush=True)
    if not result.holds:
        faults = [] if result.verdict is None else result.verdict.faults
        print(*faults, result.log, sep="\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
