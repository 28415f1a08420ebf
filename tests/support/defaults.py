"""The defaults that are documented: one table, from which `docs/defaults.md` is written (`make defaults`).

Each row says what the default must be. The test compares it with the settings, so neither changes without the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from pillarbox.cli._logs import LogSettings
from pillarbox.config import OutboxSettings, StoreSettings
from pillarbox.consumer.settings import ConsumerSettings
from pillarbox.dashboard.settings import DashboardSettings
from pillarbox.operations.alerts import Thresholds
from pillarbox.operations.health import ProbeSettings
from pillarbox.relay.addresses import TenantSettings
from pillarbox.relay.settings import DestinationSettings, ProcessSettings, RelaySettings, SharingSettings
from pillarbox.settings import Field, list_fields, to_plain

__all__ = ["PAGE", "ROWS", "Default", "build_page", "list_settings", "read_default"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "defaults.md"


class Default(NamedTuple):
    """One documented default."""

    section: str
    key: str
    value: object
    """As the file holds it; None for no limit."""
    meaning: str


_SETTINGS: Final[dict[str, Sequence[type[msgspec.Struct]]]] = {
    "store": [StoreSettings],
    "outbox": [OutboxSettings],
    "tenants": [TenantSettings],
    "relay": [RelaySettings, ProcessSettings, SharingSettings],
    "destinations.NAME": [DestinationSettings],
    "alerts": [Thresholds],
    "probes": [ProbeSettings],
    "dashboard": [DashboardSettings],
    "log": [LogSettings],
    "ConsumerSettings": [ConsumerSettings],
}

ROWS: Final = (
    Default("store", "prefix", "pillarbox_", "names of the tables begin with it"),
    Default("tenants", "refresh", "30s", "tenants are asked for so often"),
    Default("tenants", "prefix", "pillarbox_", "names of the tenants' tables begin with it"),
    Default("outbox", "unrouted", "skip", "an event that no route matches is recorded as skipped"),
    Default("outbox", "max_payload", 1_048_576, "bytes of a payload, 1 MiB; more is an error at publish"),
    Default("outbox", "serialize_keys", False, "keys are not locked"),
    Default("relay", "total_window", 10_000, "messages of several stores in flight"),
    Default("relay", "total_window_bytes", 268_435_456, "bytes of their payloads in flight, 256 MiB"),
    Default("relay", "store_connections", 8, "connections to one PostgreSQL database for all stores in it"),
    Default("relay", "store_threads", 32, "threads for the SQLite files of all stores"),
    Default("relay", "duties", ["send", "retry", "recover", "clean"], "a relay has all duties"),
    Default("relay", "service", "pillarbox", "name of the service in the registry"),
    Default("relay", "labels", {}, "a relay has no labels"),
    Default("relay", "lease", "10s", "others take over from a relay that was not heard of for so long"),
    Default(
        "relay", "poll_interval", "1s", "longest wait between two reads; shorter after a read that found something"
    ),
    Default("relay", "retry_interval", "250ms", "shortest wait between two reads of messages that are due"),
    Default("relay", "watch_interval", "500ms", "time between two reads of the registry"),
    Default("relay", "stale_after", "10m", "a dead relay is removed from the registry"),
    Default("relay", "max_lanes", None, "a relay may own all 64 lanes of a destination"),
    Default("relay", "processes", 1, "`pillarbox relay` is one process"),
    Default("relay", "lone_cap", 5, "deaths while a message is sent alone, before it fails"),
    Default("relay", "retention.delivered", "7d", "delivered messages are kept"),
    Default("relay", "retention.failed", "forever", "failed messages are never removed"),
    Default("relay", "retention.skipped", "forever", "skipped messages are never removed"),
    Default("relay", "retention.discarded", "7d", "discarded messages are kept"),
    Default("relay", "retention.inbox", "7d", "duplicates are recognised"),
    Default("relay", "retention.inbox_failed", "90d", "what a consumer could not handle is kept"),
    Default("relay", "retention.rollups", "7d", "counters of each minute are kept"),
    Default("relay", "retention.journal", "30d", "lines of the journal that belong to no message are kept"),
    Default("relay", "retention.every", "1h", "time between two cleanings"),
    Default("relay", "retention.batch", 1_000, "messages that one transaction removes"),
    Default("relay", "retention.archive", None, "what is deleted is not written to files before"),
    Default("destinations.NAME", "batch", 500, "messages read, claimed and sent at a time"),
    Default("destinations.NAME", "window", 2_000, "messages in flight: the parallelism"),
    Default("destinations.NAME", "window_bytes", 33_554_432, "payloads in flight, 32 MiB"),
    Default("destinations.NAME", "send_timeout", "30s", "a send that takes longer counts as unanswered"),
    Default("destinations.NAME", "ping_interval", "30s", "an idle destination is asked whether it is there"),
    Default("destinations.NAME", "retry.attempts", 5, "the first attempt and 4 retries"),
    Default("destinations.NAME", "retry.first", "2s", "wait before the first retry; it doubles"),
    Default("destinations.NAME", "retry.longest", "5m", "longest wait between two attempts"),
    Default("destinations.NAME", "retry.jitter", 0.2, "share of a wait that is random, up and down"),
    Default("destinations.NAME", "retry.schedule", [], "waits double; a list names each wait instead"),
    Default("destinations.NAME", "after_failure", "continue", "the next message of a key goes on after a failed one"),
    Default("destinations.NAME", "missing_topology", "wait", "what lacks its queue or topic waits for it"),
    Default("destinations.NAME", "give_up_after", "forever", "no outage fails a message"),
    Default("destinations.NAME", "rate", None, "no limit of messages per second"),
    Default("destinations.NAME", "dead_letter", None, "failed messages stay where they are"),
    Default("destinations.NAME", "readiness", None, "brokers and handlers count for readiness, webhooks do not"),
    Default("destinations.NAME", "handoff", None, "relays deliver; `debezium` hands it off"),
    Default("destinations.NAME", "handoff_slot", None, "`pillarbox_NAME`"),
    Default("destinations.NAME", "handoff_publication", None, "as the slot"),
    Default("alerts", "failed", 0, "critical above so many failed messages"),
    Default("alerts", "inbox_failed", 0, "critical above so many failed messages of a consumer"),
    Default("alerts", "skipped", 0, "warning above so many messages that no route takes"),
    Default("alerts", "oldest_warning", "1m", "a message has been due for so long"),
    Default("alerts", "oldest_critical", "10m", "a message has been due for so long"),
    Default("alerts", "backlog_warning", 1_000, "so many messages are due, some for over `backlog_for`"),
    Default("alerts", "backlog_critical", 10_000, "so many messages are due, for however short a time"),
    Default("alerts", "backlog_for", "5m", "see above"),
    Default("alerts", "sending", "30m", "a batch has been claimed for so long"),
    Default("alerts", "stuck", "15m", "a batch that was claimed for so long is listed as stuck"),
    Default("alerts", "near_failure", 0.6, "share of its attempts after which a message is listed as near failure"),
    Default("alerts", "relays", 1, "fewer live relays"),
    Default("alerts", "latency", "5m", "average latency over an hour"),
    Default("alerts", "unpruned", "1d", "a handed-off message is not pruned for so long"),
    Default("alerts", "retry_rate", 0.1, "share of failed attempts over an hour"),
    Default("probes", "stuck_after", "15m", "a claim of this relay is stuck"),
    Default("probes", "stuck_messages", 0, "not alive above so many messages in stuck claims"),
    Default("dashboard", "users", [], "nobody logs in: it listens on this machine alone"),
    Default("dashboard", "token", None, "programs have no token"),
    Default("dashboard", "token_role", "operator", "role of whoever has the token"),
    Default("dashboard", "proxy_header", None, "no header names the user"),
    Default("dashboard", "proxy_peers", [], "no proxy is trusted"),
    Default("dashboard", "proxy_role", "viewer", "role of the users that a proxy names"),
    Default("dashboard", "read_only", False, "operators and owners may act"),
    Default("dashboard", "environment", "", "no name on the pages"),
    Default("dashboard", "journal_payloads", False, "looking at a payload leaves no line"),
    Default("dashboard", "trace_url", None, "no links to traces"),
    Default("dashboard", "url", None, "commands name no page"),
    Default("dashboard", "root_path", "", "no proxy removes a path"),
    Default("dashboard", "secret", None, "each process has a secret of its own"),
    Default("log", "format", "text", "lines are for people"),
    Default("log", "level", "info", "the least level that is written"),
    Default("log", "deliveries_at", "debug", "each single delivery"),
    Default("ConsumerSettings", "concurrency", 16, "messages handled at once, of different keys"),
    Default("ConsumerSettings", "prefetch", 200, "messages that run or are about to"),
    Default("ConsumerSettings", "set_aside", 10_000, "messages that wait behind others of their key"),
    Default("ConsumerSettings", "pending_bytes", 134_217_728, "bodies in hand, 128 MiB"),
    Default("ConsumerSettings", "retry.attempts", 5, "calls of a failing handler"),
    Default("ConsumerSettings", "retry.first", "200ms", "wait before the second call; it doubles"),
    Default("ConsumerSettings", "retry.longest", "5s", "longest wait between two calls"),
    Default("ConsumerSettings", "retry.jitter", 0.2, "share of a wait that is random, up and down"),
    Default("ConsumerSettings", "retry.schedule", [], "waits double; a list names each wait instead"),
    Default("ConsumerSettings", "unknown", "ignore", "a message without a handler is acknowledged"),
    Default("ConsumerSettings", "deaths", 3, "deaths while a message is handled alone, before it is kept as failed"),
    Default("ConsumerSettings", "stop_timeout", "30s", "handlers may go on after a stop"),
    Default("ConsumerSettings", "retention", "7d", "the deduplication window"),
    Default("ConsumerSettings", "failed_retention", "90d", "failed messages are kept"),
    Default("ConsumerSettings", "poll_interval", "1s", "time between two looks for redriven messages"),
)

WITHOUT_DEFAULT: Final = {
    ("store", "url"), ("store", "schema"), ("store", "keep"), ("store", "pooler"), ("store", "dialect"),
    ("store", "synchronous"),
    ("tenants", "store"), ("tenants", "query"), ("tenants", "directory"), ("tenants", "schema"),
    ("outbox", "source"), ("outbox", "default"), ("outbox", "routes"), ("destinations.NAME", "name"),
}  # fmt: skip
"""Settings that have none: they must be given, or what holds without them is the database's own affair."""


