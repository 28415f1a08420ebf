"""Messages: the list by state and filters, one message with all that is known of it, its payload, and the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from pillarbox.contracts.store import Action, JournalEntry, Phase, PhaseCount, Selection, Store
from pillarbox.dashboard.actions import ACTIONS, ActionRule, list_allowed
from pillarbox.dashboard.filters import (
    FilterError,
    Filters,
    list_chips,
    parse_filters,
    parse_message_name,
    parse_search,
    to_flags,
    to_query,
    to_selection,
)
from pillarbox.dashboard.formatting import (
    MOST_SHOWN,
    describe_wait,
    format_count,
    format_payload,
    hide_headers,
    list_wire_headers,
)
from pillarbox.dashboard.listing import Listing, find_by_message_id, list_page
from pillarbox.dashboard.sources import Sample
from pillarbox.dashboard.view import Page, Redirect, View
from pillarbox.errors import NoSuchMessage
from pillarbox.message import Message, State, Waits
from pillarbox.operations.documents import to_journal_document, to_message_document
from pillarbox.operations.monitor import NOT_GIVEN_UP, count_tries

__all__ = ["Step", "build_timeline", "search", "show_message", "show_messages", "show_payload"]

PAGE_SIZE: Final = 50
_NEIGHBOURS: Final = 10
_JOURNAL_LIMIT: Final = 500
_TRACE_PARTS: Final = 4


async def show_messages(view: View) -> Page:
    """List messages of one state that match the filters, a page at a time."""
    filters = parse_filters(view.query)
    place = _parse_place(view.query)
    store = await view.open()
    now = await store.now()
    if filters.phase is not None and filters.state not in (None, _PHASE_STATES[Phase(filters.phase)].value):
        filters = filters.with_state(filters.state)  # another state was chosen in the menu
    # Without a filter, all states together would be a walk through history.
    shown = filters.with_state(State.PENDING.value) if filters.state is None and filters.is_empty else filters
    if filters.phase is not None and filters.state is None:
        shown = filters.with_state(_PHASE_STATES[Phase(filters.phase)].value, filters.phase)
    selection = msgspec.structs.replace(to_selection(shown, now=now), after=place.after, before=place.before)
    listing = await list_page(store, selection, limit=PAGE_SIZE, newest=place.is_down)
    rows = list(listing.messages) if not place.is_newer else list(reversed(listing.messages))
    sample = await view.sample()
    phases = await store.count_phases() if _shows_phases(shown) else []
    tries = await store.count_tries(rows) if rows else {}
    context = {
        "filters": shown,
        "rows": rows,
        "tries": tries,
        "listing": listing,
        "newest": place.order == "newest",
        "columns": _parse_columns(view.query.get("columns", "")),
        "choices": _list_choices(shown, place, view.query),
        "older_query": _to_older(shown, place, listing, view.query),
        "newer_query": _to_newer(shown, place, rows, listing, view.query),
        "is_first": place == _Place(order=place.order),
        "chips": [(name, value, to_query(rest)) for name, value, rest in list_chips(shown)],
        "known": _list_known(sample, rows),
        "errors_query": _to_errors(shown),
        "tabs": _list_tabs(shown, sample),
        "phases": _list_phases(shown, sample, phases),
        "query": to_query(shown),
        "oldest_query": to_query(shown, order="id"),
        "newest_query": to_query(shown),
        "command": f"pillarbox messages list {to_flags(shown)}".strip(),
        "actions": [rule for rule in ACTIONS.values() if _applies(rule, shown)],
        "at": now,
        "is_new": sample.status is not None and not sample.status.destinations and filters.is_empty,
    }
    document = {
        "messages": [to_message_document(one, tries=tries) for one in rows],
        "next": listing.next,
        "complete": not listing.is_cut,
    }
    return Page("messages.html", "Messages", context, document, section="messages")


COLUMNS: Final = ("type", "topic", "key", "destination", "attempts", "age", "error")
"""Columns of the list that can be left out. The id and the state are always there."""
_PHASE_STATES: Final = {
    Phase.DUE: State.PENDING, Phase.LATER: State.PENDING, Phase.RETRY: State.PENDING, Phase.PARKED: State.PENDING,
    Phase.HELD: State.FAILED,
}  # fmt: skip


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of a list: from an id downwards or upwards."""

    order: str = "newest"
    after: int = 0
    before: int | None = None
    is_newer: bool = False
    """The page above another one, while the highest ids come first."""

    @property
    def is_down(self) -> bool:
        return self.order == "newest" and not self.is_newer


