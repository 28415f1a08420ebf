"""Actions on messages: who may do what in which state, the same as a command, and the form that asks before.

Pure. `jobs` runs what is decided here.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec

from pillarbox.contracts.store import Action, Selection
from pillarbox.dashboard.access import Role
from pillarbox.dashboard.filters import Filters, to_flags
from pillarbox.durations import LONGEST, parse_duration, parse_time
from pillarbox.errors import ConfigError
from pillarbox.message import Message, State, Waits, check_destination
from pillarbox.operations.destinations import check_known
from pillarbox.stores.rules import eligible_states

__all__ = [
    "ACTIONS",
    "TYPED_ABOVE",
    "ActionRule",
    "ActionStatus",
    "FormError",
    "Order",
    "Verb",
    "describe_command",
    "list_allowed",
    "parse_order",
]

TYPED_ABOVE: Final = 1_000
"""So many messages are changed by a click. For more, their number must be typed."""
_LONGEST_REASON: Final = 500


class Verb(StrEnum):
    """Actions that change messages, as people call them."""

    REDRIVE = "redrive"
    REPLAY = "replay"
    DEFER = "defer"
    DISCARD = "discard"


class ActionRule(msgspec.Struct, frozen=True, kw_only=True):
    """One action: who may do it, and what it asks for."""

    verb: Verb
    action: Action
    role: Role
    done: str
    """What a message is afterwards."""
    what: str
    needs_reason: bool = False
    needs_time: bool = False
    takes_destination: bool = False
    is_dangerous: bool = False

    @property
    def states(self) -> Sequence[State]:
        """States in which a message can be changed by it."""
        return eligible_states(self.action, Selection(ids=[]))


ACTIONS: Final[Mapping[Verb, ActionRule]] = {
    rule.verb: rule
    for rule in (
        ActionRule(
            verb=Verb.REDRIVE, action=Action.REDRIVEN, role=Role.OPERATOR, done="redriven", takes_destination=True,
            what="Send failed or held messages again, with all their attempts.",
        ),
        ActionRule(
            verb=Verb.REPLAY, action=Action.REPLAYED, role=Role.OWNER, done="replayed", is_dangerous=True,
            what="Send delivered messages again, under the same message ids. Consumers without an inbox act twice.",
        ),
        ActionRule(
            verb=Verb.DEFER, action=Action.DEFERRED, role=Role.OPERATOR, done="deferred", needs_time=True,
            what="Let pending messages wait until later, and their keys with them. Costs no attempt.",
        ),
        ActionRule(
            verb=Verb.DISCARD, action=Action.DISCARDED, role=Role.OWNER, done="discarded", needs_reason=True,
            is_dangerous=True,
            what="Close pending, held, failed or skipped messages without sending them. They can be redriven later.",
        ),
    )
}  # fmt: skip


class FormError(ConfigError):
    """A form that cannot be carried out as it was filled in. The sentence says what is missing."""


class ActionStatus(msgspec.Struct, frozen=True):
    """An action on one message, now."""

    rule: ActionRule
    refusal: str | None
    """Why it cannot be done now; None if it can."""
    command: str


def list_allowed(message: Message, *, role: Role, read_only: bool) -> list[ActionStatus]:
    """List every action on a message. Those that are not possible now say why."""
    return [
        ActionStatus(rule, _find_refusal(rule, message, role=role, read_only=read_only),
                     describe_command(Filters(ids=(message.id,)), Order(verb=rule.verb)))
        for rule in ACTIONS.values()
    ]  # fmt: skip


def _find_refusal(rule: ActionRule, message: Message, *, role: Role, read_only: bool) -> str | None:
    if read_only:
        return "This dashboard is read-only."
    if role < rule.role:
        return f"This needs the role {rule.role.label}; yours is {role.label}."
    if message.state is State.SENDING:
        return "A relay is sending it at this moment."
    if message.state not in rule.states and not (rule.takes_destination and message.state is State.SKIPPED):
        names = " or ".join("failed, held" if state is State.FAILED else state.value for state in rule.states)
        return f"It is {_name_state(message)}; only what is {names} can be {rule.done}."
    if rule.verb in (Verb.REPLAY, Verb.REDRIVE) and not message.payload_kept:
        return "Its payload was not kept."
    if rule.verb is Verb.REDRIVE and message.unreadable is not None:
        return "Its row cannot be read, so it can never be sent."
    return None


def _name_state(message: Message) -> str:
    return "held" if message.waits is Waits.HELD else message.state.value


# --- what the form asks ---


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An action with all that a form adds to it."""

    verb: Verb
    reason: str = ""
    to: str | None = None
    """Another destination, of a redrive."""
    until: str | None = None
    """Of a defer: a time, or how long from now."""

    @property
    def rule(self) -> ActionRule:
        return ACTIONS[self.verb]

    def read_until(self, now: datetime) -> datetime:
        """Return the time until which messages wait; `FormError` if there is none, or it has passed."""
        text = (self.until or "").strip()
        try:
            at = parse_time(text) or now + min(parse_duration(text), LONGEST)
        except ConfigError:
            raise FormError(f"{text[:40]!r} is no time: write how long from now, such as 30m or 2h.") from None
        if at <= now:
            raise FormError(f"{text[:40]!r} has passed: write how long from now, such as 30m or 2h.")
        return at


def parse_order(
    verb: Verb,
    form: Mapping[str, str],
    *,
    total: int,
    more: bool = False,
    needs_destination: bool = False,
    known: Collection[str] | None = None,
) -> Order:
    """Read a form that was sent; `FormError` if a reason, a time, a destination or the typed number is missing.

    `known` are the destinations that there are; None if any name may be meant.
    """
    rule = ACTIONS[verb]
    reason = " ".join(form.get("reason", "").split())
    if rule.needs_reason and not reason:
        raise FormError(f"Say why: whoever wonders later finds the reason in the journal of every {rule.done} message.")
    if len(reason) > _LONGEST_REASON:
        raise FormError(f"The reason is longer than {_LONGEST_REASON} characters: shorten it.")
    to = form.get("to", "").strip() or None if rule.takes_destination else None
    if to is None and needs_destination:
        raise FormError("Say to which destination: no route takes these messages, so they have none of their own.")
    if to is not None:
        check_destination(to) if known is None else check_known(to, known)
    order = Order(verb=verb, reason=reason, to=to, until=form.get("for", "").strip() or None)
    if rule.needs_time:
        order.read_until(datetime.now(UTC))
    typed = form.get("typed", "").replace(",", "").replace(" ", "")
    if (more or total > TYPED_ABOVE) and typed.rstrip("+") != str(total):
        raise FormError(f"Type the number {total} to confirm that so many messages {'or more ' * more}are {rule.done}.")
    return order


def describe_command(filters: Filters, order: Order) -> str:
    """Write the command line that does the same."""
    parts = ["pillarbox messages", order.verb.value]
    if order.rule.needs_time:
        parts.append(f"--for {shlex.quote(order.until or '1h')}")
    if order.to is not None:
        parts.append(f"--to {shlex.quote(order.to)}")
    if order.reason or order.rule.needs_reason:
        parts.append(f"--reason {shlex.quote(order.reason or 'why')}")
    parts.append(to_flags(filters))
    return " ".join(part for part in parts if part)
