"""The contract of a receiver, as tests to inherit.

    class TestMyReceiver(ReceiverContract):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[ReceiverHarness]:
            ...

Each test gets a harness of its own. Needs pytest and pytest-asyncio.
"""

from __future__ import annotations

import pytest

# Before the suites are imported: a third party's failing assertion should show its values.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("arriving", "acknowledging", "outages")))

from pillarbox.testing.receiver_contract.acknowledging import AcknowledgingContract  # noqa: E402
from pillarbox.testing.receiver_contract.arriving import ArrivingContract  # noqa: E402
from pillarbox.testing.receiver_contract.harness import ReceiverHarness  # noqa: E402
from pillarbox.testing.receiver_contract.outages import OutageContract  # noqa: E402

__all__ = ["ReceiverContract", "ReceiverHarness"]


class ReceiverContract(ArrivingContract, AcknowledgingContract, OutageContract):
    """Every promise of `pillarbox.protocols.Receiver`. Subclass it and give it a `harness` fixture."""

    pytestmark = pytest.mark.asyncio
