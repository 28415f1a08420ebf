"""The verdict on one run: what was committed against what arrived and what the store holds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from proof.chain.services import Effect
from proof.crash.consumer import Arrival
from proof.crash.stories import Story
from proof.messages import WRITER

__all__ = ["ChainEvidence", "ChainVerdict", "CommittedRow", "Evidence", "Kept", "Verdict", "judge", "judge_chain"]


class CommittedRow(msgspec.Struct, frozen=True):
    """A business row: its transaction was committed."""

    subject: str
    key: str
    number: int


class Kept(msgspec.Struct, frozen=True):
    """A message in the store."""

    subject: str
    state: str
    attempts: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is left when everybody has stopped."""

    committed: Sequence[CommittedRow]
    arrivals: Sequence[Arrival]
    """In the order they came."""
    kept: Sequence[Kept]
    archived: Sequence[str] = ()
    claims: int = 0
    owned_lanes: int = 0
    left: int = 0
    """Failed messages when an operator had died."""
    exit_code: int | None = 0
    """Of the relay that went on."""
    recorded: Sequence[str] = ()
    """What was recorded as delivered when it was looked at after the death."""
    looked_at: int = 0
    """When that was, on the clock of the arrivals."""
    lapses: int = 0
    """Relays that lost their lease without dying, on a machine too busy to renew it: each may repeat messages."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The counts, and in words what is wrong besides."""

    lost: int
    """Committed, and neither accepted by the consumer nor kept as what the story says."""
    ghosts: int
    """Arrived or kept, and never committed."""
    out_of_order: int
    """First accepted after a later one of the same key."""
    duplicates: int
    """Accepted again."""
    faults: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        return not (self.lost or self.ghosts or self.out_of_order or self.faults)


def judge(evidence: Evidence, story: Story, *, alone: bool = True) -> Verdict:
    """Weigh one run of a story, in which one relay worked at a time, or two."""
    committed = {row.subject for row in evidence.committed}
    accepted = [arrival for arrival in evidence.arrivals if arrival.is_accepted]
    came = {arrival.subject for arrival in accepted}
    undelivered = {kept.subject for kept in evidence.kept if kept.state in ("failed", "skipped", "discarded")}
    seen = {arrival.subject for arrival in evidence.arrivals} | {kept.subject for kept in evidence.kept}
    duplicates = len(accepted) - len(came)
    return Verdict(
        lost=len(committed - came - undelivered),
        ghosts=len(seen - committed),
        out_of_order=_overtaken(accepted, story),
        duplicates=duplicates,
        faults=[
            *_states(evidence, story),
            *_attempts(evidence),
            *_leftovers(evidence),
            *(_repeats(duplicates, evidence, story) if alone else ()),
            *_again(evidence),
            *_archive(evidence, story),
            *_others(evidence, story),
        ],
    )


def _overtaken(accepted: Sequence[Arrival], story: Story) -> int:
    """How many were first accepted after a later one of their key. What somebody redrove left its place."""
    count = 0
    seen: set[str] = set(story.redriven)
    latest: dict[str, int] = {}
    for arrival in accepted:
        if arrival.subject not in seen:
            seen.add(arrival.subject)
            count += arrival.number < latest.get(arrival.key, 0)
            latest[arrival.key] = max(arrival.number, latest.get(arrival.key, 0))
    return count


def _states(evidence: Evidence, story: Story) -> Iterator[str]:
    """Every message is closed, once, in the state the story says. A delivered one may be cleaned away."""
    states: dict[str, list[str]] = {}
    for kept in evidence.kept:
        states.setdefault(kept.subject, []).append(kept.state)
    for row in evidence.committed:
        should = story.ends.get(row.subject, "delivered")
        found = states.get(row.subject, [])
        if found != [should] and not (story.purges and should == "delivered" and not found):
            yield f"{row.subject} is {' and '.join(found) or 'nowhere'}, and should be {should}"


def _attempts(evidence: Evidence) -> Iterator[str]:
    """Nothing but a refusal spends an attempt. A death may forget one."""
    refused = Counter(arrival.subject for arrival in evidence.arrivals if arrival.is_refused)
    for kept in evidence.kept:
        if kept.attempts > refused[kept.subject]:
            yield f"{kept.subject} spent {kept.attempts} attempts, and was refused {refused[kept.subject]} times"


