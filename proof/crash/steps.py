"""The step of each kill point: which call, at which stage, and which of many such calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from pillarbox.contracts.store import Claim, Settlement
from pillarbox.message import Message, State, Waits
from pillarbox.relay.ordering import SUSPECT_STRIKES
from proof.crash.points import KillPoint
from proof.kill_points import Call, Kill, KillSwitch, Stage, Step, Survey
from proof.messages import DESTINATION, POISON, NumberedEvent

__all__ = ["STEPS", "SURVEY", "make_kill_switch"]


def _settlement_from(call: Call) -> Settlement:
    settlement: Settlement = call.args[1]
    return settlement


def _delivers(call: Call) -> bool:
    return bool(_settlement_from(call).delivered)


def _delivers_six(call: Call) -> bool:
    return len(_settlement_from(call).delivered) == 6


def _gives_back(call: Call) -> bool:
    return bool(_settlement_from(call).returned)


def _waits_as(waits: Waits) -> Callable[[Call], bool]:
    return lambda call: any(failure.waits is waits for failure in _settlement_from(call).failures)


def _closes_as(state: State) -> Callable[[Call], bool]:
    return lambda call: any(failure.state is state for failure in _settlement_from(call).failures)


def _parks(call: Call) -> bool:
    return bool(call.options.get("park"))


def _is_alone(call: Call) -> bool:
    claim: Claim = call.args[1]
    return claim.strikes >= SUSPECT_STRIKES


def _is_for_consumer(call: Call) -> bool:
    return bool(call.args[1] == DESTINATION)


def _has_result(call: Call) -> bool:
    return bool(call.result)


def _moved_any(call: Call) -> bool:
    return bool(call.result.count)


def _changes_any(call: Call) -> bool:
    return call.changed > 0


def _has_recorded(call: Call) -> bool:
    return call.recorded > 0


def _has_any_to_purge(call: Call) -> bool:
    return call.args[0] is State.DELIVERED and _has_recorded(call)


def _messages_from(call: Call) -> Sequence[Message]:
    messages: Sequence[Message] = call.args[0]
    return messages


def _is_retry(call: Call) -> bool:
    return any(message.attempts for message in _messages_from(call))


def _gets_no_answer(call: Call) -> bool:
    return any(msgspec.json.decode(message.payload, type=NumberedEvent).silent for message in _messages_from(call))


def _has_poison(call: Call) -> bool:
    return any(message.subject == POISON for message in _messages_from(call))


_RETRIES: Final = _waits_as(Waits.RETRY)
_FAILS: Final = _closes_as(State.FAILED)
_SKIPS: Final = _closes_as(State.SKIPPED)
_HOLDS: Final = _waits_as(Waits.HELD)

STEPS: Final[Mapping[KillPoint, Step]] = MappingProxyType(
    {
        KillPoint.JOIN_CALLED: Step("register", Stage.CALLED),
        KillPoint.JOIN_UNCOMMITTED: Step("register", Stage.UNCOMMITTED),
        KillPoint.JOINED: Step("register", Stage.ANSWERED),
        KillPoint.TAKE_CALLED: Step("take", Stage.CALLED, _is_for_consumer),
        KillPoint.TAKE_HALFWAY: Step("take", Stage.HALFWAY, _is_for_consumer, writes=2),
        KillPoint.TAKE_UNCOMMITTED: Step("take", Stage.UNCOMMITTED, _is_for_consumer),
        KillPoint.TAKEN: Step("take", Stage.ANSWERED, _is_for_consumer),
        KillPoint.INHERIT_HALFWAY: Step("take", Stage.HALFWAY, _is_for_consumer, writes=3),
        KillPoint.INHERIT_UNCOMMITTED: Step("take", Stage.UNCOMMITTED, _is_for_consumer),
        KillPoint.INHERITED: Step("take", Stage.ANSWERED, _is_for_consumer),
        KillPoint.RENEW_CALLED: Step("renew", Stage.CALLED),
        KillPoint.RENEW_UNCOMMITTED: Step("renew", Stage.UNCOMMITTED),
        KillPoint.RENEWED: Step("renew", Stage.ANSWERED),
        KillPoint.RELEASE_CALLED: Step("release", Stage.CALLED),
        KillPoint.RELEASE_HALFWAY: Step("release", Stage.HALFWAY),
        KillPoint.RELEASE_UNCOMMITTED: Step("release", Stage.UNCOMMITTED),
        KillPoint.RELEASED: Step("release", Stage.ANSWERED),
        KillPoint.FORGET_UNCOMMITTED: Step("forget", Stage.UNCOMMITTED, _changes_any),
        KillPoint.READ_CALLED: Step("read", Stage.CALLED, _has_recorded),
        KillPoint.READ: Step("read", Stage.ANSWERED, lambda call: bool(call.result.messages)),
        KillPoint.CLAIM_CALLED: Step("claim", Stage.CALLED),
        KillPoint.CLAIM_UNCOMMITTED: Step("claim", Stage.UNCOMMITTED),
        KillPoint.CLAIMED: Step("claim", Stage.ANSWERED),
        KillPoint.PARK_UNCOMMITTED: Step("claim", Stage.UNCOMMITTED, _parks),
        KillPoint.PARKED: Step("claim", Stage.ANSWERED, _parks),
        KillPoint.SEND_CALLED: Step("send", Stage.CALLED),
        KillPoint.SOME_SENT: Step("send", Stage.ANSWERED),
        KillPoint.SOME_SETTLED: Step("settle", Stage.ANSWERED, _delivers_six),
        KillPoint.UNANSWERED: Step("send", Stage.TAKEN, _gets_no_answer),
        KillPoint.ANSWERED: Step("send", Stage.ANSWERED),
        KillPoint.SETTLE_CALLED: Step("settle", Stage.CALLED, _delivers),
        KillPoint.SETTLE_HALFWAY: Step("settle", Stage.HALFWAY, _delivers),
        KillPoint.SETTLE_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _delivers),
        KillPoint.SETTLED: Step("settle", Stage.ANSWERED, _delivers),
        KillPoint.RETRY_CALLED: Step("settle", Stage.CALLED, _RETRIES),
        KillPoint.RETRY_HALFWAY: Step("settle", Stage.HALFWAY, _RETRIES),
        KillPoint.RETRY_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _RETRIES),
        KillPoint.RETRY_RECORDED: Step("settle", Stage.ANSWERED, _RETRIES),
        KillPoint.RETRY_DUE: Step("find_due", Stage.ANSWERED, _has_result),
        KillPoint.RETRY_ANSWERED: Step("send", Stage.ANSWERED, _is_retry),
        KillPoint.FREED: Step("read_keys", Stage.ANSWERED, lambda call: any(one.messages for one in call.result)),
        KillPoint.FAIL_CALLED: Step("settle", Stage.CALLED, _FAILS),
        KillPoint.FAIL_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _FAILS),
        KillPoint.FAILED: Step("settle", Stage.ANSWERED, _FAILS),
        KillPoint.HOLD_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _HOLDS),
        KillPoint.HELD: Step("settle", Stage.ANSWERED, _HOLDS),
        KillPoint.FORWARD_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _FAILS),
        KillPoint.FORWARDED: Step("settle", Stage.ANSWERED, _FAILS),
        KillPoint.SKIP_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _SKIPS),
        KillPoint.SKIPPED: Step("settle", Stage.ANSWERED, _SKIPS),
        KillPoint.GIVE_BACK_CALLED: Step("settle", Stage.CALLED, _gives_back),
        KillPoint.GIVE_BACK_UNCOMMITTED: Step("settle", Stage.UNCOMMITTED, _gives_back),
        KillPoint.GIVEN_BACK: Step("settle", Stage.ANSWERED, _gives_back),
        KillPoint.PROBED: Step("ping", Stage.ANSWERED),
        KillPoint.LONE_CLAIMED: Step("claim", Stage.ANSWERED, _is_alone),
        KillPoint.POISON: Step("send", Stage.CALLED, _has_poison),
        KillPoint.LEAVE_CALLED: Step("leave", Stage.CALLED),
        KillPoint.LEAVE_UNCOMMITTED: Step("leave", Stage.UNCOMMITTED),
        KillPoint.LEFT: Step("leave", Stage.ANSWERED),
        KillPoint.PURGE_CALLED: Step("purge", Stage.CALLED, _has_any_to_purge),
        KillPoint.PURGE_UNCOMMITTED: Step("purge", Stage.UNCOMMITTED, _changes_any),
        KillPoint.PURGED: Step("purge", Stage.ANSWERED, _has_result),
        KillPoint.ARCHIVED: Step("purge_archived", Stage.CALLED),
        KillPoint.WRITE_HALFWAY: Step("write", Stage.HALFWAY),
        KillPoint.WRITE_UNCOMMITTED: Step("write", Stage.UNCOMMITTED),
        KillPoint.WRITTEN: Step("write", Stage.ANSWERED),
        KillPoint.REDRIVE_UNCOMMITTED: Step("redrive", Stage.UNCOMMITTED),
        KillPoint.REDRIVEN: Step("redrive", Stage.ANSWERED),
        KillPoint.DISCARD_UNCOMMITTED: Step("discard", Stage.UNCOMMITTED),
    }
)
"""Every kill point has its step."""


SURVEY: Final = "survey"
"""In place of a point's name: the process dies nowhere, and records every point that it reaches."""


def make_kill_switch(kill: Kill | None) -> KillSwitch:
    """Make what kills a process at its point, or records every point that it reaches, or does nothing."""
    if kill is None:
        return KillSwitch(None, None)
    if kill.point == SURVEY:
        return Survey({point.title: step for point, step in STEPS.items()}, Path(kill.file))
    return KillSwitch(kill, STEPS[KillPoint.find(kill.point)])
