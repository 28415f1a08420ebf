"""The verdict on one run: what was committed against what arrived and what the store holds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from proof.crash.consumer import Arrival
from proof.crash.scenarios import Scenario
from proof.judge import NumberedRow, Verdict, find_overtaken
from proof.messages import WRITER_KEY

__all__ = ["Evidence", "StoredMessage", "judge"]


class StoredMessage(msgspec.Struct, frozen=True):
    """A message in the store."""

    subject: str
    state: str
    attempts: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is there when every process has stopped."""

    committed: Sequence[NumberedRow]
    arrivals: Sequence[Arrival]
    """In the order they came."""
    stored: Sequence[StoredMessage]
    archived: Sequence[str] = ()
    claims: int = 0
    owned_lanes: int = 0
    still_failed: int = 0
    """Failed messages when the operator had been killed."""
    deaths: int = 1
    """Relays that died at the point."""
    exit_code: int | None = 0
    """Of the relay that went on."""
    recorded: Sequence[str] = ()
    """What was recorded as delivered after the kill."""
    recorded_at: int = 0
    """When that was read, on the clock of the arrivals."""
    lapses: int = 0
    """Relays that lost their lease without dying, on a machine too busy to renew it: each may repeat messages."""


def judge(evidence: Evidence, scenario: Scenario, *, alone: bool = True) -> Verdict:
    """Judge one run of a scenario. `alone` says that one relay worked at a time."""
    committed = {row.subject for row in evidence.committed}
    accepted = [arrival for arrival in evidence.arrivals if arrival.is_accepted]
    delivered = {arrival.subject for arrival in accepted}
    undelivered = {one.subject for one in evidence.stored if one.state in ("failed", "skipped", "discarded")}
    seen = {arrival.subject for arrival in evidence.arrivals} | {one.subject for one in evidence.stored}
    duplicates = len(accepted) - len(delivered)
    # What was redriven left its place in the order.
    overtaken = list(find_overtaken(accepted, ignore=scenario.redriven))
    return Verdict(
        lost=len(committed - delivered - undelivered),
        ghosts=len(seen - committed),
        out_of_order=len(overtaken),
        duplicates=duplicates,
        overtaken=overtaken,
        faults=[
            *_check_states(evidence, scenario),
            *_check_attempts(evidence),
            *_check_leftovers(evidence),
            *_check_deaths(evidence, scenario),
            *(_check_duplicates(duplicates, evidence, scenario) if alone else ()),
            *_check_recorded(evidence),
            *_check_archive(evidence, scenario),
            *_check_writer_and_operator(evidence, scenario),
        ],
    )


def _check_states(evidence: Evidence, scenario: Scenario) -> Iterator[str]:
    """Every message is closed, once, in the expected state. A delivered one may have been purged."""
    states: dict[str, list[str]] = {}
    for message in evidence.stored:
        states.setdefault(message.subject, []).append(message.state)
    for row in evidence.committed:
        expected = scenario.end_states.get(row.subject, "delivered")
        found = states.get(row.subject, [])
        if found != [expected] and not (scenario.purges and expected == "delivered" and not found):
            yield f"{row.subject} is {' and '.join(found) or 'nowhere'}, and should be {expected}"


def _check_attempts(evidence: Evidence) -> Iterator[str]:
    """Only a refusal spends an attempt. A kill may forget one."""
    refused = Counter(arrival.subject for arrival in evidence.arrivals if arrival.is_refused)
    for message in evidence.stored:
        if message.attempts > refused[message.subject]:
            yield (
                f"{message.subject} spent {message.attempts} attempts, and was refused {refused[message.subject]} times"
            )


def _check_leftovers(evidence: Evidence) -> Iterator[str]:
    if evidence.claims:
        yield f"{evidence.claims} claims are left"
    if evidence.owned_lanes:
        yield f"{evidence.owned_lanes} lanes are owned by nobody alive"
    if evidence.exit_code != 0:
        yield f"the relay that went on ended with code {evidence.exit_code}"


def _check_deaths(evidence: Evidence, scenario: Scenario) -> Iterator[str]:
    """A message is given up neither too early nor too late. A lease that ran out counts like a death."""
    least, most = scenario.deaths
    if evidence.deaths + evidence.lapses < least:
        yield f"{evidence.deaths} relays died at the point, and at least {least} should have"
    if evidence.deaths > most:
        yield f"{evidence.deaths} relays died at the point, and at most {most} should have"


def _check_duplicates(duplicates: int, evidence: Evidence, scenario: Scenario) -> Iterator[str]:
    least, most = scenario.repeats
    if duplicates < least:
        yield f"{duplicates} messages came twice, and at least {least} should have"
    if most is not None and duplicates > most and not evidence.lapses:
        yield f"{duplicates} messages came twice, and at most {most} should have"


def _check_recorded(evidence: Evidence) -> Iterator[str]:
    """What is recorded as delivered is not sent again."""
    later = {arrival.subject for arrival in evidence.arrivals if arrival.at > evidence.recorded_at}
    for subject in sorted(later.intersection(evidence.recorded)):
        yield f"{subject} was recorded as delivered, and was sent again"


def _check_archive(evidence: Evidence, scenario: Scenario) -> Iterator[str]:
    if scenario.archives:
        deleted = {row.subject for row in evidence.committed} - {message.subject for message in evidence.stored}
        for subject in sorted(deleted - set(evidence.archived)):
            yield f"{subject} was deleted, and is not in the archive"


def _check_writer_and_operator(evidence: Evidence, scenario: Scenario) -> Iterator[str]:
    committed = sum(row.key == WRITER_KEY for row in evidence.committed)
    if scenario.committed is not None and committed != scenario.committed:
        yield f"{committed} messages of the writer are committed, and {scenario.committed} should be"
    if scenario.still_failed is not None and evidence.still_failed != scenario.still_failed:
        yield (
            f"{evidence.still_failed} messages were failed when the operator had died, "
            f"and {scenario.still_failed} should have been"
        )
