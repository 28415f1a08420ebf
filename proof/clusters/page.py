"""The table of docs/clusters.md, from the results of the last runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from proof.clusters.run import FAULTS, Result
from proof.published import write_table
from proof.report import format_markdown

__all__ = ["PAGE", "RESULTS", "Record", "build_table", "load_records", "merge", "save"]

RESULTS: Final = Path(__file__).with_name("results.json")
PAGE: Final = Path(__file__).parents[2] / "docs" / "clusters.md"
_HEAD: Final = (
    "cluster", "fault", "messages", "lost", "ghosts", "out of order", "repeated", "taken back",
    "seconds without a delivery", "run on",
)  # fmt: skip


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The last result of one cluster and fault, with what ran."""

    cluster: str
    fault: str
    version: str
    messages: int
    lost: int
    ghosts: int
    out_of_order: int
    duplicates: int
    undone: int
    seconds: float
    ran_on: str
    faults: Sequence[str] = ()

    @classmethod
    def from_result(cls, result: Result, *, at: datetime) -> Record:
        return cls(
            cluster=result.cluster, fault=result.fault, version=result.version, messages=result.messages,
            lost=result.lost, ghosts=result.ghosts, out_of_order=result.out_of_order, duplicates=result.duplicates,
            undone=result.undone, seconds=round(result.pause, 1), ran_on=at.date().isoformat(), faults=result.faults,
        )  # fmt: skip


def load_records() -> list[Record]:
    """Return the results of the last runs, one for each cluster and fault."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=list[Record]) if RESULTS.exists() else []


def merge(old: Iterable[Record], new: Iterable[Record], *, order: Sequence[str]) -> list[Record]:
    """Replace the results of the same cluster and fault; the clusters and faults in their order."""
    known = {(record.cluster, record.fault): record for record in (*old, *new) if record.cluster in order}
    faults = list(FAULTS)
    return sorted(known.values(), key=lambda record: (order.index(record.cluster), faults.index(record.fault)))


def build_table(records: Sequence[Record]) -> str:
    """Return the table, and the versions that it was measured with."""
    rows = [
        [
            f"`{one.cluster}`", one.fault, f"{one.messages:,}", str(one.lost), str(one.ghosts), str(one.out_of_order),
            str(one.duplicates), str(one.undone), f"{one.seconds:.1f}", one.ran_on,
        ]
        for one in records
    ]  # fmt: skip
    versions = {one.cluster: one.version for one in records}
    listed = "\n".join(f"- `{cluster}`: {version}" for cluster, version in versions.items())
    return f"{format_markdown(_HEAD, rows, right=2)}\n\nMeasured with:\n\n{listed}"


def save(results: Iterable[Result], *, order: Sequence[str]) -> None:
    """Keep these results, and write the table of the page."""
    at = datetime.now(UTC)
    records = merge(load_records(), [Record.from_result(result, at=at) for result in results], order=order)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(records), indent=2) + b"\n")
    write_table(PAGE, "make proof-clusters", build_table(records))
