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
from pillarbox.brokers import receiver_from_url
from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver, MemoryTransport
from pillarbox.brokers.redis import RedisReceiver
from pillarbox.contracts import Receiver
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


# --- a consumer that the configuration names ---


@pytest.fixture
def urls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs from which receivers were made."""
    urls: list[str] = []

    def remember(url: str) -> Receiver:
        urls.append(url)
        return receiver_from_url(url)

    monkeypatch.setattr("pillarbox.consumer.consumer.receiver_from_url", remember)
    return urls


def consumer_from(folder: Path, text: str, name: str = "billing", **environ: str) -> Consumer:
    (folder / "pillarbox.toml").write_text(text, "utf-8")
    return Consumer.from_config(name, database=MemoryStore(), path=folder / "pillarbox.toml", environ=environ)


STREAM = "redis://{}/0?stream=orders&group=billing"
IN_FILE = f'[consumers.billing]\nreceiver = "{STREAM.format("${REDIS}")}"\n'


def test_the_configuration_names_the_receiver_of_a_consumer(tmp_path: Path, urls: list[str]) -> None:
    consumer_from(tmp_path, IN_FILE, REDIS="here")
    assert urls == [STREAM.format("here")]


@pytest.mark.parametrize(("name", "variable"), [("billing", "BILLING"), ("eu-mail", "EU_MAIL")])
def test_a_variable_names_it_too_and_wins_over_the_file(
    tmp_path: Path, urls: list[str], name: str, variable: str
) -> None:
    environ = {f"PILLARBOX_CONSUMER_{variable}_RECEIVER": STREAM.format("there"), "REDIS": "here"}
    consumer_from(tmp_path, IN_FILE, name, **environ)
    assert urls == [STREAM.format("there")]


@pytest.mark.parametrize(
    ("text", "environ", "reason"),
    [
        ("", {}, "The consumer billing has no receiver: give receiver=URL, set PILLARBOX_CONSUMER_BILLING_RECEIVER, or "
         "write a receiver under [consumers.billing] in the file."),
        ('[consumers.bling]\nreceiver = "redis://x"\n', {}, "no receiver (the nearest known is bling): give"),
        ("[consumers]\nbilling = 7\n", {}, "consumers.billing in FILE must be a table with a receiver."),
        ("[consumers.billing]\nreceiver = 7\n", {}, "consumers.billing.receiver in FILE must be a text."),
        ('[consumers.billing]\nreciever = "redis://x"\n', {}, "FILE has an unknown key consumers.billing.reciever: the "
         "nearest known is consumers.billing.receiver."),
        (IN_FILE, {}, "consumers.billing.receiver in FILE cannot be used: "),
        ('[consumers.billing]\nreceiver = "pigeon://roof"\n', {}, "FILE cannot be used: No installed receiver"),
        ("", {"PILLARBOX_CONSUMER_BILLING_RECEIVER": "pigeon://roof"}, "PILLARBOX_CONSUMER_BILLING_RECEIVER cannot be"),
        ("", {"PILLARBOX_CONSUMER_BILLING_RECIEVER": "x"}, "PILLARBOX_CONSUMER_BILLING_RECIEVER is not known: "),
        (f"{IN_FILE}[consumers.Billing]\n", {"PILLARBOX_CONSUMER_BILLING_RECEIVER": "redis://x"}, "may mean the "
         "consumer billing or Billing: give it in the file."),
    ],
)  # fmt: skip
def test_a_receiver_that_cannot_be_found_or_used_is_one_sentence(
    tmp_path: Path, text: str, environ: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        consumer_from(tmp_path, text, **environ)
    said = str(refused.value).replace(str(tmp_path / "pillarbox.toml"), "FILE")
    assert reason in said
    assert said.endswith(".")


def test_a_consumer_that_brings_its_receiver_needs_no_section(shop: Path) -> None:
    receiver, path = MemoryReceiver(MemoryQueue()), shop.parent / "pillarbox.toml"
    consumer = Consumer.from_config("mail", receiver=receiver, database=MemoryStore(), path=path, environ={})
    assert consumer._receiver is receiver
