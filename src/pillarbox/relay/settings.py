"""Settings of a relay and of its destinations, with their defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal

import msgspec

from pillarbox.arguments import check_fields
from pillarbox.durations import FOREVER
from pillarbox.errors import ConfigError
from pillarbox.message import PARTITIONS, check_destination, check_labels
from pillarbox.relay.outcome_policy import AfterFailure, MissingTopology
from pillarbox.retry import DEFAULT_RETRY, RetryPolicy
from pillarbox.stores.sharing import CONNECTIONS, LEAST_CONNECTIONS, THREADS

__all__ = [
    "DEFAULT_DUTIES",
    "DEFAULT_SETTINGS",
    "DestinationSettings",
    "Duty",
    "Handoff",
    "ProcessSettings",
    "RelaySettings",
    "Retention",
    "SharingSettings",
    "build_publication_name",
    "build_slot_name",
    "check_dead_letters",
    "check_slot_name",
]

Handoff = Literal["debezium"]
"""Engines that can deliver a destination from the log of the database."""
_LONGEST_SLOT_NAME: Final = 63
_SLOT_NAME: Final = re.compile(rf"[a-z0-9_]{{1,{_LONGEST_SLOT_NAME}}}")
_NOT_IN_SLOTS: Final = re.compile(r"[^a-z0-9_]")


class Duty(StrEnum):
    """Task of a relay. `send` and `retry` go together; the one that is named first has priority for the window."""

    SEND = "send"
    RETRY = "retry"
    RECOVER = "recover"
    CLEAN = "clean"


DEFAULT_DUTIES: Final = (Duty.SEND, Duty.RETRY, Duty.RECOVER, Duty.CLEAN)


class DestinationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one destination."""

    name: str = "default"
    batch: int = 500
    """Most messages of one read, one claim and one `send`."""
    window: int = 2_000
    """Most messages in flight."""
    window_bytes: int = 32 * 1024 * 1024
    """Most bytes of payloads in flight. The message that reaches it may pass it."""
    send_timeout: timedelta = timedelta(seconds=30)
    """Longest time in which a send makes no progress: no answer comes, and no byte leaves where that is seen."""
    ping_interval: timedelta = timedelta(seconds=30)
    """Time between two pings while nothing is sent. `FOREVER`: no pings."""
    retry: RetryPolicy = DEFAULT_RETRY
    after_failure: AfterFailure = "continue"
    missing_topology: MissingTopology = "wait"
    """For a message whose queue, topic, stream or permission is missing: wait until it is there, or reject it."""
    give_up_after: timedelta = FOREVER
    """Time after its first try at which a message fails though no attempt was spent. `FOREVER`: no outage fails any."""
    rate: float | None = None
    """Most messages per second; None for no limit."""
    dead_letter: str | None = None
    """Destination to which a message that fails goes on at once. Then no key is held."""
    readiness: bool | None = None
    """Whether a relay that cannot reach it is not ready. None: the transport decides; webhooks do not count."""
    handoff: Handoff | None = None
    """Engine that delivers it instead of a relay, from the log of the database. Relays leave it alone then."""
    handoff_slot: str | None = None
    """Replication slot of that engine; None for `pillarbox_NAME`."""
    handoff_publication: str | None = None
    """Publication that the slot is read with; None for the name of the slot."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_destination(self.name)
        _check_handoff(self)
        if self.dead_letter is not None:
            check_destination(self.dead_letter)
        if self.dead_letter == self.name:
            raise ConfigError(f"The destination {self.name} cannot be its own dead letter; name another one.")
        for option in ("batch", "window", "window_bytes"):
            if getattr(self, option) < 1:
                raise ConfigError(f"The {option} of destination {self.name} must be at least 1.")
        if self.send_timeout <= timedelta(0):
            raise ConfigError(f"The send_timeout of destination {self.name} must be greater than zero.")
        if self.ping_interval <= timedelta(0):
            raise ConfigError(f"The ping_interval of destination {self.name} must be greater than zero.")
        if self.give_up_after <= timedelta(0):
            raise ConfigError(f"The give_up_after of destination {self.name} must be greater than zero.")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ConfigError(f"The rate of destination {self.name} must be above 0; leave it out for no limit.")


def _check_handoff(settings: DestinationSettings) -> None:
    for option in ("handoff_slot", "handoff_publication"):
        name = getattr(settings, option)
        if name is not None:
            check_slot_name(name, what=f"{option} of destination {settings.name}")


def check_slot_name(name: str, *, what: str) -> str:
    """Return a name that a replication slot or a publication may have; raise `ConfigError` for others."""
    if _SLOT_NAME.fullmatch(name) is None:
        raise ConfigError(f"The {what} is 1 to 63 lower-case letters, digits and underscores, and not {name[:80]!r}.")
    return name


def build_slot_name(settings: DestinationSettings) -> str:
    """Return the name of the slot from which a handed-off destination is delivered."""
    return settings.handoff_slot or f"pillarbox_{_NOT_IN_SLOTS.sub('_', settings.name.lower())}"[:_LONGEST_SLOT_NAME]


def build_publication_name(settings: DestinationSettings) -> str:
    """Return the name of the publication with the messages of a handed-off destination."""
    return settings.handoff_publication or build_slot_name(settings)


def check_dead_letters(destinations: Iterable[DestinationSettings]) -> None:
    """Raise `ConfigError` if dead letters go round: a message that fails everywhere would be sent for ever.

    A dead letter changes its destination by an update, which an engine that reads inserts from the log never sees.
    """
    destinations = list(destinations)
    handed_off = {one.name for one in destinations if one.handoff is not None}
    for one in destinations:
        if one.dead_letter in handed_off:
            raise ConfigError(
                f"The dead_letter of destination {one.name} is {one.dead_letter}, which is handed off: it would never "
                "be seen there. Name a destination that a relay serves."
            )
    following = {one.name: one.dead_letter for one in destinations}
    for name, first in following.items():
        passed, at = [name], first
        while at is not None and at not in passed:
            passed.append(at)
            at = following.get(at)
        if at == name:
            raise ConfigError(
                f"The dead letters of {', '.join(passed)} go round in a circle; leave one dead_letter out."
            )


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Time for which closed messages are kept. Zero keeps none, `FOREVER` keeps all."""

    delivered: timedelta = timedelta(days=7)
    failed: timedelta = timedelta.max
    skipped: timedelta = timedelta.max
    discarded: timedelta = timedelta(days=7)
    inbox: timedelta = timedelta(days=7)
    """Dedup window: a message that comes again later than that is handled again."""
    inbox_failed: timedelta = timedelta(days=90)
    """Time for which messages are kept that a consumer could not handle. Then they are gone."""
    rollups: timedelta = timedelta(days=7)
    """Time for which the counters of each minute are kept."""
    journal: timedelta = timedelta(days=30)
    """Time for which lines of the journal are kept that belong to no message. Others are kept with their message."""
    every: timedelta = timedelta(hours=1)
    """Time between two runs of the janitor."""
    batch: int = 1_000
    """Most rows that one transaction deletes."""
    archive: str | None = None
    """Folder to which closed messages are written before they are deleted; None for no archive."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.batch < 1:
            raise ConfigError("The batch of retention must be at least 1: nothing would ever be deleted.")
        if self.every <= timedelta(0):
            raise ConfigError("The every of retention must be greater than zero: the time between two cleanups.")


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a relay as a whole."""

    service: str = "pillarbox"
    labels: Mapping[str, str] = {}
    """What `pillarbox relays` shows about it beside its name: a team, a region."""
    lease: timedelta = timedelta(seconds=10)
    """Time after its last heartbeat at which other relays take its lanes over."""
    poll_interval: timedelta = timedelta(seconds=1)
    """Longest wait between two reads of an idle store."""
    retry_interval: timedelta = timedelta(milliseconds=250)
    """Shortest wait between two reads of messages that are due, while others are read more often."""
    watch_interval: timedelta = timedelta(milliseconds=500)
    """Time between two reads of the registry, for free lanes and for surplus ones."""
    stale_after: timedelta = timedelta(minutes=10)
    """Time after its lease at which a dead relay is removed from the registry."""
    max_lanes: int | None = None
    """Most lanes of one destination that this relay owns; None for no limit."""
    duties: Sequence[Duty] = DEFAULT_DUTIES
    retention: Retention = Retention()
    lone_cap: int = 5
    """How often a relay or its connection may die while it sends one message alone, before that message fails."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_labels(self.labels)
        if self.lease < timedelta(milliseconds=300):
            raise ConfigError("The lease must be at least 300ms: it has to be renewed three times in its length.")
        if min(self.poll_interval, self.retry_interval, self.watch_interval) <= timedelta(0):
            raise ConfigError("poll_interval, retry_interval and watch_interval must be greater than zero.")
        if (Duty.SEND in self.duties) != (Duty.RETRY in self.duties):
            raise ConfigError(
                "The duties send and retry go together: the relay that owns a lane must do both, or messages of a key "
                "would overtake each other. Name both, or neither; the first of them has priority."
            )
        if len(set(self.duties)) < len(self.duties):
            raise ConfigError("A duty is named twice; name each once.")
        if self.max_lanes is not None and self.max_lanes < 1:
            raise ConfigError("max_lanes must be at least 1; leave it out for no limit.")

    @property
    def owns_lanes(self) -> bool:
        """True if this relay delivers messages."""
        return Duty.SEND in self.duties

    @property
    def sends_first(self) -> bool:
        """True if new messages have priority over those that are due."""
        order = [duty for duty in self.duties if duty in (Duty.SEND, Duty.RETRY)]
        return order[:1] == [Duty.SEND]


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the program `pillarbox relay`. A relay inside another program has one process, and reads none."""

    processes: int = 1
    """Number of relays, each in a process of its own, that one supervisor runs."""

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= PARTITIONS:
            raise ConfigError(
                f"The number of processes must be from 1 to {PARTITIONS}: as many as there are cores for the relay. "
                f"A destination has {PARTITIONS} lanes, and a process without a lane has nothing to do."
            )


class SharingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the relays of several stores in one process have together. A relay over one store reads none of it."""

    total_window: int = 10_000
    """Most messages in flight of all stores."""
    total_window_bytes: int = 256 * 1024 * 1024
    """Most bytes of payloads in flight of all stores."""
    store_connections: int = CONNECTIONS
    """Most connections to one PostgreSQL database for all stores in it; one more listens."""
    store_threads: int = THREADS
    """Most threads that wait for SQLite files."""

    def __post_init__(self) -> None:
        for option in ("total_window", "total_window_bytes", "store_threads"):
            if getattr(self, option) < 1:
                raise ConfigError(f"The {option} must be at least 1.")
        if self.store_connections < LEAST_CONNECTIONS:
            raise ConfigError(
                f"The store_connections must be at least {LEAST_CONNECTIONS}: one is for heartbeats alone."
            )


DEFAULT_SETTINGS: Final = RelaySettings()
