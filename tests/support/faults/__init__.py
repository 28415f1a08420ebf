"""Every broker under every fault, by a real relay. `tests.support.faults.faults` says what a broker must bring."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final, cast

from tests.support.faults.faults import BrokerUnderTest

__all__ = ["BROKERS", "broker"]

BROKERS: Final[Sequence[str]] = ("rabbitmq", "kafka", "mqtt", "sqs", "sns", "nats", "redis")
"""Names of the modules here that have a `broker()`, in the order of the table. A new broker adds its name."""


def broker(name: str) -> BrokerUnderTest:
    """The broker of that name. Imported only now: one that cannot be imported hurts only its own rows."""
    return cast("BrokerUnderTest", import_module(f"tests.support.faults.{name}").broker())
