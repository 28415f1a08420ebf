"""`pillarbox handoff`: let Debezium deliver a destination, and prune what it delivered."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import click

from pillarbox.brokers.settings import parse_transport_url
from pillarbox.cli._confirm import confirm, confirm_options
from pillarbox.cli._options import Target, by_option, complete_destination, target_options
from pillarbox.cli._output import OutputFormat, Progress, output_option, say, show
from pillarbox.cli._times import parse_wait
from pillarbox.contracts.handoff import HandoffStore, ServerLog
from pillarbox.contracts.store import Selection, Store
from pillarbox.durations import format_duration
from pillarbox.errors import ConfigError, UnknownDestination
from pillarbox.message import State, check_destination
from pillarbox.operations.handoff import HandoffPruner, PrunedStore, PruneResult
from pillarbox.relay.configuration import ConfiguredDestination, read_destinations, read_relay_section
from pillarbox.relay.settings import DestinationSettings, build_slot_name, check_slot_name
from pillarbox.settings import suggest_nearest
from pillarbox.stores.postgres.handoff import (
    LEAST_VERSION,
    DebeziumPlan,
    build_connector,
    build_grants,
    build_publication,
)

__all__ = ["handoff"]

F = TypeVar("F", bound=Callable[..., Any])

_FAILOVER_VERSION: Final = 17
_TITLES: Final = {
    "publication": "1. Publication: run it in the database.",
    "grants": "2. Rights of the connector's role: run them in the database.",
    "config": "3. Connector: send it to Kafka Connect, POST /connectors.",
    "prune": "4. Prune rule: run it every few minutes, by cron or a timer.",
}
_EPILOG: Final = """\b
Example:
  pillarbox handoff debezium --destination kafka --part config
