"""The scenario of each kill point: what is written before and after the kill, and what must be true in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from proof.crash.points import KillPoint
from proof.messages import POISON, NumberedEvent, build_event

__all__ = ["SCENARIOS", "Action", "Scenario", "Transactions", "Victim"]

Transactions = Sequence[Sequence[NumberedEvent]]
"""The events of one transaction after another."""
Victim = Literal["relay", "writer", "operator"]
Action = Literal["redrive", "discard"]


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """How a kill point is reached, and what is expected afterwards."""

    victim: Victim = "relay"
    """Which process dies."""
    occurrences: Sequence[int] = (1,)
    """At which occurrences of the point; each is a run. From the second on, another relay works beside it."""
    load: Transactions
    load_after: Transactions = ()
    """Written after the kill."""
    second_relay_joins: bool = False
    """A second relay starts before the first one dies, so that lanes are handed over."""
    earlier_kills: Sequence[KillPoint] = ()
    """Points at which other relays die before this one."""
    load_before_last: Transactions = ()
    """Written after those kills."""
    deadly: str | None = None
    """The message that kills every relay which sends it, until one gives it up."""
    deaths: tuple[int, int] = (1, 1)
    """How many relays die at the point, at least and at most."""
    stops_gracefully: bool = False
    """The relay is asked to stop in the middle of its work."""
    consumer_down: bool = False
    """The consumer is down until the kill."""
    batch: int = 5
    window: int = 40
    after_failure: Literal["continue", "hold"] = "continue"
    purges: bool = False
    archives: bool = False
    forwards: bool = False
    forgets_relays: bool = False
    """In the end no dead relay is in the registry."""
    lone_cap: int = 5
    send_limit: int | None = None
    action: Action = "redrive"
    """The command of the operator. It is repeated after the kill."""
    held: str | None = None
    """The message whose key is held until it is redriven."""
    redriven: Sequence[str] = ()
    """Messages that an operator or a dead-letter destination takes out of their order."""
    end_states: Mapping[str, str] = {}
    """Message to the state it ends in; all others are delivered."""
    committed: int | None = None
    """How many messages of the killed writer are committed."""
    still_failed: int | None = None
    """How many messages are still failed when the operator has been killed."""
    repeats: tuple[int, int | None] = (0, None)
    """How many messages come twice, at least and at most, if the relay that dies is alone."""


def _transactions(
    numbers: Sequence[int], *, keys: int = 10, special: Mapping[str, NumberedEvent] = {}, slow: float = 0.005
) -> Transactions:
    """Build a transaction for each number, with an event of each key; `special` replaces some of them."""
    return [
        [special.get(f"k{key}/{number}") or build_event(f"k{key}", number, slow=slow) for key in range(keys)]
        for number in numbers
    ]


def _special(subject: str, **treatment: float) -> Mapping[str, NumberedEvent]:
    key, number = subject.split("/")
    return {subject: build_event(key, int(number), **treatment)}


_NONE: Final = (0, 0)
_BAD: Final = "k3/1"
_LATER: Final = _transactions([4, 5])
_PLAIN: Final = Scenario(load=_transactions([1, 2, 3]), load_after=_LATER)
_HOT: Final = [build_event("k0", number) for number in range(7, 19)]
"""More of one key than a relay reads at once."""
_BOTH: Final = Scenario(
    load=[*_transactions(range(1, 7)), _HOT], load_after=_transactions([19, 20]), occurrences=(1, 3)
)
_UNSENT: Final = msgspec.structs.replace(_PLAIN, repeats=_NONE)
_BOTH_UNSENT: Final = msgspec.structs.replace(_BOTH, repeats=_NONE)
_REPEATED: Final = msgspec.structs.replace(_BOTH, repeats=(1, None))
_TENS: Final = Scenario(load=_transactions([1]), load_after=_transactions([2]), batch=10, send_limit=6)
_INHERITING: Final = msgspec.structs.replace(_PLAIN, earlier_kills=[KillPoint.CLAIMED])
_JOINING: Final = msgspec.structs.replace(_PLAIN, second_relay_joins=True, load=_transactions([1, 2, 3], slow=0.1))
_STOPPING: Final = msgspec.structs.replace(_PLAIN, stops_gracefully=True, load=_transactions([1, 2, 3], slow=0.1))
_REFUSED: Final = msgspec.structs.replace(_PLAIN, load=_transactions([1, 2, 3], special=_special(_BAD, refuse=1)))
_BLOCKED: Final = msgspec.structs.replace(
    _REFUSED,
    earlier_kills=[KillPoint.RETRY_RECORDED],
    load_before_last=_transactions([4]),
    load_after=_transactions([5]),
)
_REJECTED: Final = msgspec.structs.replace(
    _PLAIN, load=_transactions([1, 2, 3], special=_special(_BAD, reject=9)), end_states={_BAD: "failed"}
)
_UNROUTED: Final = msgspec.structs.replace(
    _PLAIN, load=_transactions([1, 2, 3], special=_special(_BAD, routed=0)), end_states={_BAD: "skipped"}
)
_FORWARDING: Final = msgspec.structs.replace(_REJECTED, end_states={}, forwards=True, redriven=[_BAD])
_AWAY: Final = msgspec.structs.replace(_PLAIN, consumer_down=True)
_PURGING: Final = msgspec.structs.replace(_REJECTED, purges=True)
_SINGLES: Final = Scenario(load=_transactions([1]), load_after=_transactions([2]))
_WRITING: Final = msgspec.structs.replace(
    _SINGLES, victim="writer", occurrences=(2,), load_after=_transactions([2]), repeats=_NONE
)
_WRONG: Final = {subject: event for key in range(5) for subject, event in _special(f"k{key}/1", reject=1).items()}
_OPERATING: Final = Scenario(
    victim="operator",
    occurrences=(2,),
    load=_transactions([1, 2], special=_WRONG),
    load_after=_transactions([3]),
    redriven=list(_WRONG),
)


def _holding(*, refusals: int) -> Scenario:
    load = _transactions([1, 2, 3], special=_special(_BAD, reject=refusals))
    return msgspec.structs.replace(_PLAIN, load=load, after_failure="hold", held=_BAD)


SCENARIOS: Final[Mapping[KillPoint, Scenario]] = MappingProxyType(
    {
        KillPoint.JOIN_CALLED: _UNSENT,
        KillPoint.JOIN_UNCOMMITTED: _UNSENT,
        KillPoint.JOINED: _UNSENT,
        KillPoint.TAKE_CALLED: _UNSENT,
        KillPoint.TAKE_HALFWAY: _UNSENT,
        KillPoint.TAKE_UNCOMMITTED: _UNSENT,
        KillPoint.TAKEN: _UNSENT,
        KillPoint.INHERIT_HALFWAY: _INHERITING,
        KillPoint.INHERIT_UNCOMMITTED: _INHERITING,
        KillPoint.INHERITED: _INHERITING,
        KillPoint.RENEW_CALLED: _PLAIN,
        KillPoint.RENEW_UNCOMMITTED: _PLAIN,
        KillPoint.RENEWED: _BOTH,
        KillPoint.RELEASE_CALLED: _JOINING,
        KillPoint.RELEASE_HALFWAY: _JOINING,
        KillPoint.RELEASE_UNCOMMITTED: _JOINING,
        KillPoint.RELEASED: _JOINING,
        KillPoint.FORGET_UNCOMMITTED: msgspec.structs.replace(
            _PLAIN, earlier_kills=[KillPoint.JOINED], forgets_relays=True
        ),
        KillPoint.READ_CALLED: _PLAIN,
        KillPoint.READ: _BOTH_UNSENT,
        KillPoint.CLAIM_CALLED: _BOTH_UNSENT,
        KillPoint.CLAIM_UNCOMMITTED: _BOTH_UNSENT,
        KillPoint.CLAIMED: _BOTH_UNSENT,
        KillPoint.PARK_UNCOMMITTED: _BLOCKED,
        KillPoint.PARKED: _BLOCKED,
        KillPoint.SEND_CALLED: _BOTH_UNSENT,
        KillPoint.SOME_SENT: msgspec.structs.replace(_TENS, occurrences=(1,), repeats=(6, 6)),
        KillPoint.SOME_SETTLED: msgspec.structs.replace(_TENS, repeats=_NONE),
        KillPoint.UNANSWERED: Scenario(
            load=_transactions([1, 2, 3], special=_special("k0/1", silent=1)), load_after=_LATER, repeats=(1, None)
        ),
        KillPoint.ANSWERED: _REPEATED,
        KillPoint.SETTLE_CALLED: _REPEATED,
        KillPoint.SETTLE_HALFWAY: _REPEATED,
        KillPoint.SETTLE_UNCOMMITTED: _REPEATED,
        KillPoint.SETTLED: _BOTH,
        KillPoint.RETRY_CALLED: _REFUSED,
        KillPoint.RETRY_HALFWAY: _REFUSED,
        KillPoint.RETRY_UNCOMMITTED: _REFUSED,
        KillPoint.RETRY_RECORDED: _REFUSED,
        KillPoint.RETRY_DUE: _REFUSED,
        KillPoint.RETRY_ANSWERED: msgspec.structs.replace(_REFUSED, repeats=(1, None)),
        KillPoint.FREED: _REFUSED,
        KillPoint.FAIL_CALLED: _REJECTED,
        KillPoint.FAIL_UNCOMMITTED: _REJECTED,
        KillPoint.FAILED: _REJECTED,
        KillPoint.HOLD_UNCOMMITTED: _holding(refusals=2),
        KillPoint.HELD: _holding(refusals=1),
        KillPoint.FORWARD_UNCOMMITTED: _FORWARDING,
        KillPoint.FORWARDED: _FORWARDING,
        KillPoint.SKIP_UNCOMMITTED: _UNROUTED,
        KillPoint.SKIPPED: _UNROUTED,
        KillPoint.GIVE_BACK_CALLED: _AWAY,
        KillPoint.GIVE_BACK_UNCOMMITTED: _AWAY,
        KillPoint.GIVEN_BACK: _AWAY,
        KillPoint.PROBED: _AWAY,
        KillPoint.LONE_CLAIMED: msgspec.structs.replace(_SINGLES, batch=10, earlier_kills=[KillPoint.SEND_CALLED] * 2),
        # Two deaths in company and one alone with a witness. A relay that begins with this message has no witness, and
        # its death does not count; the next relay begins with another message.
        KillPoint.POISON: msgspec.structs.replace(
            _SINGLES, deadly=POISON, deaths=(3, 6), lone_cap=1, end_states={POISON: "failed"}
        ),
        KillPoint.LEAVE_CALLED: _STOPPING,
        KillPoint.LEAVE_UNCOMMITTED: _STOPPING,
        KillPoint.LEFT: _STOPPING,
        KillPoint.PURGE_CALLED: _PURGING,
        KillPoint.PURGE_UNCOMMITTED: _PURGING,
        KillPoint.PURGED: _PURGING,
        KillPoint.ARCHIVED: msgspec.structs.replace(_PURGING, archives=True),
        KillPoint.WRITE_HALFWAY: msgspec.structs.replace(_WRITING, committed=2),
        KillPoint.WRITE_UNCOMMITTED: msgspec.structs.replace(_WRITING, committed=2),
        KillPoint.WRITTEN: msgspec.structs.replace(_WRITING, committed=4),
        KillPoint.REDRIVE_UNCOMMITTED: msgspec.structs.replace(_OPERATING, still_failed=3),
        KillPoint.REDRIVEN: msgspec.structs.replace(_OPERATING, still_failed=1),
        KillPoint.DISCARD_UNCOMMITTED: msgspec.structs.replace(
            _OPERATING, action="discard", still_failed=3, end_states=dict.fromkeys(_WRONG, "discarded")
        ),
    }
)
"""Every kill point has its scenario."""
