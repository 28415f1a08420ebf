"""How benchmarks come to their figures, and how the figures become charts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.charts import Curve, Panel, build_panels, choose_ticks, draw, parse_lines
from benchmarks.comparison import Pair, at_least, at_most, compute_medians, report, run_pairs
from benchmarks.relay.churn import Minute


def test_the_ratio_is_the_median_of_the_neighbours_ratios() -> None:
    """In a slow minute both of a pair are slow; dividing the medians would compare different minutes."""
    pairs = [Pair(80, 100), Pair(8, 10), Pair(60, 100), Pair(45, 50), Pair(4, 5)]
    assert compute_medians(pairs) == (45, 50, 0.8)


@pytest.mark.parametrize(("target", "met", "missed"), [(at_least(0.9), 0.9, 0.899), (at_most(1.3), 1.3, 1.301)])
def test_a_target_ratio_is_a_floor_or_a_ceiling(target: object, met: float, missed: float) -> None:
    assert isinstance(target, type(at_least(1)))
    assert target.is_met(met)
    assert not target.is_met(missed)


ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, sys
from benchmarks.__main__ import BENCHMARKS, run_all
from benchmarks.comparison import Pair, at_least, report

async def run_first(): report("fake.first", [Pair(float(sys.argv[1]), 100)], target=at_least(0.9), settings={})
async def run_second(): report("fake.second", [Pair(100, 100)], target=at_least(0.9), settings={})

BENCHMARKS.update({"fake.first": run_first, "fake.second": run_second})
sys.exit(asyncio.run(run_all("fake")))
"""


@pytest.mark.parametrize(("rate", "code"), [("95", 0), ("80", 1)])
def test_the_run_fails_if_a_wanted_figure_is_missed_after_all_have_run(rate: str, code: int) -> None:
    """In a process of its own: the benchmarks register types."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM, rate], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == code, ran.stderr
    assert [json.loads(line)["name"] for line in ran.stdout.splitlines()] == ["fake.first", "fake.second"]
    assert ("Missed what is wanted: fake.first." in ran.stderr) == bool(code)


async def test_both_sides_take_turns_and_who_goes_first_changes() -> None:
    order: list[str] = []

    def side(name: str) -> Callable[[], Awaitable[float]]:
        async def run() -> float:
            order.append(name)
            return 1.0

        return run

    await run_pairs("x", ours=side("a"), bare=side("b"), runs=2, slices=2)
    assert "".join(order) == "abbabaab"


def test_a_report_is_one_line_with_both_figures_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    report("x.y", [Pair(8, 10)], target=at_least(0.9), settings={"messages": 3})
    line = json.loads(capsys.readouterr().out)
    assert line == {
        "name": "x.y", "rate": 8, "ceiling": 10, "ratio": 0.8, "wanted": 0.9, "bound": "at least", "passed": False,
        "pairs": [[8, 10]], "messages": 3,
    }  # fmt: skip


# --- a minute of churn ---


def minute(*, written: list[int], delivered: list[int]) -> Minute:
    return Minute(written, delivered, burst=1.0, dead=0)


def test_a_minute_is_counted_by_second() -> None:
    counted = minute(written=[10, 20, 30], delivered=[8, 20, 27])
    assert counted.per_second(counted.delivered) == [8, 12, 7]
    assert counted.backlog == [2, 0, 3]
    assert (counted.first(2), counted.last(1)) == (10, 7)


def test_a_backlog_that_grows_to_the_end_is_not_bounded() -> None:
    seconds = range(1, 61)
    assert minute(written=[100 * s for s in seconds], delivered=[100 * s - 150 for s in seconds]).is_bounded
    assert not minute(written=[100 * s for s in seconds], delivered=[90 * s for s in seconds]).is_bounded


# --- charts ---


def test_lines_are_found_between_whatever_else_was_printed() -> None:
    text = 'python -m benchmarks relay\n{"name": "a", "ratio": 1}\nnoise\n{"name": "a", "ratio": 2}\n'
    assert parse_lines(text) == {"a": {"name": "a", "ratio": 2}}


def test_only_benchmarks_with_curves_have_charts() -> None:
    assert build_panels({"name": "a", "ratio": 1.0}) == []
    (panel,) = build_panels({"name": "a", "ratio": 0.5, "pairs": [[1, 2], [3, 4]]})
    assert [list(curve.values) for curve in panel.curves] == [[1, 3], [2, 4]]
    over_time = {"name": "b", "ratio": 1.0, "curve": [1], "curve_written": [2], "curve_waiting": [3]}
    assert [[curve.name for curve in panel.curves] for panel in build_panels(over_time)] == [
        ["delivered", "written"],
        ["waiting"],
    ]


@pytest.mark.parametrize("highest", [0, 0.4, 1, 7, 99, 100, 101, 2_999, 48_211, 1_000_000])
def test_ticks_are_round_and_cover_everything(highest: float) -> None:
    marks = choose_ticks(highest)
    assert marks[0] == 0
    assert marks[-1] >= highest
    assert 2 <= len(marks) <= 6


def test_a_picture_is_well_formed_and_inside_its_frame() -> None:
    panels = [Panel("a < b & c", "second", [Curve("x", [0, 50, 100]), Curve("y", [3])])] * 2
    page = ElementTree.fromstring(draw(panels))  # noqa: S314 - our own
    _, _, width, height = map(float, page.attrib["viewBox"].split())
    curves = [
        path.attrib["d"] for path in page.iter("{http://www.w3.org/2000/svg}path") if path.attrib["class"] == "curve"
    ]
    assert len(curves) == 4
    for curve in curves:
        for point in curve.removeprefix("M").split("L"):
            x, y = map(float, point.split())
            assert 0 <= x <= width
            assert 0 <= y <= height