def _parse_place(query: Mapping[str, str]) -> _Place:
    order = query.get("order", "newest")
    if order not in ("newest", "id"):
        raise FilterError(f"{order[:20]!r} is no order of messages: there are newest and id.")
    if order == "id":
        return _Place(order=order, after=_parse_id(query.get("after", "")) or 0)
    newer = _parse_id(query.get("newer", ""))
    return _Place(after=newer or 0, before=_parse_id(query.get("before", "")), is_newer=newer is not None)


def _parse_id(text: str) -> int | None:
    if not text:
        return None
    selection = parse_message_name(text.removeprefix("-"))
    if selection is None or selection.ids is None:
        raise FilterError(f"{text[:40]!r} is no id to go on from.")
    return -selection.ids[0] if text.startswith("-") else selection.ids[0]


def _parse_columns(text: str) -> tuple[str, ...]:
    """Return the columns that are shown, in their order; all of them if none is named."""
    chosen = {name for name in text.split(",") if name}
    if not chosen <= set(COLUMNS):
        raise FilterError(f"The columns of the list are {', '.join(COLUMNS)}.")
    return tuple(name for name in COLUMNS if name in chosen) if chosen else COLUMNS


def _list_choices(filters: Filters, place: _Place, query: Mapping[str, str]) -> list[tuple[str, bool, str]]:
    """List the columns, whether each is shown, and the query that changes this."""
    shown = _parse_columns(query.get("columns", ""))
    choices = []
    for name in COLUMNS:
        wanted = [one for one in COLUMNS if (one in shown) != (one == name)]
        text = None if len(wanted) == len(COLUMNS) else ",".join(wanted or [name])
        order = None if place.order == "newest" else place.order
        choices.append((name, name in shown, to_query(filters, order=order, columns=text)))
    return choices


def _to_older(filters: Filters, place: _Place, listing: Listing, query: Mapping[str, str]) -> str:
    """Return the query of the page that follows; nothing if there is none."""
    columns = query.get("columns")
    if place.order == "id":
        return "" if listing.next is None else to_query(filters, order="id", after=listing.next, columns=columns)
    if place.is_newer:  # the page that was come from is below
        last = listing.messages[0].id if listing.messages else place.after + 1
        return to_query(filters, before=last, columns=columns)
    return "" if listing.next is None else to_query(filters, before=listing.next, columns=columns)


def _to_newer(
    filters: Filters, place: _Place, rows: Sequence[Message], listing: Listing, query: Mapping[str, str]
) -> str:
    """Return the query of the page before, while the highest ids come first; nothing on the first page."""
    is_top = place.before is None and not place.is_newer
    if place.order == "id" or is_top or (place.is_newer and listing.next is None):
        return ""
    first = rows[0].id if rows else (listing.next if place.is_newer else place.before - 1 if place.before else None)
    return "" if first is None else to_query(filters, newer=first, columns=query.get("columns"))


def _applies(rule: ActionRule, filters: Filters) -> bool:
    if filters.state == State.SKIPPED.value and rule.takes_destination:
        return True
    return filters.state is None or State(filters.state) in rule.states


