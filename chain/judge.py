"""The verdict on one run: what A committed against what B and C did. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from chain.effects import Effect

__all__ = ["Evidence", "Verdict", "judge"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is left when everybody has stopped."""

    committed: Sequence[Effect]
    """In A."""
    effects: Mapping[str, Sequence[Effect]]
    """Of B and of C, each in the order of its work."""
    duplicates: int
    """Messages that came again to B or C and did nothing, by their inboxes' count."""
    kept: Sequence[str] = ()
    """What an inbox keeps as failed, in words."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
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


def judge(evidence: Evidence, *, faults: Sequence[str] = ()) -> Verdict:
    """Weigh one run. `faults` are those that its course has shown already."""
    committed = {row.subject for row in evidence.committed}
    done = {name: {effect.subject for effect in effects} for name, effects in evidence.effects.items()}
    overtaken = [f"{one} in {name}" for name, effects in evidence.effects.items() for one in _overtaken(effects)]
    unseen = [] if evidence.duplicates else ["no message came again, so nothing is proven"]
    return Verdict(
        lost=sum(len(committed - subjects) for subjects in done.values()),
        ghosts=sum(len(subjects - committed) for subjects in done.values()),
        twice=sum(len(effects) - len(done[name]) for name, effects in evidence.effects.items()),
        out_of_order=len(overtaken),
        duplicates=evidence.duplicates,
        faults=[*faults, *unseen, *evidence.kept],
        overtaken=overtaken,
    )


def _overtaken(effects: Sequence[Effect]) -> Iterator[str]:
    """Which were first done after a later one of their key."""
    seen: set[str] = set()
    latest: dict[str, int] = {}
    for effect in effects:
        if effect.subject not in seen:
            seen.add(effect.subject)
            if effect.number < latest.get(effect.key, 0):
                yield f"{effect.subject} after {latest[effect.key]}"
            latest[effect.key] = max(effect.number, latest.get(effect.key, 0))
