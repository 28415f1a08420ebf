"""`python -m proof.chain [--lines NAME,NAME] [--kills N] [--seed N] [--broken NAME] [--markdown]`: the chain."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from proof.chain.broken import BROKEN
from proof.chain.lines import LINES
from proof.chain.run import NURSERY, Progress, Result, Script, run
from proof.databases import Unserved
from proof.processes import ForkServer
from proof.report import count_chain_results, format_chain_markdown, format_chain_table, format_progress

__all__ = ["main"]

_EPILOG: Final = """\
The last line of standard output is a JSON object. Exit codes: 0 every point was reached, every effect happened once and
in order, and something came twice; 1 not; 2 it could not be run.
"""
_MOST_SECONDS: Final = 20
"""For each kill of a role: a run that takes longer is ended and has failed."""
_SELDOM: Final = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options choose. Answers the exit code."""
    chosen = _options().parse_args(arguments)
    started = time.monotonic()
    print(f"seed {chosen.seed}", file=sys.stderr, flush=True)
    try:
        results = [_played(name, chosen) for name in chosen.lines]
    except Unserved as reason:
        print(f"{reason} Without it: --lines http.", file=sys.stderr)
        return 2
    print((format_chain_markdown if chosen.markdown else format_chain_table)(results))
    print(json.dumps(count_chain_results(results, seconds=time.monotonic() - started)))
    return 0 if all(result.holds for result in results) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.chain", description=__doc__, epilog=_EPILOG)
    parser.add_argument("--lines", metavar="NAME,NAME", type=_lines, default=list(LINES),
                        help=f"only these of {', '.join(LINES)} (default: all)")  # fmt: skip
    parser.add_argument("--kills", metavar="N", type=_kills, default=45,
                        help="deaths of each relay and consumer of a line (default: 45)")  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=int, default=random.randrange(1_000_000),
                        help="who dies when, as in an earlier run; the rest is left to chance")  # fmt: skip
    parser.add_argument("--broken", choices=BROKEN, help="a mistake for the consumers to make: the run must fail")
    parser.add_argument("--markdown", action="store_true", help="print the table as it stands in docs/exactly-once.md")
    return parser


def _lines(text: str) -> list[str]:
    for name in text.split(","):
        if name not in LINES:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {', '.join(LINES)}")
    return text.split(",")


def _kills(text: str) -> int:
    if not text.isdigit() or int(text) < 6:
        raise argparse.ArgumentTypeError("a number is needed, and at least 6: a consumer has so many points to die at")
    return int(text)


def _played(name: str, chosen: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="pillarbox-chain-") as folder, ForkServer(
        Path(folder), module=NURSERY
    ) as fork_server:  # fmt: skip
        place = Path(folder) / "line"
        place.mkdir()
        with LINES[name](place) as line:
            script = Script(
                kills=dict.fromkeys(line.roles, chosen.kills), seed=chosen.seed, broken=chosen.broken,
                seconds=60 + _MOST_SECONDS * chosen.kills,
            )  # fmt: skip
            result = run(name, line, script, fork_server=fork_server, folder=Path(folder), told=_telling(name))
    print(
        f"\r{name:<8} {'holds' if result.holds else 'DOES NOT HOLD'}, {result.seconds:.0f} s{'':<60}", file=sys.stderr
    )
    if not result.holds:
        print(result.log, file=sys.stderr, flush=True)
    return result


def _telling(name: str) -> Callable[[Progress], None]:
    """While it runs, on stderr: stdout is for the table. A terminal has one line that changes."""
    is_terminal = sys.stderr.isatty()
    told_at = -_SELDOM

    def tell(progress: Progress) -> None:
        nonlocal told_at
        if is_terminal:
            print(f"\r{format_progress(name, progress):<78}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - told_at >= _SELDOM:
            told_at = time.monotonic()
            print(format_progress(name, progress), file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
