"""Every broker under every fault, with a real relay. `tests.support.faults.broker` says what a broker must provide."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final, cast

from tests.support.faults.broker import BrokerUnderTest

__all__ = ["BROKERS", "load_broker"]

BROKERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "rabbitmq": "rabbitmq:Rabbitmq",
        "kafka": "kafka:Kafka",
        "mqtt": "mqtt:Mqtt",
        "sqs": "aws:Sqs",
        "sns": "aws:Sns",
        "nats": "nats:Nats",
        "redis": "redis:Redis",
    }
)
"""Name to the module here and its class, in the order of the table. A new broker adds its entry."""


def load_broker(name: str) -> BrokerUnderTest:
    """Return the broker of that name. It is imported only now: a client that is missing fails only its own rows."""
    module, _, broker = BROKERS[name].partition(":")
    return cast("BrokerUnderTest", getattr(import_module(f"tests.support.faults.{module}"), broker)())
