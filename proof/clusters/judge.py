"""The verdict on a failover: what writers were told, what the store holds, and what arrived. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import msgspec

from proof.judge import NumberedRow, Verdict, find_overtaken

__all__ = ["Evidence", "find_pause", "judge"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is there when every process has stopped, and the cluster is whole again."""

    attempted: Collection[str]
    """Subjects that writers began to write."""
    acknowledged: Collection[str]
    """Subjects whose commit was acknowledged to their writer."""
    committed: Sequence[NumberedRow]
    """Rows that the store holds in the end."""
    delivered: Sequence[str]
    """Subjects that a relay was told were delivered, in the order it was told."""
    arrivals: Sequence[NumberedRow]
    """What the destination holds in the end, in its order."""
    failed: int = 0
    """Messages in the state failed. A failover is an outage, and fails none."""
    exit_codes: Sequence[int | None] = ()
    """Of the relays, which were asked to stop."""


class FailoverVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one run."""

    verdict: Verdict
    undone: int
    """Acknowledged, and taken back by the failover of a cluster that does not promise to keep it."""
    missing: Sequence[str] = ()
    """What is lost, each with how far it came."""


def judge(evidence: Evidence, *, may_undo: bool = False) -> FailoverVerdict:
    """Judge one run. With `may_undo` the cluster may take back what it acknowledged; that is counted apart."""
    committed = {row.subject for row in evidence.committed}
    arrived = {row.subject for row in evidence.arrivals}
    acknowledged = set(evidence.acknowledged)
    # A store took a commit back: the writer was told that it is there, or it was even delivered.
    gone = (acknowledged | (arrived & set(evidence.attempted))) - committed
    # A broker took a message back: the relay was told that it is there.
    forgotten = (committed & set(evidence.delivered)) - arrived
    undone = gone | forgotten if may_undo else set()
    overtaken = list(find_overtaken(evidence.arrivals))
    lost = ((committed | acknowledged) - arrived | (gone & acknowledged)) - undone
    told = set(evidence.delivered)
    return FailoverVerdict(
        missing=[
            f"{subject} {'after it was delivered' if subject in told else 'undelivered'}" for subject in sorted(lost)
        ],
        verdict=Verdict(
            lost=len(lost),
            ghosts=len(arrived - committed - undone),
            out_of_order=len(overtaken),
            duplicates=len(evidence.arrivals) - len(arrived),
            overtaken=overtaken,
            faults=list(_list_faults(evidence)),
        ),
        undone=len(undone),
    )


def _list_faults(evidence: Evidence) -> Iterator[str]:
    if not evidence.arrivals:
        yield "nothing arrived at all"
    if evidence.failed:
        yield f"{evidence.failed} messages are failed, and an outage fails none"
    for code in evidence.exit_codes:
        if code != 0:
            yield f"a relay ended with {code} when it was asked to stop"


def find_pause(times: Sequence[float], *, since: float) -> float:
    """Return the longest time without a delivery that ended after `since`, in seconds."""
    later = sorted(at for at in times if at > since)
    return max((after - before for before, after in pairwise([since, *later])), default=0.0)
