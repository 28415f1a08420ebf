"""Activity: who did what, the audit log; and chains: what one thing caused, across all stores."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from pillarbox.contracts.store import InboxRecord, JournalEntry, Order, Selection, Store
from pillarbox.dashboard.chains import (
    Chain,
    ChainNode,
    SeenMessage,
    build_chain,
    draw_sequence,
    place_bars,
    summarize_chains,
    walk,
)
from pillarbox.dashboard.filters import FilterError
from pillarbox.dashboard.view import Page, View
from pillarbox.errors import PillarboxError
from pillarbox.message import Message, State
from pillarbox.operations.documents import to_journal_document, to_message_document
from pillarbox.redaction import escape_controls, redact, redact_line

__all__ = ["show_activity", "show_chain", "to_csv"]

_PAGE: Final = 100
_CSV: Final = 10_000
_MOST_MESSAGES: Final = 500
_READ: Final = 200
"""Messages of each state from which the lists of chains are made."""
_LISTED: Final = 10
_FORMULA: Final = re.compile(r"""((?:^|[;,|\t\r\n])[ "]*)([=+\-@＝＋－＠])""")
"""A sign that begins a formula, at the beginning of a text or after what may separate cells."""
_COLUMNS: Final = ("id", "at", "by", "action", "destination", "message_id", "attempt", "detail", "reason", "selection",
                   "error")  # fmt: skip


async def show_activity(view: View) -> Page | Response:
    """List what people and relays did, the latest first: of no message, or of every message too."""
    by, destination = view.query.get("by") or None, view.query.get("destination") or None
    action = view.query.get("action") or None
    everything = view.query.get("all") == "1"
    before = _parse_before(view.query.get("before", ""))
    is_csv = view.query.get("format") == "csv"
    store = await view.open()
    entries = await store.journal(
        by=by, destination=destination, actions=None if action is None else [action], messages=everything,
        before=before, limit=_CSV if is_csv else _PAGE + 1,
    )  # fmt: skip
    if is_csv:
        headers = {"content-disposition": 'attachment; filename="pillarbox-activity.csv"'}
        return Response(to_csv(list(reversed(entries))), media_type="text/csv; charset=utf-8", headers=headers)
    more = len(entries) > _PAGE
    shown = list(reversed(entries))[:_PAGE]
    context = {
        "entries": shown,
        "jobs": view.dashboard.jobs.list_latest(view.source.name),
        "by": by,
        "destination": destination,
        "action": action,
        "everything": everything,
        "before": shown[-1].id if more else None,
        "is_first": before is None,
        "first_href": _to_href(view),
        "older_href": _to_href(view, before=shown[-1].id if more else None),
        "csv_href": _to_href(view, format="csv"),
        "at": await store.now(),
    }
    document = {
        "journal": [to_journal_document(one) for one in shown],
        "next": shown[-1].id if more else None,
    }
    return Page("activity.html", "Activity", context, document, section="activity")


def _to_href(view: View, **more: object) -> str:
    """Return the address of this page with its filters, from its start or from elsewhere."""
    values = {name: view.query[name] for name in ("by", "destination", "action", "all") if view.query.get(name)}
    return view.url("activity", urlencode({**values, **{name: value for name, value in more.items() if value}}))


def _parse_before(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise FilterError(f"{text[:40]!r} is no line of the journal to go on before.")
    return int(text)


def to_csv(entries: Sequence[JournalEntry]) -> str:
    """Write lines of the journal as CSV. What a spreadsheet would take for a formula gets an apostrophe.

    A spreadsheet may split cells at another character than a comma, so a formula may begin within a text as well.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    for entry in entries:
        values = ["" if (value := getattr(entry, name)) is None else str(value) for name in _COLUMNS]
        writer.writerow([_guard(escape_controls(redact(value))) for value in values])
    return out.getvalue()


def _guard(text: str) -> str:
    return _FORMULA.sub(r"\1'\2", text)


# --- chains ---


async def show_chain(view: View) -> Page:
    """Show everything with one correlation id, in all stores of this dashboard that the user may see."""
    correlation_id = view.query.get("id", "").strip()
    if not correlation_id:
        return await _list_chains(view)
    seen: list[SeenMessage] = []
    records: dict[str, Sequence[InboxRecord]] = {}
    problems: list[str] = []
    visible = {one.name: one for one in await view.dashboard.list_visible(view.request.scope)}
    for name, source in visible.items():
        try:
            store = await source.open()
            found = await store.find(Selection(correlation_id=correlation_id), limit=_MOST_MESSAGES, payloads=False)
            seen += [SeenMessage(name, message) for message in found]
        except PillarboxError as error:
            problems.append(f"{name}: {redact_line(str(error))}")
    ids = sorted({str(one.message.message_id) for one in seen})
    for name, source in visible.items():
        try:
            store = await source.open()
            records[name] = await store.inbox_records(ids) if ids else []
        except PillarboxError as error:
            problems.append(f"{name}: {redact_line(str(error))}")
    now = await view.now()
    chain = build_chain(seen, records, now=now)
    rows = [
        (depth, node, hop, place_bars(hop, chain, now=now))
        for depth, node in walk(chain)
        for hop in (node.hops or (None,))
        if hop is not None
    ]
    context = {
        "correlation_id": correlation_id,
        "chain": chain,
        "tree": list(walk(chain)),
        "rows": rows,
        "sequence": draw_sequence(chain) if view.query.get("view") == "sequence" else None,
        "query": urlencode({"id": correlation_id}),
        "problems": sorted(set(problems)),
        "is_cut": len(seen) >= _MOST_MESSAGES,
        "at": now,
    }
    document = {"correlation_id": correlation_id, "chain": _to_chain_document(chain), "problems": problems}
    return Page("chains.html", "Chain", context, document, section="chains")


async def _list_chains(view: View) -> Page:
    """List the latest and the slowest chains, among the latest messages of every store that the user may see."""
    seen: list[SeenMessage] = []
    problems: list[str] = []
    for source in await view.dashboard.list_visible(view.request.scope):
        try:
            seen += [SeenMessage(source.name, message) for message in await _find_latest(await source.open())]
        except PillarboxError as error:
            problems.append(f"{source.name}: {redact_line(str(error))}")
    now = await view.now()
    chains = summarize_chains(seen, now=now)
    slowest = sorted(chains, key=lambda one: one.length, reverse=True)[:_LISTED]
    context: dict[str, Any] = {
        "correlation_id": "",
        "chain": None,
        "latest": chains[:_LISTED],
        "slowest": slowest,
        "read": _READ,
        "problems": problems,
        "at": now,
    }
    document = {"correlation_id": None, "latest": chains[:_LISTED], "slowest": slowest, "problems": problems}
    return Page("chains.html", "Chains", context, document, section="chains")


async def _find_latest(store: Store) -> list[Message]:
    """Find the latest messages of the states that chains pass through, and those that have waited longest."""
    reads = (
        (State.DELIVERED, Order.LATEST),
        (State.PENDING, Order.LATEST),
        (State.PENDING, Order.ID),
        (State.FAILED, Order.NEWEST),
    )
    found: dict[int, Message] = {}
    for state, order in reads:
        for one in await store.find(Selection(states=[state]), limit=_READ, payloads=False, order=order):
            found[one.id] = one
    return list(found.values())


def _to_chain_document(chain: Chain) -> dict[str, Any]:
    return {
        "messages": chain.messages,
        "start": chain.start,
        "end": chain.end,
        "roots": [_to_node_document(node) for node in chain.roots],
    }


def _to_node_document(node: ChainNode) -> dict[str, Any]:
    return {
        "message_id": node.message_id,
        "seen": node.is_seen,
        "hops": [
            {"store": hop.store, "message": to_message_document(hop.message),
             "handlings": list(hop.handlings)}
            for hop in node.hops
        ],
        "children": [_to_node_document(child) for child in node.children],
    }  # fmt: skip
