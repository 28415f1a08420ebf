"""`pillarbox archive`: put archived messages back into history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import click

from pillarbox.cli._confirm import confirm, confirm_options
from pillarbox.cli._options import Target, by_option, complete_destination, target_options
from pillarbox.cli._output import OutputFormat, Progress, output_option, say, show
from pillarbox.cli._times import parse_past_time
from pillarbox.contracts.store import Action, Selection
from pillarbox.message import State
from pillarbox.operations.bulk import format_count, format_counts
from pillarbox.operations.restore import RestoreResult, restore_archive, scan_archive

__all__ = ["archive"]

_SHOWN: Final = 20
"""Problems that are printed as text. All that are kept are in the JSON."""


@click.group(epilog="\b\nExample:\n  pillarbox archive restore /var/lib/pillarbox/archive/2026-11-17\n")
def archive() -> None:
    """Put messages back that were archived before they were removed."""


@archive.command(
    epilog="\b\nExample:\n  pillarbox archive restore /var/lib/pillarbox/archive --destination billing --dry-run\n"
)
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@target_options
@click.option(
    "--destination",
    metavar="NAME",
    envvar="PILLARBOX_DESTINATION",
    show_envvar=True,
    shell_complete=complete_destination,
    help="Only what went to this destination.",
)
@click.option(
    "--message-id",
    multiple=True,
    metavar="ID",
    type=click.UUID,
    envvar="PILLARBOX_MESSAGE_ID",
    show_envvar=True,
    help="Only this message; may be repeated.",
)
@click.option(
    "--state",
    multiple=True,
    type=click.Choice([state.value for state in State if state.is_closed]),
    envvar="PILLARBOX_STATE",
    show_envvar=True,
    help="Only in this state; may be repeated.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=parse_past_time,
    envvar="PILLARBOX_SINCE",
    show_envvar=True,
    help="Only written at or after: a time, or how long ago (90d).",
)
@click.option(
    "--until",
    metavar="TIME",
    callback=parse_past_time,
    envvar="PILLARBOX_UNTIL",
    show_envvar=True,
    help="Only written before.",
)
@confirm_options()
@by_option
@output_option
def restore(
    target: Target,
    *,
    paths: Sequence[str],
    destination: str | None,
    message_id: Sequence[UUID],
    state: Sequence[str],
    since: datetime | None,
    until: datetime | None,
    dry_run: bool,
    yes: bool,
    by: str,
    output: OutputFormat,
) -> None:
    """Put messages of archive files back into history, in their old state.

    FILE is a JSON Lines file, compressed or not, or a folder of them. What is there already is left alone. Lines that
    are no messages are reported, and the others are restored; the exit code is 1 then. Retention begins anew.
    """  # fmt: skip
    for path in paths:
        if not Path(path).exists():
            raise click.UsageError(f"There is no file or folder {path}.")
    selection = Selection(
        destination=destination,
        message_ids=message_id or None,
        states=[State(name) for name in state] or None,
        since=since,
        until=until,
    )
    found = scan_archive(paths, selection=selection)
    total = sum(found.matched.values())
    if total and not dry_run and not yes:
        confirm(f"Restore up to {format_counts(found.matched)} into {target.url}?", done="restored")
    target.check_filter(destination, found=total)
    result = found
    if total:
        with Progress(total) as progress:
            result = target.run(
                lambda store: restore_archive(
                    store, paths, by=by, selection=selection, dry_run=dry_run, on_progress=progress.show
                ),
                reads_only=dry_run,
            )
    _show(result, dry_run=dry_run, output=output)
    if result.problem_count:
        raise click.exceptions.Exit(1)


def _show(result: RestoreResult, *, dry_run: bool, output: OutputFormat) -> None:
    for problem in result.problems[:_SHOWN]:
        say(str(problem))
    if result.problem_count > _SHOWN:
        say(f"… and {result.problem_count - _SHOWN:,} more.")
    document = {
        "action": Action.RESTORED.value,
        "files": result.files,
        "matched": sum(result.matched.values()),
        "matched_by_state": {state.value: count for state, count in result.matched.items()},
        "changed": 0 if dry_run else result.restored,
        "missing": result.restored if dry_run else 0,
        "known": result.known,
        "problem_count": result.problem_count,
        "problems": [{"file": one.file, "line": one.line, "reason": one.reason} for one in result.problems],
        "dry_run": dry_run,
    }
    text = f"{format_count(result.restored)} {'would be restored' if dry_run else 'restored'}."
    if result.known:
        text += f" {result.known:,} {'was' if result.known == 1 else 'were'} there already."
    if result.problem_count:
        text += f" {result.problem_count:,} {'line was' if result.problem_count == 1 else 'lines were'} left out."
    if dry_run:
        text += " Nothing was changed."
    show(document, text=text, output=output)
