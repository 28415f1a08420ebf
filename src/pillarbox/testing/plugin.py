"""The pytest plugin: fixtures that need nothing but their names. The kit is imported when a test uses one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pillarbox.testing.kit import OutboxKit

__all__ = ["outbox_kit"]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of tests that draw random input. PILLARBOX_FUZZ_COUNT says how much of it."""
    config.addinivalue_line("markers", "fuzz: draws random input; PILLARBOX_FUZZ_COUNT says how much")


@pytest.fixture
def outbox_kit() -> OutboxKit:
    """An in-memory outbox with a frozen clock, and transports that can be made to fail."""
    from pillarbox.testing.kit import OutboxKit

    return OutboxKit()
