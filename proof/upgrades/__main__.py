"""`make proof-upgrades`: runs both releases on every store, prints a line of JSON for each, and fails on any loss."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from proof.databases import BACKENDS, ServerMissing
from proof.upgrades.releases import build_releases
from proof.upgrades.run import run_mixed


def main() -> int:
    """Return the exit code: 1 if a run was not good."""
    parser = argparse.ArgumentParser(prog="python -m proof.upgrades", description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=sorted(BACKENDS), default=sorted(BACKENDS))
    parser.add_argument("--rounds", type=int, default=5, help="how often the schema goes up and down")
    parser.add_argument("--messages", type=int, default=500, help="what each release delivers between two changes")
    options = parser.parse_args()
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        releases = build_releases(Path(folder))
        for store in options.stores:
            place = Path(folder) / store
            place.mkdir()
            try:
                result = run_mixed(store, releases, place, rounds=options.rounds, messages=options.messages)
            except ServerMissing as error:
                print(error, file=sys.stderr)
                continue
            print(msgspec.json.encode(result).decode(), flush=True)
            is_good = is_good and result.is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