def list_settings() -> set[tuple[str, str]]:
    """List every setting that has a default, by section and key."""
    settings = {(section, ".".join(field.path)) for section in _SETTINGS for field in _list_fields(section)}
    return settings - WITHOUT_DEFAULT


def read_default(row: Default) -> object:
    """Return the default that is in force, as the file would hold it."""
    fields = {".".join(field.path): field.default for field in _list_fields(row.section)}
    return to_plain(fields[row.key])


def _list_fields(section: str) -> Iterator[Field]:
    for kind in _SETTINGS[section]:
        yield from list_fields(kind)


def build_page() -> str:
    """Build the page from the table."""
    lines = [
        "# Defaults",
        "",
        "This page lists what holds where nothing is configured. It is written from one table (`make defaults`), which",
        "a test compares with the code. [Configuration](configuration.md) explains how to set each; `config show`",
        "prints what is in force and why.",
    ]  # fmt: skip
    for section in _SETTINGS:
        heading = f"`{section}`" if section == "ConsumerSettings" else f"`[{section}]`"
        lines += ["", f"## {heading}", "", "| Setting | Default | Meaning |", "| --- | --- | --- |"]
        rows = [row for row in ROWS if row.section == section]
        lines += [f"| `{row.key}` | {_format(row.value)} | {row.meaning} |" for row in rows]
    return "\n".join([*lines, ""])


def _format(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case []:
            return "none"
        case list():
            return f"`{', '.join(map(str, value))}`"
    return f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(build_page())
