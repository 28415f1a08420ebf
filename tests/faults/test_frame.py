"""The frame of the fault table sees what it is there to see: a good transport passes, wrong ones do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from tests.support.faults.broker import Arrival, Fault
from tests.support.faults.plain import PlainBroker, PlainTransport
from tests.support.faults.runner import Verdict, judge, run_fault
from tests.support.faults.table import Results, format_page

_OK = Verdict(
    sent=200,
    injected=1,
    noticed=1,
    lost=0,
    ghosts=0,
    duplicates=0,
    out_of_order=0,
    attempts=0,
    failed=0,
    wrongly_failed=0,
)


class Optimist(PlainTransport):
    """Takes a broken connection for a yes."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        try:
            return await super().send(messages)
        except TransportUnavailable:
            return [Outcome(delivered=True)] * len(messages)


class Pessimist(PlainTransport):
    """Takes a broken connection for a message's fault."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        try:
            return await super().send(messages)
        except TransportUnavailable:
            lost = [Outcome(False, "cut", lost=True)] * (len(messages) - 1)
            return [Outcome(False, "cut", rejected=True), *lost]


@pytest.mark.parametrize("fault", Fault)
async def test_a_good_transport_passes(fault: Fault, tmp_path: Path) -> None:
    found = await run_fault(PlainBroker(), fault, folder=tmp_path)
    assert found.injected > 0
    assert found.noticed > 0
    assert (found.lost, found.ghosts, found.out_of_order, found.wrongly_failed) == (0, 0, 0, 0)
    assert found.failed == (3 if fault in PlainBroker.spoils else 0)


async def test_a_lost_answer_is_a_repeat(tmp_path: Path) -> None:
    assert (await run_fault(PlainBroker(), Fault.CUT_AFTER, folder=tmp_path)).duplicates > 0


async def test_messages_that_only_seem_delivered_are_lost(tmp_path: Path) -> None:
    assert (await run_fault(PlainBroker(Optimist), Fault.CUT_BEFORE, folder=tmp_path)).lost > 0


async def test_messages_that_are_blamed_for_the_line_have_wrongly_failed(tmp_path: Path) -> None:
    assert (await run_fault(PlainBroker(Pessimist), Fault.CUT_BEFORE, folder=tmp_path)).wrongly_failed > 0


def test_only_first_arrivals_are_out_of_order() -> None:
    arrivals = [Arrival("k", 2, "b"), Arrival("k", 1, "a"), Arrival("k", 1, "a"), Arrival("j", 0, "c")]
    found = judge([], arrivals, injected=1, noticed=1, spoiled=())
    assert (found.out_of_order, found.duplicates, found.ghosts) == (1, 1, 3)


def test_the_page_has_a_row_for_each_and_says_why_one_does_not_apply() -> None:
    results = Results({("Plain", Fault.HANG): _OK}, {("Plain", Fault.UNROUTABLE): "Plain routes everything."})
    text = format_page(results)
    assert "| Plain | hang | 0 | 0 | 0 | 0 | 0 |" in text
    assert "| Plain | unroutable | does not apply (1) |" in text
    assert "1. Plain routes everything." in text
