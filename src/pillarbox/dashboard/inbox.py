"""Inboxes: what consumers could not handle, with its payload on request, and whether a message was handled."""

from __future__ import annotations

import secrets
import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec

from pillarbox.contracts.store import InboxActivity, InboxCount, InboxFailure, InboxSelection, Store
from pillarbox.dashboard.actions import ACTIONS, TYPED_ABOVE, FormError, Verb, parse_order
from pillarbox.dashboard.changes import to_job_id
from pillarbox.dashboard.filters import FilterError
from pillarbox.dashboard.formatting import MOST_SHOWN, format_payload, hide_headers
from pillarbox.dashboard.jobs import Job, run_inbox_change
from pillarbox.dashboard.listing import COUNTED_TO
from pillarbox.dashboard.view import Page, Redirect, View
from pillarbox.decoding import decode_incoming
from pillarbox.errors import DecodeError, NoSuchMessage
from pillarbox.fingerprint import fingerprint
from pillarbox.operations.documents import read_inbox_event, read_inbox_type, to_inbox_document, to_inbox_row

__all__ = [
    "ask_discard",
    "ask_redrive",
    "describe_inbox_command",
    "discard",
    "group_failures",
    "list_consumers",
    "redrive",
    "show_failure",
    "show_inbox",
    "show_payload",
]

_SHOWN: Final = 100
_LISTED: Final = 1_000
"""Failed messages that are read before an action, each with what arrived. Above, a count is bounded."""
_GROUPS: Final = 10
_WINDOW: Final = timedelta(minutes=10)


async def show_inbox(view: View) -> Page:
    """List what consumers could not handle; look up whether a message was handled, and by whom."""
    selection = _read_selection(view.query)
    store = await view.open()
    now = await store.now()
    sample = await view.sample()
    found = await store.inbox_failures(selection, limit=_SHOWN + 1)
    activity = await store.inbox_activity(window=_WINDOW)
    asked = view.query.get("handled", "").strip()
    records = await store.inbox_records([asked]) if asked else []
    context = {
        "consumers": list_consumers(activity, [] if sample.status is None else sample.status.inboxes, now=now),
        "groups": group_failures(found[:_SHOWN]),
        "window": _WINDOW,
        "rows": [(one, read_inbox_type(one), _to_query(one)) for one in found[:_SHOWN]],
        "more": len(found) > _SHOWN,
        "selection": selection,
        "query": _to_selection_query(selection),
        "asked": asked,
        "records": records,
        "retention": view.source.relay_settings.retention,
        "command": describe_inbox_command(selection, "show" if selection.message_ids else "list"),
        "at": now,
    }
    document: dict[str, Any] = {
        "failures": [to_inbox_row(one) for one in found[:_SHOWN]],
        "consumers": context["consumers"],
        "records": records,
    }
    return Page("inbox.html", "Inbox", context, document, section="inbox")


class ConsumerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer on the page."""

    consumer: str
    handled: int
    per_minute: float
    duplicates: int
    last_at: datetime | None
    failed: int = 0
    more: bool = False
    """At least so many failed."""
    oldest_failed_at: datetime | None = None


def list_consumers(
    activity: Sequence[InboxActivity], failed: Sequence[InboxCount], *, now: datetime
) -> list[ConsumerRow]:
    """List every consumer that is known, by name, with its rate since the time that was looked at."""
    counts = {one.consumer: one for one in failed}
    rows = []
    for one in activity:
        minutes = max((now - one.since).total_seconds(), 1.0) / 60
        row = ConsumerRow(
            consumer=one.consumer, handled=one.handled, per_minute=round(one.handled / minutes, 1),
            duplicates=one.duplicates, last_at=one.last_at,
        )  # fmt: skip
        if (count := counts.get(one.consumer)) is not None:
            row = msgspec.structs.replace(row, failed=count.failed, more=count.more, oldest_failed_at=count.oldest_at)
        rows.append(row)
    return rows


def group_failures(failures: Sequence[InboxFailure]) -> list[tuple[str, str, int]]:
    """Group failures by consumer and by what their errors have in common, the largest first."""
    groups = Counter((one.consumer, fingerprint(one.error or "")) for one in failures)
    return [(consumer, error, count) for (consumer, error), count in groups.most_common(_GROUPS)]


def _read_selection(values: Any) -> InboxSelection:
    message_id = values.get("message_id", "").strip()
    return InboxSelection(
        consumer=values.get("consumer", "").strip() or None,
        message_ids=[message_id] if message_id else None,
        error=values.get("error", "").strip() or None,
    )


def _to_query(one: InboxFailure) -> str:
    return urlencode({"consumer": one.consumer, "source": one.source, "message_id": one.message_id})


def _to_selection_query(selection: InboxSelection) -> str:
    values = {
        "consumer": selection.consumer,
        "message_id": selection.message_ids[0] if selection.message_ids else None,
        "error": selection.error,
    }
    return urlencode({name: value for name, value in values.items() if value})


async def _find_failure(view: View) -> InboxFailure:
    selection = _read_selection(view.query)
    if not selection.consumer or not selection.message_ids:
        raise FilterError("A failed message of an inbox is named by its consumer and its message id.")
    store = await view.open()
    source = view.query.get("source")
    found = [one for one in await store.inbox_failures(selection, limit=_SHOWN) if source in (None, "", one.source)]
    if not found:
        raise NoSuchMessage(
            f"No failed message of {selection.consumer} is called {selection.message_ids[0]}: it was handled, redriven "
            "or discarded, or its retention is over."
        )
    return found[0]


async def show_failure(view: View) -> Page:
    """Show a message that a consumer could not handle."""
    failure = await _find_failure(view)
    document = to_inbox_document(failure)
    headers = document.get("headers")
    context = {
        "failure": failure,
        "document": {name: value for name, value in document.items() if name != "headers" and value not in (None, "")},
        "headers": hide_headers(headers) if isinstance(headers, dict) else {},
        "query": _to_query(failure),
        "command": describe_inbox_command(
            InboxSelection(consumer=failure.consumer, message_ids=[failure.message_id]), "show"
        ),
        "at": await view.now(),
    }
    return Page("inbox_message.html", "Failed message of an inbox", context, {"failures": [document]}, section="inbox")


async def show_payload(view: View) -> Page:
    """Show what arrived."""
    failure = await _find_failure(view)
    if view.dashboard.journal_payloads:
        store = await view.open()
        await store.note(
            "payload_viewed", by=view.user.name, detail=f"{failure.source} {failure.message_id}",
            destination=f"inbox:{failure.consumer}",
        )  # fmt: skip
    event = read_inbox_event(failure)
    try:
        content = event.payload if event is not None else decode_incoming(failure.content).body
    except DecodeError:
        content = b""
    text = format_payload(content, event.content_type if event is not None else "")
    context = {
        "failure": failure,
        "text": _Shown(text),
        "size": len(content),
        "is_cut": len(content) > MOST_SHOWN,
        "is_kept": bool(failure.content),
    }
    document = {"failures": [to_inbox_document(failure, payload=view.wants_json, largest=MOST_SHOWN)]}
    return Page("inbox_payload.html", "Payload", context, document, section="inbox")


class _Shown(str):
    """A payload: it is escaped like all text, and shown as it is, because somebody asked for it."""

    __slots__ = ()


# --- actions ---


async def ask_redrive(view: View) -> Page:
    return await _ask(view, Verb.REDRIVE, view.query)


async def ask_discard(view: View) -> Page:
    return await _ask(view, Verb.DISCARD, view.query)


async def redrive(view: View) -> Page | Redirect:
    return await _start(view, Verb.REDRIVE)


async def discard(view: View) -> Page | Redirect:
    return await _start(view, Verb.DISCARD)


async def _ask(view: View, verb: Verb, values: Any, *, refusal: str = "") -> Page:
    selection = _read_selection(values)
    _check_named(selection, verb)
    store = await view.open()
    found, matched = await _count(store, selection, verb)
    context = {
        "verb": verb,
        "selection": selection,
        "total": matched.total,
        "more": matched.more,
        "unkept": matched.unkept,
        "is_typed": matched.more or matched.total > TYPED_ABOVE,
        "command": describe_inbox_command(selection, verb),
        "examples": [(one, read_inbox_type(one)) for one in found[:3]],
        "fields": [(name, values.get(name, "")) for name in ("consumer", "message_id", "error") if values.get(name)],
        "job": values.get("job") or secrets.token_hex(8),
        "refusal": refusal,
        "back": view.url("inbox", _to_selection_query(selection)),
        "at": await store.now(),
    }
    document = {"matched": matched.total, "more": matched.more, "dry_run": True, "error": refusal or None}
    return Page("inbox_confirm.html", verb.value.capitalize(), context, document, 400 if refusal else 200, "inbox")


class _Matched(NamedTuple):
    """Failed messages of inboxes that an action would change."""

    total: int
    more: bool
    """True if counting stopped at its limit."""
    unkept: int
    """Messages that cannot be redriven, because what arrived was not kept."""


async def _count(store: Store, selection: InboxSelection, verb: Verb) -> tuple[Sequence[InboxFailure], _Matched]:
    """Count what an action would change; return also the first of it."""
    found = await store.inbox_failures(selection, limit=_LISTED + 1)
    unkept = sum(not one.content for one in found) if verb is Verb.REDRIVE else 0
    total, more = len(found), len(found) > _LISTED
    if more:
        total = _LISTED
        if selection == InboxSelection(consumer=selection.consumer) and not unkept:
            # All failed messages of one consumer are counted without reading what arrived.
            counts = {one.consumer: one for one in await store.inbox_counts(limit=COUNTED_TO)}
            if (count := counts.get(selection.consumer or "")) is not None:
                total, more = count.failed, count.more
    return found, _Matched(total - unkept, more, unkept)


def describe_inbox_command(selection: InboxSelection, name: Verb | str, *, reason: str = "") -> str:
    """Write the command line that does the same: with every condition, for one left out would select more.

    Message ids come from outside: one that begins with a dash must not be read as an option.
    """
    parts = ["pillarbox inbox", str(name)]
    if selection.consumer is not None:
        parts.append(f"--consumer {shlex.quote(selection.consumer)}")
    if selection.error is not None and name != "show":
        parts.append(f"--error {shlex.quote(selection.error)}")
    if isinstance(name, Verb) and (reason or ACTIONS[name].needs_reason):
        parts.append(f"--reason {shlex.quote(reason or 'why')}")
    ids = selection.message_ids or ()
    parts += ["--"] if any(one.startswith("-") for one in ids) else []
    return " ".join([*parts, *map(shlex.quote, ids)])


def _check_named(selection: InboxSelection, verb: Verb) -> None:
    if selection == InboxSelection():
        raise FormError(f"Say which messages to {verb.value}: a consumer, a message id or a part of the error.")


async def _start(view: View, verb: Verb) -> Page | Redirect:
    job_id = to_job_id(view.form)
    known = view.dashboard.jobs.get(job_id, store=view.source.name)
    if known is not None:
        return Redirect(view.url(f"jobs/{known.id}"), known.to_document())
    selection = _read_selection(view.form)
    _check_named(selection, verb)
    store = await view.open()
    _, matched = await _count(store, selection, verb)
    try:
        order = parse_order(verb, view.form, total=matched.total, more=matched.more)
    except FormError as error:
        return await _ask(view, verb, view.form, refusal=str(error))
    job = Job(
        job_id, store=view.source.name, title=describe_inbox_command(selection, verb, reason=order.reason),
        done_word=order.rule.done, total=matched.total + matched.unkept, more=matched.more, by=view.user.name,
        reason=order.reason, started_at=await store.now(),
    )  # fmt: skip
    job.without_payload = matched.unkept
    started = view.dashboard.jobs.start(job, lambda one: run_inbox_change(one, store, selection, verb=verb))
    return Redirect(view.url(f"jobs/{started.id}"), started.to_document())
