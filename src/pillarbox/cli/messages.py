"""`pillarbox messages`: list and show messages; redrive, replay, discard and defer them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, Final

import click
import msgspec

from pillarbox.cli._confirm import confirm, confirm_options
from pillarbox.cli._options import (
    Target,
    by_option,
    complete_destination,
    reason_option,
    required_reason_option,
    target_options,
)
from pillarbox.cli._output import (
    OutputFormat,
    Progress,
    format_age,
    format_fields,
    format_time,
    format_tries,
    output_option,
    say,
    show,
    show_rows,
)
from pillarbox.cli._selection import Filters, parse_ids, selection_options
from pillarbox.cli._table import Column, draw_table, is_wide, to_line, wide_option
from pillarbox.cli._times import parse_future_time
from pillarbox.contracts.store import Action, BulkResult, JournalEntry, OperatorStore, Order, Phase, Selection, Tries
from pillarbox.dashboard.settings import read_dashboard_section, to_message_url
from pillarbox.errors import NoSuchMessage
from pillarbox.message import SKIPPED_DESTINATION, Message, State, Waits
from pillarbox.operations.bulk import (
    BATCH_SIZE,
    ChangeBatch,
    change_all,
    count_by_state,
    describe_left_alone,
    describe_result,
    format_count,
    format_counts,
    note_bulk,
)
from pillarbox.operations.configuration import read_near_failure, read_thresholds
from pillarbox.operations.documents import to_journal_document, to_message_document
from pillarbox.operations.monitor import NOT_GIVEN_UP, count_tries
from pillarbox.redaction import redact_block
from pillarbox.relay.addresses import MAIN, read_stores
from pillarbox.settings import join_words
from pillarbox.stores.rules import eligible_states

__all__ = ["messages"]

_SHOWN: Final = (State.PENDING, State.SENDING, State.FAILED, State.SKIPPED)
"""States that are listed unless others are named: what is still to be done, and what a person must decide."""
_NEVER: Final = 2**31
"""Attempts of no message."""
_RUN_AGAIN: Final = "Run the same command again for the rest."
_AGAIN: Final = {
    Action.REDRIVEN: _RUN_AGAIN,
    Action.DISCARDED: _RUN_AGAIN,
    Action.DEFERRED: "Run the same command again: it defers all of them, those that are done too.",
    Action.REPLAYED: f"{_RUN_AGAIN} What was delivered again meanwhile is replayed once more.",
}
"""What to do after a change was interrupted."""
_COLUMNS: Final = (
    Column("id"),
    Column("state"),
    Column("destination", least=10),
    Column("topic", rank=4, least=10),
    Column("key", rank=2, least=10),
    Column("type", rank=5, least=12),
    Column("attempts", rank=3),
    Column("tries", rank=6),
    Column("age", rank=1),
    Column("last error", is_below=True),
)
_JOURNAL_COLUMNS: Final = (
    Column("at"),
    Column("what"),
    Column("by", rank=1, least=9),
    Column("attempt", rank=2),
    Column("error", is_below=True),
)
_VERBS: Final = {
    Action.REDRIVEN: "Redrive",
    Action.REPLAYED: "Replay",
    Action.DISCARDED: "Discard",
    Action.DEFERRED: "Defer",
}


@click.group(epilog="\b\nExample:\n  pillarbox messages list --state failed --destination billing\n")
def messages() -> None:
    """List, show, redrive, replay, discard and defer messages."""


# --- list and show ---


@messages.command("list", epilog="\b\nExample:\n  pillarbox messages list --near-failure --since 2h\n")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@target_options
@selection_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, envvar="PILLARBOX_LIMIT",
              show_envvar=True, help="How many at most.")  # fmt: skip
@click.option("--after", type=click.IntRange(0, 2**63 - 1), default=0, metavar="ID", envvar="PILLARBOX_AFTER",
              show_envvar=True, help="Only with a higher id: where the last page ended.")  # fmt: skip
@click.option("--phase", type=click.Choice([phase.value for phase in Phase]), envvar="PILLARBOX_PHASE",
              show_envvar=True, help="Open, and standing there.")  # fmt: skip
@click.option("--newest", is_flag=True, envvar="PILLARBOX_NEWEST", show_envvar=True,
              help="Last changed first, instead of oldest first.")  # fmt: skip
@wide_option
@output_option
def list_messages(
    target: Target,
    filters: Filters,
    *,
    ids: Sequence[str],
    limit: int,
    after: int,
    phase: str | None,
    newest: bool,
    output: OutputFormat,
) -> None:
    """List messages, oldest first: those that are open, failed or skipped, unless --state or ids say otherwise.

    With --near-failure those with most attempts come first.
    """
    if ids and filters.stuck:
        raise click.UsageError("Give ids or --stuck, not both.")
    named = parse_ids(ids)
    if after and (newest or filters.near_failure):
        raise click.UsageError("--after needs the order by id: leave --newest and --near-failure out.")
    near_failure, stuck_after = read_near_failure(target.config), read_thresholds(target.config).stuck
    configured = filters.with_thresholds(near_failure)
    order = Order.NEWEST if newest else Order.ATTEMPTS if filters.near_failure else Order.ID

    async def find(store: OperatorStore) -> tuple[Sequence[Message], Mapping[int, Tries], datetime]:
        selection = await configured.resolve(store, stuck_after=stuck_after)
        if ids:
            selection = msgspec.structs.replace(selection, ids=named.ids, message_ids=named.message_ids)
        elif selection.states is None and selection.ids is None:
            selection = msgspec.structs.replace(selection, states=_SHOWN)
        selection = msgspec.structs.replace(selection, after=after)
        if phase is not None:
            selection = msgspec.structs.replace(selection, phase=Phase(phase), phase_at=await store.now())
        found = await store.find(selection, limit=limit, payloads=False, order=order)
        return found, await store.count_tries(found) if found else {}, await store.now()

    found, tries, now = target.run(find, reads_only=True)
    if filters.near_failure:  # each by the attempts of its own destination
        found = [one for one in found if one.attempts >= (near_failure.threshold(one.destination) or _NEVER)]
    target.check_filter(filters.selection.destination, found=found)
    if not found:
        say("No message matches." if after == 0 else "No further message matches.")
    text = _format_list(found, tries, now=now) if found else ""
    show_rows("messages", [to_message_document(one, tries=tries) for one in found], text=text, output=output)
    if len(found) == limit:
        say(f"There may be more: --after {found[-1].id}" if order is Order.ID else f"There may be more than {limit}.")


@messages.command("show", epilog="\b\nExample:\n  pillarbox messages show 4711 --payload\n")
@click.argument("name", metavar="ID")
@target_options
@click.option("--payload", is_flag=True, envvar="PILLARBOX_PAYLOAD", show_envvar=True,
              help="Show the payload too, and what stands in columns that cannot be read.")  # fmt: skip
@wide_option
@output_option
def show_message(target: Target, name: str, payload: bool, output: OutputFormat) -> None:
    """Show a message with all that is known of it and all that happened to it. ID is an id or a message id."""

    async def find(store: OperatorStore) -> tuple[Sequence[Message], Sequence[JournalEntry], Mapping[int, Tries]]:
        found = await store.find(parse_ids([name]), limit=100, payloads=payload)
        if not found:
            raise NoSuchMessage(f"There is no message {name}: it was never committed, or its retention is over.")
        entries = await store.journal(message_id=found[0].message_id, limit=1_000)
        return found, entries, await store.count_tries(found)

    found, entries, tries = target.run(find, reads_only=True)
    document = {
        "messages": [to_message_document(one, tries=tries, payload=payload) for one in found],
        "journal": [to_journal_document(entry) for entry in entries],
    }
    parts = [
        _format_message(one, tries.get(one.id), payload=payload) + _format_tries(one, entries, tries.get(one.id))
        for one in found
    ]
    if entries:
        parts.append(_format_journal(entries))
        parts += _format_details(entries, of={one.destination for one in found})
    if (page := _find_page(target, found[0])) is not None:
        parts.append(f"Page: {page}")
    show(document, text="\n\n".join(parts), output=output)


def _find_page(target: Target, message: Message) -> str | None:
    """Return the address of the message's page; None if no dashboard is configured."""
    url = read_dashboard_section(target.config).url
    if url is None:
        return None
    named = read_stores(target.config).named
    store = next((name for name, address in named.items() if address.url == target.url), MAIN)
    return to_message_url(url, store, message.id)


