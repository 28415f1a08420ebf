"""`python -m proof.clusters [--clusters NAME,NAME] [--faults NAME,NAME] [--save]`: failovers of real clusters."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from proof.clusters.engines import CLUSTERS
from proof.clusters.page import save
from proof.clusters.programs import MODULE
from proof.clusters.run import FAULTS, Load, Result, run_fault
from proof.processes import ForkServer, TimedOut
from proof.report import parse_names
from tests.support.servers import ServerMissing

__all__ = ["main"]

_EPILOG: Final = """\
Standard output is a line of JSON for each cluster and fault. Exit codes: 0 every promise held; 1 not. A cluster that
cannot be started here is skipped, with a sentence on standard error that says how to get it.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options select. Return the exit code."""
    options = _build_parser().parse_args(arguments)
    results: list[Result] = []
    for name in options.clusters:
        try:
            for result in _run_cluster(name, options.faults, load=Load(transactions=options.transactions)):
                results.append(result)
                _print(result)
        except ServerMissing as reason:
            print(f"{name}: skipped: {reason}.", file=sys.stderr, flush=True)
        except TimedOut as late:  # before the first fault, or when it should have become whole again
            results.append(Result(cluster=name, fault="none", version="", faults=[str(late)]))
            _print(results[-1])
    if options.save:
        save([result for result in results if result.version], order=list(CLUSTERS))
    return 0 if all(result.holds for result in results) else 1


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.clusters", description=__doc__, epilog=_EPILOG)
    parser.add_argument("--clusters", metavar="NAME,NAME", type=parse_names(CLUSTERS, str), default=list(CLUSTERS),
                        help=f"only these of {', '.join(CLUSTERS)} (default: all)")  # fmt: skip
    parser.add_argument("--faults", metavar="NAME,NAME", type=parse_names(FAULTS, str), default=list(FAULTS),
                        help=f"only these of {', '.join(FAULTS)} (default: all)")  # fmt: skip
    parser.add_argument("--transactions", metavar="N", type=_parse_transactions, default=Load().transactions,
                        help="most transactions of a writer, of two messages each (default: %(default)s)")  # fmt: skip
    parser.add_argument("--save", action="store_true", help="keep the results, and write docs/clusters.md anew")
    return parser


def _parse_transactions(text: str) -> int:
    if not text.isdigit() or not 500 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError("a number from 500 to 100000 is needed: a fault has to meet writers at work")
    return int(text)


def _run_cluster(name: str, faults: Sequence[str], *, load: Load) -> Iterator[Result]:
    """Start a cluster, run the faults on it, and end it."""
    started = time.monotonic()
    print(f"{name}: starting", file=sys.stderr, flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="pillarbox-clusters-") as place,
        ForkServer(Path(place), module=MODULE) as fork_server,
        CLUSTERS[name]() as cluster,
    ):
        version = cluster.read_version()
        print(f"{name}: {version}, up in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        for fault in faults:
            print(f"{name}: {fault}", file=sys.stderr, flush=True)
            yield run_fault(
                cluster, fault, folder=Path(place) / fault, fork_server=fork_server, load=load, version=version
            )
            cluster.wait_until_whole(None)


def _print(result: Result) -> None:
    line = {
        "cluster": result.cluster, "fault": result.fault, "version": result.version, "messages": result.messages,
        "lost": result.lost, "ghosts": result.ghosts, "out_of_order": result.out_of_order,
        "duplicates": result.duplicates, "undone": result.undone, "seconds": round(result.pause, 1),
        "faults": result.faults,
    }  # fmt: skip
    print(json.dumps(line), flush=True)
    if not result.holds:
        print(result.log, file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
