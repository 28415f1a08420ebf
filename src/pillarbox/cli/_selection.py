"""Options that select messages: filters and ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, Final, TypeVar
from uuid import UUID

import click
import msgspec

from pillarbox.cli._options import complete_destination
from pillarbox.cli._times import parse_past_time
from pillarbox.contracts.store import AnyStore, Selection
from pillarbox.message import State
from pillarbox.operations.monitor import STUCK_AFTER, NearFailure

__all__ = ["Filters", "parse_ids", "selection_options"]

R = TypeVar("R")

_STUCK_CLAIMS: Final = 10_000
_MAX_DIGITS: Final = 19


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """The filters that were given."""

    selection: Selection
    stuck: bool = False
    near_failure: bool = False

    @property
    def is_empty(self) -> bool:
        """True if no filter was given: every message matches."""
        return self.selection == Selection() and not self.stuck

    @property
    def is_of_destination(self) -> bool:
        """True if no filter but the destination was given."""
        return self.selection == Selection(destination=self.selection.destination) and not self.stuck

    def with_thresholds(self, near_failure: NearFailure) -> Filters:
        """Return the filters with the attempts from which a message is near failure, as configured."""
        if not self.near_failure:
            return self
        attempts = near_failure.lowest(self.selection.destination)
        if attempts is None:  # it never gives up
            return msgspec.structs.replace(self, selection=msgspec.structs.replace(self.selection, ids=[]))
        return msgspec.structs.replace(self, selection=msgspec.structs.replace(self.selection, min_attempts=attempts))

    async def resolve(self, store: AnyStore, *, stuck_after: timedelta = STUCK_AFTER) -> Selection:
        """Return the selection for the store. It knows stuck messages by their claims, not by a column."""
        if not self.stuck:
            return self.selection
        claims = await store.claims(older_than=stuck_after, limit=_STUCK_CLAIMS)
        ids = [id for claim in claims for id in claim.message_ids]
        return msgspec.structs.replace(self.selection, ids=ids, states=[State.SENDING])


def selection_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the filters; the command receives them as `Filters`, its last positional argument."""

    @wraps(command)
    def with_filters(*args: Any, **options: Any) -> R:
        return command(*args, _take_filters(options), **options)

    decorated: Callable[..., R] = with_filters
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def parse_ids(names: Sequence[str]) -> Selection:
    """Select messages by their ids, or by their message ids, which may name several destinations."""
    ids = [int(name) for name in names if _is_id(name)]
    message_ids = [_parse_uuid(name) for name in names if not _is_id(name)]
    if ids and message_ids:
        raise click.UsageError("Name messages by id or by message id, not some by one and some by the other.")
    return Selection(ids=ids or None, message_ids=message_ids or None)


def _is_id(name: str) -> bool:
    """Return True for a number that fits 64 bits; no table has a higher one."""
    return name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS and int(name) < 2**63


def _parse_uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is neither the id nor the message id of a message.") from None


def _take_filters(options: dict[str, Any]) -> Filters:
    """Remove the filters from a command's options."""
    states = [State(state) for state in options.pop("state")]
    near_failure = options.pop("near_failure")
    stuck = options.pop("stuck")
    near = NearFailure().lowest(None) if near_failure else None
    if near_failure:
        states = states or [State.PENDING]
    selection = Selection(
        states=states or None,
        destination=options.pop("destination"),
        topic=options.pop("topic"),
        type=options.pop("type_"),
        key=options.pop("key"),
        correlation_id=options.pop("correlation"),
        error=options.pop("error"),
        fingerprint=options.pop("fingerprint"),
        since=options.pop("since"),
        until=options.pop("until"),
        min_attempts=max(filter(None, (options.pop("min_attempts"), near)), default=None),
    )
    if selection.since is not None and selection.until is not None and selection.since >= selection.until:
        raise click.UsageError("--since must be before --until.")
    return Filters(selection=selection, stuck=stuck, near_failure=near_failure)


def _filter(*names: str, help: str, **more: Any) -> Callable[[Any], Any]:
    variable = f"PILLARBOX_{names[0].removeprefix('--').replace('-', '_').upper()}"
    return click.option(*names, help=help, envvar=variable, show_envvar=True, **more)


_OPTIONS: Final = (
    _filter("--state", multiple=True, type=click.Choice([state.value for state in State]),
            help="In this state; may be repeated."),
    _filter("--destination", metavar="NAME", help="On their way to this destination.",
            shell_complete=complete_destination),
    _filter("--topic", metavar="TEXT", help="Of this topic."),
    _filter("--type", "type_", metavar="NAME", help="Of this type."),
    _filter("--key", metavar="TEXT", help="Of this ordering key."),
    _filter("--correlation", metavar="ID", help="With this correlation id."),
    _filter("--error", metavar="TEXT", help="Whose last error holds this, letter case ignored."),
    _filter("--fingerprint", metavar="TEXT",
            help="Failed or held with an error of this fingerprint."),
    _filter("--stuck", is_flag=True, help="In a relay's hands for long: 15 minutes, or `stuck` under [alerts]."),
    _filter("--near-failure", is_flag=True,
            help="Pending with few attempts left: 3 of 5 are spent, or `near_failure` under [alerts]."),
    _filter("--min-attempts", metavar="N", type=click.IntRange(1, 999_999),
            help="With at least this many attempts spent."),
    _filter("--since", metavar="TIME", callback=parse_past_time,
            help="Written at or after: a time, or how long ago (2h)."),
    _filter("--until", metavar="TIME", callback=parse_past_time, help="Written before."),
)  # fmt: skip