def _format_list(messages: Sequence[Message], tries: Mapping[int, Tries], *, now: datetime) -> str:
    rows = [
        (
            str(one.id), _format_state(one, now), one.destination, one.topic, one.key or "", one.type,
            str(one.attempts), format_tries(tries.get(one.id), one, now), format_age(one.created_at, now),
            one.last_error or "",
        )
        for one in messages
    ]  # fmt: skip
    return draw_table(_COLUMNS, rows)


def _format_state(message: Message, now: datetime) -> str:
    if message.state is State.PENDING and message.available_at is not None and message.available_at > now:
        # A message that is tried again is due all the while: `status` counts it, and `--phase due` lists it.
        is_retried = message.waits is Waits.RETRY and (message.attempts or message.last_error)
        return f"{'next try' if is_retried else 'due'} in {format_age(now, message.available_at)}"
    if message.waits is not None and message.waits.value in ("parked", "held"):
        return message.waits.value
    return message.state.value


def _format_message(message: Message, tries: Tries | None, *, payload: bool) -> str:
    fields = [
        (name, format_time(value) if isinstance(value, datetime) else str(getattr(value, "value", value)))
        for name, value in to_message_document(message).items()
        if value not in (None, {}, "") and name not in ("headers", "payload_kept")
    ]
    if tries is not None:
        place = [name for name, _ in fields].index("attempts") + 1
        fields.insert(place, ("tries", f"{tries.count:,}, the first at {format_time(tries.first_at)}"))
    fields += [(f"header {name}", value) for name, value in message.headers.items()]
    if not payload:
        return format_fields(fields)
    fields += [(f"raw {name}", _format_raw(value)) for name, value in (message.raw or {}).items()]
    text = message.payload.decode("utf-8", "backslashreplace") if message.payload_kept else "(not kept)"
    return format_fields(fields, body=text)