def _leftovers(evidence: Evidence) -> Iterator[str]:
    if evidence.claims:
        yield f"{evidence.claims} claims are left"
    if evidence.owned_lanes:
        yield f"{evidence.owned_lanes} lanes are owned by nobody alive"
    if evidence.exit_code != 0:
        yield f"the relay that went on ended with code {evidence.exit_code}"


def _repeats(duplicates: int, evidence: Evidence, story: Story) -> Iterator[str]:
    least, most = story.repeats
    if duplicates < least:
        yield f"{duplicates} messages came twice, and at least {least} should have"
    if most is not None and duplicates > most and not evidence.lapses:
        yield f"{duplicates} messages came twice, and at most {most} should have"


def _again(evidence: Evidence) -> Iterator[str]:
    """What is recorded is not sent again."""
    later = {arrival.subject for arrival in evidence.arrivals if arrival.at > evidence.looked_at}
    for subject in sorted(later.intersection(evidence.recorded)):
        yield f"{subject} was recorded as delivered, and was sent again"


def _archive(evidence: Evidence, story: Story) -> Iterator[str]:
    if story.archives:
        left = {row.subject for row in evidence.committed} - {kept.subject for kept in evidence.kept}
        for subject in sorted(left - set(evidence.archived)):
            yield f"{subject} was deleted, and is not in the archive"


def _others(evidence: Evidence, story: Story) -> Iterator[str]:
    """What writers and operators who died have left behind."""
    booked = sum(row.key == WRITER for row in evidence.committed)
    if story.booked is not None and booked != story.booked:
        yield f"{booked} parcels of the writer are committed, and {story.booked} should be"
    if story.left is not None and evidence.left != story.left:
        yield f"{evidence.left} messages were failed when the operator had died, and {story.left} should have been"


class ChainEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is left when everybody has stopped."""

    committed: Sequence[Effect]
    """In A."""
    effects: Mapping[str, Sequence[Effect]]
    """Of B and of C, each in the order of its work."""
    duplicates: int
    """Messages that came again to B or C and did nothing, by their inboxes' count."""
    kept: Sequence[str] = ()
    """What an inbox keeps as failed, in words."""


class ChainVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The counts, B and C together, and in words what is wrong besides."""

    lost: int
    """Committed, and without an effect."""
    ghosts: int
    """An effect of what was never committed."""
    twice: int
    """Effects over the first of a parcel."""
    out_of_order: int
    """First done after a later one of the same key."""
    duplicates: int
    """Came again, and did nothing."""
    faults: Sequence[str] = ()
    overtaken: Sequence[str] = ()
    """Those out of order, and where."""

    @property
    def holds(self) -> bool:
        return not (self.lost or self.ghosts or self.twice or self.out_of_order or self.faults)


def judge_chain(evidence: ChainEvidence, *, faults: Sequence[str] = ()) -> ChainVerdict:
    """Weigh one run. `faults` are those that its course has shown already."""
    committed = {row.subject for row in evidence.committed}
    done = {name: {effect.subject for effect in effects} for name, effects in evidence.effects.items()}
    overtaken = [
        f"{one} in {name}" for name, effects in evidence.effects.items() for one in _find_overtaken_effects(effects)
    ]
    unseen = [] if evidence.duplicates else ["no message came again, so nothing is proven"]
    return ChainVerdict(
        lost=sum(len(committed - subjects) for subjects in done.values()),
        ghosts=sum(len(subjects - committed) for subjects in done.values()),
        twice=sum(len(effects) - len(done[name]) for name, effects in evidence.effects.items()),
        out_of_order=len(overtaken),
        duplicates=evidence.duplicates,
        faults=[*faults, *unseen, *evidence.kept],
        overtaken=overtaken,
    )


def _find_overtaken_effects(effects: Sequence[Effect]) -> Iterator[str]:
    """Which were first done after a later one of their key."""
    seen: set[str] = set()
    latest: dict[str, int] = {}
    for effect in effects:
        if effect.subject not in seen:
            seen.add(effect.subject)
            if effect.number < latest.get(effect.key, 0):
                yield f"{effect.subject} after {latest[effect.key]}"
            latest[effect.key] = max(effect.number, latest.get(effect.key, 0))
