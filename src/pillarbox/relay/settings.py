"""What can be set about a relay, with the defaults in force."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Final

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.message import check_destination
from pillarbox.relay.outcome_policy import AfterFailure
from pillarbox.retry import DEFAULT_RETRY, RetryPolicy

__all__ = ["DEFAULT_DUTIES", "DEFAULT_SETTINGS", "DestinationSettings", "Duty", "RelaySettings", "Retention"]


class Duty(StrEnum):
    """What a relay does. Only one that both sends and retries owns lanes."""

    SEND = "send"
    RETRY = "retry"
    RECOVER = "recover"
    CLEAN = "clean"


DEFAULT_DUTIES: Final = (Duty.SEND, Duty.RETRY, Duty.RECOVER, Duty.CLEAN)


class DestinationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one destination is served."""

    name: str = "default"
    batch: int = 500
    """Messages read and claimed at a time, and given to one `send` at most."""
    window: int = 2_000
    """Messages in flight: the measure of parallelism."""
    send_timeout: timedelta = timedelta(seconds=30)
    ping_interval: timedelta = timedelta(seconds=30)
    """How often it is asked whether it is there while nothing is sent to it; `FOREVER` is never."""
    retry: RetryPolicy = DEFAULT_RETRY
    after_failure: AfterFailure = "continue"
    rate: float | None = None
    """Messages a second at most; None is no limit."""
    dead_letter: str | None = None
    """Another destination that failed messages are forwarded to."""

    def __post_init__(self) -> None:
        check_destination(self.name)
        if self.dead_letter is not None:
            check_destination(self.dead_letter)
        if self.dead_letter == self.name:
            raise ConfigError(f"The destination {self.name} cannot be its own dead letter; name another one.")
        for option in ("batch", "window"):
            if getattr(self, option) < 1:
                raise ConfigError(f"The {option} of destination {self.name} must be at least 1.")
        if self.send_timeout <= timedelta(0):
            raise ConfigError(f"The send_timeout of destination {self.name} must be longer than nothing.")
        if self.ping_interval <= timedelta(0):
            raise ConfigError(f"The ping_interval of destination {self.name} must be longer than nothing.")
        if self.rate is not None and self.rate <= 0:
            raise ConfigError(f"The rate of destination {self.name} must be above 0; leave it out for no limit.")


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long closed messages are kept; `FOREVER`, or zero for not at all."""

    delivered: timedelta = timedelta(days=7)
    failed: timedelta = timedelta.max
    skipped: timedelta = timedelta(days=7)
    discarded: timedelta = timedelta(days=7)
    inbox: timedelta = timedelta(days=7)
    """The dedup window."""
    every: timedelta = timedelta(hours=1)
    batch: int = 1_000


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a relay behaves as a whole."""

    service: str = "pillarbox"
    lease: timedelta = timedelta(seconds=10)
    poll_interval: timedelta = timedelta(seconds=1)
    """The longest wait between two looks at an idle store."""
    watch_interval: timedelta = timedelta(milliseconds=500)
    """How often the registry is looked at for free lanes and surplus."""
    stale_after: timedelta = timedelta(minutes=10)
    max_lanes: int | None = None
    """Lanes of one destination that this relay owns at most."""
    duties: Sequence[Duty] = DEFAULT_DUTIES
    retention: Retention = Retention()
    lone_cap: int = 5
    """Deaths of a relay or its connection with one message alone in hand, before that message is failed."""

    def __post_init__(self) -> None:
        if self.lease < timedelta(milliseconds=300):
            raise ConfigError("The lease must be at least 300ms: it has to be renewed three times in its length.")
        if self.poll_interval <= timedelta(0) or self.watch_interval <= timedelta(0):
            raise ConfigError("The poll and watch intervals must be longer than nothing.")
        if self.max_lanes is not None and self.max_lanes < 1:
            raise ConfigError("max_lanes must be at least 1; leave it out for no limit.")

    @property
    def owns_lanes(self) -> bool:
        """Whether it delivers at all."""
        return Duty.SEND in self.duties and Duty.RETRY in self.duties


DEFAULT_SETTINGS: Final = RelaySettings()
"""Nothing set."""
