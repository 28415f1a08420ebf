"""Parts that the checks of all brokers share: findings and their order, and the addresses of topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pillarbox.contracts.finding import Finding, Severity

__all__ = ["expand_topics", "report_critical", "report_info", "report_warning", "sort_findings"]

_SEVERITIES: Final = list(Severity)


def report_critical(code: str, *, what: str, why: str, fix: str) -> Finding:
    """Return a finding about messages that are lost, or cannot be delivered."""
    return Finding(code=code, severity=Severity.CRITICAL, what=what, why=why, fix=fix)


def report_warning(code: str, *, what: str, why: str, fix: str) -> Finding:
    """Return a finding about messages that can be lost or delayed when something else goes wrong too."""
    return Finding(code=code, severity=Severity.WARNING, what=what, why=why, fix=fix)


def report_info(code: str, *, what: str, why: str, fix: str) -> Finding:
    """Return a finding about something that cannot be seen, or that is good to know."""
    return Finding(code=code, severity=Severity.INFO, what=what, why=why, fix=fix)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Order findings by severity, worst first. One that occurs twice is kept once."""
    unique = {(finding.code, finding.what): finding for finding in findings}
    return sorted(unique.values(), key=lambda finding: _SEVERITIES.index(finding.severity), reverse=True)


def expand_topics(template: str, topics: Sequence[str]) -> Sequence[str]:
    """Return the addresses of messages of these topics; none if the address depends on more than the topic."""
    if "{" in template.replace("{topic}", ""):
        return ()
    if "{topic}" not in template:
        return [template]
    return [template.replace("{topic}", topic) for topic in topics]
