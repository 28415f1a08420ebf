"""The verdict in plain words, for a sceptic. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from pillarbox.demo.director import Ending
from pillarbox.demo.judge import Verdict
from pillarbox.demo.stage import Stage
from pillarbox.stores.urls import StoreUrl

__all__ = ["told"]

_FAILED: Final = "select id, subject, attempts, last_error from {messages} where state = 'failed'"
_REFUSED: Final = "select message_id, order_id, error from refused"


def told(ending: Ending, stage: Stage, *, kept: bool) -> str:
    """The table, the failed message, and what it comes to."""
    parts = [_table(ending.verdict), *_failures(ending, stage, kept=kept)]
    if kept:
        parts.append(_places(stage))
    return "\n\n".join([*parts, conclusion(ending)])


def rows(verdict: Verdict) -> Iterator[tuple[str, int, str]]:
    """What, how many, and what that means."""
    yield "committed", verdict.committed, "orders, each in one transaction with its message"
    yield "rolled back", verdict.rolled_back, "orders, after their message was published"
    yield "effects applied", verdict.effects, "orders in the consumer's database"
    yield "lost", verdict.lost, "committed, and neither applied nor kept as failed"
    yield "ghosts", verdict.ghosts, "applied although not committed, or applied once more"
    yield "out of order", verdict.out_of_order, "applied after a later order of the same customer"
    yield "received", verdict.received, "messages that the consumer processed"
    yield "received twice", verdict.duplicates, "of them were repeats"
    yield "absorbed by the inbox", verdict.absorbed, "repeats that had no effect"
    yield "relays killed", verdict.kills, "with SIGKILL, and started again"
    yield "outages", verdict.outages, "of the consumer, killed with SIGKILL too"
    yield "failed", verdict.failed, "refused for good, kept, and in nobody's way: the poison one"


def conclusion(ending: Ending) -> str:
    """The last line."""
    verdict = ending.verdict
    if verdict.holds:
        return "Nothing lost, nothing invented, nothing out of order."
    counts = (
        f"{verdict.lost} lost, {verdict.ghosts} ghosts, {verdict.out_of_order} out of order, {verdict.failed} failed"
    )
    if ending.is_complete:
        return f"The promise is broken: {counts}."
    return f"Time ran out with messages still on their way, which count as lost: {counts}."


def _table(verdict: Verdict) -> str:
    return "\n".join(f"{what:<21} {count:>7}  {meaning}" for what, count, meaning in rows(verdict))


def _failures(ending: Ending, stage: Stage, *, kept: bool) -> Iterator[str]:
    failures = [*ending.failed, *ending.refused]
    if not failures:
        return
    lines = [f"Failed: {one.order_id} of {one.customer}: {one.error}" for one in failures]
    how = "It is shown by:" if kept else "It is gone with the demo's files; after a run with --keep it is shown by:"
    commands = [_store_command(stage)] * bool(ending.failed) + [_ledger_command(stage)] * bool(ending.refused)
    yield "\n".join([*lines, how, *(f"  {command}" for command in commands)])


def _store_command(stage: Stage) -> str:
    place = stage.place
    query = _FAILED.format(messages=place.names.table("messages").replace('"', ""))
    if place.url.scheme == "sqlite":
        return f"sqlite3 {shlex.quote(place.url.path)} {shlex.quote(query)}"
    if place.url.scheme == "mysql":
        return _mysql_command(place.url, query)
    return f"psql {shlex.quote(place.url.redacted)} -c {shlex.quote(query)}"


def _mysql_command(url: StoreUrl, query: str) -> str:
    parts = urlsplit(url.redacted)
    password = " -p" if parts.password else ""
    host = f"-h {parts.hostname or '127.0.0.1'} -P {parts.port or 3306}"
    return f"mysql {host} -u {shlex.quote(parts.username or '')}{password} -e {shlex.quote(query)}"


def _ledger_command(stage: Stage) -> str:
    return f"sqlite3 {shlex.quote(str(stage.ledger_file))} {shlex.quote(_REFUSED)}"


def _places(stage: Stage) -> str:
    schema = stage.place.names.schema
    inside = "" if schema is None else f", schema {schema}"
    return "\n".join(
        (
            f"Kept: the order service's store {stage.place.url}{inside},",
            f"      the consumer's database {stage.ledger_file}, and everybody's log beside it.",
        )
    )
