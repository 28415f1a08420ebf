"""The doctor: checks the store and every destination, and reports what would lose or delay messages."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Self, TypeAlias, TypeVar

import msgspec

from pillarbox.clock import Clock, SystemClock
from pillarbox.config import Config
from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.handoff import HandoffStore
from pillarbox.contracts.store import AnyStore, Count, MonitorStore, StoreInspector
from pillarbox.contracts.transport import Inspector, Transport
from pillarbox.errors import ConfigError, SchemaNewer, SchemaOutdated, StoreForbidden, StoreUnavailable
from pillarbox.message import Names
from pillarbox.operations.findings import (
    ClockSkew,
    find_clear_login,
    find_clock_skew,
    find_deferred_handoffs,
    find_pauses,
    find_schema_differences,
    find_unserved_destinations,
    find_unshared_store,
    find_unverified_store,
    report_impossible_handoff,
    report_misconfigured_destination,
    report_other_version,
    report_silent_destination,
    report_unchecked,
    report_uncompared_tables,
    report_uninspected_destination,
    report_unreachable_destination,
    report_unusable_store,
)
from pillarbox.redaction import redact_line
from pillarbox.relay.addresses import StoreAddress, Tenants
from pillarbox.relay.configuration import (
    ConfiguredDestination,
    list_handed_off,
    list_served_destinations,
    read_destinations,
    read_relay_section,
    read_stores,
)
from pillarbox.relay.settings import DestinationSettings, build_publication_name, build_slot_name
from pillarbox.stores.factory import open_schema, open_store
from pillarbox.stores.urls import StoreUrl

__all__ = [
    "Doctor",
    "Examination",
    "Report",
    "TimeLimit",
    "build_examination",
    "examine_destination",
    "format_report",
    "group_topics",
    "summarize",
    "to_document",
    "to_rows",
]

T = TypeVar("T")
Topics: TypeAlias = Mapping[str, Sequence[str]]
"""Topics of each destination's messages."""


