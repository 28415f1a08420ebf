"""The pure parts of receivers."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from pillarbox.brokers import factory as opening
from pillarbox.brokers.factory import receiver_from_url, receiver_schemes
from pillarbox.brokers.http.receiver import RedeliveryMemory
from pillarbox.brokers.kafka import KafkaReceiver
from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.brokers.nats import NatsReceiver
from pillarbox.brokers.rabbitmq import RabbitmqReceiver, RabbitmqReceiverSettings
from pillarbox.brokers.rabbitmq.receiver import build_queue_arguments
from pillarbox.brokers.redis import RedisReceiver
from pillarbox.brokers.redis.encoding import parse_claim_reply
from pillarbox.brokers.settings import TransportUrl
from pillarbox.decoding import to_usable_id
from pillarbox.errors import ConfigError
from pillarbox.message import MAX_TEXT

# --- ids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["m-1", "ä" * (MAX_TEXT // 2), "urn:uuid:1 with spaces"])
def test_an_id_that_can_be_kept_is_kept(text: str) -> None:
    assert to_usable_id(text) == text


@pytest.mark.parametrize("text", ["x" * (MAX_TEXT + 1), "ä" * MAX_TEXT, "a\x00b", "a\nb", "\ud800"])
def test_another_is_a_digest_of_its_own(text: str) -> None:
    assert to_usable_id(text).startswith("sha256:")
    assert to_usable_id(text) == to_usable_id(text)
    assert to_usable_id(text) != to_usable_id(f"{text}.")


# --- from a URL ------------------------------------------------------------------------------------------


def test_receivers_are_known_by_their_scheme() -> None:
    assert isinstance(receiver_from_url("amqp://broker.example?queue=orders"), RabbitmqReceiver)
    assert isinstance(receiver_from_url("nats://nats.example?stream=ORDERS&durable=billing"), NatsReceiver)
    assert isinstance(receiver_from_url("rediss://redis.example/2?stream=orders&group=billing"), RedisReceiver)
    assert isinstance(receiver_from_url("kafka://k1.example,k2.example?topics=a,b&group=billing"), KafkaReceiver)


def test_an_unknown_scheme_is_told_which_there_are() -> None:
    with pytest.raises(ConfigError, match=r"No installed receiver is called 'gopher'; URLs begin with .*amqp:"):
        receiver_from_url("gopher://x")


def test_requests_are_not_read_from_a_url() -> None:
    with pytest.raises(ConfigError, match="mounting HttpReceiver"):
        receiver_from_url("https://shop.example")


def made_elsewhere(url: TransportUrl) -> MemoryReceiver:
    return MemoryReceiver(MemoryQueue())


def test_another_package_brings_a_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("else", f"{__name__}:made_elsewhere", "pillarbox.receivers")
    monkeypatch.setattr(EntryPoint, "load", lambda _: made_elsewhere)
    monkeypatch.setattr(opening, "entry_points", lambda **how: EntryPoints([entry]).select(**how))
    assert isinstance(receiver_from_url("else://x"), MemoryReceiver)
    assert "else" in receiver_schemes()


# --- RabbitMQ --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "version", "limit"),
    [("quorum", "3.13.7", None), ("quorum", "4.0.1", -1), ("quorum", "12.1", -1), ("quorum", "", None),
     ("classic", "4.1.0", None)],
)  # fmt: skip
def test_only_where_the_broker_would_drop_messages_it_is_told_not_to(
    kind: str, version: str, limit: int | None
) -> None:
    settings = RabbitmqReceiverSettings(url="amqp://x", queue="q", queue_type=kind)  # type: ignore[arg-type]
    arguments = build_queue_arguments(settings, version=version)
    assert arguments["x-queue-type"] == kind
    assert arguments.get("x-delivery-limit") == limit


# --- Redis -----------------------------------------------------------------------------------------------


def test_what_was_trimmed_is_told_by_some_servers_alone() -> None:
    """Redis 6.2 has nothing in its place, and keeps it."""
    entry = [b"1-0", [b"data", b"x"]]
    assert parse_claim_reply([b"0-0", [entry], [b"2-0"]]).trimmed == ["2-0"]
    old = parse_claim_reply([b"5-0", [entry, None]])
    assert (old.cursor, [delivery.id for delivery in old.deliveries], old.trimmed) == ("5-0", ["1-0"], [])


# --- HTTP ------------------------------------------------------------------------------------------------


def test_what_is_remembered_is_bounded_and_the_latest() -> None:
    memory = RedeliveryMemory(limit=3)
    for number in (0, 1, 2, 0, 3):
        memory.add(str(number))
    assert len(memory) == 3
    assert [str(number) in memory for number in range(4)] == [True, False, True, True]
    memory.forget("2")
    memory.forget("never there")
    assert "2" not in memory
