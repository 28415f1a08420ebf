"""What a long change says while it goes on, and when it is interrupted."""

from __future__ import annotations

import click
import pytest

from pillarbox.cli._output import Progress, format_progress


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, 10_000, 0.0, "0 of 10,000 done"),
        (1_000, 10_000, 0.5, "1,000 of 10,000 done"),
        (2_000, 10_000, 4.0, "2,000 of 10,000 done, 500/s, 16s left"),
        (10_000, 10_000, 20.0, "10,000 of 10,000 done, 500/s"),
        (1, 3, 7_200.0, "1 of 3 done, 0/s, 4h left"),
    ],
)
def test_a_rate_and_the_time_left_appear_after_a_moment(done: int, total: int, seconds: float, text: str) -> None:
    assert format_progress(done, total, seconds=seconds) == text


def _change_some(error: type[BaseException]) -> None:
    with Progress(3_000) as progress:
        progress.show(1_000)
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, click.Abort])
def test_an_interrupted_change_says_how_much_is_done(
    error: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error):
        _change_some(error)
    said = "1,000 of 3,000 are done, and stay done; a batch under way may be done too. Run the same command again"
    assert capsys.readouterr().err.strip() == f"{said} for the rest."


def test_another_error_says_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="x"), Progress(3_000):
        raise ValueError("x")
    assert capsys.readouterr().err == ""
