"""Score by area, and the survivors, for a terminal and for the tables of `docs/mutants.md`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proof.mutants.breaks import Break
from proof.mutants.runner import Result, Verdict
from proof.report import format_columns, format_markdown

__all__ = [
    "WANTED",
    "count_results",
    "format_line",
    "format_score",
    "format_survivors",
    "format_table",
    "is_good",
    "is_good_draw",
]

WANTED: Final = 0.9
"""The part of the mutants that must be caught."""
WANTED_OF_DRAWN: Final = 0.85
WANTED_OF_PACKAGE: Final = 0.7
"""Of breaks that nobody chose, in all and in each package."""
_TABLE: Final = """\
{mutants} breaks, of which {caught} are caught.

{table}

### Survivors{of}

{survivors}

### Equivalent breaks{of}

{unnoticeable}
"""


def count_results(results: Sequence[Result]) -> dict[str, int]:
    """Count the verdicts. Equivalent breaks are no mutants."""
    counts = {verdict: sum(result.verdict is verdict for result in results) for verdict in Verdict}
    return {
        "mutants": len(results) - counts[Verdict.EQUIVALENT],
        "caught": counts[Verdict.CAUGHT],
        "survived": counts[Verdict.SURVIVED],
        "hung": counts[Verdict.HUNG],
        "invalid": counts[Verdict.INVALID],
        "equivalent": counts[Verdict.EQUIVALENT],
    }


def is_good(results: Sequence[Result]) -> bool:
    """Return whether enough are caught, and every one could be tried."""
    counts = count_results(results)
    return not counts["invalid"] and counts["caught"] >= WANTED * counts["mutants"]


def is_good_draw(results: Sequence[Result]) -> bool:
    """Return whether enough of the drawn breaks are caught, in all and in each package."""
    packages = {result.mutant.area for result in results}
    shares = [_compute_share([one for one in results if one.mutant.area == package]) for package in packages]
    return _compute_share(results) >= WANTED_OF_DRAWN and all(share >= WANTED_OF_PACKAGE for share in shares)


def _compute_share(results: Sequence[Result]) -> float:
    """Return the share that was caught of those that could be tried."""
    counts = count_results(results)
    tried = counts["mutants"] - counts["invalid"]
    return counts["caught"] / tried if tried else 1.0


def format_survivors(results: Sequence[Result]) -> str:
    """Format the breaks that no test noticed, for a terminal."""
    return _format_list([result for result in results if result.verdict in (Verdict.SURVIVED, Verdict.HUNG)])


def format_line(result: Result) -> str:
    """Format one result, as it comes."""
    one = result.mutant
    detail = f": {result.detail}" if result.detail else ""
    by_timeout = " (by a timeout)" if result.timed_out else ""
    return f"{result.verdict:<10} {one.area:<12} {result.seconds:5.1f} s  {one.name}{by_timeout}{detail}"


def format_score(results: Sequence[Result]) -> str:
    """Format the score by area, for a terminal."""
    return format_columns([["area", "mutants", "caught", "others"], *_list_rows(results)])


def format_table(results: Sequence[Result], *, of: str = "") -> str:
    """Format the score of a whole run, its survivors and its equivalent breaks for the page."""
    table = format_markdown(["area", "mutants", "caught", "others"], _list_rows(results), right=1)
    survived = [result for result in results if result.verdict in (Verdict.SURVIVED, Verdict.HUNG, Verdict.INVALID)]
    equivalent = [result for result in results if result.verdict is Verdict.EQUIVALENT]
    return _TABLE.format(
        **count_results(results),
        of=of,
        table=table,
        survivors=_format_list(survived),
        unnoticeable=_format_list(equivalent),
    )


def _list_rows(results: Sequence[Result]) -> list[list[str]]:
    areas = dict.fromkeys(result.mutant.area for result in results)
    rows = [_format_row(area, [one for one in results if one.mutant.area == area]) for area in areas]
    return [*rows, _format_row("all", results)]


def _format_row(name: str, results: Sequence[Result]) -> list[str]:
    counts = count_results(results)
    others = [f"{counts[what]} {what}" for what in ("survived", "hung", "invalid", "equivalent") if counts[what]]
    return [name, str(counts["mutants"]), str(counts["caught"]), ", ".join(others)]


def _format_list(results: Sequence[Result]) -> str:
    if not results:
        return "None."
    return "\n".join(
        f"- **{_quote(one.mutant)}** (`{one.mutant.file}`): {one.detail or 'no test notices it yet'}."
        for one in results
    )


def _quote(mutant: Break) -> str:
    """Return a name as Markdown shows it: a drawn break has code in its name."""
    return f"`{mutant.name}`" if mutant.drawn else mutant.name
