"""Labels of a relay, from its settings or its constructor, in the registry."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox import Relay
from pillarbox.brokers.memory import MemoryTransport
from pillarbox.errors import ConfigError
from pillarbox.relay.relay import Destination
from pillarbox.relay.settings import RelaySettings
from pillarbox.stores.memory import MemoryStore


@pytest.mark.parametrize(("given", "shown"), [(None, {"zone": "eu"}), ({"team": "shop"}, {"team": "shop"}), ({}, {})])
async def test_the_registry_has_the_labels(given: dict[str, str] | None, shown: dict[str, str]) -> None:
    settings, store = RelaySettings(labels={"zone": "eu"}), MemoryStore()
    async with Relay(store, [Destination(MemoryTransport)], settings=settings, labels=given) as relay:
        while relay.health.relay_id is None:  # noqa: ASYNC110 - it is a task of this loop
            await asyncio.sleep(0)
        (info,) = (await store.registry(lease=settings.lease)).relays
    assert info.labels == shown


def test_labels_are_checked_wherever_they_come_from() -> None:
    with pytest.raises(ConfigError, match="label 'a b' is not usable"):
        RelaySettings(labels={"a b": "c"})
    with pytest.raises(ConfigError, match="label 'a' is not usable"):
        Relay(MemoryStore(), [Destination(MemoryTransport)], labels={"a": "line\nbreak"})
