"""The report for people and for programs. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

import msgspec

from pillarbox.doctor.report import Examined, Report
from pillarbox.protocols import Finding, Severity

__all__ = ["document", "rows", "summary", "told"]

_WIDTH: Final = 100


def told(report: Report) -> str:
    """Part by part, and the sum at the end."""
    return "\n\n".join([*map(_part, report.examined), f"{summary(report)}."])


def summary(report: Report) -> str:
    """How many of what: `1 critical, 2 warnings`."""
    words = {Severity.CRITICAL: ("critical", "critical"), Severity.WARNING: ("warning", "warnings"),
             Severity.INFO: ("note", "notes")}  # fmt: skip
    counts = [(report.count(severity), *names) for severity, names in words.items()]
    return ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count) or "All is well"


def document(report: Report) -> dict[str, object]:
    """For JSON."""
    return {
        "worst": None if report.worst is None else report.worst.value,
        "counts": {severity.value: report.count(severity) for severity in reversed(Severity)},
        "examined": report.examined,
    }


def rows(report: Report) -> list[dict[str, object]]:
    """For JSON Lines: one for each finding, with what it is about."""
    return [
        {"about": one.about, "place": one.place, **msgspec.to_builtins(finding)}
        for one in report.examined
        for finding in one.findings
    ]


def _part(one: Examined) -> str:
    findings = [_finding(finding) for finding in one.findings] or ["  fine"]
    return "\n".join([f"{one.about} ({one.place})", *findings])


def _finding(finding: Finding) -> str:
    lines = [("what", finding.what), ("why", finding.why), ("fix", finding.fix)]
    return "\n".join([f"  {finding.severity.value.upper()} {finding.code}", *_wrapped(lines)])


def _wrapped(lines: list[tuple[str, str]]) -> Iterator[str]:
    for name, text in lines:
        yield textwrap.fill(
            text, _WIDTH, initial_indent=f"    {name:<5}", subsequent_indent=" " * 9, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
