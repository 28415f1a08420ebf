"""The machinery: relays with their versions and clocks, tables with their sizes, retention, and the doctor."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any, Final

from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.store import Action, StoreInspector
from pillarbox.dashboard.formatting import name_relay
from pillarbox.dashboard.view import Page, View
from pillarbox.errors import ConfigError, PillarboxError
from pillarbox.operations.configuration import list_entries
from pillarbox.operations.doctor import Doctor, TimeLimit
from pillarbox.operations.documents import count_lanes, to_relay_documents
from pillarbox.operations.findings import report_unchecked
from pillarbox.settings import format_key

__all__ = ["show_relays", "show_system"]

_OLD_CLAIM: Final = timedelta(minutes=1)
_CLAIMS: Final = 50
_TAKEOVERS: Final = 20
_PURGES: Final = 5
_DOCTOR_TIMEOUT: Final = timedelta(seconds=15)
_NO_CHECKS: Final = Finding(
    code="store.no-checks",
    severity=Severity.INFO,
    what="This store has no checks of its own.",
    why="Nothing outside of this process can change it.",
    fix="Give the dashboard the configuration of the relay with --config to have its destinations checked.",
)


async def show_relays(view: View) -> Page:
    """List the live relays, claims that have been open for long, and takeovers."""
    store = await view.open()
    registry = await store.registry(lease=view.source.relay_settings.lease)
    claims = await store.claims(older_than=_OLD_CLAIM, limit=_CLAIMS)
    takeovers = await store.journal(actions=[Action.TOOK_OVER.value], messages=False, limit=_TAKEOVERS)
    versions = sorted({relay.version for relay in registry.relays})
    rows = [
        (
            relay,
            name_relay(relay),
            count_lanes(registry, relay.relay_id),
            sorted(set(relay.destinations) - set(relay.reachable)),
        )
        for relay in registry.relays
    ]
    context = {
        "rows": rows,
        "versions": versions,
        "own_version": version("pillarbox"),
        "claims": claims,
        "takeovers": list(reversed(takeovers)),
        "skew": round((datetime.now(UTC) - registry.now).total_seconds(), 1),
        "names": {relay.relay_id: name_relay(relay) for relay in registry.relays},
        "at": registry.now,
    }
    document = {"relays": to_relay_documents(registry), "claims": claims, "takeovers": takeovers}
    return Page("relays.html", "Relays", context, document, section="relays")


async def show_system(view: View) -> Page:
    """Show tables, retention, settings and versions; with `doctor=1` what the doctor finds."""
    store = await view.open()
    tables = await store.tables()
    facts = await store.facts()
    purges = await store.journal(actions=[Action.PURGED.value], messages=False, limit=_PURGES)
    findings = await _examine(view) if view.query.get("doctor") == "1" else None
    entries = _list_settings(view)
    context: dict[str, Any] = {
        "source": view.source,
        "features": store.features,
        "facts": facts,
        "tables": tables,
        "total": sum(table.bytes or 0 for table in tables),
        "retention": view.source.relay_settings.retention,
        "purges": list(reversed(purges)),
        "findings": findings,
        "settings": [(format_key(entry.path), entry.value, entry.origin_text) for entry in entries],
        "version": version("pillarbox"),
        "at": await store.now(),
        "sampler_reads": view.dashboard.sampler.reads,
    }
    document = {
        "store": view.source.label,
        "features": store.features,
        "facts": facts,
        "tables": tables,
        "purges": purges,
        "version": version("pillarbox"),
        "findings": None if findings is None else [{"about": about, "finding": one} for about, one in findings],
        "settings": [{"key": key, "value": value, "origin": origin} for key, value, origin in context["settings"]],
    }
    return Page("system.html", "System", context, document, section="system")


def _list_settings(view: View) -> list[Any]:
    if view.source.config is None:
        return []
    try:
        entries = list_entries(view.source.config)
    except ConfigError:
        return []
    # The user may see this store, and perhaps no other one.
    others = [entry.path for entry in entries if entry.path[0] == "stores" and entry.path[1] != view.source.name]
    return [entry for entry in entries if entry.path[0] != "destinations" and entry.path not in others]


async def _examine(view: View) -> list[tuple[str, Finding]]:
    """Run the doctor where there is a configuration, and the store's own checks otherwise."""
    if view.source.config is not None:
        try:
            doctor = Doctor.from_config(view.source.config)
        except ConfigError:
            pass
        else:
            report = await doctor.run(TimeLimit(_DOCTOR_TIMEOUT))
            return [(one.about, finding) for one in report.examined for finding in one.findings]
    store = await view.open()
    if not isinstance(store, StoreInspector):
        return [("store", _NO_CHECKS)]
    try:
        return [("store", finding) for finding in await store.inspect()]
    except PillarboxError as error:
        return [("store", report_unchecked("The settings", error))]
