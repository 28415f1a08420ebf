"""Where in the work each point is: which call, how far it has come, and which of many such calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

import msgspec

from pillarbox.contracts.store import Claim, Settlement
from pillarbox.message import Message, State, Waits
from pillarbox.relay.ordering import LONE_STRIKES
from proof.crash.points import Point
from proof.messages import DESTINATION, POISONOUS, Parcel

__all__ = ["STEPS", "Call", "Stage", "Step"]


class Stage(Enum):
    """How far a call has come."""

    CALLED = auto()
    HALFWAY = auto()
    """Some of its statements have run."""
    UNCOMMITTED = auto()
    """All of them have; the next one is COMMIT."""
    TAKEN = auto()
    """The consumer has the request, and its answer was not read."""
    ANSWERED = auto()
    """It is done, and the caller has not heard yet."""

    @property
    def is_in_transaction(self) -> bool:
        return self in (Stage.HALFWAY, Stage.UNCOMMITTED)


class Call(msgspec.Struct):
    """One call of a store, a transport or a writer."""

    name: str
    given: Sequence[Any] = ()
    options: Mapping[str, Any] = {}
    result: Any = None
    """Once it is answered."""
    writes: int = 0
    """How many statements that change rows it has run."""
    changed: int = 0
    """How many rows they changed."""
    recorded: int = 0
    """How many deliveries the process had recorded when it called."""


def _always(_: Call) -> bool:
    return True


class Step(msgspec.Struct, frozen=True):
    """A moment: a call of this name, at this stage, that fits."""

    call: str
    stage: Stage
    when: Callable[[Call], bool] = _always
    writes: int = 1
    """After so many statements that change rows it is halfway."""

    def is_at(self, call: Call, stage: Stage) -> bool:
        return self.call == call.name and self.stage is stage and self.when(call)


def _settlement(call: Call) -> Settlement:
    settlement: Settlement = call.given[1]
    return settlement


def _delivers(call: Call) -> bool:
    return bool(_settlement(call).delivered)


def _delivers_six(call: Call) -> bool:
    return len(_settlement(call).delivered) == 6


def _gives_back(call: Call) -> bool:
    return bool(_settlement(call).returned)


def _makes(waits: Waits) -> Callable[[Call], bool]:
    return lambda call: any(trouble.waits is waits for trouble in _settlement(call).failures)


def _closes(state: State) -> Callable[[Call], bool]:
    return lambda call: any(trouble.state is state for trouble in _settlement(call).failures)


def _parks(call: Call) -> bool:
    return bool(call.options["park"])


def _is_alone(call: Call) -> bool:
    claim: Claim = call.given[1]
    return claim.strikes >= LONE_STRIKES


def _for_the_consumer(call: Call) -> bool:
    return bool(call.given[1] == DESTINATION)


def _found_some(call: Call) -> bool:
    return bool(call.result)


def _moved_some(call: Call) -> bool:
    return bool(call.result.count)


def _changes_some(call: Call) -> bool:
    return call.changed > 0


def _has_recorded(call: Call) -> bool:
    return call.recorded > 0


def _has_some_to_purge(call: Call) -> bool:
    return call.given[0] is State.DELIVERED and _has_recorded(call)


def _messages(call: Call) -> Sequence[Message]:
    messages: Sequence[Message] = call.given[0]
    return messages


def _again(call: Call) -> bool:
    return any(message.attempts for message in _messages(call))


def _gets_no_answer(call: Call) -> bool:
    return any(msgspec.json.decode(message.payload, type=Parcel).silent for message in _messages(call))


def _poisonous(call: Call) -> bool:
    return any(message.subject == POISONOUS for message in _messages(call))


_RETRIES: Final = _makes(Waits.RETRY)
_FAILS: Final = _closes(State.FAILED)
_SKIPS: Final = _closes(State.SKIPPED)
_HOLDS: Final = _makes(Waits.HELD)

STEPS: Final[Mapping[Point, Step]] = MappingProxyType(
    {
        Point.JOIN_CALLED: Step("register", Stage.CALLED),
        Point.JOIN_UNCOMMITTED: Step("register", Stage.UNCOMMITTED),
        Point.JOINED: Step("register", Stage.ANSWERED),
        Point.TAKE_CALLED: Step("take", Stage.CALLED, _for_the_consumer),
        Point.TAKE_HALFWAY: Step("take", Stage.HALFWAY, _for_the_consumer, writes=2),
        Point.TAKE_UNCOMMITTED: Step("take", Stage.UNCOMMITTED, _for_the_consumer),
        Point.TAKEN: Step("take", Stage.ANSWERED, _for_the_consumer),
        Point.INHERIT_HALFWAY: Step("take", Stage.HALFWAY, _for_the_consumer, writes=3),
        Point.INHERIT_UNCOMMITTED: Step("take", Stage.UNCOMMITTED, _for_the_consumer),
        Point.INHERITED: Step("take", Stage.ANSWERED, _for_the_consumer),
        Point.RENEW_CALLED: Step("renew", Stage.CALLED),
        Point.RENEW_UNCOMMITTED: Step("renew", Stage.UNCOMMITTED),
        Point.RENEWED: Step("renew", Stage.ANSWERED),
        Point.RELEASE_CALLED: Step("release", Stage.CALLED),
        Point.RELEASE_HALFWAY: Step("release", Stage.HALFWAY),
        Point.RELEASE_UNCOMMITTED: Step("release", Stage.UNCOMMITTED),
        Point.RELEASED: Step("release", Stage.ANSWERED),
        Point.FORGET_UNCOMMITTED: Step("forget", Stage.UNCOMMITTED, _changes_some),
        Point.READ_CALLED: Step("read", Stage.CALLED, _has_recorded),
        Point.READ: Step("read", Stage.ANSWERED, lambda call: bool(call.result.messages)),
        Point.CLAIM_CALLED: Step("claim", Stage.CALLED),
        Point.CLAIM_UNCOMMITTED: Step("claim", Stage.UNCOMMITTED),
        Point.CLAIMED: Step("claim", Stage.ANSWERED),
        Point.PARK_UNCOMMITTED: Step("claim", Stage.UNCOMMITTED, _parks),
        Point.PARKED: Step("claim", Stage.ANSWERED, _parks),
        Point.SEND_CALLED: Step("send", Stage.CALLED),
        Point.SOME_SENT: Step("send", Stage.ANSWERED),
        Point.SOME_SETTLED: Step("settle", Stage.ANSWERED, _delivers_six),
        Point.UNANSWERED: Step("send", Stage.TAKEN, _gets_no_answer),
        Point.ANSWERED: Step("send", Stage.ANSWERED),
        Point.SETTLE_CALLED: Step("settle", Stage.CALLED, _delivers),
        Point.SETTLE_HALFWAY: Step("settle", Stage.HALFWAY, _delivers),
        Point.SETTLE_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _delivers),
        Point.SETTLED: Step("settle", Stage.ANSWERED, _delivers),
        Point.RETRY_CALLED: Step("settle", Stage.CALLED, _RETRIES),
        Point.RETRY_HALFWAY: Step("settle", Stage.HALFWAY, _RETRIES),
        Point.RETRY_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _RETRIES),
        Point.RETRY_RECORDED: Step("settle", Stage.ANSWERED, _RETRIES),
        Point.RETRY_DUE: Step("read_due", Stage.ANSWERED, _found_some),
        Point.RETRY_ANSWERED: Step("send", Stage.ANSWERED, _again),
        Point.FREED: Step("read_key", Stage.ANSWERED, _found_some),
        Point.FAIL_CALLED: Step("settle", Stage.CALLED, _FAILS),
        Point.FAIL_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _FAILS),
        Point.FAILED: Step("settle", Stage.ANSWERED, _FAILS),
        Point.HOLD_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _HOLDS),
        Point.HELD: Step("settle", Stage.ANSWERED, _HOLDS),
        Point.FORWARD_UNCOMMITTED: Step("redrive", Stage.UNCOMMITTED, _changes_some),
        Point.FORWARDED: Step("redrive", Stage.ANSWERED, _moved_some),
        Point.SKIP_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _SKIPS),
        Point.SKIPPED: Step("settle", Stage.ANSWERED, _SKIPS),
        Point.GIVE_BACK_CALLED: Step("settle", Stage.CALLED, _gives_back),
        Point.GIVE_BACK_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _gives_back),
        Point.GIVEN_BACK: Step("settle", Stage.ANSWERED, _gives_back),
        Point.PROBED: Step("ping", Stage.ANSWERED),
        Point.LONE_CLAIMED: Step("claim", Stage.ANSWERED, _is_alone),
        Point.POISON: Step("send", Stage.CALLED, _poisonous),
        Point.LEAVE_CALLED: Step("leave", Stage.CALLED),
        Point.LEAVE_UNCOMMITTED: Step("leave", Stage.UNCOMMITTED),
        Point.LEFT: Step("leave", Stage.ANSWERED),
        Point.PURGE_CALLED: Step("purge", Stage.CALLED, _has_some_to_purge),
        Point.PURGE_UNCOMMITTED: Step("purge", Stage.UNCOMMITTED, _changes_some),
        Point.PURGED: Step("purge", Stage.ANSWERED, _found_some),
        Point.ARCHIVED: Step("purge_ids", Stage.CALLED),
        Point.WRITE_HALFWAY: Step("write", Stage.HALFWAY),
        Point.WRITE_UNCOMMITTED: Step("write", Stage.UNCOMMITTED),
        Point.WRITTEN: Step("write", Stage.ANSWERED),
        Point.REDRIVE_UNCOMMITTED: Step("redrive", Stage.UNCOMMITTED),
        Point.REDRIVEN: Step("redrive", Stage.ANSWERED),
        Point.DISCARD_UNCOMMITTED: Step("discard", Stage.UNCOMMITTED),
    }
)
"""Every point has its step."""
