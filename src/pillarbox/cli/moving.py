"""`pillarbox messages redrive | replay | discard | defer`: what changes messages. Each lands in the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Final

import click
import msgspec

from pillarbox.cli.asking import asked, by_option
from pillarbox.cli.confirming import ask, asking_options, counted
from pillarbox.cli.output import OutputFormat, output_option, say, show
from pillarbox.cli.selecting import Choice, named, selection_options
from pillarbox.cli.target import Target, target_options
from pillarbox.durations import duration
from pillarbox.errors import ConfigError
from pillarbox.journal import Action
from pillarbox.protocols import Moved, Selection, Store
from pillarbox.stores.operations import able_states

__all__ = ["BATCH", "defer", "discard", "every_batch", "redrive", "replay"]

BATCH: Final = 1_000

Move = Callable[[Store, Selection], Awaitable[Moved]]
"""One batch of a change."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with which messages."""

    action: Action
    target: Target
    choice: Choice
    names: Sequence[str]
    dry_run: bool
    yes: bool
    output: OutputFormat
    to: str | None = None

    def carry_out(self, move: Move) -> None:
        """Count, ask, change in batches, and tell."""
        self._check()
        verb = _VERBS[self.action]
        selection, count = asked(self.target, self._counted)
        if self.dry_run or count == 0:
            self._show(Moved(0, 0), matched=count)
            return
        if not self.names and not self.yes:
            ask(f"{verb} {counted(count)} in {self.target.url}?")
        self._show(asked(self.target, lambda store: every_batch(store, selection, move)), matched=count)

    def _check(self) -> None:
        if self.names and not self.choice.is_everything:
            raise click.UsageError("Give ids or filters, not both.")
        if not self.names and self.choice.is_everything:
            raise click.UsageError(
                f"Say which messages to {_VERBS[self.action].lower()}: ids, or filters such as --destination NAME."
            )

    async def _counted(self, store: Store) -> tuple[Selection, int]:
        if self.names:
            return named(self.names), max(await store.count(named(self.names)), 1)
        selection = await self.choice.resolved(store)
        able = able_states(self.action, selection, to=self.to)
        return selection, await store.count(msgspec.structs.replace(selection, states=able)) if able else 0

    def _show(self, moved: Moved, *, matched: int) -> None:
        document = {
            "action": self.action.value,
            "matched": matched,
            "changed": moved.count,
            "without_payload": moved.without_payload,
            "dry_run": self.dry_run,
        }
        text = f"{counted(moved.count)} {self.action.value}."
        if not moved.count:
            text = f"{counted(matched)} would be {self.action.value}. Nothing was changed."
            if self.output != "text":
                say(text)
        if moved.without_payload:
            text += f" {moved.without_payload:,} were left alone: their payload was not kept."
        show(document, text=text, output=self.output)


async def every_batch(store: Store, selection: Selection, move: Move) -> Moved:
    """Batch after batch, in id order, until nothing is left."""
    count = bare = 0
    while True:
        moved = await move(store, selection)
        count, bare = count + moved.count, bare + moved.without_payload
        if moved.count + moved.without_payload < BATCH:
            return Moved(count, moved.last_id, bare)
        selection = msgspec.structs.replace(selection, after=moved.last_id)


def _change_options(action: Action) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Ids or filters, --dry-run, --yes, --by and -o; the command gets them as one `Change`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_change(target: Target, choice: Choice, **given: Any) -> None:
            taken = {name: given.pop(name) for name in ("names", "dry_run", "yes", "output")}
            change = Change(action=action, target=target, choice=choice, to=given.get("to"), **taken)
            command(change, **given)

        decorated = asking_options()(target_options(selection_options(with_change)))
        return by_option(output_option(_IDS(decorated)))

    return decorate


_IDS: Final = click.argument("names", nargs=-1, metavar="[ID]...")
_VERBS: Final = {
    Action.REDRIVEN: "Redrive",
    Action.REPLAYED: "Replay",
    Action.DISCARDED: "Discard",
    Action.DEFERRED: "Defer",
}


@click.command(epilog="\b\nExample:\n  pillarbox messages redrive --destination billing --error 'HTTP 503' --yes\n")
@_change_options(Action.REDRIVEN)
@click.option("--to", metavar="NAME", envvar="PILLARBOX_TO", show_envvar=True,
              help="Send them to this destination instead. What was skipped needs it.")  # fmt: skip
def redrive(change: Change, by: str, to: str | None) -> None:
    """Send failed, held or discarded messages again, with all their attempts."""
    change.carry_out(lambda store, chosen: store.redrive(chosen, by=by, limit=BATCH, to=to))


@click.command(epilog="\b\nExample:\n  pillarbox messages replay --topic orders --since 2026-01-31T00:00Z --yes\n")
@_change_options(Action.REPLAYED)
def replay(change: Change, by: str) -> None:
    """Send delivered messages again, under the same message ids."""
    change.carry_out(lambda store, chosen: store.replay(chosen, by=by, limit=BATCH))


@click.command(epilog="\b\nExample:\n  pillarbox messages discard 4711 --reason 'sent by hand'\n")
@_change_options(Action.DISCARDED)
@click.option("--reason", required=True, metavar="TEXT", envvar="PILLARBOX_REASON", show_envvar=True,
              help="Why, for the journal.")  # fmt: skip
def discard(change: Change, by: str, reason: str) -> None:
    """Close pending, held or failed messages without sending them. They are kept, and can be redriven."""
    change.carry_out(lambda store, chosen: store.discard(chosen, by=by, reason=reason, limit=BATCH))


def _later(_ctx: click.Context, _param: click.Parameter, text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) + min(duration(text), timedelta(days=36_500))
    except ConfigError:
        raise click.BadParameter(f"{text!r} is no time: write 2026-01-31T12:00Z, or how long from now: 2h.") from None


@click.command(epilog="\b\nExample:\n  pillarbox messages defer --destination billing --for 2h --yes\n")
@_change_options(Action.DEFERRED)
@click.option("--for", "until_", required=True, metavar="TIME", callback=_later, envvar="PILLARBOX_FOR",
              show_envvar=True, help="Until when: a time, or how long from now (2h).")  # fmt: skip
def defer(change: Change, by: str, until_: datetime) -> None:
    """Let pending messages wait until later, and their keys with them. Costs no attempt."""
    change.carry_out(lambda store, chosen: store.defer(chosen, until=until_, by=by, limit=BATCH))
