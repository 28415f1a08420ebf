"""Transactional outbox, inbox and relay. The names most programs need; the rest is in the modules."""

from __future__ import annotations

from pillarbox.aggregates import Aggregate
from pillarbox.codec import decode
from pillarbox.context import correlation, handling, trace
from pillarbox.errors import PillarboxError, PublishError
from pillarbox.events import Types, command, event
from pillarbox.inbox import Inbox
from pillarbox.message import Kind, Message, State
from pillarbox.outbox import Outbox
from pillarbox.routes import Route, Routes

__all__ = [
    "Aggregate",
    "Inbox",
    "Kind",
    "Message",
    "Outbox",
    "PillarboxError",
    "PublishError",
    "Route",
    "Routes",
    "State",
    "Types",
    "command",
    "correlation",
    "decode",
    "event",
    "handling",
    "trace",
]
