"""What it means that a destination answered so, or did not. Pure; what is set on a broker, its transport judges."""

from __future__ import annotations

from pillarbox.errors import MissingExtra, PillarboxError
from pillarbox.protocols import Finding, Severity

__all__ = ["cannot_be_made", "not_inspected", "silent", "unreachable"]


def cannot_be_made(error: Exception) -> Finding:
    """Its URL or an option is wrong, or its driver is missing."""
    code, fix = "destination.misconfigured", "Correct its table, variables or flags."
    if isinstance(error, MissingExtra):
        code, fix = "destination.driver-missing", f'Run pip install "pillarbox[{error.extra}]".'
    why = "A relay with this configuration does not start."
    return Finding(code=code, severity=Severity.CRITICAL, what=str(error), why=why, fix=fix)


def unreachable(error: Exception) -> Finding:
    """Nobody there, no login, or not what a destination should be. Our own errors say what to do."""
    says_how = isinstance(error, PillarboxError)
    return Finding(
        code="destination.unreachable",
        severity=Severity.CRITICAL,
        what=str(error),
        why="Its messages wait until it can be used; that costs them nothing else.",
        fix="Do what the sentence says; relays try again by themselves."
        if says_how
        else "Check that it runs, that this machine may reach it, and the login.",
    )


def silent(seconds: float) -> Finding:
    """It took the connection or the question, and never answered."""
    return Finding(
        code="destination.no-answer",
        severity=Severity.CRITICAL,
        what=f"It did not answer within {seconds:g} s.",
        why="A relay's sends would time out, and its messages wait.",
        fix="Look whether it is overloaded or hangs, or whether a firewall drops what is sent; give it more time with "
        "--timeout.",
    )


def not_inspected(error: Exception) -> Finding:
    """It answers, but its settings could not be looked at."""
    return Finding(
        code="destination.not-inspected",
        severity=Severity.WARNING,
        what=f"It answers, but its settings could not be looked at: {error}",
        why="A setting that loses messages would not be seen.",
        fix="Mend what the sentence says, or give it more time with --timeout.",
    )