class Doctor(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of the store and the destinations that a relay with one configuration would use."""

    stores: Mapping[str, StoreCheck]
    """By name. A lone one is called `main`, which is not shown."""
    destinations: Sequence[ConfiguredDestination]
    tenants: Tenants | None = None
    """Adds a store for each that its query names."""
    build: Callable[[StoreAddress], StoreCheck] | None = None

    @classmethod
    def from_config(cls, config: Config, *, clock: Clock | None = None) -> Self:
        """Read the configuration; `ConfigError` where a relay would not start with it."""
        stores = read_stores(config)

        def build(address: StoreAddress) -> StoreCheck:
            return StoreCheck(
                url=address.url,
                names=address.names,
                configured=read_destinations(config).keys(),
                handed_off=list_handed_off(config),
                lease=read_relay_section(config).settings.lease,
                clock=SystemClock() if clock is None else clock,
            )

        return cls(
            stores={name: build(address) for name, address in stores.named.items()},
            destinations=list_served_destinations(config),
            tenants=stores.tenants,
            build=build,
        )

    async def run(self, limit: TimeLimit, *, on_progress: Callable[[Examination], None] = lambda _: None) -> Report:
        """Run all checks at once. `on_progress` is called with each part when it is done."""
        # Brokers are asked about the topics that are in use. Only the store knows those.
        topics: asyncio.Future[Topics] = asyncio.get_running_loop().create_future()

        checks, refused = await self._find_checks(limit)
        slots = asyncio.Semaphore(_STORES_AT_ONCE)
        found: dict[str, set[str]] = {}
        left = len(checks)

        async def examine_store(name: str, check: StoreCheck) -> Examination:
            nonlocal left
            async with slots:
                result = await check.run(limit)
            for destination, used in result.topics.items():
                found.setdefault(destination, set()).update(used)
            left -= 1
            if not left:
                topics.set_result({destination: sorted(used) for destination, used in found.items()})
            about = "store" if len(checks) == 1 and self.tenants is None else f"store {name}"
            return build_examination(about, str(check.url), result.findings)

        async def examine(one: ConfiguredDestination) -> Examination:
            async def read_topics() -> Sequence[str]:
                return (await asyncio.shield(topics)).get(one.name, [])

            findings = await examine_destination(one.transport_options.build_transport, topics=read_topics, limit=limit)
            return build_examination(
                f"destination {one.name}", one.transport_options.redact_url() or "no url", findings
            )

        async def report_progress(part: Awaitable[Examination]) -> Examination:
            examination = await part
            on_progress(examination)
            return examination

        if not checks:
            topics.set_result({})
        parts = [examine_store(*one) for one in checks.items()] + [examine(one) for one in self.destinations]
        return Report([*refused, *await asyncio.gather(*map(report_progress, parts))])

    async def _find_checks(self, limit: TimeLimit) -> tuple[Mapping[str, StoreCheck], Sequence[Examination]]:
        """Return the checks of all stores, and what is wrong with the directory of tenants."""
        if self.tenants is None or self.build is None:
            return self.stores, []
        try:
            found = await limit.run(self.tenants.find(taken=self.stores))
        except Exception as error:
            return self.stores, [build_examination("tenants", "", [report_unusable_store(error)])]
        findings = [report_unusable_store(ConfigError(sentence)) for sentence in found.refused]
        refused = [build_examination("tenants", "", findings)] if findings else []
        return {**self.stores, **{name: self.build(one) for name, one in found.stores.items()}}, refused


_STORES_AT_ONCE: Final = 8

# --- time limits ---

_GRACE: Final = 1.0
"""Seconds that a cancelled check gets to clean up."""


class NoAnswer(Exception):
    """A check took longer than its limit."""


class TimeLimit:
    """Limits the duration of each check, and abandons those that take longer."""

    def __init__(self, limit: timedelta) -> None:
        self.seconds = limit.total_seconds()
        self.abandoned: list[asyncio.Task[Any]] = []
        """Tasks that may still run, so that the event loop cannot be closed: some ignore that they are cancelled,
        others wait for a thread that cannot be stopped."""

    async def run(self, check: Coroutine[Any, Any, T]) -> T:
        """Return the check's result or raise its error; `NoAnswer` after the limit."""
        task = asyncio.create_task(check)
        try:
            done, _ = await asyncio.wait([task], timeout=self.seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        self.abandoned.append(task)
        task.cancel()
        await asyncio.wait([task], timeout=_GRACE)
        if task.done() and not task.cancelled():
            task.exception()  # Or asyncio would log that nobody retrieved it.
        raise NoAnswer(f"no answer within {self.seconds:g} s")


# --- destinations ---


async def examine_destination(
    build_transport: Callable[[], Transport], *, topics: Callable[[], Awaitable[Sequence[str]]], limit: TimeLimit
) -> Sequence[Finding]:
    """Connect to a destination and inspect it. Any error, also of a foreign transport, becomes a finding."""
    try:
        transport = build_transport()
    except ConfigError as error:
        return [report_misconfigured_destination(error)]
    return [*find_clear_login(transport), *await _examine_transport(transport, topics=topics, limit=limit)]


async def _examine_transport(
    transport: Transport, *, topics: Callable[[], Awaitable[Sequence[str]]], limit: TimeLimit
) -> Sequence[Finding]:
    try:
        await limit.run(_connect(transport))
        return await _inspect(transport, await topics(), limit)
    except NoAnswer:
        return [report_silent_destination(limit.seconds)]
    except Exception as error:
        return [report_unreachable_destination(error)]
    finally:
        with suppress(Exception):
            await limit.run(_close(transport))


async def _connect(transport: Transport) -> None:
    await transport.open()
    await transport.ping()


async def _close(transport: Transport) -> None:
    await transport.close()


async def _inspect(transport: Transport, topics: Sequence[str], limit: TimeLimit) -> Sequence[Finding]:
    if not isinstance(transport, Inspector):
        return []
    inspector: Any = transport
    try:
        findings: Sequence[Finding] = await limit.run(inspector.inspect(topics=topics))
    except Exception as error:
        return [report_uninspected_destination(error)]
    return findings


# --- the store ---

_COUNT_LIMIT: Final = 10_000
"""Rows that are counted: that messages wait matters here, not how many."""
_CLOCK_READS: Final = 3


class StoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about the store, and the topics that each destination is sent."""

    findings: Sequence[Finding]
    topics: Topics = {}


class StoreCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of one store."""

    url: StoreUrl
    names: Names
    configured: Collection[str]
    """Destinations that are configured."""
    handed_off: Sequence[DestinationSettings] = ()
    """Destinations that another engine delivers."""
    lease: timedelta
    clock: Clock
    """This machine's."""

    async def run(self, limit: TimeLimit) -> StoreResult:
        """Open the store and run all checks at once. Any error, also of a foreign store, becomes a finding."""
        result = await self._examine(limit)
        return msgspec.structs.replace(result, findings=[*find_unverified_store(self.url), *result.findings])

    async def _examine(self, limit: TimeLimit) -> StoreResult:
        try:
            store = open_store(self.url, names=self.names)
            await limit.run(store.open())
        except NoAnswer as error:
            return StoreResult(
                findings=[report_unusable_store(StoreUnavailable(f"The store does not answer: {error}."))]
            )
        except Exception as error:
            return StoreResult(findings=[report_unusable_store(error)])
        try:
            checks: dict[str, Coroutine[Any, Any, StoreResult]] = {
                "The settings": self._check_settings(store),
                "The shape of the tables": self._check_tables(),
                "The clock": self._check_clock(store),
                "The hand-off": self._check_handoffs(store),
                "What waits": self._check_messages(store),
            }
            results = await asyncio.gather(*(_run_check(limit, what, check) for what, check in checks.items()))
        finally:
            with suppress(Exception):
                await limit.run(store.close())
        findings = [*find_unshared_store(store.features), *(finding for one in results for finding in one.findings)]
        return StoreResult(findings=findings, topics=results[-1].topics)

    async def _check_settings(self, store: AnyStore) -> StoreResult:
        return StoreResult(findings=await store.inspect() if isinstance(store, StoreInspector) else [])

    async def _check_tables(self) -> StoreResult:
        try:
            schema = open_schema(self.url, names=self.names)
        except ConfigError:  # A memory store or a foreign one has no tables of ours.
            return StoreResult(findings=[])
        try:
            return StoreResult(findings=list(find_schema_differences(await schema.verify())))
        except StoreForbidden:
            return StoreResult(findings=[report_uncompared_tables()])
        except (SchemaNewer, SchemaOutdated) as error:  # the store has opened: it may use them
            return StoreResult(findings=[report_other_version(error)])

    async def _check_handoffs(self, store: AnyStore) -> StoreResult:
        if self.handed_off and not isinstance(store, HandoffStore):
            return StoreResult(findings=[report_impossible_handoff(self.handed_off[0].name)])
        logs: Any = store
        checks = [
            await logs.inspect_handoff(one.name, slot=build_slot_name(one), publication=build_publication_name(one))
            for one in self.handed_off
        ]
        return StoreResult(findings=[finding for findings in checks for finding in findings])

    async def _check_clock(self, store: AnyStore) -> StoreResult:
        skews = [await _measure_skew(store, self.clock) for _ in range(_CLOCK_READS)]
        # The quickest answer is the most exact.
        return StoreResult(findings=list(find_clock_skew(min(skews, key=lambda skew: skew.uncertainty))))

    async def _check_messages(self, store: MonitorStore) -> StoreResult:
        counts = await store.counts(limit=_COUNT_LIMIT)
        registry = await store.registry(lease=self.lease)
        served = {name for relay in registry.relays for name in relay.destinations}
        findings = [
            *find_unserved_destinations(counts, known={*self.configured, *served}, limit=_COUNT_LIMIT),
            *find_pauses(await store.pauses(), counts=counts, limit=_COUNT_LIMIT),
            *find_deferred_handoffs(counts, handed_off={one.name for one in self.handed_off}, limit=_COUNT_LIMIT),
        ]
        return StoreResult(findings=findings, topics=group_topics(counts))


async def _run_check(limit: TimeLimit, what: str, check: Coroutine[Any, Any, StoreResult]) -> StoreResult:
    try:
        return await limit.run(check)
    except Exception as error:
        return StoreResult(findings=[report_unchecked(what, error)])


async def _measure_skew(store: AnyStore, clock: Clock) -> ClockSkew:
    asked_at, began = clock.now(), clock.monotonic()
    store_time = await store.now()
    half = timedelta(seconds=clock.monotonic() - began) / 2
    return ClockSkew(store_time - (asked_at + half), half)


def group_topics(counts: Sequence[Count]) -> Topics:
    """Group the topics of all messages by destination."""
    topics: dict[str, set[str]] = {}
    for count in counts:
        if count.topic is not None:
            topics.setdefault(count.destination, set()).add(count.topic)
    return {name: sorted(found) for name, found in topics.items()}


# --- the report ---

_WORST_FIRST: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_LONGEST_TEXT: Final = 1_000
_WIDTH: Final = 100


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """The store or one destination, and the findings about it, the worst first."""

    about: str
    """`store`, or `destination NAME`."""
    place: str
    """Its URL without secrets."""
    findings: Sequence[Finding] = ()

    @property
    def worst(self) -> Severity | None:
        return self.findings[0].severity if self.findings else None


def build_examination(about: str, place: str, findings: Sequence[Finding]) -> Examination:
    """Sort findings and clean their texts, parts of which brokers wrote: one line each, without secrets."""
    ordered = sorted(findings, key=lambda finding: (_WORST_FIRST.index(finding.severity), finding.code))
    cleaned = [
        msgspec.structs.replace(
            finding,
            what=redact_line(finding.what, limit=_LONGEST_TEXT),
            why=redact_line(finding.why, limit=_LONGEST_TEXT),
            fix=redact_line(finding.fix, limit=_LONGEST_TEXT),
        )
        for finding in ordered
    ]
    return Examination(about=about, place=place, findings=cleaned)


class Report(msgspec.Struct, frozen=True):
    """All examinations of one run."""

    examined: Sequence[Examination]

    @property
    def worst(self) -> Severity | None:
        """Severity of the worst finding; None if there is none."""
        severities = {one.worst for one in self.examined}
        return next((severity for severity in _WORST_FIRST if severity in severities), None)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for one in self.examined for finding in one.findings)


def summarize(report: Report) -> str:
    """Count the findings: `1 critical, 2 warnings`."""
    words = {Severity.CRITICAL: ("critical", "critical"), Severity.WARNING: ("warning", "warnings"),
             Severity.INFO: ("note", "notes")}  # fmt: skip
    counts = [(report.count(severity), *names) for severity, names in words.items()]
    return ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count) or "All is well"