def _list_tabs(filters: Filters, sample: Sample) -> list[tuple[str, str, str]]:
    """List the states, each with its bounded count and its query. With other filters nothing is counted."""
    counts: dict[str, str] = {}
    if sample.status is not None and filters.is_of_destination:
        chosen = [one for one in sample.status.destinations if filters.destination in (None, one.name)]
        for state in State:
            names = ("due", "later") if state is State.PENDING else (state.value,)
            if state is State.DELIVERED:  # counted in the window alone: all of them would be a scan
                continue
            more = any(name in one.more for one in chosen for name in names)
            counts[state.value] = f"{sum(getattr(one, name) for one in chosen for name in names):,}{'+' * more}"
    tabs = [(one.value, counts.get(one.value, ""), to_query(filters.with_state(one.value))) for one in State]
    return tabs if filters.is_empty else [("all", "", to_query(filters.with_state(None))), *tabs]


def _list_known(sample: Sample, rows: Sequence[Message]) -> dict[str, list[str]]:
    """List the topics and types that are known without a search, to suggest them in the filters."""
    counted = [] if sample.status is None else sample.status.destinations
    topics = {one.topic for one in rows} | {topic.topic for one in counted for topic in one.topics}
    return {"topic": sorted(topics), "type": sorted({one.type for one in rows})}


def _to_errors(filters: Filters) -> str:
    """Return the query that looks for the key in errors instead; nothing if no key filters."""
    if filters.key is None or filters.error is not None:
        return ""
    return to_query(msgspec.structs.replace(filters, key=None, error=filters.key))


def _shows_phases(filters: Filters) -> bool:
    return filters.state in (State.PENDING.value, State.FAILED.value) and filters.is_of_destination


def _list_phases(filters: Filters, sample: Sample, counts: Sequence[PhaseCount]) -> list[tuple[str, str, str]]:
    """List the phases of a state, each with its bounded count and its query; none for a state without phases."""
    state = State.PENDING if filters.state is None else State(filters.state)
    phases = [phase for phase, of in _PHASE_STATES.items() if of is state]
    if not phases:
        return []
    numbers: dict[Phase, tuple[int, bool]] = {}
    for phase in Phase:
        chosen = [one for one in counts if one.phase is phase and filters.destination in (None, one.destination)]
        numbers[phase] = sum(one.count for one in chosen), any(one.more for one in chosen)
    if sample.status is not None:
        rows = [one for one in sample.status.destinations if filters.destination in (None, one.name)]
        numbers[Phase.DUE] = sum(one.due for one in rows), any("due" in one.more for one in rows)
    listed = [("any", "", to_query(filters.with_state(state.value)))]
    for phase in phases:
        count, more = numbers[phase]
        text = format_count(count, more=more) if _shows_phases(filters) else ""
        listed.append((phase.value, text, to_query(filters.with_state(state.value, phase.value))))
    return listed


# --- one message ---


async def show_message(view: View) -> Page:
    """Show a message: what happened to it, what it waits for, and what can be done."""
    store = await view.open()
    found = await find_named(store, view.path("name"))
    message = found[0]
    now = await store.now()
    journal = await store.journal(message_id=message.message_id, limit=_JOURNAL_LIMIT)
    own = [entry for entry in journal if entry.destination == message.destination]
    siblings = await find_by_message_id(store, message.message_id, correlation_id=message.correlation_id)
    ahead, behind, behind_more = await _find_neighbours(store, message)
    _, is_waiting = count_tries(own, message)
    tries = await store.count_tries(list({one.id: one for one in (*found, *siblings, *ahead, *behind)}.values()))
    own_tries = tries.get(message.id)
    context = {
        "message": message,
        "tries": tries,
        "others": found[1:],
        "journal": journal,
        "timeline": build_timeline(message, own, now),
        "actions": list_allowed(message, role=view.user.role, read_only=view.dashboard.read_only),
        "siblings": [one for one in siblings if one.id != message.id],
        "ahead": ahead,
        "behind": behind,
        "behind_more": behind_more,
        "headers": hide_headers(message.headers),
        "wire": list_wire_headers(message),
        "why": f"Tried {own_tries.count} time{'s' * (own_tries.count != 1)}, {NOT_GIVEN_UP}."
        if own_tries is not None and is_waiting and not message.state.is_closed
        else "",
        "trace": _find_trace(view, message),
        "at": now,
        "show_command": f"pillarbox messages show {message.id}",
    }
    document = {
        "messages": [to_message_document(one, tries=tries) for one in found],
        "journal": [to_journal_document(entry) for entry in journal],
    }
    return Page("message.html", f"Message {message.id}", context, document, section="messages")


