"""Settings of a consumer, with their defaults."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

import msgspec

from pillarbox.arguments import check_fields
from pillarbox.errors import ConfigError
from pillarbox.retry import RetryPolicy

__all__ = ["DEFAULT_SETTINGS", "ConsumerSettings", "Unknown"]

Unknown = Literal["ignore", "fail"]
"""What becomes of a message that no handler matches: it is acknowledged, or kept as failed."""

_RETRY: Final = RetryPolicy(attempts=5, first=timedelta(milliseconds=200), longest=timedelta(seconds=5))


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one consumer. Invalid ones raise `ConfigError` when they are created."""

    concurrency: int = 16
    """How many messages are handled at once, of different keys."""
    prefetch: int = 200
    """How many messages are about to run at most. Of one key at most a tenth counts; the rest is set aside."""
    set_aside: int = 10_000
    """How many messages may wait behind others of their key, or for their next attempt, before nothing is received."""
    pending_bytes: int = 128 * 1024 * 1024
    """Bytes that the bodies of all pending messages may take, before nothing is received."""
    retry: RetryPolicy = _RETRY
    """How often a failing handler is called again before the message is kept as failed. Its key waits meanwhile."""
    unknown: Unknown = "ignore"
    deaths: int = 3
    """How often a message may kill the consumer while it is handled alone, before it is kept as failed."""
    stop_timeout: timedelta = timedelta(seconds=30)
    """How long handlers may go on after a stop."""
    retention: timedelta = timedelta(days=7)
    """How long handled messages are remembered: the dedup window."""
    failed_retention: timedelta = timedelta(days=90)
    """How long failed messages are kept for a person. Then they are gone."""
    poll_interval: timedelta = timedelta(seconds=1)
    """How often the inbox is asked for failed messages that a person redrove."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.concurrency <= 10_000:
            raise ConfigError("A consumer's concurrency must be between 1 and 10000.")
        if self.prefetch < self.concurrency:
            raise ConfigError("A consumer's prefetch must be at least its concurrency, or some handlers never work.")
        if min(self.set_aside, self.pending_bytes) < 1:
            raise ConfigError("A consumer's set_aside and pending_bytes must be at least 1.")
        if self.deaths < 1:
            raise ConfigError("A consumer's deaths must be at least 1.")
        if min(self.stop_timeout, self.retention, self.failed_retention) < timedelta(
            0
        ) or self.poll_interval <= timedelta(0):
            raise ConfigError("A consumer's durations must be positive.")


DEFAULT_SETTINGS: Final = ConsumerSettings()
