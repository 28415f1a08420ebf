"""Every extension point, by audience: store, transport, receiver, writer. A docstring here is a contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.lazy import lazy_names

if TYPE_CHECKING:
    from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage, Receiver, ReceiverFeatures
    from pillarbox.contracts.store import (
        MonitorStore,
        OperatorStore,
        RelayStore,
        Selection,
        Store,
        StoreFeatures,
    )
    from pillarbox.contracts.transport import Inspector, Outcome, Transport, TransportFeatures
    from pillarbox.contracts.writer import AsyncWriter, Writer
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "AsyncWriter": "pillarbox.contracts.writer",
            "FallbackIdentity": "pillarbox.contracts.receiver",
            "IncomingMessage": "pillarbox.contracts.receiver",
            "Inspector": "pillarbox.contracts.transport",
            "MonitorStore": "pillarbox.contracts.store",
            "OperatorStore": "pillarbox.contracts.store",
            "Outcome": "pillarbox.contracts.transport",
            "Receiver": "pillarbox.contracts.receiver",
            "ReceiverFeatures": "pillarbox.contracts.receiver",
            "RelayStore": "pillarbox.contracts.store",
            "Selection": "pillarbox.contracts.store",
            "Store": "pillarbox.contracts.store",
            "StoreFeatures": "pillarbox.contracts.store",
            "Transport": "pillarbox.contracts.transport",
            "TransportFeatures": "pillarbox.contracts.transport",
            "Writer": "pillarbox.contracts.writer",
        },
    )

__all__ = [
    "AsyncWriter",
    "FallbackIdentity",
    "IncomingMessage",
    "Inspector",
    "MonitorStore",
    "OperatorStore",
    "Outcome",
    "Receiver",
    "ReceiverFeatures",
    "RelayStore",
    "Selection",
    "Store",
    "StoreFeatures",
    "Transport",
    "TransportFeatures",
    "Writer",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