async def find_named(store: Store, name: str, *, payloads: bool = False) -> Sequence[Message]:
    """Find a message by its id or its message id; `NoSuchMessage` if there is none."""
    selection = parse_message_name(name)
    found = [] if selection is None else await _find_selected(store, selection, payloads=payloads)
    if not found:
        raise NoSuchMessage(f"There is no message {name}: it was never committed, or its retention is over.")
    return found


async def _find_selected(store: Store, selection: Selection, *, payloads: bool = False) -> Sequence[Message]:
    """Find what a name selects: one id, or one message id."""
    if selection.message_ids:
        return await find_by_message_id(store, selection.message_ids[0], payloads=payloads)
    return await store.find(selection, limit=50, payloads=payloads)


async def _find_neighbours(store: Store, message: Message) -> tuple[Sequence[Message], Sequence[Message], bool]:
    """Find the open messages of the same key before this one, and those behind it."""
    if message.key is None or (message.state.is_closed and message.waits is None):
        return [], [], False
    name, lane, key = message.destination, message.partition, message.key
    first = await store.find_key(name, partition=lane, key=key, limit=_NEIGHBOURS)
    later = await store.find_key(name, partition=lane, key=key, after=message.id, limit=_NEIGHBOURS + 1)
    ids = [id_ for id_ in {*first, *later} if id_ != message.id]
    selection = Selection(ids=ids, states=[State.PENDING, State.SENDING, State.FAILED])
    found = await store.find(selection, limit=2 * len(ids), payloads=False) if ids else []
    ahead = [one for one in found if one.id < message.id and _is_open(one)]
    behind = [one for one in found if one.id > message.id and _is_open(one) and one.id in later]
    return ahead, behind[:_NEIGHBOURS], len(behind) > _NEIGHBOURS


def _is_open(message: Message) -> bool:
    return not message.state.is_closed or message.waits is Waits.HELD


def _find_trace(view: View, message: Message) -> str | None:
    """Return the address of the trace that the message belongs to, if the dashboard knows where traces are."""
    parts = message.headers.get("traceparent", "").split("-")
    if view.dashboard.trace_url is None or len(parts) != _TRACE_PARTS:
        return None
    return view.dashboard.trace_url.replace("{trace_id}", quote(parts[1], safe=""))


async def show_payload(view: View) -> Page | Response:
    """Show the payload of a message. The journal says who looked, if the dashboard is told to."""
    store = await view.open()
    message = (await find_named(store, view.path("name"), payloads=True))[0]
    if view.dashboard.journal_payloads:
        await store.note(
            "payload_viewed", by=view.user.name, detail=f"message {message.id}", destination=message.destination
        )
    if "download" in view.query:
        headers = {
            "content-disposition": f'attachment; filename="message-{message.id}.bin"',
            "content-type": "application/octet-stream",
        }
        return Response(message.payload, headers=headers)
    text = ""
    if message.payload_kept and view.dashboard.format_payload is not None:
        text = view.dashboard.format_payload(message)[:MOST_SHOWN]
    elif message.payload_kept:
        text = format_payload(message.payload, message.content_type)
    raw = {name: value.decode("utf-8", "backslashreplace") for name, value in (message.raw or {}).items()}
    size = len(message.payload)
    context = {"message": message, "text": _Shown(text), "size": size, "is_cut": size > MOST_SHOWN, "raw": raw}
    document = {"messages": [to_message_document(message, payload=view.wants_json, largest=MOST_SHOWN)]}
    return Page("payload.html", f"Payload of message {message.id}", context, document, section="messages")


class _Shown(str):
    """A payload: it is escaped like all text, and shown as it is, because somebody asked for it."""

    __slots__ = ()


