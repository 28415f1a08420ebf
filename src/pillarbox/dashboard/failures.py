"""Failures: what failed, grouped by what the errors have in common, and what can be done about a whole group."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any, Final

import msgspec

from pillarbox.contracts.store import FailureGroup, Order, Selection
from pillarbox.dashboard.actions import Order as ActionOrder
from pillarbox.dashboard.actions import Verb, describe_command
from pillarbox.dashboard.filters import FilterError, Filters, to_query
from pillarbox.dashboard.view import Page, Redirect, View
from pillarbox.message import State
from pillarbox.operations.documents import to_message_document

__all__ = ["NOTE_ACTION", "add_note", "show_failures", "show_group"]

NOTE_ACTION: Final = "note"
_GROUPS: Final = 100
_COUNTED_TO: Final = 10_000
_SAMPLE: Final = 20
_NOTES: Final = 20
_LONGEST_NOTE: Final = 500
_SORTS: Final = ("count", "latest", "first", "keys")


async def show_failures(view: View) -> Page:
    """List the groups of failed and held messages, the largest first."""
    store = await view.open()
    now = await store.now()
    groups = list(await store.failure_groups(limit=_GROUPS, counted_to=_COUNTED_TO))
    destination = view.query.get("destination") or None
    if destination is not None:
        groups = [group for group in groups if group.destination == destination]
    sort = view.query.get("sort", "count")
    context = {
        "groups": [(group, _to_path(view, group)) for group in sort_groups(groups, sort)],
        "destination": destination,
        "sort": sort,
        "counted_to": _COUNTED_TO,
        "is_cut": any(group.more for group in groups),
        "at": now,
        "command": "pillarbox failures" + (f" --destination {destination}" if destination else ""),
    }
    return Page("failures.html", "Failures", context, {"failures": [_to_document(one) for one in groups]},
                section="failures")  # fmt: skip


def sort_groups(groups: list[FailureGroup], by: str) -> list[FailureGroup]:
    """Sort groups by their size, their latest or first failure, or the keys they block."""
    match by:
        case "count":
            return groups
        case "latest":
            return sorted(groups, key=lambda group: group.last_at, reverse=True)
        case "first":
            return sorted(groups, key=lambda group: group.first_at)
        case "keys":
            return sorted(groups, key=lambda group: -group.keys)
    raise FilterError(f"Groups cannot be sorted by {by[:20]!r}: there are {', '.join(_SORTS)}.")


def _to_path(view: View, group: FailureGroup) -> str:
    """Return the address of a group; of failures that an older release closed, all failed ones of the destination."""
    if not group.fingerprint:
        return view.url("messages", to_query(Filters(destination=group.destination, state=State.FAILED.value)))
    filters = Filters(destination=group.destination, fingerprint=group.fingerprint)
    return view.url("failures/group", to_query(filters))


def _to_document(group: FailureGroup) -> dict[str, Any]:
    document = {name: getattr(group, name) for name in group.__struct_fields__ if name != "example"}
    return {**document, "error": group.example.last_error, "example_id": group.example.id}


async def show_group(view: View) -> Page:
    """Show one group: some of its messages, their types and topics, its notes, and its actions."""
    destination, fingerprint = view.query.get("destination", ""), view.query.get("fingerprint", "")
    if not destination or not fingerprint:
        raise FilterError("A group of failures is named by its destination and its fingerprint: open it from Failures.")
    store = await view.open()
    now = await store.now()
    groups = await store.failure_groups(limit=_GROUPS, counted_to=_COUNTED_TO)
    group = next((one for one in groups if (one.destination, one.fingerprint) == (destination, fingerprint)), None)
    filters = Filters(destination=destination, fingerprint=fingerprint, state=State.FAILED.value)
    selection = Selection(destination=destination, fingerprint=fingerprint, states=[State.FAILED])
    rows = await store.find(selection, limit=_SAMPLE, payloads=False, order=Order.NEWEST)
    journal = await store.journal(destination=destination, actions=[NOTE_ACTION], messages=False, limit=200)
    notes = [entry for entry in journal if entry.selection == _to_note_key(destination, fingerprint)][-_NOTES:]
    context = {
        "group": group,
        "destination": destination,
        "fingerprint": fingerprint,
        "rows": rows,
        "types": Counter(one.type for one in rows).most_common(5),
        "topics": Counter(one.topic for one in rows).most_common(5),
        "query": to_query(filters),
        "notes": notes,
        "job": secrets.token_hex(8),
        "at": now,
        "redrive_command": describe_command(filters, ActionOrder(verb=Verb.REDRIVE)),
        "discard_command": describe_command(filters, ActionOrder(verb=Verb.DISCARD)),
    }
    document = {
        "failures": [] if group is None else [_to_document(group)],
        "messages": [to_message_document(one) for one in rows],
        "notes": notes,
    }
    return Page("group.html", "Failures of one cause", context, document, section="failures")


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
