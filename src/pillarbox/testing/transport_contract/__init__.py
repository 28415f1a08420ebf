"""The contract of a transport, as tests to inherit.

    class TestMyTransport(TransportContract):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[TransportHarness]:
            ...

Each test gets a harness of its own. A test whose name is in the way can be overridden, but then the transport does not
keep the contract. Needs pytest and pytest-asyncio.
"""

from __future__ import annotations

import pytest

# Before the suites are imported: a third party's failing assertion should show its values.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("arrange", "answering", "arriving", "outages")))

from pillarbox.testing.transport_contract.answering import AnsweringContract  # noqa: E402
from pillarbox.testing.transport_contract.arriving import ArrivingContract  # noqa: E402
from pillarbox.testing.transport_contract.harness import TransportHarness  # noqa: E402
from pillarbox.testing.transport_contract.outages import OutageContract  # noqa: E402

__all__ = ["TransportContract", "TransportHarness"]


class TransportContract(AnsweringContract, ArrivingContract, OutageContract):
    """Every promise of `pillarbox.protocols.Transport`. Subclass it and give it a `harness` fixture."""

    pytestmark = pytest.mark.asyncio