# --- the timeline ---


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step in the life of a message."""

    name: str
    kind: str
    """`done`, `bad`, `person`, `now`, `next`, or `choice`: what a person may do."""
    at: datetime | None = None
    detail: str = ""
    times: int = 1


_STEP_KINDS: Final = {
    Action.ATTEMPT_FAILED: ("attempt failed", "bad"),
    Action.TRIED: ("tried, no attempt spent", "bad"),
    Action.FAILED: ("failed", "bad"),
    Action.HELD: ("held", "bad"),
    Action.SKIPPED: ("skipped", "done"),
    Action.DEFERRED: ("deferred", "person"),
    Action.REDRIVEN: ("redriven", "person"),
    Action.REPLAYED: ("replayed", "person"),
    Action.DISCARDED: ("discarded", "person"),
    Action.RESTORED: ("restored", "person"),
}
_NEXT: Final = {
    State.PENDING: ("sending", "delivered"),
    State.SENDING: ("delivered",),
    State.FAILED: ("redrive", "discard"),
}


def build_timeline(message: Message, journal: Sequence[JournalEntry], now: datetime) -> list[Step]:
    """Build the life of a message: what happened, where it is now, and what can follow. The same tries are one step."""
    steps = [Step(name="written", kind="done", at=message.created_at)]
    is_deferred = message.available_at is not None and message.created_at is not None and not journal
    if is_deferred and message.available_at > message.created_at:  # type: ignore[operator]
        is_due = message.available_at <= now  # type: ignore[operator]
        steps.append(Step(name="due", kind="done" if is_due else "next", at=message.available_at))
    for entry in journal:
        name, kind = _STEP_KINDS.get(entry.action, (entry.action.replace("_", " "), "done"))  # type: ignore[call-overload]
        detail = entry.error or "" if kind == "bad" else f"by {entry.by}" + (f": {entry.error}" if entry.error else "")
        last = steps[-1]
        if kind == "bad" and last.name == name and entry.action in (Action.TRIED, Action.ATTEMPT_FAILED):
            steps[-1] = msgspec.structs.replace(last, at=entry.at, detail=detail, times=last.times + 1)
        else:
            steps.append(Step(name=name, kind=kind, at=entry.at, detail=detail))
    state = "held" if message.waits is Waits.HELD else message.state.value
    if steps[-1].name == state:
        steps[-1] = msgspec.structs.replace(steps[-1], kind="now")
    else:
        at = message.status_at if message.state.is_closed or message.state is State.SENDING else None
        steps.append(Step(name=state, kind="now", at=at, detail=describe_wait(message, now)))
    kind = "choice" if message.state is State.FAILED else "next"
    return [*steps, *(Step(name=name, kind=kind) for name in _NEXT.get(message.state, ()))]


# --- search ---


async def search(view: View) -> Redirect:
    """Go to what a person typed: a message, a chain, or the list with these filters."""
    text = view.query.get("q", "").strip()
    found = parse_search(text)
    if not found.words:
        return Redirect(view.url("messages", to_query(found.filters)))
    store = await view.open()
    selection = parse_message_name(found.words)
    if selection is not None and found.filters == Filters():
        matching = await _find_selected(store, selection)
        if matching:
            return Redirect(view.url(f"messages/{matching[0].id}"))
    if found.filters == Filters():
        chain = await store.find(Selection(correlation_id=found.words), limit=1, payloads=False)
        if chain:
            return Redirect(view.url("chains", f"id={quote(found.words, safe='')}"))
    by_key = msgspec.structs.replace(found.filters, key=found.words)
    by_error = msgspec.structs.replace(found.filters, error=found.words)
    if found.filters.error is None and not await _matches(store, by_key) and await _matches(store, by_error):
        return Redirect(view.url("messages", to_query(by_error)))
    return Redirect(view.url("messages", to_query(by_key)))


async def _matches(store: Store, filters: Filters) -> bool:
    """Return whether a message matches, as far as a list looks."""
    listing = await list_page(store, to_selection(filters, now=await store.now()), limit=1, newest=True)
    return bool(listing.messages)
