"""Runs the doctor on a store and destinations, through the whole of the product."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from pillarbox.clock import Clock
from pillarbox.config import Config
from pillarbox.contracts.finding import Finding, Severity
from pillarbox.message import Names
from pillarbox.operations.doctor import Doctor, Report, TimeLimit
from pillarbox.settings import ConfigOrigin, ConfigValue, KeyPath
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url

__all__ = ["codes", "diagnose", "finding", "install", "severities"]

_HERE = ConfigOrigin("flag", "test")


async def diagnose(
    store: str,
    destinations: Mapping[str, str] | None = None,
    *,
    schema: str | None = None,
    clock: Clock | None = None,
    within: timedelta = timedelta(seconds=30),
) -> Report:
    """Return the report. Without destinations there is one, in memory."""
    flags: dict[KeyPath, ConfigValue] = {("store", "url"): ConfigValue(store, _HERE)}
    if schema is not None:
        flags["store", "schema"] = ConfigValue(schema, _HERE)
    for name, url in (destinations or {"orders": "memory:"}).items():
        flags["destinations", name, "url"] = ConfigValue(url, _HERE)
    config = Config(environ={}, flags=flags)
    async with asyncio.timeout(100):
        return await Doctor.from_config(config, clock=clock).run(TimeLimit(within))


async def install(store: str, *, schema: str | None = None) -> None:
    await open_schema(parse_store_url(store), names=Names(schema)).install()


def codes(report: Report, about: str = "store") -> list[str]:
    return [finding.code for one in report.examined if one.about == about for finding in one.findings]


def severities(report: Report, about: str = "store") -> dict[str, Severity]:
    return {finding.code: finding.severity for one in report.examined if one.about == about for finding in one.findings}


def finding(report: Report, code: str) -> Finding:
    (found,) = [finding for one in report.examined for finding in one.findings if finding.code == code]
    return found
