"""`pillarbox purge`: remove closed messages and dedup records now, as the janitor does each hour."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import click

from pillarbox.cli.asking import asked, by_option
from pillarbox.cli.confirming import ask, asking_options
from pillarbox.cli.output import OutputFormat, output_option, show
from pillarbox.cli.target import Target, target_options
from pillarbox.durations import FOREVER, duration_text
from pillarbox.journal import Action
from pillarbox.message import State
from pillarbox.protocols import Selection, Store
from pillarbox.relay.configured import relay_section
from pillarbox.relay.settings import Retention

__all__ = ["purge"]

_STATES: Final = (State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED)


@click.command(epilog="\b\nExample:\n  pillarbox purge --dry-run\n")
@target_options
@asking_options(nothing="remove nothing")
@by_option
@output_option
def purge(target: Target, dry_run: bool, yes: bool, by: str, output: OutputFormat) -> None:
    """Remove what is older than the configured retention: closed messages and what the inbox remembers.

    Archives nothing: that is the relay's own cleaning.
    """
    retention = relay_section(target.config).settings.retention
    matched = asked(target, lambda store: _counted(store, retention))
    total = sum(matched.values())
    if not dry_run and total and not yes:
        ask(f"Remove {total:,} closed messages from {target.url}?", doing="removes messages", done="removed")
    removed = {} if dry_run else asked(target, lambda store: _purged(store, retention, by=by))
    lines = [
        f"{state.value}: {matched[state.value]:,} older than {duration_text(_age(retention, state))}"
        for state in _STATES
        if _age(retention, state) != FOREVER
    ]
    text = "\n".join([*lines, "Nothing was removed." if dry_run else f"Removed {sum(removed.values()):,} records."])
    show({"matched": matched, "removed": removed, "dry_run": dry_run}, text=text, output=output)


def _age(retention: Retention, state: State) -> timedelta:
    age: timedelta = getattr(retention, state.value)
    return age


async def _counted(store: Store, retention: Retention) -> dict[str, int]:
    now = await store.now()
    return {
        state.value: await store.count(Selection(states=[state], changed_before=now - _age(retention, state)))
        for state in _STATES
        if _age(retention, state) != FOREVER
    }


async def _purged(store: Store, retention: Retention, *, by: str) -> dict[str, int]:
    """Removes, and tells the journal how much; also when it was cut off half-way."""
    removed: dict[str, int] = {}
    try:
        await _remove(store, retention, removed)
    finally:
        if removed:
            told = ", ".join(f"{count} {what}" for what, count in removed.items())
            await store.note(Action.PURGED, by=by, detail=told)
    return removed


async def _remove(store: Store, retention: Retention, removed: dict[str, int]) -> None:
    for state in _STATES:
        if _age(retention, state) == FOREVER:
            continue
        while count := await store.purge(state, older_than=_age(retention, state), limit=retention.batch):
            removed[state.value] = removed.get(state.value, 0) + count
    if retention.inbox != FOREVER:
        while count := await store.purge_inbox(older_than=retention.inbox, limit=retention.batch):
            removed["inbox"] = removed.get("inbox", 0) + count
