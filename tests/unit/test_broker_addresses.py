"""The address of a message, by which a transport's outages are told apart."""

from __future__ import annotations

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Addressing, find_addressing
from pillarbox.errors import ConfigError
from pillarbox.testing.samples import sample


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("amqp://localhost?exchange=shop", "exchange 'shop', routing key 'orders'"),
        ("amqp://localhost?exchange=shop-{kind}&routing_key=all", "exchange 'shop-event', routing key 'all'"),
        ("nats://localhost?subject={topic}.new", "subject 'orders.new'"),
        ("redis://localhost?key=stream-{topic}", "stream 'stream-orders'"),
        ("mqtt://localhost?topic=shop/{topic}", "topic 'shop/orders'"),
        ("kafka://localhost", "topic 'orders'"),
    ],
)
def test_messages_of_one_address_share_its_text(url: str, address: str) -> None:
    addressing = find_addressing(transport_from_url(url))
    assert addressing is not None
    assert addressing.get_address(sample(topic="orders")) == address
    assert addressing.get_address(sample(topic="orders", key="another")) == address


@pytest.mark.parametrize(
    "url",
    [
        "amqp://localhost?exchange=shop&routing_key=all",
        "nats://localhost?subject=shop",
        "redis://localhost?key=shop",
        "mqtt://localhost?topic=shop",
        "kafka://localhost?topic=shop",
        "https://shop.example/hooks",
        "memory:",
    ],
)
def test_where_all_go_to_one_address_it_is_the_destination(url: str) -> None:
    assert find_addressing(transport_from_url(url)) is None


def test_a_message_without_a_valid_address_has_none() -> None:
    transport = transport_from_url("redis://localhost?key=of-{key}")
    assert isinstance(transport, Addressing)
    assert transport.get_address(sample(key=None)) is None


@pytest.mark.parametrize(
    ("url", "is_witness"),
    [
        ("amqp://localhost?exchange=shop", True),
        ("kafka://localhost", True),
        ("https://shop.example/hooks", False),
        ("https://shop.example/hooks?health=/health", True),
        ("memory:", False),
    ],
)
def test_a_ping_is_a_witness_where_it_means_something(url: str, is_witness: bool) -> None:
    assert transport_from_url(url).features.ping_is_witness is is_witness


@pytest.mark.parametrize("health", ["health", "//elsewhere.example/health", "/he alth"])
def test_the_health_path_stays_on_the_server(health: str) -> None:
    with pytest.raises(ConfigError, match="health"):
        transport_from_url("https://shop.example/hooks", options={"health": health})