def format_report(report: Report, *, width: int | None = None) -> str:
    """Format a report as text for that width, part by part, with the counts at the end."""
    width = _WIDTH if width is None else min(width, _WIDTH)
    parts = [_format_examination(one, width) for one in report.examined]
    return "\n\n".join([*parts, f"{summarize(report)}."])


def to_document(report: Report) -> dict[str, object]:
    """Convert a report to a JSON document."""
    return {
        "worst": None if report.worst is None else report.worst.value,
        "counts": {severity.value: report.count(severity) for severity in reversed(Severity)},
        "examined": report.examined,
    }


def to_rows(report: Report) -> list[dict[str, object]]:
    """Convert a report to JSON lines: one for each finding, with what it is about."""
    return [
        {"about": one.about, "place": one.place, **msgspec.to_builtins(finding)}
        for one in report.examined
        for finding in one.findings
    ]


def _format_examination(one: Examination, width: int) -> str:
    findings = [_format_finding(finding, width) for finding in one.findings] or ["  fine"]
    return "\n".join([f"{one.about} ({one.place})", *findings])


def _format_finding(finding: Finding, width: int) -> str:
    lines = [f"  {finding.severity.value.upper()} {finding.code}"]
    for name, text in (("what", finding.what), ("why", finding.why), ("fix", finding.fix)):
        lines.append(
            textwrap.fill(
                text, width, initial_indent=f"    {name:<5}", subsequent_indent=" " * 9, break_long_words=False,
                break_on_hyphens=False,
            )
        )  # fmt: skip
    return "\n".join(lines)
