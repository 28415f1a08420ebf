"""SNS under every fault: a topic with a queue behind it."""

from __future__ import annotations

from tests.support.faults.aws import Aws
from tests.support.faults.faults import BrokerUnderTest

__all__ = ["broker"]


def broker() -> BrokerUnderTest:
    return Aws("sns", name="SNS (moto)", what="topic")