"""


@click.group(epilog="\b\nExample:\n  pillarbox handoff debezium --destination kafka\n")
def handoff() -> None:
    """Let Debezium deliver a destination from the log of PostgreSQL, and prune what it delivered."""


def _handoff_options(command: F) -> F:
    destination = click.option(
        "--destination", required=True, metavar="NAME", envvar="PILLARBOX_HANDOFF_DESTINATION", show_envvar=True,
        shell_complete=complete_destination, help="The destination that is handed off.",
    )  # fmt: skip
    slot = click.option(
        "--slot", metavar="NAME", envvar="PILLARBOX_HANDOFF_SLOT", show_envvar=True,
        help="The replication slot.  [default: handoff_slot of the destination, or pillarbox_NAME]",
    )  # fmt: skip
    return destination(slot(command))


# --- debezium ---


@handoff.command(epilog=_EPILOG)
@_handoff_options
@click.option("--part", type=click.Choice(["config", "publication", "grants", "prune"]),
              envvar="PILLARBOX_HANDOFF_PART", show_envvar=True,
              help="Print this alone, ready to be sent or run.")  # fmt: skip
@click.option("--topic", metavar="TEMPLATE", envvar="PILLARBOX_HANDOFF_TOPIC", show_envvar=True,
              help="The Kafka topic of a message.  [default: topic of the destination, or {topic}]")  # fmt: skip
@click.option("--connector-name", metavar="NAME", envvar="PILLARBOX_HANDOFF_CONNECTOR_NAME", show_envvar=True,
              help="The connector; its own topics begin with it.  [default: pillarbox-NAME]")  # fmt: skip
@click.option("--publication", metavar="NAME", envvar="PILLARBOX_HANDOFF_PUBLICATION", show_envvar=True,
              help="The publication.  [default: handoff_publication of the destination, or as the slot]")  # fmt: skip
@click.option("--role", default="debezium", show_default=True, metavar="ROLE", envvar="PILLARBOX_HANDOFF_ROLE",
              show_envvar=True, help="The database role of the connector.")  # fmt: skip
@click.option("--failover", is_flag=True, envvar="PILLARBOX_HANDOFF_FAILOVER", show_envvar=True,
              help="Let the slot move to a standby: PostgreSQL 17 or newer.")  # fmt: skip
@click.option("--offline", is_flag=True, envvar="PILLARBOX_HANDOFF_OFFLINE", show_envvar=True,
              help="Do not connect. The schema is public, if none is configured.")  # fmt: skip
@target_options
@output_option
def debezium(
    target: Target,
    *,
    destination: str,
    slot: str | None,
    part: str | None,
    topic: str | None,
    connector_name: str | None,
    publication: str | None,
    role: str,
    failover: bool,
    offline: bool,
    output: OutputFormat,
) -> None:
    """Print what Debezium needs to deliver a destination: connector, publication, grants and a prune rule."""
    _check_scheme(target)
    configured = _find_destination(target, destination)
    settings = DestinationSettings(name=destination) if configured is None else configured.section.settings
    server = ServerLog(version=LEAST_VERSION, level="logical", schema="public", database="postgres")
    if not offline:
        server = target.run(lambda store: _check_log(store).describe_server())
        _check_server(server, failover=failover)
    slot = _check_name(slot or build_slot_name(settings), what="slot")
    plan = DebeziumPlan(
        destination=destination,
        names=target.names,
        schema=target.names.schema or server.schema,
        connector=connector_name or f"pillarbox-{destination}",
        slot=slot,
        publication=_check_name(publication or settings.handoff_publication or slot, what="publication"),
        role=role,
        topic=topic or _read_topic(configured),
        failover=failover,
        **{"database": server.database, **DebeziumPlan.read_address(target.url.dsn)},
    )
    connector, rule = build_connector(plan), _build_prune_rule(target, plan)
    sql = {"publication": build_publication(plan), "grants": build_grants(plan)}
    values: Mapping[str, object] = {"config": connector, **sql, "prune": rule}
    texts = {"config": json.dumps(connector, indent=2), **sql, "prune": f"{rule}\n"}
    if part is not None:
        show(connector if part == "config" else {part: values[part]}, text=texts[part], output=output)
        return
    text = "\n\n".join(f"-- {title}\n{texts[name].rstrip()}" for name, title in _TITLES.items())
    show(values, text=text, output=output)
    if settings.handoff is None:
        say(
            f'Then set handoff = "debezium" under [destinations.{destination}], and restart the relays: they leave it '
            "alone, and nothing is delivered twice."
        )


def _check_scheme(target: Target) -> None:
    if target.url.scheme != "postgresql":
        raise ConfigError(
            f"A {target.url.scheme} store cannot be handed off: only the log of PostgreSQL {LEAST_VERSION} or newer "
            "can be read for one destination alone. Let a relay serve it."
        )


def _find_destination(target: Target, name: str) -> ConfiguredDestination | None:
    check_destination(name)
    known = read_destinations(target.config)
    if known and name not in known:
        raise UnknownDestination(f"There is no destination {name}: {suggest_nearest(name, known)}.")
    return known.get(name)


def _check_log(store: Store) -> PrunedStore:
    if not isinstance(store, HandoffStore):
        raise ConfigError("This store has no log that Debezium can read: let a relay serve its destinations.")
    return cast("PrunedStore", store)


def _check_server(server: ServerLog, *, failover: bool) -> None:
    if server.version < LEAST_VERSION:
        raise ConfigError(
            f"This server is PostgreSQL {server.version}, whose publications have no row filter, so every destination "
            f"would be routed: upgrade to {LEAST_VERSION} or newer, or let a relay serve it."
        )
    if failover and server.version < _FAILOVER_VERSION:
        raise ConfigError(
            f"This server is PostgreSQL {server.version}, whose logical slots do not move in a failover: leave out "
            f"--failover, or upgrade to {_FAILOVER_VERSION} or newer."
        )
    if server.level != "logical":
        say(f"wal_level is {server.level}: set it to logical, and restart the server, before the connector starts.")


def _check_name(name: str, *, what: str) -> str:
    return check_slot_name(name, what=f"name of the {what}")


def _read_topic(configured: ConfiguredDestination | None) -> str:
    """Return the option `topic` of the destination, which may be beside its URL or in it."""
    if configured is None:
        return "{topic}"
    given = configured.transport_options
    options = {path[0]: one.value for path, one in given.options.items() if len(path) == 1}
    if given.url is not None:
        options |= parse_transport_url(given.expand_url(), options={}).options
    if options.get("mode") == "structured":
        raise ConfigError(
            f'The destination {configured.name} has mode = "structured", which no event router can write: let its '
            "consumers read binary mode, and take the option out, before you hand it off."
        )
    return str(options.get("topic", "{topic}"))


def _build_prune_rule(target: Target, plan: DebeziumPlan) -> str:
    words = ["pillarbox", "handoff", "prune", "--destination", plan.destination, "--slot", plan.slot, "--yes"]
    return shlex.join([*words, *(["--config", target.config.file_name] if target.config.found else [])])


# --- prune ---


def _parse_age(ctx: click.Context, param: click.Parameter, text: str | None) -> timedelta | None:
    return None if text is None else parse_wait(ctx, param, text)


@handoff.command(epilog="\b\nExample:\n  pillarbox handoff prune --destination kafka --yes\n")
@_handoff_options
@click.option("--older-than", callback=_parse_age, metavar="TIME", envvar="PILLARBOX_HANDOFF_OLDER_THAN",
              show_envvar=True, help="Keep what was written since.  [default: keep nothing]")  # fmt: skip
@click.option("--wait", callback=parse_wait, default="30s", show_default=True, metavar="TIME",
              envvar="PILLARBOX_HANDOFF_WAIT", show_envvar=True,
              help="How long the connector may take to confirm this moment.")  # fmt: skip
@click.option("--force", is_flag=True, envvar="PILLARBOX_HANDOFF_FORCE", show_envvar=True,
              help="Do not ask the slot: remove by age, delivered or not. Needs --older-than.")  # fmt: skip
@confirm_options(nothing="remove nothing")
@by_option
@target_options
@output_option
def prune(
    target: Target,
    *,
    destination: str,
    slot: str | None,
    older_than: timedelta | None,
    wait: timedelta,
    force: bool,
    dry_run: bool,
    yes: bool,
    by: str,
    output: OutputFormat,
) -> None:
    """Remove messages of a handed-off destination that its slot has confirmed, and no other.

    Refuses if the slot is missing, unread, lost or behind, and if a relay serves the destination.
    """
    _check_scheme(target)
    if force and older_than is None:
        raise click.UsageError("With --force nothing shows what was delivered: say with --older-than what may go.")
    configured = _find_destination(target, destination)
    settings = DestinationSettings(name=destination) if configured is None else configured.section.settings
    if configured is not None and settings.handoff is None:
        raise ConfigError(
            f"The destination {destination} is not handed off, so relays deliver it and close its messages: set "
            f'handoff = "debezium" under [destinations.{destination}] first.'
        )
    name = _check_name(slot or build_slot_name(settings), what="slot")
    matched = target.run(lambda store: _count(store, destination))
    if not dry_run and matched and not yes:
        age = "" if older_than is None else f" older than {format_duration(older_than)}"
        what = f"all{age}, delivered or not" if force else f"what the slot {name} has confirmed{age}"
        question = f"Remove {what}, of {matched:,} messages for {destination}?"
        confirm(question, effect="removes messages", done="removed")
    result = PruneResult(0, None)
    if not dry_run:
        lease = read_relay_section(target.config).settings.lease
        age_limit = older_than or timedelta(0)

        async def run(store: Store) -> PruneResult:
            pruner = HandoffPruner(_check_log(store), destination, slot=name, lease=lease)
            if force:
                return await pruner.run_unconfirmed(by=by, older_than=age_limit, on_progress=progress.show)
            return await pruner.run(by=by, older_than=age_limit, wait=wait, on_progress=progress.show)

        with Progress(matched) as progress:
            result = target.run(run)
    document = {"destination": destination, "matched": matched, "removed": result.deleted,
                "confirmed_at": result.confirmed_at, "dry_run": dry_run}  # fmt: skip
    done = "Nothing was removed." if dry_run else f"Removed {result.deleted:,}."
    show(document, text=f"Open messages for {destination}: {matched:,}. {done}", output=output)


async def _count(store: Store, destination: str) -> int:
    return await store.count(Selection(states=[State.PENDING], destination=destination))
