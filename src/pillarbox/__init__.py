"""Transactional outbox, inbox and relay. The names that most programs need; the modules have the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.context import correlation, handling, trace
from pillarbox.domain_events import Aggregate
from pillarbox.errors import (
    ConfigError,
    DecodeError,
    MessageRejected,
    NotInTransaction,
    PillarboxError,
    PublishError,
    StoreUnavailable,
    TransportUnavailable,
)
from pillarbox.events import Types, command, decode, event
from pillarbox.inbox import Inbox
from pillarbox.lazy import lazy_names
from pillarbox.message import Kind, Message, Names, State
from pillarbox.outbox import Outbox
from pillarbox.routes import Route, Routes

if TYPE_CHECKING:
    from pillarbox.consumer import Consumer, ConsumerSettings
    from pillarbox.redaction import Secret
    from pillarbox.relay.relay import Destination, Relay
    from pillarbox.relay.relays import Relays
    from pillarbox.relay.settings import DestinationSettings, RelaySettings
    from pillarbox.retry import RetryPolicy
    from pillarbox.stores.factory import open_schema, open_store
else:
    # A program that only publishes loads neither the relay nor the consumer.
    __getattr__ = lazy_names(
        __name__,
        {
            "Consumer": "pillarbox.consumer",
            "ConsumerSettings": "pillarbox.consumer",
            "Destination": "pillarbox.relay.relay",
            "DestinationSettings": "pillarbox.relay.settings",
            "Relay": "pillarbox.relay.relay",
            "RelaySettings": "pillarbox.relay.settings",
            "Relays": "pillarbox.relay.relays",
            "RetryPolicy": "pillarbox.retry",
            "Secret": "pillarbox.redaction",
            "open_schema": "pillarbox.stores.factory",
            "open_store": "pillarbox.stores.factory",
        },
    )

__all__ = [
    "Aggregate",
    "ConfigError",
    "Consumer",
    "ConsumerSettings",
    "DecodeError",
    "Destination",
    "DestinationSettings",
    "Inbox",
    "Kind",
    "Message",
    "MessageRejected",
    "Names",
    "NotInTransaction",
    "Outbox",
    "PillarboxError",
    "PublishError",
    "Relay",
    "RelaySettings",
    "Relays",
    "RetryPolicy",
    "Route",
    "Routes",
    "Secret",
    "State",
    "StoreUnavailable",
    "TransportUnavailable",
    "Types",
    "command",
    "correlation",
    "decode",
    "event",
    "handling",
    "open_schema",
    "open_store",
    "trace",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