def _format_tries(message: Message, journal: Sequence[JournalEntry], tries: Tries | None) -> str:
    """Say how often an open message was tried, and why it is not given up."""
    _, is_waiting = count_tries(journal, message)
    if message.state.is_closed or tries is None or not is_waiting:
        return ""
    return f"\n\nTried {tries.count} {'time' if tries.count == 1 else 'times'}, {NOT_GIVEN_UP}."


def _format_raw(value: bytes) -> str:
    """Write what stands in a column as text on one line, with escapes for all that is none."""
    text = value.decode("utf-8", "backslashreplace")
    return to_line(text.encode("unicode_escape").decode() if not text.isprintable() else text)


def _format_journal(entries: Sequence[JournalEntry]) -> str:
    """Write the journal of a message, with the destinations if it is about several."""
    is_of_several = _is_of_several(entries)
    rows = [
        (
            format_time(entry.at), entry.action.replace("_", " "), *([entry.destination] if is_of_several else []),
            entry.by, str(entry.attempt or ""), entry.reason or entry.error or "",
        )
        for entry in entries
    ]  # fmt: skip
    at, what, *others = _JOURNAL_COLUMNS
    return draw_table((at, what, *([Column("destination")] if is_of_several else []), *others), rows)


def _is_of_several(entries: Sequence[JournalEntry]) -> bool:
    return len({entry.destination for entry in entries}) > 1


def _format_details(entries: Sequence[JournalEntry], *, of: Collection[str]) -> list[str]:
    """Write the traceback of the last attempt, or the broker's whole answer to it; with `--wide` of every attempt.

    `of` are the destinations that were asked for. The answers of others are not theirs.
    """
    # An answer that is wholly in the error is not repeated.
    detailed = [one for one in entries if one.detail and one.error and one.detail.strip() not in one.error]
    if not is_wide():
        # A message that was just sent on has nothing but the answers of the destination before.
        is_sent_on = not any(entry.destination in of for entry in entries)
        own = detailed[-1:] if is_sent_on else [one for one in detailed if one.destination in of]
        detailed = list({one.destination: one for one in own}.values())
    is_of_several = _is_of_several(entries)
    return [
        # Indented, so that none of its lines can pass for a field.
        f"In full, {'attempt' if entry.attempt else 'try'}{f' to {entry.destination}' if is_of_several else ''} at "
        f"{format_time(entry.at)}:\n"
        + "\n".join(f"      {line}" for line in redact_block(entry.detail or "").rstrip().split("\n"))
        for entry in detailed
    ]


