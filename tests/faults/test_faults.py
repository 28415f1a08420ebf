"""Whatever fault befalls a broker: nothing is lost, the order per key holds, and only bad messages fail.

Nor is anything lost, or paid, when a part of a broker takes nothing, and the rest goes on meanwhile.

With PILLARBOX_FAULT_TABLE set to a path, the tables of what was found are written there. Then partial outages are run
with more messages, the rate of the other address is measured, and each has a line of JSON on stdout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from proof.published import format_stamp
from tests.support.faults import BROKERS, load_broker
from tests.support.faults.broker import Fault
from tests.support.faults.partial import LEAST_RATIO, PartialOutage, measure_ratio, run_outage
from tests.support.faults.runner import run_fault
from tests.support.faults.scenarios import OUTAGES
from tests.support.faults.table import COMMAND, PARTIAL_COUNT, Results, format_page

_TABLE = os.environ.get("PILLARBOX_FAULT_TABLE")
_SMALL = 40
_FREE = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.RESTART)
"""An outage costs nothing. A hang may: some of a batch were answered, so the broker looks alive."""


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    results = Results()
    yield results
    if _TABLE:
        Path(_TABLE).write_text(f"{format_page(results)}\n{format_stamp(COMMAND)}\n")


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


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda one: f"{one.broker}-{one.name}".replace(" ", "-"))
async def test_a_partial_outage_costs_nothing(
    outage: PartialOutage, tmp_path: Path, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other address gets all its messages while the blocked one takes none."""
    found = await run_outage(outage, count=PARTIAL_COUNT if _TABLE else _SMALL, folder=tmp_path)
    if _TABLE:
        if (measured := await measure_ratio(outage, folder=tmp_path)) is not None:
            found.ratio, found.rounds = measured
        results.partial[outage.broker, outage.name] = found
        line = {"broker": outage.broker, "outage": outage.name, **msgspec.structs.asdict(found)}
        with capsys.disabled():
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    assert (found.lost, found.ghosts, found.out_of_order) == (0, 0, 0)
    assert (found.failed, found.attempts) == (0, 0)
    assert found.ratio is None or found.ratio >= LEAST_RATIO
