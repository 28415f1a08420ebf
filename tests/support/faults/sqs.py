"""SQS under every fault: a standard queue, which does not know repeats."""

from __future__ import annotations

from tests.support.faults.aws import Aws
from tests.support.faults.faults import BrokerUnderTest

__all__ = ["broker"]


def broker() -> BrokerUnderTest:
    return Aws("sqs", name="SQS (moto)", what="queue")
