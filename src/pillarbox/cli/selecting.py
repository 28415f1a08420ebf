"""Which messages a command is about: the filters that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Final, TypeVar
from uuid import UUID

import click
import msgspec

from pillarbox.durations import duration
from pillarbox.errors import ConfigError
from pillarbox.message import State
from pillarbox.monitor import STUCK_AFTER
from pillarbox.protocols import Selection, Store

__all__ = ["Choice", "named", "selection_options"]

R = TypeVar("R")

_NEAR_FAILURE: Final = 3
_MANY: Final = 10_000
_STATES: Final = [state.value for state in State]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What the filters chose."""

    selection: Selection
    stuck: bool = False

    @property
    def is_everything(self) -> bool:
        """No filter was given: every message."""
        return self.selection == Selection() and not self.stuck

    async def resolved(self, store: Store) -> Selection:
        """The selection to ask the store with: what is stuck is known by its claim."""
        if not self.stuck:
            return self.selection
        claims = await store.claims(older_than=STUCK_AFTER, limit=_MANY)
        ids = [id for claim in claims for id in claim.message_ids]
        return msgspec.structs.replace(self.selection, ids=ids, states=[State.SENDING])


def selection_options(command: Callable[..., R]) -> Callable[..., R]:
    """Adds the filters, and hands them to the command as one `Choice`, its last positional argument."""

    @wraps(command)
    def with_choice(*args: Any, **given: Any) -> R:
        return command(*args, _choice(given), **given)

    decorated: Callable[..., R] = with_choice
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def named(names: Sequence[str]) -> Selection:
    """Messages by their ids, or by their message ids, which may name several destinations."""
    ids = [int(name) for name in names if name.isdigit()]
    message_ids = [_uuid(name) for name in names if not name.isdigit()]
    if ids and message_ids:
        raise click.UsageError("Name messages by id or by message id, not some by one and some by the other.")
    return Selection(ids=ids or None, message_ids=message_ids or None)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is neither the id nor the message id of a message.") from None


def _choice(given: dict[str, Any]) -> Choice:
    states = [State(state) for state in given.pop("state")]
    near_failure = given.pop("near_failure")
    stuck = given.pop("stuck")
    if near_failure:
        states = states or [State.PENDING]
    selection = Selection(
        states=states or None,
        destination=given.pop("destination"),
        topic=given.pop("topic"),
        type=given.pop("type_"),
        key=given.pop("key"),
        correlation_id=given.pop("correlation"),
        error=given.pop("error"),
        since=given.pop("since"),
        until=given.pop("until"),
        min_attempts=_NEAR_FAILURE if near_failure else None,
    )
    return Choice(selection=selection, stuck=stuck)


def moment(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    """For `callback=`: a time, or how long ago."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return _ago(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _ago(text: str) -> datetime:
    try:
        return datetime.now(UTC) - duration(text)
    except (ConfigError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time: write 2026-01-31T12:00:00+01:00, or how long ago: 30m, 2h, 7d."
        ) from None


def _filter(*names: str, help: str, **more: Any) -> Callable[[Any], Any]:
    variable = f"PILLARBOX_{names[0].removeprefix('--').replace('-', '_').upper()}"
    return click.option(*names, help=help, envvar=variable, show_envvar=True, **more)


_OPTIONS: Final = (
    _filter("--state", multiple=True, type=click.Choice(_STATES), help="In this state; may be repeated."),
    _filter("--destination", metavar="NAME", help="On their way to this destination."),
    _filter("--topic", metavar="TEXT", help="Of this topic."),
    _filter("--type", "type_", metavar="NAME", help="Of this type."),
    _filter("--key", metavar="TEXT", help="Of this ordering key."),
    _filter("--correlation", metavar="ID", help="With this correlation id."),
    _filter("--error", metavar="TEXT", help="Whose last error holds this, letter case ignored."),
    _filter("--stuck", is_flag=True, help="In a relay's hands for over 15 minutes."),
    _filter("--near-failure", is_flag=True, help="Pending after 3 attempts or more."),
    _filter("--since", metavar="TIME", callback=moment, help="Written at or after: a time, or how long ago (2h)."),
    _filter("--until", metavar="TIME", callback=moment, help="Written before."),
)
