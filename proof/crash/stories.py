"""What is written before a death and after it, who takes over, and what must be true in the end. One for each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from proof.crash.points import Point
from proof.crash.requests import Action
from proof.messages import POISONOUS, Parcel, parcel

__all__ = ["STORIES", "Rounds", "Story"]

Rounds = Sequence[Sequence[Parcel]]
"""One transaction each."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """How one point is reached."""

    who: Literal["relay", "writer", "operator"] = "relay"
    """Who dies."""
    nths: Sequence[int] = (1,)
    """At which of its occurrences. Each is a run of its own; of a relay the later ones in the company of another."""
    load: Rounds
    later: Rounds = ()
    """Written when it is dead."""
    joins: bool = False
    """The second relay comes before the first one dies: lanes are handed over."""
    before: Sequence[Point] = ()
    """Relays that die elsewhere before this one."""
    between: Rounds = ()
    """Written when those are dead."""
    deaths: int = 1
    stops: bool = False
    """It is told to stop in the middle of its work."""
    away: bool = False
    """The consumer is down until the death."""
    batch: int = 5
    window: int = 40
    after_failure: Literal["continue", "hold"] = "continue"
    purges: bool = False
    archives: bool = False
    forwards: bool = False
    forgets: bool = False
    """In the end nobody who died is in the registry."""
    lone_cap: int = 5
    through: int | None = None
    action: Action = "redrive"
    """The operator's, who also finishes it."""
    held: str | None = None
    """The message whose key is held until it is redriven."""
    redriven: Sequence[str] = ()
    """Messages that an operator or a dead letter takes out of their old place."""
    ends: Mapping[str, str] = {}
    """Message to the state it ends in; all others are delivered."""
    booked: int | None = None
    """So many parcels of the writer who died are committed."""
    left: int | None = None
    """So many messages are failed still when the operator has died."""
    repeats: tuple[int, int | None] = (0, None)
    """At least and at most so many messages come twice, if the relay that dies is alone."""


def _rounds(numbers: Sequence[int], *, keys: int = 10, of: Mapping[str, Parcel] = {}, slow: float = 0.005) -> Rounds:
    """A transaction for each number, with a parcel of each key; some parcels are not like the others."""
    return [
        [of.get(f"k{key}/{number}") or parcel(f"k{key}", number, slow=slow) for key in range(keys)]
        for number in numbers
    ]


def _special(subject: str, **treatment: float) -> Mapping[str, Parcel]:
    key, number = subject.split("/")
    return {subject: parcel(key, int(number), **treatment)}


_NONE: Final = (0, 0)
_BAD: Final = "k3/1"
_LATER: Final = _rounds([4, 5])
_PLAIN: Final = Story(load=_rounds([1, 2, 3]), later=_LATER)
_HOT: Final = [parcel("k0", number) for number in range(7, 19)]
"""More of one key than a relay takes in hand at once."""
_BOTH: Final = Story(load=[*_rounds(range(1, 7)), _HOT], later=_rounds([19, 20]), nths=(1, 3))
_UNSENT: Final = msgspec.structs.replace(_PLAIN, repeats=_NONE)
_BOTH_UNSENT: Final = msgspec.structs.replace(_BOTH, repeats=_NONE)
_REPEATED: Final = msgspec.structs.replace(_BOTH, repeats=(1, None))
_TENS: Final = Story(load=_rounds([1]), later=_rounds([2]), batch=10, through=6)
_INHERITING: Final = msgspec.structs.replace(_PLAIN, before=[Point.CLAIMED])
_JOINING: Final = msgspec.structs.replace(_PLAIN, joins=True, load=_rounds([1, 2, 3], slow=0.1))
_STOPPING: Final = msgspec.structs.replace(_PLAIN, stops=True, load=_rounds([1, 2, 3], slow=0.1))
_REFUSED: Final = msgspec.structs.replace(_PLAIN, load=_rounds([1, 2, 3], of=_special(_BAD, refuse=1)))
_BLOCKED: Final = msgspec.structs.replace(
    _REFUSED, before=[Point.RETRY_RECORDED], between=_rounds([4]), later=_rounds([5])
)
_REJECTED: Final = msgspec.structs.replace(
    _PLAIN, load=_rounds([1, 2, 3], of=_special(_BAD, reject=9)), ends={_BAD: "failed"}
)
_UNROUTED: Final = msgspec.structs.replace(
    _PLAIN, load=_rounds([1, 2, 3], of=_special(_BAD, routed=0)), ends={_BAD: "skipped"}
)
_FORWARDING: Final = msgspec.structs.replace(_REJECTED, ends={}, forwards=True, redriven=[_BAD])
_AWAY: Final = msgspec.structs.replace(_PLAIN, away=True)
_PURGING: Final = msgspec.structs.replace(_REJECTED, purges=True)
_SINGLES: Final = Story(load=_rounds([1]), later=_rounds([2]))
_WRITING: Final = msgspec.structs.replace(_SINGLES, who="writer", nths=(2,), later=_rounds([2]), repeats=_NONE)
_WRONG: Final = {subject: given for key in range(5) for subject, given in _special(f"k{key}/1", reject=1).items()}
_OPERATING: Final = Story(
    who="operator", nths=(2,), load=_rounds([1, 2], of=_WRONG), later=_rounds([3]), redriven=list(_WRONG)
)


