"""Destinations: whether each can be reached, who paused it and why, what is blocked, who owns its lanes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from pillarbox.contracts.store import BlockedKeyCount, JournalEntry, LaneBacklog, Registry
from pillarbox.dashboard.actions import FormError
from pillarbox.dashboard.charts import WINDOWS, Outages
from pillarbox.dashboard.conditions import Subject, build_line, merge_alerts
from pillarbox.dashboard.formatting import describe_retry, name_relay
from pillarbox.dashboard.overview import find_window
from pillarbox.dashboard.view import Page, Redirect, View
from pillarbox.errors import ConfigError, NoSuchMessage
from pillarbox.message import PARTITIONS, SKIPPED_DESTINATION, check_destination
from pillarbox.operations.configuration import list_destination_entries
from pillarbox.operations.documents import to_lane_documents, to_message_document
from pillarbox.operations.monitor import DestinationStatus
from pillarbox.settings import format_key

__all__ = [
    "Breaker",
    "LaneCell",
    "ask_pause",
    "draw_lanes",
    "find_breaker",
    "pause",
    "probe",
    "resume",
    "show_destination",
    "show_destinations",
]

_BLOCKED: Final = 50
_BLOCKED_COUNTED_TO: Final = 1_000
_EVENTS: Final = 50
_LANE_COUNTED_TO: Final = 500
_COLOURS: Final = 8
_LONGEST_REASON: Final = 500


async def show_destinations(view: View) -> Page:
    """List every destination with its state."""
    sample = await view.sample()
    rows = (
        [] if sample.status is None else [one for one in sample.status.destinations if one.name != SKIPPED_DESTINATION]
    )
    lines = {line.name: line for line in sample.lines if line.subject is Subject.DESTINATION}
    context = {"rows": [(one, lines[one.name]) for one in rows], "status": sample.status, "at": sample.at}
    document = {"destinations": [] if sample.status is None else msgspec.to_builtins(rows)}
    return Page("destinations.html", "Destinations", context, document, section="destinations")


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a destination can be reached, as its relays say."""

    state: str
    """`closed`, `partly open`, `open` or `unknown`."""
    since: datetime | None = None
    error: str = ""
    reported_by: str = ""


def find_breaker(one: DestinationStatus, journal: Sequence[JournalEntry]) -> Breaker:
    """Find the state of all relays' breakers: what they report now, and since when by the journal."""
    if not one.relays:
        return Breaker(state="unknown")
    if one.reachable == one.relays:
        return Breaker(state="closed")
    outages = Outages()
    for entry in journal:
        outages.follow(entry)
    opened = outages.find_first(one.name)
    return Breaker(
        state="open" if not one.reachable else "partly open",
        since=None if opened is None else opened.at,
        error="" if opened is None else opened.error or opened.detail or opened.reason or "",
        reported_by="" if opened is None else opened.by,
    )


async def show_destination(view: View) -> Page:
    """Show one destination: breaker, pause, settings in force, blocked keys, lanes, and what happened to it."""
    name = _read_name(view)
    sample = await view.sample()
    status = sample.status
    found = None if status is None else next((one for one in status.destinations if one.name == name), None)
    if found is None or status is None:
        raise NoSuchMessage(f"There is no destination {name}: no message, relay, pause or setting names it.")
    store = await view.open()
    registry = await store.registry(lease=view.source.relay_settings.lease)
    blocked = await store.count_blocked(name, limit=_BLOCKED, counted_to=_BLOCKED_COUNTED_TO)
    journal = await store.journal(destination=name, messages=False, limit=_EVENTS)
    backlogs = await store.lane_backlogs(name, limit=_LANE_COUNTED_TO)
    configured = view.source.destinations.get(name)
    examined = None
    if configured is not None and view.is_own:
        examined = await view.dashboard.examinations.get(
            configured,
            store=view.source.name,
            topics=[topic.topic for topic in found.topics],
            fresh=view.query.get("doctor") == "1",
        )
    alerts = [alert for alert in sample.alerts if alert.destination == name]
    entries = [] if configured is None else list_destination_entries(configured)
    context: dict[str, Any] = {
        "one": found,
        "breaker": find_breaker(found, journal),
        "blocked": blocked,
        "lanes": draw_lanes(registry, name, blocked, backlogs),
        "owners": _list_owners(registry, name),
        "journal": list(reversed(journal)),
        "configured": configured,
        "examined": examined,
        "settings": [(format_key(entry.path[2:]), entry.value, entry.origin_text) for entry in entries],
        "retry": "" if configured is None else describe_retry(configured.section.settings.retry),
        "window": find_window(view),
        "windows": WINDOWS,
        "line": build_line(status, found, alerts),
        "groups": merge_alerts(alerts),
        "at": registry.now,
    }
    document: dict[str, Any] = {
        "destination": msgspec.to_builtins(found),
        "breaker": context["breaker"],
        "blocked_keys": [_to_blocked_document(one) for one in blocked],
        "lanes": to_lane_documents(registry, [name]),
        "lane_backlogs": backlogs,
        "findings": None if examined is None else examined.findings,
        "settings": [{"key": key, "value": value, "origin": origin} for key, value, origin in context["settings"]],
        "journal": journal,
    }
    return Page("destination.html", name, context, document, section="destinations")


