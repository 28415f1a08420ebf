"""Every error Pillarbox raises, in one tree. The type decides what happens next.

    PillarboxError
    ├── ConfigError                 a URL, name or option is wrong               exit 2
    │   ├── MissingExtra            the driver for it is not installed           exit 2
    │   └── UnknownDestination      a name nobody configured                     exit 2
    ├── PublishError                nothing was written; the caller decides
    │   ├── NotInTransaction        the handle would commit on its own
    │   ├── UnsupportedHandle       not a connection or session we can join
    │   ├── UnknownType             the class or name is not registered
    │   ├── DuplicateType           the name is taken by another class
    │   ├── WrongKind               an event was sent or a command published
    │   ├── NoRoute                 no destination where one is required
    │   ├── PayloadTooLarge         over the size limit
    │   └── PayloadNotSerializable  cannot be encoded
    ├── DecodeError                 a received message is not what it says it is
    ├── StoreError
    │   ├── StoreUnavailable        cannot be reached; try again later           exit 3
    │   │   └── StoreBusy           answers, but has no room or no time now      exit 3
    │   ├── StoreForbidden          this login lacks a right
    │   ├── StoreRefused            will never take this write as it is
    │   ├── SchemaError                                                          exit 4
    │   │   ├── SchemaMissing       the tables are not there
    │   │   ├── SchemaOutdated      the tables are older than this release
    │   │   ├── SchemaNewer         the tables are newer than this release
    │   │   └── SchemaMixed         the tables are not what the version says
    │   ├── Fenced                  another relay owns the lane; nothing was written
    │   ├── IllegalTransition       that state cannot follow this one            exit 1
    │   └── NoSuchMessage           nothing has that id                          exit 5
    ├── HandoffRefused              rows of that destination must stay           exit 1
    ├── ArchiveError                cannot be written; nothing is deleted        exit 1
    └── TransportError
        ├── TransportUnavailable    the broker cannot be reached                 exit 3
        └── MessageRejected         the broker will never take this message

Messages are one sentence for people: what happened, why, what to do. They carry no secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import ClassVar


class PillarboxError(Exception):
    """Base of all errors of Pillarbox. The command line ends with its `exit_code`."""

    exit_code: ClassVar[int] = 1


class ConfigError(PillarboxError):
    """A URL, a name or an option is wrong. Correct it and start again."""

    exit_code = 2


class MissingExtra(ConfigError):
    """An optional driver is not installed."""

    def __init__(self, package: str, *, extra: str, needed_for: str) -> None:
        super().__init__(
            f'{needed_for} needs the package {package}, which is not installed: run pip install "pillarbox[{extra}]".'
        )
        self.package = package
        self.extra = extra


class UnknownDestination(ConfigError):
    """A destination name that is not configured."""


class PublishError(PillarboxError):
    """The message could not be written. Nothing was, and the transaction is still the caller's."""


class NotInTransaction(PublishError):
    """The handle would commit on its own, so the message and the business data could part."""


class UnsupportedHandle(PublishError):
    """The object given as `tx` is not a connection or session that a writer can join."""


class UnknownType(PublishError):
    """The class or type name is not registered with `@event` or `@command`."""


class DuplicateType(PublishError):
    """Two classes claim one type name."""


class WrongKind(PublishError):
    """An event was given to `send`, or a command to `publish`."""


class NoRoute(PublishError):
    """No destination matched where one is required, or a command matched several."""


class PayloadTooLarge(PublishError):
    """The encoded payload is over the size limit."""


class PayloadNotSerializable(PublishError):
    """The payload cannot be encoded."""


class DecodeError(PillarboxError):
    """Received bytes or attributes are not what they claim to be."""


class StoreError(PillarboxError):
    """The store refused or failed."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, or went away. Trying again later is right."""

    exit_code = 3


class StoreBusy(StoreUnavailable):
    """The store answers, but cannot serve now: no connection is free, it starts or stops, its disk is full or fails."""


class StoreForbidden(StoreError):
    """This login lacks a right. See `pillarbox schema grants`."""


class StoreRefused(StoreError):
    """The store will never take this write: a constraint, an index or a type forbids it. Repeating it changes nothing.

    Nothing of the call was written. Of several rows in it, one or more are the cause; the others can be written.
    """


class SchemaError(StoreError):
    """The tables and this release do not fit together."""

    exit_code = 4


class SchemaMissing(SchemaError):
    """The tables do not exist. Run `pillarbox schema install`."""


class SchemaOutdated(SchemaError):
    """The tables are older than this release. Run `pillarbox schema upgrade`."""


class SchemaNewer(SchemaError):
    """The tables are newer than this release. Upgrade the package."""


class SchemaMixed(SchemaError):
    """The tables differ from what their recorded version should have."""


class Fenced(StoreError):
    """The caller no longer owns some lanes that it tried to write in. Nothing was written."""

    def __init__(self, destination: str, partitions: Iterable[int]) -> None:
        self.destination = destination
        self.partitions = frozenset(partitions)
        lanes = ", ".join(str(partition) for partition in sorted(self.partitions))
        super().__init__(f"Another relay owns {destination} partition {lanes} now; nothing was written there.")


class IllegalTransition(StoreError):
    """A message cannot go from its state to the one asked for."""


class NoSuchMessage(StoreError):
    """No message has that id."""

    exit_code = 5


class HandoffRefused(PillarboxError):
    """Messages of a handed-off destination cannot be pruned, because nothing shows that they were delivered."""


class ArchiveError(PillarboxError):
    """Closed messages could not be archived, so they were not deleted."""


class TransportError(PillarboxError):
    """A destination refused or failed."""


class TransportUnavailable(TransportError):
    """The broker cannot be reached. Costs no message an attempt.

    `mid_send`: the connection broke while messages were being sent, and one of them may be the cause.
    """

    exit_code = 3

    def __init__(self, text: str, *, mid_send: bool = False, retry_after: timedelta | None = None) -> None:
        super().__init__(text)
        self.mid_send = mid_send
        self.retry_after = retry_after


class MessageRejected(TransportError):
    """The broker will never take this message, however often it is sent."""
