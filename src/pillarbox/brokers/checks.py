"""Parts that the checks of all brokers share: the order of findings, and the addresses of topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pillarbox.contracts.finding import Finding, Severity

__all__ = ["expand_topics", "sort_findings"]

_SEVERITIES: Final = list(Severity)


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