def _to_blocked_document(one: BlockedKeyCount) -> dict[str, Any]:
    document = {name: getattr(one, name) for name in one.__struct_fields__ if name != "head"}
    return {**document, "head": to_message_document(one.head)}


def _list_owners(registry: Registry, destination: str) -> list[tuple[UUID, str, int, int]]:
    """List the relays that own lanes of a destination: id, name, colour, number of lanes."""
    owners = registry.owners.get(destination, {})
    names = {relay.relay_id: name_relay(relay) for relay in registry.relays}
    order = sorted(set(owners.values()), key=str)
    return [
        (relay_id, names.get(relay_id, str(relay_id)), number % _COLOURS, list(owners.values()).count(relay_id))
        for number, relay_id in enumerate(order)
    ]


class LaneCell(msgspec.Struct, frozen=True, kw_only=True):
    """One lane in the grid."""

    number: int
    colour: int | None
    """Of its owner; None if nobody owns it."""
    owner: str
    blocked: int
    """Keys of it that are blocked, of those that are listed."""
    due: int = 0
    more: bool = False
    oldest_at: datetime | None = None


def draw_lanes(
    registry: Registry, destination: str, blocked: Sequence[BlockedKeyCount], backlogs: Sequence[LaneBacklog]
) -> list[LaneCell]:
    """List the lanes for the grid: who owns each, how much waits in it and since when."""
    owners = registry.owners.get(destination, {})
    colours = {relay_id: (colour, name) for relay_id, name, colour, _ in _list_owners(registry, destination)}
    waiting = {one.partition: one for one in backlogs}
    lanes = []
    for number in range(PARTITIONS):
        colour, name = colours.get(owners[number], (None, "")) if number in owners else (None, "nobody")
        cell = LaneCell(
            number=number, colour=colour, owner=name, blocked=sum(one.partition == number for one in blocked)
        )
        if (one := waiting.get(number)) is not None:
            cell = msgspec.structs.replace(cell, due=one.due, more=one.more, oldest_at=one.oldest_at)
        lanes.append(cell)
    return lanes


# --- actions ---


def _read_name(view: View) -> str:
    name = view.path("name")
    try:
        return check_destination(name)
    except ConfigError:
        raise NoSuchMessage("There is no such destination.") from None


async def _find_known(view: View) -> str:
    name = _read_name(view)
    sample = await view.sample()
    if sample.status is not None and not any(one.name == name for one in sample.status.destinations):
        raise NoSuchMessage(f"There is no destination {name}: no message, relay, pause or setting names it.")
    return name


async def ask_pause(view: View, *, refusal: str = "") -> Page:
    """Ask why a destination is to be paused."""
    name = await _find_known(view)
    context = {"name": name, "refusal": refusal, "reason": view.form.get("reason", "")}
    return Page("pause.html", f"Pause {name}", context, {"destination": name, "error": refusal or None},
                400 if refusal else 200, "destinations")  # fmt: skip


async def pause(view: View) -> Page | Redirect:
    """Stop delivery to a destination until it is resumed."""
    name = await _find_known(view)
    reason = " ".join(view.form.get("reason", "").split())
    if not reason:
        return await ask_pause(view, refusal="Say why: everybody who sees the pause wonders.")
    if len(reason) > _LONGEST_REASON:
        return await ask_pause(view, refusal=f"The reason is longer than {_LONGEST_REASON} characters: shorten it.")
    store = await view.open()
    await store.pause(name, by=view.user.name, reason=reason)
    await view.sample(fresh=True)
    return Redirect(view.url(f"destinations/{name}"),
                    {"destination": name, "paused": True, "by": view.user.name, "reason": reason})  # fmt: skip


async def resume(view: View) -> Redirect:
    """Start delivery again. One that is not paused stays as it is."""
    name = _read_name(view)
    store = await view.open()
    reason = " ".join(view.form.get("reason", "").split())[:_LONGEST_REASON]
    was_paused = await store.resume(name, by=view.user.name, reason=reason or None)
    await view.sample(fresh=True)
    return Redirect(view.url(f"destinations/{name}"),
                    {"destination": name, "paused": False, "was_paused": was_paused, "by": view.user.name})  # fmt: skip


async def probe(view: View) -> Redirect:
    """Let relays that wait for a destination try it at once."""
    name = await _find_known(view)
    store = await view.open()
    is_served = await store.probe(name, by=view.user.name)
    if not is_served:
        raise FormError(f"No live relay serves {name}, so nobody can probe it: start one with --to {name}=URL.")
    return Redirect(view.url(f"destinations/{name}", "probed=1"), {"destination": name, "probed": True})
