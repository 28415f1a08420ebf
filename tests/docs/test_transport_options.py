"""The tables of options of brokers name those that the settings have, with the defaults in force."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib import import_module

import msgspec
import pytest

from pillarbox.durations import parse_duration
from tests.support.docs.console_blocks import ROOT

TABLES = {
    "HttpSettings": ("http", "docs/transports/http.md", "## Options"),
    "RabbitmqSettings": ("rabbitmq", "docs/transports/rabbitmq.md", "## Options"),
    "KafkaSettings": ("kafka", "docs/transports/kafka.md", "## Options"),
    "NatsSettings": ("nats", "docs/transports/nats.md", "## Options"),
    "RedisSettings": ("redis", "docs/transports/redis.md", "## Options"),
    "MqttSettings": ("mqtt", "docs/transports/mqtt.md", "## Options"),
    "SqsSettings": ("aws", "docs/transports/sqs.md", "## Options"),
    "RabbitmqReceiverSettings": ("rabbitmq", "docs/receivers.md", "## RabbitMQ"),
    "KafkaReceiverSettings": ("kafka", "docs/receivers.md", "## Kafka"),
    "NatsReceiverSettings": ("nats", "docs/receivers.md", "## NATS JetStream"),
    "RedisReceiverSettings": ("redis", "docs/receivers.md", "## Redis Streams"),
}  # fmt: skip
ELSEWHERE = {"HttpSettings.mode": "by `secret`", "SqsSettings.queue": "a template"}
"""Defaults that depend on something else, and stand in words."""


def read_table(page: str, heading: str) -> list[tuple[str, str]]:
    """Return options and their defaults; an empty text where the table has none."""
    section = re.split(r"^## ", (ROOT / page).read_text("utf-8").partition(f"\n{heading}\n")[2], flags=re.MULTILINE)[0]
    found: list[tuple[str, str]] = []
    for names, defaults in re.findall(r"^\| (`[^|]*?) *\| *([^|]*?) *\|", section, re.MULTILINE):
        options = [name.partition(".")[0] for name in re.findall(r"`([^`]+)`", names)]
        shown = re.findall(r"`([^`]+)`", defaults)
        if len(shown) != len(options):  # one for all of them, or none
            shown = (shown[:1] or [""]) * len(options)
        found += zip(options, shown, strict=True)
    return found


def show(value: object) -> str:
    if isinstance(value, (frozenset, tuple)):
        return ",".join(map(str, sorted(value)))
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("name", TABLES)
def test_the_table_has_the_options_and_their_defaults(name: str) -> None:
    broker, page, heading = TABLES[name]
    settings = getattr(import_module(f"pillarbox.brokers.{broker}.settings"), name)
    fields = {field.name: field.default for field in msgspec.structs.fields(settings)}
    table = read_table(page, heading)
    in_words = {"url", "insecure"} | ({"mode"} if "Receiver" in name else set())  # a receiver reads both modes
    assert {option for option, _ in table} - in_words == set(fields) - in_words
    wrong = []
    for option, shown in table:
        value = fields[option]
        if not shown or f"{name}.{option}" in ELSEWHERE:
            continue
        if (parse_duration(shown) if isinstance(value, timedelta) else shown) != (
            value if isinstance(value, timedelta) else show(value)
        ):
            wrong.append((option, shown, value))
    assert wrong == []
