"""The contract of a store, as tests to inherit.

    class TestMyStore(StoreContract):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[StoreHarness]:
            ...

Each test gets a harness of its own. A test can be overridden, but then the store does not keep the contract.
"""

from __future__ import annotations

import pytest

from pillarbox.testing.store_contract.claims import ClaimContract, ForwardContract, SettleContract
from pillarbox.testing.store_contract.dashboard import (
    BacklogContract,
    BlockedCountContract,
    FailureGroupContract,
    InboxActivityContract,
    InboxRecordContract,
    LaneBacklogContract,
    PhaseContract,
    ReasonContract,
)
from pillarbox.testing.store_contract.fencing import FenceContract, RaceContract
from pillarbox.testing.store_contract.hostile_rows import HostileRowsContract
from pillarbox.testing.store_contract.membership import (
    LeaveContract,
    MembershipContract,
    RecoveryContract,
    TakeoverContract,
)
from pillarbox.testing.store_contract.operations import (
    DeferContract,
    DiscardContract,
    GoneRelayContract,
    InboxContract,
    RedriveContract,
    RefusalContract,
    RevisionContract,
)
from pillarbox.testing.store_contract.queries import CountsContract, FindContract, JournalContract, RollupContract
from pillarbox.testing.store_contract.reading import (
    ByteLimitContract,
    LateRowsContract,
    PeekContract,
    ReadContract,
    SkippedKeysContract,
)
from pillarbox.testing.store_contract.retention import KeepContract, PurgeContract, RestoreContract
from pillarbox.testing.store_contract.waiting import BlockedKeysContract, DueContract
from pillarbox.testing.store_contract.writing import TimesContract, WakeupContract, WriteContract

__all__ = ["StoreContract"]


class StoreContract(
    WriteContract,
    ReadContract,
    ByteLimitContract,
    LateRowsContract,
    SkippedKeysContract,
    PeekContract,
    DueContract,
    BlockedKeysContract,
    ClaimContract,
    SettleContract,
    ForwardContract,
    KeepContract,
    FenceContract,
    MembershipContract,
    TakeoverContract,
    RecoveryContract,
    LeaveContract,
    RaceContract,
    WakeupContract,
    RedriveContract,
    DiscardContract,
    GoneRelayContract,
    DeferContract,
    RefusalContract,
    RevisionContract,
    PurgeContract,
    RestoreContract,
    JournalContract,
    FindContract,
    CountsContract,
    RollupContract,
    InboxContract,
    FailureGroupContract,
    BlockedCountContract,
    ReasonContract,
    BacklogContract,
    InboxRecordContract,
    InboxActivityContract,
    LaneBacklogContract,
    PhaseContract,
    TimesContract,
    HostileRowsContract,
):
    """Every promise of `pillarbox.contracts.store.Store`. Subclass it and give it a `harness` fixture."""

    pytestmark = pytest.mark.asyncio
