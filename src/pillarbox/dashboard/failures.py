"""Failures: what failed, grouped by what the errors have in common, and what can be done about a whole group."""

from __future__ import annotations

import secrets
import shlex
from collections import Counter
from typing import Final

import msgspec

from pillarbox.contracts.store import GROUPS_WALKED, Order, Selection, Store
from pillarbox.dashboard.actions import TYPED_ABOVE, Verb, describe_command
from pillarbox.dashboard.actions import Order as ActionOrder
from pillarbox.dashboard.filters import FilterError, Filters, to_query
from pillarbox.dashboard.listing import count_matches
from pillarbox.dashboard.view import Page, Redirect, View
from pillarbox.message import State
from pillarbox.operations.documents import to_failure_document, to_message_document
from pillarbox.operations.failures import CAUSES, COUNTED_TO, FailureCause, Sort, find_causes

__all__ = ["NOTE_ACTION", "add_note", "show_failures", "show_group"]

NOTE_ACTION: Final = "note"
_SAMPLE: Final = 20
_NOTES: Final = 20
_LONGEST_NOTE: Final = 500


async def show_failures(view: View) -> Page:
    """List the groups of failed and held messages, the largest first."""
    sort = _parse_sort(view.query.get("sort", Sort.COUNT.value))
    destination = view.query.get("destination") or None
    store = await view.open()
    now = await store.now()
    found = await find_causes(store, Selection(destination=destination), sort=sort, limit=CAUSES)
    context = {
        "groups": [(cause, _to_path(view, cause), _to_action(cause)) for cause in found.causes],
        "destination": destination,
        "sort": sort.value,
        "counted_to": COUNTED_TO,
        "is_cut": found.is_cut,
        "at": now,
        "command": " ".join([
            "pillarbox failures",
            *(["--newest"] if sort is Sort.LATEST else []),
            *([f"--destination {shlex.quote(destination)}"] if destination else []),
        ]),
    }  # fmt: skip
    document = {"failures": [to_failure_document(one) for one in found.causes]}
    return Page("failures.html", "Failures", context, document, section="failures")


def _parse_sort(text: str) -> Sort:
    try:
        return Sort(text)
    except ValueError:
        raise FilterError(
            f"Groups cannot be sorted by {text[:20]!r}: there are {', '.join(one.value for one in Sort)}."
        ) from None


def _to_path(view: View, cause: FailureCause) -> str:
    """Return the address of a cause; of rows without a fingerprint, all failed ones of the destination."""
    if not cause.fingerprint:
        return view.url("messages", to_query(Filters(destination=cause.destination, state=State.FAILED.value)))
    filters = Filters(destination=cause.destination, fingerprint=cause.fingerprint)
    return view.url("failures/group", to_query(filters))


def _to_action(cause: FailureCause) -> str:
    """Return the query that selects what an action on the group changes; nothing without a fingerprint."""
    if not cause.fingerprint:
        return ""
    return to_query(Filters(destination=cause.destination, fingerprint=cause.fingerprint, state=State.FAILED.value))


async def show_group(view: View) -> Page:
    """Show one group: some of its messages, their types and topics, its notes, and its actions."""
    destination, fingerprint = view.query.get("destination", ""), view.query.get("fingerprint", "")
    if not destination or not fingerprint:
        raise FilterError("A group of failures is named by its destination and its fingerprint: open it from Failures.")
    store = await view.open()
    now = await store.now()
    found = await find_causes(store, Selection(destination=destination), limit=GROUPS_WALKED)
    group = next((one for one in found.causes if one.fingerprint == fingerprint), None)
    filters = Filters(destination=destination, fingerprint=fingerprint, state=State.FAILED.value)
    selection = Selection(destination=destination, fingerprint=fingerprint, states=[State.FAILED])
    rows = await store.find(selection, limit=_SAMPLE, payloads=False, order=Order.NEWEST)
    tries = await store.count_tries(rows) if rows else {}
    journal = await store.journal(destination=destination, actions=[NOTE_ACTION], messages=False, limit=200)
    notes = [entry for entry in journal if entry.selection == _to_note_key(destination, fingerprint)][-_NOTES:]
    context = {
        "group": group,
        "destination": destination,
        "fingerprint": fingerprint,
        "rows": rows,
        "tries": tries,
        "types": Counter(one.type for one in rows).most_common(5),
        "topics": Counter(one.topic for one in rows).most_common(5),
        "query": to_query(filters),
        "notes": notes,
        "job": secrets.token_hex(8),
        "typed": await _count_typed(store, selection) if group is not None and group.count > TYPED_ABOVE else None,
        "at": now,
        "redrive_command": describe_command(filters, ActionOrder(verb=Verb.REDRIVE)),
        "discard_command": describe_command(filters, ActionOrder(verb=Verb.DISCARD)),
    }
    document = {
        "failures": [] if group is None else [to_failure_document(group)],
        "messages": [to_message_document(one, tries=tries) for one in rows],
        "notes": notes,
    }
    return Page("group.html", "Failures of one cause", context, document, section="failures")


async def _count_typed(store: Store, selection: Selection) -> int:
    """Count what the number is typed of: a group is counted less far than an action."""
    counts = await count_matches(store, selection, [State.FAILED])
    return counts[State.FAILED].count if counts else 0


async def add_note(view: View) -> Redirect:
    """Keep a note about a group in the journal, for whoever looks at it next."""
    destination, fingerprint = view.form.get("destination", ""), view.form.get("fingerprint", "")
    text = " ".join(view.form.get("note", "").split())[:_LONGEST_NOTE]
    if not text or not destination or not fingerprint:
        raise FilterError("A note needs a text, and the group that it is about.")
    store = await view.open()
    await store.note(
        NOTE_ACTION, by=view.user.name, detail=text, destination=destination,
        selection=_to_note_key(destination, fingerprint),
    )  # fmt: skip
    query = to_query(Filters(destination=destination, fingerprint=fingerprint))
    return Redirect(view.url("failures/group", query), {"note": text})


def _to_note_key(destination: str, fingerprint: str) -> str:
    return msgspec.json.encode({"destination": destination, "fingerprint": fingerprint}).decode()
