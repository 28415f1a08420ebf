"""SNS under every fault: a topic with a queue behind it."""

from __future__ import annotations

from tests.brokers.aws import Aws
from tests.brokers.faults import BrokerUnderTest

__all__ = ["broker"]


def broker() -> BrokerUnderTest:
    return Aws("sns", name="SNS (moto)", what="topic")
