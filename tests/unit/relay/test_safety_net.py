"""Now and then a lane is read from its start, whatever its mark says: every lane gets its turn."""

from __future__ import annotations

import random
from datetime import timedelta

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Cursor
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.lease import Lease
from pillarbox.relay.outcome_policy import OutcomePolicy
from pillarbox.relay.polling import PollBackoff
from pillarbox.relay.reader import Reader
from pillarbox.relay.settings import DestinationSettings
from pillarbox.retry import DEFAULT_RETRY
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry


class _Reads(MemoryStore):
    """Remembers which lanes each read was told to begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self.anew: list[set[int]] = []

    async def read(self, destination, *, partitions, cursor, limit):  # type: ignore[no-untyped-def]
        marks = cursor or Cursor()
        self.anew.append({partition for partition in partitions if partition not in marks.low})
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit)
        low = {**dict.fromkeys(partitions, 1), **reading.cursor.low}
        return type(reading)(
            reading.messages, Cursor(low, reading.cursor.snapshot, reading.cursor.session), reading.complete
        )


async def test_every_lane_is_read_from_its_start_in_its_turn() -> None:
    clock, store = FrozenClock(), _Reads()
    duration = timedelta(days=1)
    lease = Lease(duration=duration)
    lease.extend(clock.monotonic())
    state = DestinationState(
        DestinationSettings(name="sink"), store=store, lease=lease, policy=OutcomePolicy(retry=DEFAULT_RETRY),
        clock=clock, telemetry=Telemetry(), dice=random.Random(1),
    )  # fmt: skip
    for partition in range(64):
        state.epochs[partition] = 1
        state.ordering.grant(partition)
    reader = Reader(state, transport=MemoryTransport(), backoff=PollBackoff(poll_interval=timedelta(seconds=1)))
    await reader.run_once()
    store.anew.clear()
    for _ in range(64):
        clock.advance(timedelta(seconds=10))
        await reader.run_once()
    assert [len(lanes) for lanes in store.anew] == [1] * 64
    assert set().union(*store.anew) == set(range(64))
