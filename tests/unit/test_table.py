"""Tables give way to a narrow terminal: cut, left out, and long texts below their row."""

from __future__ import annotations

import pytest

from pillarbox.cli._table import Column, align_columns, cut, fit_columns, measure, wrap

COLUMNS = (
    Column("id"),
    Column("destination", least=8),
    Column("topic", rank=2, least=8),
    Column("type", rank=3),
    Column("error", is_below=True),
)
ROW = (
    "4711",
    "warehouse-of-the-north",
    "orders.placed",
    "orders.placed.v2",
    "it answered 422: " + "no such account " * 6,
)


def test_without_a_width_nothing_is_cut_or_left_out() -> None:
    fit = fit_columns(COLUMNS, [ROW], width=None)
    assert fit.rows == [list(ROW)]
    assert (fit.below, fit.left_out) == ([[]], [])


def test_a_long_text_goes_below_its_row_before_any_column_is_cut() -> None:
    fit = fit_columns(COLUMNS, [ROW], width=80)
    assert fit.rows == [list(ROW[:4])]
    assert fit.below == [[ROW[4]]]
    assert fit.left_out == []


@pytest.mark.parametrize("width", range(16, 160))
@pytest.mark.parametrize(("gap", "frame"), [(2, 0), (3, 4)])
def test_every_line_fits_and_every_column_is_shown_below_or_named(width: int, gap: int, frame: int) -> None:
    fit = fit_columns(COLUMNS, [ROW], width=width, gap=gap, frame=frame)
    if width >= 25:
        assert sum(fit.widths) + gap * (len(fit.widths) - 1) + frame <= width
    assert {"id", "destination"} <= set(fit.headings)
    below = ["error"] if fit.below[0] else []
    assert sorted([*fit.headings, *fit.left_out, *below]) == sorted(column.heading for column in COLUMNS)


def test_columns_of_the_highest_rank_are_left_out_first_and_empty_ones_before_them() -> None:
    assert fit_columns(COLUMNS, [ROW], width=40).left_out == ["type"]
    without_topic = (*ROW[:2], "", *ROW[3:])
    fit = fit_columns(COLUMNS, [without_topic], width=36)
    assert (fit.headings, fit.left_out) == (["id", "destination", "type"], [])


def test_wide_letters_take_two_cells() -> None:
    assert measure("日本") == 4
    assert cut("日本語", 5) == "日本…"
    lines = [line for group in align_columns(("a", "b"), [("日本", "x"), ("ab", "y")]) for line in group]
    assert lines == ["a     b", "日本  x", "ab    y"]


def test_texts_break_between_words_and_a_word_that_is_too_long_is_broken() -> None:
    assert wrap("one two three four five", 20, first="- ", indent="  ") == ["- one two three four", "  five"]
    assert wrap("x" * 45, 20, indent="  ") == ["x" * 20, "  " + "x" * 18, "  " + "x" * 7]
    assert wrap("one two three four five six seven eight", 20, limit=1) == ["one two three four …"]
    assert wrap("Look at it with `pillarbox doctor`.", 30) == ["Look at it with", "`pillarbox doctor`."]
    assert wrap("as it is", None, first="- ") == ["- as it is"]
