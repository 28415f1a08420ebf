"""`pillarbox purge`: remove old closed messages and dedup records now, as the janitor does each hour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import click
import msgspec

from pillarbox.cli._confirm import confirm, confirm_options
from pillarbox.cli._options import Targets, by_option, targets_options
from pillarbox.cli._output import OutputFormat, Progress, output_option, show, show_rows
from pillarbox.contracts.store import Action, OperatorStore, Phase, Selection, Store
from pillarbox.durations import FOREVER, format_duration
from pillarbox.message import State
from pillarbox.operations.bulk import format_counts
from pillarbox.operations.stores import StoreAnswer
from pillarbox.relay.configuration import read_relay_section
from pillarbox.relay.janitor import Janitor
from pillarbox.relay.settings import Retention
from pillarbox.telemetry import Telemetry

__all__ = ["purge"]

_CLOSED: Final = (State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED)


@click.command(epilog="\b\nExample:\n  pillarbox purge --dry-run\n")
@targets_options
@confirm_options(nothing="remove nothing")
@by_option
@click.option(
    "--archive",
    metavar="FOLDER",
    envvar="PILLARBOX_RELAY_RETENTION_ARCHIVE",
    show_envvar=True,
    help="Write messages there as JSON Lines before they are removed.",
)
@output_option
def purge(targets: Targets, *, dry_run: bool, yes: bool, by: str, archive: str | None, output: OutputFormat) -> None:
    """Remove what is older than the configured retention: closed messages, and what inboxes remember or keep.

    Messages are archived first if relay.retention.archive, or --archive, names a folder. Nothing is removed that was
    not archived. Of several stores, each has a folder of its own there.
    """
    retention = read_relay_section(targets.config).settings.retention
    if archive is not None:
        retention = msgspec.structs.replace(retention, archive=archive)
    target = targets.single
    if target is None:
        _purge_stores(targets, retention, dry_run=dry_run, yes=yes, by=by, output=output)
        return
    (name,) = targets.stores.named
    retention = msgspec.structs.replace(retention, archive=targets.stores.choose_archive(retention.archive, name))
    limits = _list_limits(retention)
    matched = target.run(lambda store: _count(store, limits), reads_only=dry_run)
    total = sum(matched.values())
    if not dry_run and total and not yes:
        counts = {state: matched[state.value] for state in limits if matched[state.value]}
        confirm(f"Remove {format_counts(counts)} from {target.url}?", effect="removes messages", done="removed")
    removed: dict[str, int] = {}
    if not dry_run:
        with Progress(total) as progress:
            removed = target.run(lambda store: _purge(store, retention, by=by, on_progress=progress.show))
    lines = [
        f"{state.value}: {matched[state.value]:,} older than {format_duration(limit)}"
        for state, limit in limits.items()
    ]
    text = "\n".join([*lines, "Nothing was removed." if dry_run else f"Removed {sum(removed.values()):,} records."])
    show({"matched": matched, "removed": removed, "dry_run": dry_run}, text=text, output=output)


def _purge_stores(
    targets: Targets, retention: Retention, *, dry_run: bool, yes: bool, by: str, output: OutputFormat
) -> None:
    """Purge store after store. One that cannot be asked has its own line, and the exit code says so."""
    limits = _list_limits(retention)
    counted = targets.ask(lambda _, store: _count(store, limits), reads_only=dry_run)
    total = sum(sum(one.value.values()) for one in counted if one.value is not None)
    if not dry_run and total and not yes:
        confirm(f"Remove {total:,} records from {len(counted)} stores?", effect="removes messages", done="removed")

    async def act(name: str, store: Store) -> dict[str, int]:
        own = msgspec.structs.replace(retention, archive=targets.stores.choose_archive(retention.archive, name))
        return await _purge(store, own, by=by, on_progress=lambda count: note_progress(name, count))

    removed: Sequence[StoreAnswer[dict[str, int]]] = []
    if not dry_run:
        done: dict[str, int] = {}
        with Progress(total) as progress:

            def note_progress(name: str, count: int) -> None:
                done[name] = count
                progress.show(sum(done.values()))

            removed = targets.ask(act, at_once=2, timeout=None)
    # Rows that are no tenant have no name, and come with both answers.
    answers = {one.name or one.error or "": one for one in (*counted, *removed)}
    rows = [
        {
            "store": one.name,
            "matched": next((c.value for c in counted if c.name == one.name), None),
            "removed": {} if dry_run or one.value is None else one.value,
            "dry_run": dry_run,
            "error": one.error,
        }
        for one in answers.values()
    ]
    show_rows("stores", rows, text="\n".join(_describe(row) for row in rows), output=output)
    if code := max((one.exit_code for one in answers.values()), default=0):
        raise click.exceptions.Exit(code)


def _describe(row: Mapping[str, Any]) -> str:
    if row["error"] is not None:
        return f"{row['store'] or 'tenants'}: {row['error']}"
    matched = sum((row["matched"] or {}).values())
    return f"{row['store']}: {matched:,} matched, {sum(row['removed'].values()):,} removed"


def _list_limits(retention: Retention) -> Mapping[State, timedelta]:
    """List the states whose messages are not kept forever, with how long they are."""
    limits = {state: getattr(retention, state.value) for state in _CLOSED}
    return {state: limit for state, limit in limits.items() if limit != FOREVER}


async def _count(store: OperatorStore, limits: Mapping[State, timedelta]) -> dict[str, int]:
    now = await store.now()
    counts = {}
    for state, limit in limits.items():
        old = Selection(states=[state], changed_before=now - limit)
        counts[state.value] = await store.count(old)
        if state is State.FAILED:  # a held message is shown as failed, but it is open, and stays
            counts[state.value] -= await store.count(msgspec.structs.replace(old, phase=Phase.HELD, phase_at=now))
    return counts


async def _purge(
    store: OperatorStore, retention: Retention, *, by: str, on_progress: Callable[[int], None]
) -> dict[str, int]:
    """Remove in batches. What was removed is noted in the journal, even if it was interrupted half-way."""
    removed: dict[str, int] = {}
    janitor = Janitor(store, retention=retention, telemetry=Telemetry())
    try:
        if count := await janitor.drop_partitions():  # of delivered messages, but for a few
            removed[State.DELIVERED.value] = count
            on_progress(count)
        for state, limit in _list_limits(retention).items():
            while count := await janitor.clean_batch(state, limit):
                removed[state.value] = removed.get(state.value, 0) + count
                on_progress(sum(removed.values()))
        for name, age in (("inbox", retention.inbox), ("inbox_failed", retention.inbox_failed)):
            if age == FOREVER:
                continue
            is_failed = name == "inbox_failed"
            while count := await store.purge_inbox(older_than=age, limit=retention.batch, failed=is_failed):
                removed[name] = removed.get(name, 0) + count
                on_progress(sum(removed.values()))
    finally:
        if removed:
            detail = ", ".join(f"{count} {what}" for what, count in removed.items())
            await store.note(Action.PURGED, by=by, detail=detail)
    return removed