# --- redrive, replay, discard and defer ---


class _Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of messages, as it was typed."""

    action: Action
    target: Target
    filters: Filters
    ids: Sequence[str]
    dry_run: bool
    yes: bool
    output: OutputFormat
    to: str | None = None

    def run(self, change: ChangeBatch, *, by: str, reason: str | None) -> None:
        """Count the messages, ask, change them in batches, sum it up in the journal, and show the result."""
        verb = _VERBS[self.action]
        self._check_states(verb.lower())
        if self.ids and not self.filters.is_empty:
            raise click.UsageError("Give ids or filters, not both.")
        if not self.ids and self.filters.is_empty:
            raise click.UsageError(f"Say which messages to {verb.lower()}: ids, or filters such as --destination NAME.")
        if self.to is not None:
            self.target.check_destination(self.to)
        elif self.action is Action.REDRIVEN and State.SKIPPED in (self.filters.selection.states or ()):
            raise click.UsageError("Skipped messages have no destination: say with --to NAME where they go.")
        selection, counts = self.target.run(self._count, reads_only=self.dry_run)
        total = sum(counts.values())
        self.target.check_filter(self.filters.selection.destination, found=total)
        # Of messages that were named, the store's own error says why none of them can be changed.
        if self.dry_run or (total == 0 and not self.ids):
            self._show(BulkResult(0, 0), counts)
            return
        if not self.ids and not self.yes:
            confirm(f"{verb} {format_counts(counts)} in {self.target.url}?")
        with Progress(total, again=_AGAIN[self.action]) as progress:

            async def run(store: OperatorStore) -> BulkResult:
                result = await change_all(store, selection, change, on_progress=progress.show)
                await note_bulk(store, self.action, selection, result.count, by=by, reason=reason)
                return result

            result = self.target.run(run)
        self._show(result, counts)

    def _check_states(self, verb: str) -> None:
        """Refuse states of which the action changes no message."""
        given = self.filters.selection.states or ()
        is_skipped = self.action is Action.REDRIVEN and State.SKIPPED in given
        if given and not is_skipped and not eligible_states(self.action, self.filters.selection, to=self.to):
            taken = join_words([one.value for one in eligible_states(self.action, Selection(ids=[]))], last="or")
            raise click.UsageError(f"--state {given[0].value} selects nothing: {verb} takes what is {taken}.")

    async def _count(self, store: OperatorStore) -> tuple[Selection, Mapping[State, int]]:
        """Return the selection, and how many of its messages can be changed, by state."""
        if self.ids:
            selection = parse_ids(self.ids)
        else:
            filters = self.filters.with_thresholds(read_near_failure(self.target.config))
            selection = await filters.resolve(store, stuck_after=read_thresholds(self.target.config).stuck)
        counts = await count_by_state(store, self.action, selection, to=self.to)
        if self.action is Action.REDRIVEN and self.to is None and State.DISCARDED in counts:
            await self._check_routed(store, selection)
        return selection, counts

    async def _check_routed(self, store: OperatorStore, selection: Selection) -> None:
        """Refuse to redrive what no route took and a person discarded: it would be skipped again."""
        if selection.destination not in (None, SKIPPED_DESTINATION):
            return
        unrouted = msgspec.structs.replace(selection, states=[State.DISCARDED], destination=SKIPPED_DESTINATION)
        if count := await store.count(unrouted):
            raise click.UsageError(
                f"No route took {format_count(count)} of these: say with --to NAME where they go, or choose others."
            )

    def _show(self, result: BulkResult, counts: Mapping[State, int]) -> None:
        document = {
            "action": self.action.value,
            "matched": sum(counts.values()),
            "matched_by_state": {state.value: count for state, count in counts.items()},
            "changed": result.count,
            "without_payload": result.without_payload,
            "dry_run": self.dry_run,
        }
        if result.count:
            text = describe_result(self.action, result)
        else:
            text = f"{format_counts(counts)} would be {self.action.value}. Nothing was changed."
            if counts and not self.dry_run and not result.without_payload:
                text = (
                    f"Nothing was {self.action.value}: {format_counts(counts)} matched, which wait behind an earlier "
                    "message of their key, or are claimed by a relay."
                )
            if self.output != "text":
                say(text)
            text += describe_left_alone(result)
        show(document, text=text, output=self.output)


def _change_options(action: Action) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add ids or filters, --dry-run, --yes, --by and -o; the command receives them as one `_Change`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_change(target: Target, filters: Filters, **options: Any) -> None:
            taken = {name: options.pop(name) for name in ("ids", "dry_run", "yes", "output")}
            change = _Change(action=action, target=target, filters=filters, to=options.get("to"), **taken)
            command(change, **options)

        ids = click.argument("ids", nargs=-1, metavar="[ID]...")
        decorated = confirm_options()(target_options(selection_options(with_change)))
        return by_option(output_option(ids(decorated)))

    return decorate


@messages.command(
    epilog="\b\nExample:\n  pillarbox messages redrive --destination billing --error 'answered 503' --yes\n"
)
@_change_options(Action.REDRIVEN)
@click.option("--to", metavar="NAME", envvar="PILLARBOX_TO", show_envvar=True, shell_complete=complete_destination,
              help="Send them to this destination instead. What was skipped needs it.")  # fmt: skip
@reason_option
def redrive(change: _Change, by: str, to: str | None, reason: str | None) -> None:
    """Send failed or held messages again, with all their attempts.

    Those that were discarded or skipped too, if --state or their ids name them.
    """

    async def redrive_batch(store: OperatorStore, selection: Selection) -> BulkResult:
        return await store.redrive(selection, by=by, limit=BATCH_SIZE, to=to, reason=reason)

    change.run(redrive_batch, by=by, reason=reason)


@messages.command(epilog="\b\nExample:\n  pillarbox messages replay --topic orders --since 2026-01-31T00:00Z --yes\n")
@_change_options(Action.REPLAYED)
@reason_option
def replay(change: _Change, by: str, reason: str | None) -> None:
    """Send delivered messages again, under the same message ids."""

    async def replay_batch(store: OperatorStore, selection: Selection) -> BulkResult:
        return await store.replay(selection, by=by, limit=BATCH_SIZE, reason=reason)

    change.run(replay_batch, by=by, reason=reason)


@messages.command(epilog="\b\nExample:\n  pillarbox messages discard 4711 --reason 'sent by hand'\n")
@_change_options(Action.DISCARDED)
@required_reason_option
def discard(change: _Change, by: str, reason: str) -> None:
    """Close pending, held or failed messages without sending them. They are kept, and can be redriven.

    Those that were skipped too, if --state or their ids name them.
    """

    async def discard_batch(store: OperatorStore, selection: Selection) -> BulkResult:
        return await store.discard(selection, by=by, reason=reason, limit=BATCH_SIZE)

    change.run(discard_batch, by=by, reason=reason)


@messages.command(epilog="\b\nExample:\n  pillarbox messages defer --destination billing --for 2h --yes\n")
@_change_options(Action.DEFERRED)
@click.option("--for", "until_", required=True, metavar="TIME", callback=parse_future_time, envvar="PILLARBOX_FOR",
              show_envvar=True, help="Until when: a time, or how long from now (2h).")  # fmt: skip
@reason_option
def defer(change: _Change, by: str, until_: datetime, reason: str | None) -> None:
    """Let pending messages wait until later, and their keys with them. Costs no attempt."""

    async def defer_batch(store: OperatorStore, selection: Selection) -> BulkResult:
        return await store.defer(selection, until=until_, by=by, limit=BATCH_SIZE, reason=reason)

    change.run(defer_batch, by=by, reason=reason)
