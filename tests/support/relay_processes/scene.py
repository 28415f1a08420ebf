"""What the tests see of a store with relays and writers, and what must hold in the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

from pillarbox.contracts.store import Store
from pillarbox.message import PARTITIONS
from pillarbox.stores.factory import open_store
from tests.support.relay_processes.fleet import Fleet, RelayProcess, until
from tests.support.relay_processes.places import Load, Place
from tests.support.relay_processes.sink import Delivery, deliveries
from tests.support.relay_processes.ticks import DESTINATION

__all__ = ["Scene"]

_SHARES: Final = """
select pid, count(*) from pillarbox_lane join pillarbox_relay using (relay_id)
 where destination = 'sink' and expires_at > {now} group by pid
"""
_IDS: Final = "select relay_id from pillarbox_relay where pid = ? and expires_at > {now} order by started_at"


class Scene:
    def __init__(self, place: Place, fleet: Fleet) -> None:
        self.place = place
        self.fleet = fleet

    # --- seeing ---

    @property
    def sink(self) -> Path:
        return Path(self.fleet.part.sink)

    def shares(self) -> dict[int, int]:
        """The pid of each live relay that owns lanes, and how many."""
        return dict(self.place.rows(_SHARES))

    def ids(self, relay: RelayProcess) -> list[str]:
        """Under which ids a process is in the registry, alive."""
        return [str(relay_id) for (relay_id,) in self.place.rows(_IDS, relay.pid)]

    def count(self, of: str, *values: object) -> int:
        """How many rows: `count("pillarbox_claim where relay_id = ?", relay_id)`."""
        ((count,),) = self.place.rows(f"select count(*) from {of}", *values)
        return int(count)

    def count_settled(self, relay_id: object) -> int:
        """How many deliveries a relay has settled."""
        query = "select coalesce(sum(delivered), 0) from pillarbox_rollup where relay_id = ?"
        ((count,),) = self.place.rows(query, relay_id)
        return int(count)

    def delivered_by(self, relay: RelayProcess) -> int:
        return Counter(delivery.pid for delivery in deliveries(self.sink))[relay.pid]

    # --- operating ---

    def pause(self) -> None:
        """Have the relays send nothing, and go on with everything else."""

        async def pause(store: Store) -> None:
            await store.pause(DESTINATION, by="the test", reason="to see who settles")

        self._operate(pause)

    def resume(self) -> None:
        async def resume(store: Store) -> None:
            await store.resume(DESTINATION, by="the test")

        self._operate(resume)

    def _operate(self, act: Callable[[Store], Coroutine[None, None, None]]) -> None:
        async def run() -> None:
            store = open_store(self.place.store, names=self.place.names)
            await store.open()
            try:
                await act(store)
            finally:
                await store.close()

        asyncio.run(run())

    # --- waiting ---

    def start(self, count: int) -> list[RelayProcess]:
        """So many relays, with all lanes shared among them."""
        relays = [self.fleet.start() for _ in range(count)]
        self.wait_shared(relays)
        return relays

    def wait_shared(self, relays: Sequence[RelayProcess], *, within: float = 60) -> None:
        """Until these relays and no others own all lanes, in even shares."""
        share, rest = divmod(PARTITIONS, len(relays))
        even = sorted([share + 1] * rest + [share] * (len(relays) - rest))

        def holds() -> bool:
            shares = self.shares()
            return shares.keys() == {relay.pid for relay in relays} and sorted(shares.values()) == even

        until(holds, within=within, what="the lanes are shared evenly")

    def wait_delivered(self, relay: RelayProcess, count: int) -> None:
        """Until this relay has delivered so many more."""
        before = self.delivered_by(relay)
        until(lambda: self.delivered_by(relay) >= before + count, within=60, what=f"{count} more deliveries")

    def wait_written(self, count: int, *, within: float = 60) -> None:
        """Until the writers have committed so many ticks, however slow the machine is."""

        def holds() -> bool:
            ((committed,),) = self.place.rows("select coalesce(sum(number), 0) from tally")
            return bool(committed >= count)

        until(holds, within=within, what=f"{count} ticks are committed")

    def wait_drained(self, *, within: float = 60) -> None:
        until(lambda: not self.count("pillarbox_outbox"), within=within, what="every message is closed")

    def freeze_with_full_hands(self, relay: RelayProcess) -> str:
        """SIGSTOP at a moment when it has messages in hand, and no lock that only it can let go. Answers its id."""
        (relay_id,) = self.ids(relay)

        def holds() -> bool:
            relay.freeze()
            if self.count("pillarbox_claim where relay_id = ?", relay_id) and not self.place.is_locked():
                return True
            relay.thaw()
            return False

        until(holds, within=60, what="it is frozen with messages in hand")
        return relay_id

    @contextmanager
    def writing(self, load: Load, *, least: int = 200) -> Iterator[None]:
        """Writers at work, in a thread, until the block ends and so many ticks are committed."""
        stop = Event()
        with ThreadPoolExecutor(1) as threads:
            written = threads.submit(self.place.write, load, stop)
            try:
                yield
                self.wait_written(least)
            finally:
                stop.set()
            written.result()

    # --- judging ---

    def first_deliveries(self) -> dict[str, list[Delivery]]:
        """Of each key, in order of arrival, without the repeats."""
        firsts: dict[str, dict[int, Delivery]] = {}
        for delivery in deliveries(self.sink):
            firsts.setdefault(delivery.tick.key, {}).setdefault(delivery.id, delivery)
        return {key: [*of_key.values()] for key, of_key in firsts.items()}

    def judge(self, *, least: int = 200) -> None:
        """Every committed tick arrived, nothing else did, and the first deliveries of each key came in order."""
        firsts = self.first_deliveries()
        committed = dict(self.place.rows("select key, number from tally where number > 0"))
        assert sum(committed.values()) >= least
        assert {key: [first.tick.number for first in of_key] for key, of_key in firsts.items()} == {
            key: [*range(1, number + 1)] for key, number in committed.items()
        }
        assert all([first.id for first in of_key] == sorted(first.id for first in of_key) for of_key in firsts.values())
        assert not [delivery for delivery in deliveries(self.sink) if not delivery.tick.kept]
        states = dict(self.place.rows("select state, count(*) from pillarbox_messages group by state"))
        assert states == {"delivered": sum(committed.values())}
