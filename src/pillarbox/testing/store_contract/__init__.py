"""The contract of a store, as tests to inherit.

    class TestMyStore(StoreContract):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[StoreHarness]:
            ...

Each test gets a harness of its own. A test whose name is in the way can be overridden, but then the store does not
keep the contract.
"""

from __future__ import annotations

import pytest

from pillarbox.testing.store_contract.asking import AskingContract
from pillarbox.testing.store_contract.blocking import BlockingContract
from pillarbox.testing.store_contract.claiming import ClaimingContract
from pillarbox.testing.store_contract.counting import CountingContract
from pillarbox.testing.store_contract.deferring import DeferringContract
from pillarbox.testing.store_contract.discarding import DiscardingContract
from pillarbox.testing.store_contract.due import DueContract
from pillarbox.testing.store_contract.fencing import FencingContract
from pillarbox.testing.store_contract.inbox import InboxContract
from pillarbox.testing.store_contract.inheriting import InheritingContract
from pillarbox.testing.store_contract.journal import JournalContract
from pillarbox.testing.store_contract.keeping import KeepingContract
from pillarbox.testing.store_contract.late import LateRowsContract
from pillarbox.testing.store_contract.leaving import LeavingContract
from pillarbox.testing.store_contract.membership import MembershipContract
from pillarbox.testing.store_contract.purging import PurgingContract
from pillarbox.testing.store_contract.racing import RacingContract
from pillarbox.testing.store_contract.reading import ReadingContract
from pillarbox.testing.store_contract.redriving import RedrivingContract
from pillarbox.testing.store_contract.refusing import RefusingContract
from pillarbox.testing.store_contract.settling import SettlingContract
from pillarbox.testing.store_contract.skipping import SkippingContract
from pillarbox.testing.store_contract.taking import TakingContract
from pillarbox.testing.store_contract.times import TimesContract
from pillarbox.testing.store_contract.waking import WakingContract
from pillarbox.testing.store_contract.watching import WatchingContract
from pillarbox.testing.store_contract.writing import WritingContract

__all__ = ["StoreContract"]


class StoreContract(
    WritingContract,
    ReadingContract,
    LateRowsContract,
    SkippingContract,
    DueContract,
    BlockingContract,
    ClaimingContract,
    SettlingContract,
    KeepingContract,
    FencingContract,
    MembershipContract,
    TakingContract,
    InheritingContract,
    LeavingContract,
    RacingContract,
    WakingContract,
    RedrivingContract,
    DiscardingContract,
    DeferringContract,
    RefusingContract,
    PurgingContract,
    JournalContract,
    AskingContract,
    CountingContract,
    WatchingContract,
    InboxContract,
    TimesContract,
):
    """Every promise of `pillarbox.protocols.Store`. Subclass it and give it a `harness` fixture."""

    pytestmark = pytest.mark.asyncio
