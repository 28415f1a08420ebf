"""Score by area, and the survivors, for a terminal and for `docs/mutants.md`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proof.mutants.runner import Result, Verdict
from proof.report import format_columns, format_markdown

__all__ = ["WANTED", "count_results", "format_line", "format_page", "format_score", "is_good"]

WANTED: Final = 0.9
"""The part of the mutants that must be caught."""
_PAGE: Final = """\
# Mutants

`make mutants` breaks the code on purpose, in one small place at a time, and runs the tests that must notice it: \
{mutants} breaks of promises, over all areas and stores. {caught} of them are caught. That command writes this page. \
The breaks stand in `proof/mutants/areas`, a file per area, each with its tests.

A break is *caught* when a test fails that passes without it. One that no test notices *survives*; at least \
{wanted:.0%} must be caught. A break that nobody could notice, because the program does the same, is *equivalent* and \
is not counted. `make test` checks that every break still fits the code.

{table}

## Survivors

{survivors}

## Equivalent breaks

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


def format_line(result: Result) -> str:
    """Format one result, as it comes."""
    one = result.mutant
    detail = f": {result.detail}" if result.detail else ""
    by_timeout = " (by a timeout)" if result.timed_out else ""
    return f"{result.verdict:<10} {one.area:<12} {result.seconds:5.1f} s  {one.name}{by_timeout}{detail}"


def format_score(results: Sequence[Result]) -> str:
    """Format the score by area, for a terminal."""
    return format_columns([["area", "mutants", "caught", "others"], *_list_rows(results)])


def format_page(results: Sequence[Result]) -> str:
    """Format the page of a full run."""
    counts = count_results(results)
    table = format_markdown(["area", "mutants", "caught", "others"], _list_rows(results), right=1)
    survived = [result for result in results if result.verdict in (Verdict.SURVIVED, Verdict.HUNG, Verdict.INVALID)]
    equivalent = [result for result in results if result.verdict is Verdict.EQUIVALENT]
    return _PAGE.format(
        **counts, wanted=WANTED, table=table, survivors=_format_list(survived), unnoticeable=_format_list(equivalent)
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
        f"- **{one.mutant.name}** (`{one.mutant.file}`): {one.detail or 'no test notices it yet'}." for one in results
    )
