"""Has the doctor look at a store and at destinations, with the whole of the product in between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from pillarbox.clock import Clock
from pillarbox.config import Config, Given, Origin
from pillarbox.config.origins import Path
from pillarbox.doctor.bounds import Bounds
from pillarbox.doctor.examination import examination
from pillarbox.doctor.report import Report
from pillarbox.names import Names
from pillarbox.protocols import Finding, Severity
from pillarbox.stores.schema import schema_at
from pillarbox.stores.urls import store_url

__all__ = ["codes", "diagnosed", "finding", "install", "severities"]

_HERE = Origin("flag", "test")


async def diagnosed(
    store: str,
    destinations: Mapping[str, str] | None = None,
    *,
    schema: str | None = None,
    clock: Clock | None = None,
    within: timedelta = timedelta(seconds=30),
) -> Report:
    """The report. Without destinations there is one that is well but for being in memory."""
    flags: dict[Path, Given] = {("store", "url"): Given(store, _HERE)}
    if schema is not None:
        flags["store", "schema"] = Given(schema, _HERE)
    for name, url in (destinations or {"orders": "memory:"}).items():
        flags["destinations", name, "url"] = Given(url, _HERE)
    config = Config(environ={}, flags=flags)
    async with asyncio.timeout(100):
        return await examination(config, clock=clock).run(Bounds(within))


async def install(store: str, *, schema: str | None = None) -> None:
    await schema_at(store_url(store), names=Names(schema)).install()


def codes(report: Report, about: str = "store") -> list[str]:
    return [finding.code for one in report.examined if one.about == about for finding in one.findings]


def severities(report: Report, about: str = "store") -> dict[str, Severity]:
    return {finding.code: finding.severity for one in report.examined if one.about == about for finding in one.findings}


def finding(report: Report, code: str) -> Finding:
    (found,) = [finding for one in report.examined for finding in one.findings if finding.code == code]
    return found
