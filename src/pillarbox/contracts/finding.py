"""A finding of `pillarbox doctor`: stores and transports report them."""

from __future__ import annotations

from enum import Enum

import msgspec

__all__ = ["Finding", "Severity"]


class Severity(Enum):
    """Severity of a finding."""

    INFO = "info"
    WARNING = "warning"
    """Messages can be lost or delayed when something else goes wrong too."""
    CRITICAL = "critical"
    """Messages are lost, or cannot be delivered."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person should know about a store or a destination, and what to do about it."""

    code: str
    """A stable name such as `rabbitmq.queue-not-durable`."""
    severity: Severity
    what: str
    why: str
    fix: str
