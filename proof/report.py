"""The table of a run, for a terminal and for a page, and its counts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from proof.chain.kill_points import RELAY_POINTS
from proof.chain.kill_points import Point as ChainPoint
from proof.chain.run import Progress
from proof.chain.run import Result as ChainResult
from proof.crash.matrix import Result
from proof.crash.points import REQUIRED, Point

__all__ = [
    "count_chain_results",
    "count_results",
    "format_chain_markdown",
    "format_chain_table",
    "format_line",
    "format_markdown",
    "format_progress",
    "format_table",
]

Key = TypeVar("Key")


def format_line(result: Result) -> str:
    """One run in one line, while the others are still to come."""
    return f"{result.store:<9} {_name(result):<24} {_format_result(result)}"


def format_table(results: Sequence[Result]) -> str:
    """Point by store, for a terminal."""
    stores = _stores(results)
    rows = [["point", *stores]]
    for name, of_point in _grouped(results, _name).items():
        by_store = _grouped(of_point, lambda result: result.store)
        rows.append([name, *(_format_result(by_store[store][0]) if store in by_store else "-" for store in stores)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def format_markdown(results: Sequence[Result]) -> str:
    """The same for a page, with what each point means. Occurrences of a point stand beside each other."""
    stores = _stores(results)
    head = ["point", "dies", "what must happen", *(f"{store}: repeated" for store in stores)]
    head += [f"{store}: leases" for store in stores]
    rows = [head, ["---"] * 3 + ["---:"] * (2 * len(stores))]
    for point, of_point in _grouped(results, lambda result: result.point).items():
        by_store = _grouped(of_point, lambda result: result.store)
        repeated = [_joined(by_store.get(store, ()), _repeated) for store in stores]
        leases = [_joined(by_store.get(store, ()), _leases) for store in stores]
        rows.append([_title(point), point.dies, point.then, *repeated, *leases])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def count_results(results: Sequence[Result], *, seconds: float) -> dict[str, object]:
    """What it all came to."""
    verdicts = [result.verdict for result in results if result.verdict is not None]
    return {
        "points": len(results),
        "hit": len(verdicts),
        "lost": sum(verdict.lost for verdict in verdicts),
        "ghosts": sum(verdict.ghosts for verdict in verdicts),
        "out_of_order": sum(verdict.out_of_order for verdict in verdicts),
        "duplicates": sum(verdict.duplicates for verdict in verdicts),
        "faults": sum(len(verdict.faults) for verdict in verdicts),
        "stores": _stores(results),
        "seconds": round(seconds),
    }


def _stores(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.store for result in results))


def _grouped(results: Sequence[Result], key: Callable[[Result], Key]) -> dict[Key, list[Result]]:
    groups: dict[Key, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


def _name(result: Result) -> str:
    return result.point.title if result.nth == 1 else f"{result.point.title}, {_ordinal(result.nth)}"


def _ordinal(nth: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(nth, f"{nth}th")


def _format_result(result: Result) -> str:
    if result.verdict is None:
        return f"NOT REACHED: {result.trouble}"
    return "; ".join([*_broken(result), f"{_repeated(result)} repeated, {_leases(result)} leases"])


def _broken(result: Result) -> Iterator[str]:
    verdict = result.verdict
    if verdict is not None:
        for what in ("lost", "ghosts", "out_of_order"):
            if count := getattr(verdict, what):
                yield f"{count} {what.upper().replace('_', ' ')}"
        if verdict.faults:
            more = f" (and {len(verdict.faults) - 1} more)" if len(verdict.faults) > 1 else ""
            yield f"FAULT: {verdict.faults[0]}{more}"


def _title(point: Point) -> str:
    return f"**{point.title}**" if point in REQUIRED.values() else point.title


def _joined(results: Sequence[Result], told: Callable[[Result], str]) -> str:
    return ", ".join(told(result) for result in results)


def _repeated(result: Result) -> str:
    return "NOT REACHED" if result.verdict is None else str(result.verdict.duplicates)


def _leases(result: Result) -> str:
    return "-" if result.recovered is None else f"{result.recovered:.1f}"


def format_progress(line: str, progress: Progress) -> str:
    """How far a line has come, in a line."""
    return (
        f"{line:<8} {progress.kills}/{progress.of} kills, {progress.hit}/{progress.points} points, "
        f"A {progress.committed}, B {progress.b}, C {progress.c}"
    )


def format_chain_table(results: Sequence[ChainResult]) -> str:
    """How often somebody died where, for a terminal; and what is wrong."""
    lines = [f"{'process':<11} {'point':<14}" + "".join(f"{result.line:>9}" for result in results)]
    for role, title in _points(results):
        deaths = "".join(f"{result.hits.get(role, {}).get(title, 0):>9}" for result in results)
        lines.append(f"{role:<11} {title:<14}{deaths}")
    return "\n".join([*lines, *(_format_chain_result(result) for result in results)])


def format_chain_markdown(results: Sequence[ChainResult]) -> str:
    """The same for a page: points of both consumers together, with what each means."""
    rows = [["point", "dies", "what must happen", *(result.line for result in results)]]
    rows.append(["---"] * 3 + ["---:"] * len(results))
    for who, points in (("consumer", tuple(ChainPoint)), ("relay", RELAY_POINTS)):
        for point in points:
            deaths = [str(_deaths(result, who, point.title)) for result in results]
            rows.append([point.title, f"a {who}, {point.dies}", point.then, *deaths])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def count_chain_results(results: Sequence[ChainResult], *, seconds: float) -> dict[str, object]:
    """What it all came to."""
    verdicts = [result.verdict for result in results]
    return {
        "kills": sum(result.kills for result in results),
        "points": sum(result.points for result in results),
        "hit": sum(result.hit for result in results),
        "lost": sum(verdict.lost for verdict in verdicts),
        "ghosts": sum(verdict.ghosts for verdict in verdicts),
        "twice": sum(verdict.twice for verdict in verdicts),
        "out_of_order": sum(verdict.out_of_order for verdict in verdicts),
        "duplicates": sum(verdict.duplicates for verdict in verdicts),
        "faults": sum(len(verdict.faults) for verdict in verdicts),
        "parcels": sum(result.parcels for result in results),
        "lines": [result.line for result in results],
        "seconds": round(seconds),
    }


def _points(results: Sequence[ChainResult]) -> Iterator[tuple[str, str]]:
    return iter({(role, title): None for result in results for role, of in result.hits.items() for title in of})


def _deaths(result: ChainResult, who: str, title: str) -> int:
    return sum(of.get(title, 0) for role, of in result.hits.items() if role.startswith(who))


def _format_chain_result(result: ChainResult) -> str:
    verdict = result.verdict
    words = [
        f"{result.line}: {result.parcels} parcels, {result.kills} kills, {verdict.lost} lost, {verdict.ghosts} ghosts, "
        f"{verdict.twice} twice, {verdict.out_of_order} out of order, {verdict.duplicates} came again and did nothing"
    ]
    words += [f"{result.line}: OUT OF ORDER: {one}" for one in verdict.overtaken]
    return "\n".join([*words, *(f"{result.line}: FAULT: {fault}" for fault in verdict.faults)])
