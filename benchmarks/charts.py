"""`python -m benchmarks.charts RESULTS FOLDER`: draw an SVG for each benchmark whose line has curves."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["Curve", "Panel", "build_panels", "choose_ticks", "draw", "parse_lines"]

_WIDTH: Final = 760
_HEIGHT: Final = 230
_LEFT: Final = 70
_RIGHT: Final = 20
_TOP: Final = 46
_BOTTOM: Final = 34
_COLOURS: Final = ("#0b6bcb", "#b7791f", "#7d8590")
_STYLE: Final = (
    ".ink{fill:#1f2328;font-weight:600}.soft{fill:#59636e;font-size:12px}"
    ".grid{stroke:#d8dce1;stroke-width:1}.curve{fill:none;stroke-width:2;stroke-linejoin:round}"
)

Line = Mapping[str, Any]


class Curve(NamedTuple):
    """Values at equal distances."""

    name: str
    values: Sequence[float]


class Panel(NamedTuple):
    """Some curves over one pair of axes."""

    title: str
    across: str
    """The unit of the horizontal axis, which starts at 1."""
    curves: Sequence[Curve]


# --- what there is to draw -----------------------------------------------------------------------


def parse_lines(text: str) -> dict[str, Line]:
    """Parse the lines of JSON in a run's output, by name. Of two with the same name the later one counts."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in found if "name" in line}


def build_panels(line: Line) -> list[Panel]:
    """Build the panels of one benchmark; none for a single figure."""
    if "curve" in line:
        return _over_time(line)
    if "pairs" in line:
        ours, against = zip(*line["pairs"], strict=True)
        title = f"{line['name']}: messages a second, run by run, ratio {line['ratio']:.2f}"
        return [Panel(title, "run", [Curve("with it", ours), Curve("without", against)])]
    return []


def _over_time(line: Line) -> list[Panel]:
    title = f"{line['name']}: messages a second, ratio {line['ratio']:.2f}"
    curves = [Curve("delivered", line["curve"]), Curve("written", line["curve_written"])]
    if "curve_against" in line:
        curves = [Curve("delivered", line["curve"]), Curve("delivered without the pin", line["curve_against"])]
    waiting = Panel("messages waiting", "second", [Curve("waiting", line["curve_waiting"])])
    return [Panel(title, "second", curves), waiting]


# --- drawing -------------------------------------------------------------------------------------


def choose_ticks(highest: float) -> list[float]:
    """Return round numbers from 0 up to at least the highest value, four to six of them."""
    rough = max(highest, 1) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return [step * count for count in range(math.ceil(max(highest, 1) / step) + 1)]


def draw(panels: Sequence[Panel]) -> str:
    """Draw the panels, one below the other, as an SVG."""
    height = _HEIGHT * len(panels)
    parts = [_panel(panel, top=_HEIGHT * place) for place, panel in enumerate(panels)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="ui-sans-serif, system-ui, sans-serif" font-size="14">\n'
        f'<style>{_STYLE}</style>\n<rect width="{_WIDTH}" height="{height}" fill="#fbfbfa"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(panel: Panel, *, top: int) -> str:
    marks = choose_ticks(max(max(curve.values) for curve in panel.curves))
    steps = max(len(curve.values) for curve in panel.curves)
    parts = [_text(_LEFT, top + 20, panel.title, "ink"), *_legend(panel.curves, top=top)]
    for mark in marks:
        y = _y(mark, marks[-1], top)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{mark:,.0f}", "soft", anchor="end"))
    parts += [_text(_x(1, steps), top + _HEIGHT - 12, "1", "soft")]
    parts += [_text(_WIDTH - _RIGHT, top + _HEIGHT - 12, f"{panel.across} {steps}", "soft", anchor="end")]
    parts += [
        _curve(curve, colour, marks[-1], steps, top) for curve, colour in zip(panel.curves, _COLOURS, strict=False)
    ]
    return "\n".join(parts)


def _curve(curve: Curve, colour: str, highest: float, steps: int, top: int) -> str:
    points = [f"{_x(place, steps):.1f} {_y(value, highest, top):.1f}" for place, value in enumerate(curve.values, 1)]
    return f'<path class="curve" stroke="{colour}" d="M{"L".join(points)}"/>'


def _legend(curves: Sequence[Curve], *, top: int) -> list[str]:
    parts, right = [], _WIDTH - _RIGHT
    for curve, colour in reversed(list(zip(curves, _COLOURS, strict=False))):
        parts.append(_text(right, top + 38, curve.name, "soft", anchor="end", colour=colour))
        right -= 7 * len(curve.name) + 24
    return parts


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start", colour: str = "") -> str:
    style = f' style="fill:{colour}"' if colour else ""
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _x(place: int, steps: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (place - 1) / max(1, steps - 1)


def _y(value: float, highest: float, top: int) -> float:
    return top + _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / highest


def _main(results: str, folder: str) -> None:
    for name, line in parse_lines(Path(results).read_text("utf-8")).items():
        if panels := build_panels(line):
            path = Path(folder, f"bench-{name.replace('.', '-')}.svg")
            path.write_text(draw(panels), "utf-8")
            print(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(
            "Say where the lines of a run are, and where the charts go: python -m benchmarks.charts RESULTS FOLDER"
        )
    _main(*sys.argv[1:])
