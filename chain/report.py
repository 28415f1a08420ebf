"""The table of a run, for a terminal and for a page, and its counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chain.points import RELAY_POINTS, Point
from chain.run import Progress, Result

__all__ = ["counts", "far", "markdown", "table"]


def far(line: str, progress: Progress) -> str:
    """How far a line has come, in a line."""
    return (
        f"{line:<8} {progress.kills}/{progress.of} kills, {progress.hit}/{progress.points} points, "
        f"A {progress.committed}, B {progress.b}, C {progress.c}"
    )


def table(results: Sequence[Result]) -> str:
    """How often somebody died where, for a terminal; and what is wrong."""
    lines = [f"{'process':<11} {'point':<14}" + "".join(f"{result.line:>9}" for result in results)]
    for role, title in _points(results):
        deaths = "".join(f"{result.hits.get(role, {}).get(title, 0):>9}" for result in results)
        lines.append(f"{role:<11} {title:<14}{deaths}")
    return "\n".join([*lines, *(_told(result) for result in results)])


def markdown(results: Sequence[Result]) -> str:
    """The same for a page: points of both consumers together, with what each means."""
    rows = [["point", "dies", "what must happen", *(result.line for result in results)]]
    rows.append(["---"] * 3 + ["---:"] * len(results))
    for who, points in (("consumer", tuple(Point)), ("relay", RELAY_POINTS)):
        for point in points:
            deaths = [str(_deaths(result, who, point.title)) for result in results]
            rows.append([point.title, f"a {who}, {point.dies}", point.then, *deaths])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def counts(results: Sequence[Result], *, seconds: float) -> dict[str, object]:
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


def _points(results: Sequence[Result]) -> Iterator[tuple[str, str]]:
    return iter({(role, title): None for result in results for role, of in result.hits.items() for title in of})


def _deaths(result: Result, who: str, title: str) -> int:
    return sum(of.get(title, 0) for role, of in result.hits.items() if role.startswith(who))


def _told(result: Result) -> str:
    verdict = result.verdict
    words = [
        f"{result.line}: {result.parcels} parcels, {result.kills} kills, {verdict.lost} lost, {verdict.ghosts} ghosts, "
        f"{verdict.twice} twice, {verdict.out_of_order} out of order, {verdict.duplicates} came again and did nothing"
    ]
    words += [f"{result.line}: OUT OF ORDER: {one}" for one in verdict.overtaken]
    return "\n".join([*words, *(f"{result.line}: FAULT: {fault}" for fault in verdict.faults)])