def _holding(*, refusals: int) -> Story:
    load = _rounds([1, 2, 3], of=_special(_BAD, reject=refusals))
    return msgspec.structs.replace(_PLAIN, load=load, after_failure="hold", held=_BAD)


STORIES: Final[Mapping[Point, Story]] = MappingProxyType(
    {
        Point.JOIN_CALLED: _UNSENT,
        Point.JOIN_UNCOMMITTED: _UNSENT,
        Point.JOINED: _UNSENT,
        Point.TAKE_CALLED: _UNSENT,
        Point.TAKE_HALFWAY: _UNSENT,
        Point.TAKE_UNCOMMITTED: _UNSENT,
        Point.TAKEN: _UNSENT,
        Point.INHERIT_HALFWAY: _INHERITING,
        Point.INHERIT_UNCOMMITTED: _INHERITING,
        Point.INHERITED: _INHERITING,
        Point.RENEW_CALLED: _PLAIN,
        Point.RENEW_UNCOMMITTED: _PLAIN,
        Point.RENEWED: _BOTH,
        Point.RELEASE_CALLED: _JOINING,
        Point.RELEASE_HALFWAY: _JOINING,
        Point.RELEASE_UNCOMMITTED: _JOINING,
        Point.RELEASED: _JOINING,
        Point.FORGET_UNCOMMITTED: msgspec.structs.replace(_PLAIN, before=[Point.JOINED], forgets=True),
        Point.READ_CALLED: _PLAIN,
        Point.READ: _BOTH_UNSENT,
        Point.CLAIM_CALLED: _BOTH_UNSENT,
        Point.CLAIM_UNCOMMITTED: _BOTH_UNSENT,
        Point.CLAIMED: _BOTH_UNSENT,
        Point.PARK_UNCOMMITTED: _BLOCKED,
        Point.PARKED: _BLOCKED,
        Point.SEND_CALLED: _BOTH_UNSENT,
        Point.SOME_SENT: msgspec.structs.replace(_TENS, nths=(1,), repeats=(6, 6)),
        Point.SOME_SETTLED: msgspec.structs.replace(_TENS, repeats=_NONE),
        Point.UNANSWERED: Story(
            load=_rounds([1, 2, 3], of=_special("k0/1", silent=1)), later=_LATER, repeats=(1, None)
        ),
        Point.ANSWERED: _REPEATED,
        Point.SETTLE_CALLED: _REPEATED,
        Point.SETTLE_HALFWAY: _REPEATED,
        Point.SETTLE_UNCOMMITTED: _REPEATED,
        Point.SETTLED: _BOTH,
        Point.RETRY_CALLED: _REFUSED,
        Point.RETRY_HALFWAY: _REFUSED,
        Point.RETRY_UNCOMMITTED: _REFUSED,
        Point.RETRY_RECORDED: _REFUSED,
        Point.RETRY_DUE: _REFUSED,
        Point.RETRY_ANSWERED: msgspec.structs.replace(_REFUSED, repeats=(1, None)),
        Point.FREED: _REFUSED,
        Point.FAIL_CALLED: _REJECTED,
        Point.FAIL_UNCOMMITTED: _REJECTED,
        Point.FAILED: _REJECTED,
        Point.HOLD_UNCOMMITTED: _holding(refusals=2),
        Point.HELD: _holding(refusals=1),
        Point.FORWARD_UNCOMMITTED: _FORWARDING,
        Point.FORWARDED: _FORWARDING,
        Point.SKIP_UNCOMMITTED: _UNROUTED,
        Point.SKIPPED: _UNROUTED,
        Point.GIVE_BACK_CALLED: _AWAY,
        Point.GIVE_BACK_UNCOMMITTED: _AWAY,
        Point.GIVEN_BACK: _AWAY,
        Point.PROBED: _AWAY,
        Point.LONE_CLAIMED: msgspec.structs.replace(_SINGLES, batch=10, before=[Point.SEND_CALLED] * 2),
        Point.POISON: msgspec.structs.replace(_SINGLES, deaths=3, lone_cap=1, ends={POISONOUS: "failed"}),
        Point.LEAVE_CALLED: _STOPPING,
        Point.LEAVE_UNCOMMITTED: _STOPPING,
        Point.LEFT: _STOPPING,
        Point.PURGE_CALLED: _PURGING,
        Point.PURGE_UNCOMMITTED: _PURGING,
        Point.PURGED: _PURGING,
        Point.ARCHIVED: msgspec.structs.replace(_PURGING, archives=True),
        Point.WRITE_HALFWAY: msgspec.structs.replace(_WRITING, booked=2),
        Point.WRITE_UNCOMMITTED: msgspec.structs.replace(_WRITING, booked=2),
        Point.WRITTEN: msgspec.structs.replace(_WRITING, booked=4),
        Point.REDRIVE_UNCOMMITTED: msgspec.structs.replace(_OPERATING, left=3),
        Point.REDRIVEN: msgspec.structs.replace(_OPERATING, left=1),
        Point.DISCARD_UNCOMMITTED: msgspec.structs.replace(
            _OPERATING, action="discard", left=3, ends=dict.fromkeys(_WRONG, "discarded")
        ),
    }
)
"""Every point has its story."""
