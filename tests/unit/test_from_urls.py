"""Relays and consumers that are made from URLs, and from the configuration."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from pillarbox import (
    ConfigError,
    Consumer,
    Destination,
    DestinationSettings,
    Names,
    Outbox,
    Relay,
    open_store,
)
from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver, MemoryTransport
from pillarbox.brokers.redis import RedisReceiver
from pillarbox.errors import UnknownDestination
from pillarbox.stores.factory import open_schema
from pillarbox.stores.memory import MemoryStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.testing import sample

NAMES = Names(prefix="shop_")
CONFIG = """
[store]
url = "sqlite:///{file}"
prefix = "shop_"

[relay]
poll_interval = "20ms"

[destinations.billing]
url = "${{BILLING}}"
"""


@pytest.fixture
async def shop(tmp_path: Path) -> Path:
    """A database with one message that waits under each prefix, and a configuration beside it."""
    file = tmp_path / "shop.db"
    for names in (Names(), NAMES):
        await open_schema(parse_store_url(f"sqlite:///{file}"), names=names).install()
        with sqlite3.connect(file) as connection:
            outbox = Outbox(routes="billing", source="/shop", prefix=names.prefix)
            outbox.publish(connection, {"order": 7}, type="orders.placed")
        connection.close()
    (tmp_path / "pillarbox.toml").write_text(CONFIG.format(file=file), "utf-8")
    return file


def states(file: Path, prefix: str = "pillarbox_") -> list[str]:
    connection = sqlite3.connect(file)
    try:
        return [state for (state,) in connection.execute(f"select state from {prefix}messages")]
    finally:
        connection.close()


async def test_a_relay_takes_urls(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER", "memory:")
    await Relay(f"sqlite:///{shop}", {"billing": "${BROKER}", "mail": "memory:"}).run(once=True)
    assert states(shop) == ["delivered"]
    assert states(shop, "shop_") == ["pending"]


async def test_a_relay_takes_a_store_and_destinations(shop: Path) -> None:
    transport = MemoryTransport()
    destination = Destination(lambda: transport, DestinationSettings(name="billing"))
    await Relay(open_store(f"sqlite:///{shop}", names=NAMES), [destination]).run(once=True)
    assert [message.type for message in transport.received] == ["orders.placed"]
    assert states(shop, "shop_") == ["delivered"]


async def test_a_relay_takes_its_store_as_a_url_and_its_destinations_as_objects(shop: Path) -> None:
    transport = MemoryTransport()
    await Relay(f"sqlite:///{shop}", [Destination(lambda: transport, DestinationSettings(name="billing"))]).run(
        once=True
    )
    assert len(transport.received) == 1


@pytest.mark.parametrize(
    ("destinations", "reason"),
    [
        ({"billing": "carrier-pigeon://roof"}, "Destination billing cannot be served: .*carrier-pigeon"),
        ({"billing": "memory:?colour=red"}, "Destination billing cannot be served: .*colour"),
        ({"billing": "${NOBODY_SET_THIS}"}, r"Destination billing cannot be served: .*\$\{NOBODY_SET_THIS\}"),
        ({"7": "memory:"}, "The destination '7' is not usable"),
        ({"_skipped": "memory:"}, "is reserved"),
        ({}, "at least one destination"),
    ],
)
def test_a_wrong_destination_is_found_at_once(destinations: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Relay(MemoryStore(), destinations)


def test_a_wrong_store_is_found_at_once() -> None:
    with pytest.raises(ConfigError, match="shoebox"):
        Relay("shoebox:///under-the-bed", {"billing": "memory:"})


async def test_a_relay_is_made_from_the_configuration(shop: Path) -> None:
    relay = Relay.from_config(shop.parent / "pillarbox.toml", environ={"BILLING": "memory:"})
    await relay.run(once=True)
    assert states(shop, "shop_") == ["delivered"]
    assert states(shop) == ["pending"]


def test_the_configuration_is_found_as_the_command_finds_it(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILLING", "memory:")
    monkeypatch.chdir(shop.parent)
    assert isinstance(Relay.from_config(), Relay)
    with pytest.raises(UnknownDestination, match="bill"):
        Relay.from_config(environ={"BILLING": "memory:", "PILLARBOX_RELAY_DESTINATIONS": "bill"})


@pytest.mark.parametrize("text", ["", '[store]\nurl = "memory://"\n', '[destinations.billing]\nurl = "memory:"\n'])
def test_a_configuration_without_store_or_destination_makes_no_relay(tmp_path: Path, text: str) -> None:
    (tmp_path / "some.toml").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="is configured"):
        Relay.from_config(tmp_path / "some.toml", environ={})


def test_a_consumer_takes_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS", "localhost")
    url = "redis://${REDIS}/0?stream=orders&group=billing"
    consumer = Consumer("billing", receiver=url, database=MemoryStore())
    assert isinstance(consumer._receiver, RedisReceiver)


@pytest.mark.parametrize("url", ["carrier-pigeon://roof", "redis://${NOBODY_SET_THIS}/0?stream=orders&group=billing"])
def test_a_consumer_refuses_a_wrong_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"carrier-pigeon|NOBODY_SET_THIS"):
        Consumer("billing", receiver=url, database=MemoryStore())


async def test_a_consumer_from_the_configuration_uses_its_tables(shop: Path) -> None:
    queue = MemoryQueue()
    queue.put(sample())
    engine = create_engine(f"sqlite:///{shop}")
    consumer = Consumer.from_config(
        "billing", receiver=MemoryReceiver(queue), database=sessionmaker(engine), path=shop.parent / "pillarbox.toml"
    )

    @consumer.on("*")
    def handle(_event: object, _session: Session) -> None:
        consumer.stop()

    await consumer.run()
    engine.dispose()
    with sqlite3.connect(shop) as connection:
        assert connection.execute("select consumer, status from shop_inbox").fetchall() == [("billing", "done")]
        assert connection.execute("select count(*) from pillarbox_inbox").fetchall() == [(0,)]
    connection.close()
