"""One of many stores in a process: what it asks of the shared window."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pillarbox.relay import relays
from pillarbox.relay.addresses import parse_address
from pillarbox.relay.shares import Demand


class _Relay:
    def __init__(self) -> None:
        self.demand = Demand(5, 50, wants=True)

    def measure_demand(self) -> dict[str, Demand]:
        return {"hooks": self.demand, "mail": Demand()}


async def test_a_destination_that_had_work_a_moment_ago_keeps_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two batches it has nothing in flight, and a store with a flood would take its share each time."""
    now = 1_000.0
    monkeypatch.setattr("pillarbox.relay.relays.time.monotonic", lambda: now)
    served = relays._ServedStore(
        "orders", parse_address("sqlite:///orders.db"), lambda *_: None, dice=random.Random(1), pace=1.0,  # type: ignore[arg-type]
        start_slots=asyncio.Semaphore(1),
    )  # fmt: skip
    assert served.measure_demand() == {}
    relay: Any = _Relay()
    served.relay = relay
    assert served.measure_demand() == {"hooks": Demand(5, 50, wants=True), "mail": Demand()}
    relay.demand = Demand()
    now += relays._WORK_LASTS / 2
    assert served.measure_demand() == {"hooks": Demand(wants=True), "mail": Demand()}
    now += relays._WORK_LASTS
    assert served.measure_demand() == {"hooks": Demand(), "mail": Demand()}
