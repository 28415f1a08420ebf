"""`python -m proof.chain [--lines NAME,NAME] [--kills N] [--seed N] [--broken NAME] [--page FILE]`: the chain."""

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
from proof.chain.kill_points import RELAY_POINTS, ConsumerKillPoint
from proof.chain.lines import LINES
from proof.chain.programs import MODULE
from proof.chain.run import Progress, Result, Scenario, run
from proof.databases import ServerMissing
from proof.processes import ForkServer
from proof.published import write_table
from proof.report import count_verdicts, format_markdown, parse_names

__all__ = ["main"]

_EPILOG: Final = """\
The last line of standard output is a JSON object. Exit codes: 0 every point was reached, every effect happened once and
in order, and something came twice; 1 not; 2 it could not be run.
"""
_SECONDS_PER_KILL: Final = 20
"""For each kill of a role: a run that takes longer is ended and has failed."""
_PROGRESS_SECONDS: Final = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options select. Return the exit code."""
    options = _build_parser().parse_args(arguments)
    started = time.monotonic()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    try:
        results = [_run_line(name, options) for name in options.lines]
    except ServerMissing as reason:
        print(f"{reason} Without it: --lines http.", file=sys.stderr)
        return 2
    print(_format_table(results))
    if options.page is not None:
        write_table(options.page, "make chain", _format_page(results))
    print(json.dumps(_count_results(results, seconds=time.monotonic() - started)))
    return 0 if all(result.holds for result in results) else 1


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.chain", description=__doc__, epilog=_EPILOG)
    parser.add_argument("--lines", metavar="NAME,NAME", type=parse_names(LINES, str), default=list(LINES),
                        help=f"only these of {', '.join(LINES)} (default: all)")  # fmt: skip
    parser.add_argument("--kills", metavar="N", type=_parse_kills, default=45,
                        help="kills of each relay and consumer of a line (default: 45)")  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=int, default=random.randrange(1_000_000),
                        help="the plan of kills of an earlier run; their effect still depends on timing")  # fmt: skip
    parser.add_argument("--broken", choices=BROKEN, help="a mistake that the consumers make: the run must fail")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the table there, such as docs/exactly-once.md")
    return parser


def _parse_kills(text: str) -> int:
    if not text.isdigit() or int(text) < 6:
        raise argparse.ArgumentTypeError("a number is needed, and at least 6: a consumer has so many points to die at")
    return int(text)


def _run_line(name: str, options: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="pillarbox-chain-") as folder, ForkServer(
        Path(folder), module=MODULE
    ) as fork_server:  # fmt: skip
        line_folder = Path(folder) / "line"
        line_folder.mkdir()
        with LINES[name](line_folder) as line:
            scenario = Scenario(
                kills=dict.fromkeys(line.roles, options.kills), seed=options.seed, broken=options.broken,
                seconds=60 + _SECONDS_PER_KILL * options.kills,
            )  # fmt: skip
            result = run(
                name,
                line,
                scenario,
                fork_server=fork_server,
                folder=Path(folder),
                on_progress=_make_progress_printer(name),
            )
    print(
        f"\r{name:<8} {'holds' if result.holds else 'DOES NOT HOLD'}, {result.seconds:.0f} s{'':<60}", file=sys.stderr
    )
    if not result.holds:
        print(result.log, file=sys.stderr, flush=True)
    return result


def _make_progress_printer(name: str) -> Callable[[Progress], None]:
    """Return a printer to stderr: stdout is for the table. On a terminal it changes one line in place."""
    is_terminal = sys.stderr.isatty()
    printed_at = -_PROGRESS_SECONDS

    def print_progress(progress: Progress) -> None:
        nonlocal printed_at
        if is_terminal:
            print(f"\r{_format_progress(name, progress):<78}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - printed_at >= _PROGRESS_SECONDS:
            printed_at = time.monotonic()
            print(_format_progress(name, progress), file=sys.stderr, flush=True)

    return print_progress


# --- the report ---


def _format_progress(line: str, progress: Progress) -> str:
    return (
        f"{line:<8} {progress.kills}/{progress.planned} kills, {progress.hit}/{progress.points} points, "
        f"A {progress.committed}, B {progress.b}, C {progress.c}"
    )


def _format_table(results: Sequence[Result]) -> str:
    """Format how often a process died at each point, and what is wrong, for a terminal."""
    lines = [f"{'process':<11} {'point':<14}" + "".join(f"{result.line:>9}" for result in results)]
    points = {(role, title): None for result in results for role, of in result.hits.items() for title in of}
    for role, title in points:
        deaths = "".join(f"{result.hits.get(role, {}).get(title, 0):>9}" for result in results)
        lines.append(f"{role:<11} {title:<14}{deaths}")
    return "\n".join([*lines, *(_format_result(result) for result in results)])


def _format_page(results: Sequence[Result]) -> str:
    """Format the table for a page: points of both consumers together, with what each means."""
    rows = []
    for who, points in (("consumer", tuple(ConsumerKillPoint)), ("relay", RELAY_POINTS)):
        for point in points:
            deaths = [str(_count_deaths(result, who, point.title)) for result in results]
            rows.append([point.title, f"a {who}, {point.dies}", point.then, *deaths])
    return format_markdown(["point", "dies", "what must happen", *(result.line for result in results)], rows, right=3)


def _count_deaths(result: Result, who: str, title: str) -> int:
    return sum(of.get(title, 0) for role, of in result.hits.items() if role.startswith(who))


def _format_result(result: Result) -> str:
    verdict = result.verdict
    lines = [
        f"{result.line}: {result.messages} messages, {result.kills} kills, {verdict.lost} lost, "
        f"{verdict.ghosts} ghosts, {verdict.twice} twice, {verdict.out_of_order} out of order, "
        f"{verdict.duplicates} came again and did nothing"
    ]
    lines += [f"{result.line}: OUT OF ORDER: {one}" for one in verdict.overtaken]
    return "\n".join([*lines, *(f"{result.line}: FAULT: {fault}" for fault in verdict.faults)])


def _count_results(results: Sequence[Result], *, seconds: float) -> dict[str, object]:
    return {
        "kills": sum(result.kills for result in results),
        "points": sum(result.points for result in results),
        "hit": sum(result.hit for result in results),
        **count_verdicts([result.verdict for result in results]),
        "messages": sum(result.messages for result in results),
        "lines": [result.line for result in results],
        "seconds": round(seconds),
    }


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
