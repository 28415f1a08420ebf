"""What was found, sorted and summed up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from pillarbox.protocols import Finding, Severity
from pillarbox.transports.redaction import one_line

__all__ = ["Examined", "Report", "examined"]

_WORST_FIRST: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_LONGEST: Final = 1_000


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, and what was found there, the worst first."""

    about: str
    """`store`, or `destination NAME`."""
    place: str
    """Where it is, without secrets."""
    findings: Sequence[Finding] = ()

    @property
    def worst(self) -> Severity | None:
        return self.findings[0].severity if self.findings else None


class Report(msgspec.Struct, frozen=True):
    """Everything that was looked at."""

    examined: Sequence[Examined]

    @property
    def worst(self) -> Severity | None:
        """None when nothing was found."""
        found = {one.worst for one in self.examined}
        return next((severity for severity in _WORST_FIRST if severity in found), None)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for one in self.examined for finding in one.findings)


def examined(about: str, place: str, findings: Sequence[Finding]) -> Examined:
    """The worst first, and each text on one line and without what looks like a secret: brokers wrote parts of it."""
    ordered = sorted(findings, key=lambda finding: (_WORST_FIRST.index(finding.severity), finding.code))
    return Examined(about=about, place=place, findings=[_clean(finding) for finding in ordered])


def _clean(finding: Finding) -> Finding:
    return msgspec.structs.replace(
        finding,
        what=one_line(finding.what, limit=_LONGEST),
        why=one_line(finding.why, limit=_LONGEST),
        fix=one_line(finding.fix, limit=_LONGEST),
    )
