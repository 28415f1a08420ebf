"""The pytest plugin: fixtures that need nothing but their names. The kit is imported when a test uses one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pillarbox.testing.kit import OutboxKit

__all__ = ["outbox_kit"]


@pytest.fixture
def outbox_kit() -> OutboxKit:
    """An in-memory outbox with a frozen clock, and transports that can be made to fail."""
    from pillarbox.testing.kit import OutboxKit

    return OutboxKit()
