"""Whatever fault befalls a broker: nothing is lost, the order per key holds, and only bad messages fail.

With PILLARBOX_FAULT_TABLE set to a path, the table of what was found is written there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import BROKERS, load_broker
from tests.support.faults.broker import Fault
from tests.support.faults.runner import run_fault
from tests.support.faults.table import Results, format_page

_FREE = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.RESTART)
"""An outage costs nothing. A hang may: some of a batch were answered, so the broker looks alive."""


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    results = Results()
    yield results
    if path := os.environ.get("PILLARBOX_FAULT_TABLE"):
        Path(path).write_text(format_page(results))


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value.replace(" ", "-"))
@pytest.mark.parametrize("name", BROKERS)
async def test_nothing_is_lost(name: str, fault: Fault, tmp_path: Path, results: Results) -> None:
    under_test = load_broker(name)
    if fault in under_test.exempt:
        results.exempt[under_test.name, fault] = under_test.exempt[fault]
        return
    found = await run_fault(under_test, fault, folder=tmp_path)
    results.found[under_test.name, fault] = found
    assert found.injected > 0
    assert found.noticed > 0 or fault in _FREE
    assert (found.lost, found.ghosts, found.out_of_order, found.wrongly_failed) == (0, 0, 0, 0)
    if fault in under_test.spoils:
        assert found.failed == found.injected
    if fault in _FREE:
        assert found.attempts == 0
