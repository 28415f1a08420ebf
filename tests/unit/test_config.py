"""Configuration: the file, then variables, then flags; every value typed, every slip named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from pillarbox.cli.config import format_toml, list_entries
from pillarbox.config import Config, to_variable
from pillarbox.errors import ConfigError
from pillarbox.relay.configuration import read_relay_section
from pillarbox.settings import ConfigOrigin, KeyPath, format_key
from tests.support.configs import BASE, entry, load, refusal

HOOKS = ("destinations", "web-hooks")
Written: TypeAlias = tuple[str, object]

TIMES: tuple[Written, ...] = (('"20s"', "20s"), ("30s", "30s"), ("1m30s", "1m30s"))
NUMBERS: tuple[Written, ...] = (("20", 20), ("30", 30), ("40", 40))
NAMES: tuple[Written, ...] = (('"a"', "a"), ("b", "b"), ("c", "c"))
LEVELS: tuple[Written, ...] = (('"warning"', "warning"), ("error", "error"), ("debug", "debug"))

VALUES: Mapping[KeyPath, tuple[Written, ...]] = {
    ("store", "url"): (('"sqlite:///a"', "sqlite:///a"), ("sqlite:///b", "sqlite:///b"), ("memory://", "memory://")),
    ("store", "schema"): NAMES,
    ("store", "prefix"): NAMES,
    ("store", "keep"): (('"full"', "full"), ("no-payload", "no-payload"), ("off", "off")),
    ("store", "pooler"): (('"transaction"', "transaction"), ("none", None), ("transaction", "transaction")),
    ("store", "dialect"): (('"portable"', "portable"), ("native", "native"), ("portable", "portable")),
    ("store", "synchronous"): (('"full"', "full"), ("normal", "normal"), ("full", "full")),
    ("tenants", "store"): (
        ('"sqlite:///a"', "sqlite:///a"),
        ("sqlite:///b", "sqlite:///b"),
        ("memory://", "memory://"),
    ),
    ("tenants", "query"): NAMES,
    ("tenants", "directory"): (
        ('"sqlite:///a"', "sqlite:///a"),
        ("memory://", "memory://"),
        ("memory://", "memory://"),
    ),
    ("tenants", "refresh"): TIMES,
    ("tenants", "schema"): NAMES,
    ("tenants", "prefix"): NAMES,
    ("relay", "total_window"): NUMBERS,
    ("relay", "total_window_bytes"): NUMBERS,
    ("relay", "store_connections"): (("20", 20), ("30", 30), ("40", 40)),
    ("relay", "store_threads"): NUMBERS,
    ("outbox", "source"): (('"/a"', "/a"), ("/b", "/b"), ("/c", "/c")),
    ("outbox", "default"): (('"a"', ["a"]), ("a, b", ["a", "b"]), ("none", [])),
    ("outbox", "unrouted"): (('"error"', "error"), ("skip", "skip"), ("error", "error")),
    ("outbox", "max_payload"): NUMBERS,
    ("outbox", "serialize_keys"): (("true", True), ("no", False), ("ON", True)),
    ("relay", "service"): NAMES,
    ("relay", "labels"): (
        ('{ "a.b" = "c, d=e" }', {"a.b": "c, d=e"}),
        ("a=b=c, d=e", {"a": "b=c", "d": "e"}),
        ("none", {}),
    ),
    ("relay", "lease"): TIMES,
    ("relay", "poll_interval"): TIMES,
    ("relay", "retry_interval"): TIMES,
    ("relay", "watch_interval"): TIMES,
    ("relay", "stale_after"): TIMES,
    ("relay", "max_lanes"): (("20", 20), ("none", None), ("40", 40)),
    ("relay", "processes"): (("2", 2), ("3", 3), ("4", 4)),
    ("relay", "duties"): (('["clean"]', ["clean"]), ("retry, send", ["retry", "send"]), ("recover", ["recover"])),
    ("relay", "lone_cap"): NUMBERS,
    ("relay", "destinations"): (('["a"]', ["a"]), ("a,b", ["a", "b"]), ("web-hooks", ["web-hooks"])),
    ("relay", "retention", "delivered"): (("0", "0"), ("forever", "forever"), ("0", "0")),
    ("relay", "retention", "failed"): TIMES,
    ("relay", "retention", "skipped"): TIMES,
    ("relay", "retention", "discarded"): TIMES,
    ("relay", "retention", "inbox"): TIMES,
    ("relay", "retention", "inbox_failed"): TIMES,
    ("relay", "retention", "rollups"): TIMES,
    ("relay", "retention", "journal"): TIMES,
    ("relay", "retention", "every"): TIMES,
    ("relay", "retention", "batch"): NUMBERS,
    ("relay", "retention", "archive"): NAMES,
    ("log", "format"): (('"json"', "json"), ("text", "text"), ("json", "json")),
    ("log", "level"): LEVELS,
    ("log", "deliveries_at"): LEVELS,
    ("alerts", "failed"): NUMBERS,
    ("alerts", "oldest_warning"): TIMES,
    ("alerts", "oldest_critical"): (('"20m"', "20m"), ("30m", "30m"), ("forever", "forever")),
    ("alerts", "inbox_failed"): NUMBERS,
    ("alerts", "skipped"): NUMBERS,
    ("alerts", "backlog_warning"): NUMBERS,
    ("alerts", "backlog_critical"): (("20000", 20_000), ("30000", 30_000), ("40000", 40_000)),
    ("alerts", "backlog_for"): TIMES,
    ("alerts", "sending"): TIMES,
    ("alerts", "latency"): TIMES,
    ("alerts", "unpruned"): TIMES,
    ("alerts", "retry_rate"): (("0", 0.0), ("0.1", 0.1), ("0.3", 0.3)),
    ("alerts", "relays"): NUMBERS,
    ("alerts", "stuck"): TIMES,
    ("alerts", "near_failure"): (("0.5", 0.5), ("1", 1.0), ("0.3", 0.3)),
    ("probes", "stuck_after"): TIMES,
    ("probes", "stuck_messages"): NUMBERS,
    ("dashboard", "users"): (
        ('["ann:owner:env:A"]', ["ann:owner:env:A"]),
        ("a:viewer:env:A,b:reader:file:/b", ["a:viewer:env:A", "b:reader:file:/b"]),
        ("c:operator:env:C", ["c:operator:env:C"]),
    ),
    ("dashboard", "token"): (('"env:A"', "env:A"), ("file:/b", "file:/b"), ("none", None)),
    ("dashboard", "token_role"): (('"viewer"', "viewer"), ("owner", "owner"), ("reader", "reader")),
    ("dashboard", "proxy_header"): NAMES,
    ("dashboard", "proxy_peers"): (
        ('["10.0.0.1"]', ["10.0.0.1"]),
        ("10.0.0.0/8,::1", ["10.0.0.0/8", "::1"]),
        ("none", []),
    ),
    ("dashboard", "proxy_role"): (('"viewer"', "viewer"), ("owner", "owner"), ("reader", "reader")),
    ("dashboard", "read_only"): (("true", True), ("no", False), ("ON", True)),
    ("dashboard", "environment"): NAMES,
    ("dashboard", "journal_payloads"): (("true", True), ("no", False), ("ON", True)),
    ("dashboard", "trace_url"): NAMES,
    ("dashboard", "url"): (('"https://a"', "https://a"), ("http://b/c", "http://b/c"), ("none", None)),
    ("dashboard", "root_path"): (('"/a"', "/a"), ("/b/c", "/b/c"), ("/d", "/d")),
    ("dashboard", "secret"): (('"env:A"', "env:A"), ("file:/b", "file:/b"), ("none", None)),
    (*HOOKS, "url"): (('"memory:"', "memory:"), ("https://b", "https://b"), ("https://c", "https://c")),
    (*HOOKS, "batch"): NUMBERS,
    (*HOOKS, "window"): NUMBERS,
    (*HOOKS, "window_bytes"): NUMBERS,
    (*HOOKS, "send_timeout"): TIMES,
    (*HOOKS, "ping_interval"): TIMES,
    (*HOOKS, "after_failure"): (('"hold"', "hold"), ("continue", "continue"), ("hold", "hold")),
    (*HOOKS, "missing_topology"): (('"reject"', "reject"), ("wait", "wait"), ("reject", "reject")),
    (*HOOKS, "give_up_after"): TIMES,
    (*HOOKS, "rate"): (("1", 1.0), ("2.5", 2.5), ("none", None)),
    (*HOOKS, "readiness"): (("true", True), ("false", False), ("none", None)),
    (*HOOKS, "dead_letter"): (('"dead"', "dead"), ("none", None), ("dead", "dead")),
    (*HOOKS, "handoff"): (('"debezium"', "debezium"), ("none", None), ("debezium", "debezium")),
    (*HOOKS, "handoff_slot"): (('"a"', "a"), ("b_1", "b_1"), ("none", None)),
    (*HOOKS, "handoff_publication"): (('"a"', "a"), ("b_1", "b_1"), ("none", None)),
    (*HOOKS, "retry", "attempts"): (("3", 3), ("forever", "forever"), ("7", 7)),
    (*HOOKS, "retry", "first"): TIMES,
    (*HOOKS, "retry", "longest"): TIMES,
    (*HOOKS, "retry", "schedule"): (('["30s"]', ["30s"]), ("10s,5m", ["10s", "5m"]), ("1s", ["1s"])),
    (*HOOKS, "retry", "jitter"): (("0", 0.0), ("0.1", 0.1), ("0.3", 0.3)),
}
"""Every option: as the file has it, as a variable, as a flag, each with what it comes to."""


def variable(path: KeyPath) -> str:
    if path[0] == "destinations":
        return f"PILLARBOX_DESTINATION_WEB_HOOKS_{'_'.join(path[2:]).upper()}"
    return to_variable(path)


# --- who wins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", VALUES, ids=format_key)
def test_a_variable_wins_over_the_file_and_a_flag_over_both(tmp_path: Path, path: KeyPath) -> None:
    (in_file, from_file), (in_variable, from_variable), (in_flag, from_flag) = VALUES[path]
    text = f"{format_key(path)} = {in_file}\n"
    text += '[destinations.dead]\nurl = "memory:"\n' if path[0] == "destinations" else BASE
    environ = {variable(path): in_variable}

    by_file = entry(load(tmp_path, text), path)
    by_variable = entry(load(tmp_path, text, **environ), path)
    by_flag = entry(load(tmp_path, text, {path: in_flag}, **environ), path)

    assert (by_file.value, by_file.origin) == (from_file, ConfigOrigin("file", str(tmp_path / "pillarbox.toml")))
    assert (by_variable.value, by_variable.origin) == (from_variable, ConfigOrigin("environment", variable(path)))
    assert (by_flag.value, by_flag.origin.kind) == (from_flag, "flag")


def test_the_table_above_has_every_option(tmp_path: Path) -> None:
    shown = {entry.path for entry in list_entries(load(tmp_path, BASE)) if entry.path[:2] != ("destinations", "dead")}

    assert shown - set(VALUES) == {("outbox", "routes")}
    assert set(VALUES) <= shown


def test_consumers_are_shown_without_their_passwords(tmp_path: Path) -> None:
    text = '[consumers.billing]\nreceiver = "amqp://shop:pw-1@here?queue=billing"\n'
    environ = {"PILLARBOX_CONSUMER_MAIL_RECEIVER": "${MAIL}", "PILLARBOX_CONSUMER_BILLING_RECEIVER": "amqp://a:pw-2@b"}
    path = ("consumers", "billing", "receiver")

    assert entry(load(tmp_path, text), path).value == "amqp://shop:***@here?queue=billing"
    both = load(tmp_path, text, **environ)
    assert (entry(both, path).value, entry(both, path).origin.kind) == ("amqp://a:***@b", "environment")
    assert entry(both, ("consumers", "mail", "receiver")).value == "${MAIL}"


def test_everything_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert {entry.origin.kind for entry in list_entries(Config.load(environ={}))} == {"default"}


def test_an_empty_variable_says_nothing(tmp_path: Path) -> None:
    assert entry(load(tmp_path, PILLARBOX_RELAY_LEASE=""), ("relay", "lease")).value == "10s"


def test_what_is_shown_as_toml_says_the_same(tmp_path: Path) -> None:
    everything = "\n".join(
        f"{format_key(path)} = {written[0][0]}" for path, written in VALUES.items() if "first" not in path
    )
    everything = everything.replace(f'{format_key((*HOOKS, "retry", "longest"))} = "20s"\n', "")
    config = load(tmp_path, f'{everything}\n[[outbox.routes]]\nto = "dead"\n[destinations.dead]\nurl = "memory:"\n')
    entries = list_entries(config)

    again = load(tmp_path, format_toml(entries))

    assert [(one.path, one.value) for one in list_entries(again)] == [(one.path, one.value) for one in entries]


# --- finding the file --------------------------------------------------------------------------------


def test_the_file_is_found_here_or_where_it_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other, third = tmp_path / "other.toml", tmp_path / "third.toml"
    assert not Config.load(environ={}).found
    (tmp_path / "pillarbox.toml").write_text('[relay]\nservice = "here"\n')
    other.write_text('[relay]\nservice = "other"\n')
    third.write_text('[relay]\nservice = "third"\n')

    here = Config.load(environ={})
    named = Config.load(environ={"PILLARBOX_CONFIG": str(other)})
    given = Config.load(third, environ={"PILLARBOX_CONFIG": str(other)})

    assert [read_relay_section(config).settings.service for config in (here, named, given)] == [
        "here",
        "other",
        "third",
    ]


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"[relay]\nservice = '\xe4'\n")
    for name, why in (("none.toml", "No such file"), (".", "directory"), ("latin.toml", "UTF-8")):
        with pytest.raises(ConfigError, match=why):
            Config.load(tmp_path / name, environ={})
    assert "is not TOML: " in refusal(tmp_path, "[relay\n")
    assert "line 1" in refusal(tmp_path, "[relay\n")


def test_any_text_can_be_shown_as_toml(tmp_path: Path) -> None:
    nasty = 'a"\\\n\x1b\x7f\u2028 ü 😀'
    config = load(tmp_path, "", {("relay", "service"): nasty})

    assert entry(load(tmp_path, format_toml(list_entries(config))), ("relay", "service")).value == nasty
