"""How a service reaches its database and the broker: the same in both."""

from __future__ import annotations

import os
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from pillarbox import Destination, DestinationSettings, Names, Relay, RelaySettings, open_store
from pillarbox.brokers import receiver_from_url, transport_from_url
from pillarbox.contracts import Receiver

__all__ = ["BROKER", "DATABASE", "receiver", "relay", "sessions"]

DATABASE: Final = os.environ.get("SHOP_DATABASE", "postgresql+asyncpg://postgres@127.0.0.1/postgres")
"""Each service has a schema of its own in it."""
BROKER: Final = os.environ.get("SHOP_BROKER", "amqp://guest:guest@127.0.0.1/")
EXCHANGE: Final = os.environ.get("SHOP_EXCHANGE", "shop")


def sessions() -> async_sessionmaker[AsyncSession]:
    """Over a pool of their own: a pool belongs to one event loop, and the consumer's is not the web service's."""
    return async_sessionmaker(create_async_engine(DATABASE), expire_on_commit=False)


def relay(service: str) -> Relay:
    """Delivers what the service has committed."""
    broker = Destination(
        lambda: transport_from_url(BROKER, options={"exchange": EXCHANGE, "declare": True}),
        DestinationSettings(name="broker"),
    )
    store = open_store(DATABASE, names=Names(schema=service))
    return Relay(store, [broker], settings=RelaySettings(service=service))


def receiver(service: str, *, topic: str) -> Receiver:
    """The service's queue. One consumer reads it at a time, so that order per key outlives a crash."""
    queue = {"queue": f"{EXCHANGE}.{service}", "exchange": EXCHANGE, "bind": topic}
    return receiver_from_url(BROKER, options=queue | {"declare": True, "single_active": True})
