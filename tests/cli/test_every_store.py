"""Every command, filter and format on every store, in this process: what the program says is the same.

On a server with roles each command has no more rights than the role that it is for.
"""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pillarbox import Outbox
from pillarbox.cli._errors import run
from pillarbox.cli._program import pillarbox
from pillarbox.message import Names
from pillarbox.stores.postgres.grants import Role
from tests.support.cli.program import RunResult
from tests.support.mariadb_server import connected

_FAIL = """
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, key, payload,
                                   content_type, headers, source, correlation_id, event_time, created_at, attempts,
                                   last_error, status_at, status)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source,
           correlation_id, event_time, created_at, 5, 'HTTP 422 no account', created_at, 'failed'
      from pillarbox_outbox where id in (2, 4)"""
_CLAIM = {
    "sqlite": "insert into pillarbox_claim (relay_id, number, message_ids, claimed_at) "
    "values ('00000000-0000-0000-0000-000000000001', 1, '[3]', 0)",
    "postgres": "insert into pillarbox_claim (relay_id, number, message_ids, claimed_at) "
    "values ('00000000-0000-0000-0000-000000000001', 1, '{3}', now() - interval '1 hour')",
}
_CLAIM["mariadb"] = _CLAIM["sqlite"]
_RELAY = {
    "sqlite": "insert into pillarbox_relay (relay_id, service, host, pid, version, destinations, reachable, "
    "started_at, expires_at) values ('00000000-0000-0000-0000-000000000001', 's', 'h', 1, 'v', '[]', '[]', 0, "
    "9000000000000000)",
    "postgres": "insert into pillarbox_relay (relay_id, service, host, pid, version, destinations, reachable, "
    "started_at, expires_at) values ('00000000-0000-0000-0000-000000000001', 's', 'h', 1, 'v', '{}', '{}', now(), "
    "now() + interval '1 day')",
}
_RELAY["mariadb"] = _RELAY["sqlite"]
_RESERVED = re.compile(r"(?<![`\w])(key|partition|by)(?![`\w])(?! *\()")
_INBOX = """
    insert into pillarbox_inbox (consumer, source, message_id, status, attempts, last_error, message)
    values ('mailer', '/shop', 'm1', 'failed', 3, 'Timeout', 'x'), ('mailer', '/shop', 'm2', 'failed', 3, 'x', 'x')"""


_OPERATIONS = {"redrive", "replay", "discard", "defer", "pause", "resume", "purge", "restore"}


def find_role(words: Sequence[str]) -> Role | None:
    """Return the role whose rights a command should need, or None for the owner of the tables."""
    if words[0] == "schema":
        return None
    if words[0] in ("relay", "doctor"):
        return "relay"
    if not _OPERATIONS.isdisjoint(words[:2]) or words[:2] in (("messages", "show"), ("inbox", "list")):
        return "operator"  # showing a message shows its payload
    return "viewer"


class Desk:
    """A store with six messages, two of which failed and one of which is stuck; and somebody at the program."""

    def __init__(
        self,
        kind: str,
        connect: Callable[[], Any],
        schema: str | None,
        capsys: Any,
        *,
        url_as: Callable[[Role], str] | None = None,
    ) -> None:
        self.kind = kind
        self._connect = connect
        self._names = Names(schema)
        self._capsys = capsys
        self._url_as = url_as

    def fill(self) -> None:
        outbox = Outbox(routes="billing", source="/shop", schema=self._names.schema)
        with closing(self._connect()) as connection:
            for number in range(6):
                outbox.publish(
                    connection, {"n": number}, type="orders.placed", topic="eu" if number == 5 else "orders",
                    key=f"k{number % 3}", correlation_id=f"c{number}",
                    destinations=["mail"] if number == 5 else ["billing"],
                )  # fmt: skip
            connection.commit()
        self.sql(_FAIL)
        self.sql("delete from pillarbox_outbox where id in (2, 4)")
        self.sql(_RELAY[self.kind])
        self.sql(_CLAIM[self.kind])

    def sql(self, text: str) -> Sequence[Any]:
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            if self.kind == "mariadb":
                text = _RESERVED.sub(r"`\1`", text.replace("order by", "ORDER BY").replace("group by", "GROUP BY"))
            cursor.execute(self._names.qualify(text, quote="`" if self.kind == "mariadb" else '"'))
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
        return list(rows)

    def run(self, *words: str) -> RunResult:
        role = find_role(words)
        with pytest.MonkeyPatch.context() as environment:
            if role is not None and self._url_as is not None:
                environment.setenv("PILLARBOX_STORE", self._url_as(role))
            code = run(pillarbox, words)
        out, err = self._capsys.readouterr()
        return RunResult(code, out, err)

    def told(self, *words: str, code: int = 0) -> Any:
        """The one JSON document; `-o jsonl` says the same in other lines."""
        ran = self.run(*words, "-o", "json")
        assert ran.code == code, ran.err
        return json.loads(ran.out)

    def ids(self, *filters: str) -> list[int]:
        return [one["id"] for one in self.told("messages", "list", *filters)["messages"]]


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def desk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PILLARBOX_BY", "ann")
    if request.param == "sqlite":
        monkeypatch.setenv("PILLARBOX_STORE", "sqlite:///shop.db")
        made = Desk("sqlite", lambda: sqlite3.connect(tmp_path / "shop.db"), None, capsys)
    elif request.param == "mariadb":
        url = request.getfixturevalue("mariadb_url")
        monkeypatch.setenv("PILLARBOX_STORE", url)
        logins = request.getfixturevalue("mariadb_logins")
        made = Desk(
            "mariadb", lambda: connected(url), None, capsys, url_as=lambda role: logins.url_as(role, url, Names())
        )
    else:
        url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
        monkeypatch.setenv("PILLARBOX_STORE", url)
        monkeypatch.setenv("PILLARBOX_SCHEMA", schema)
        logins = request.getfixturevalue("postgres_logins")
        made = Desk(
            "postgres", lambda: psycopg.connect(url), schema, capsys,
            url_as=lambda role: logins.url_as(role, url, Names(schema)),
        )  # fmt: skip
    assert made.run("schema", "install").code == 0
    made.fill()
    return made


def test_every_filter_chooses(desk: Desk) -> None:
    assert desk.ids() == [1, 2, 3, 4, 5, 6]
    assert desk.ids("--state", "pending") == [1, 5, 6]
    assert desk.ids("--state", "pending", "--state", "sending") == [1, 3, 5, 6]
    assert desk.ids("--destination", "mail") == [6]
    assert desk.ids("--topic", "eu") == [6]
    assert desk.ids("--type", "orders.placed", "--limit", "2") == [1, 2]
    assert desk.ids("--key", "k1") == [2, 5]
    assert desk.ids("--correlation", "c4") == [5]
    assert desk.ids("--error", "NO ACCOUNT") == [2, 4]
    assert desk.ids("--stuck") == [3]
    assert desk.ids("--near-failure") == []
    assert desk.ids("--since", "1h", "--after", "4") == [5, 6]
    assert desk.ids("--until", "1h") == []


def test_what_is_asked_is_told_in_every_format(desk: Desk) -> None:
    for words in (
        ("status",), ("check",), ("failures",), ("messages", "list"), ("messages", "show", "2"), ("relays",),
        ("lanes",), ("purge", "--dry-run"), ("config", "show"), ("version",), ("inbox", "list"),
        ("schema", "verify"),
    ):  # fmt: skip
        assert isinstance(desk.told(*words, code=7 if words == ("check",) else 0), dict)
        lines = desk.run(*words, "-o", "jsonl").out.splitlines()
        assert all(isinstance(json.loads(line), dict) for line in lines)
        text = desk.run(*words)
        assert text.out or text.err


def test_what_was_purged_is_restored_from_its_archive(desk: Desk, tmp_path: Path) -> None:
    folder = str(tmp_path / "archive")
    long_ago = "'2020-01-01'" if desk.kind == "postgres" else "0"
    desk.sql(f"update pillarbox_history set status = 'discarded', status_at = {long_ago}")
    assert desk.told("purge", "--yes", "--archive", folder)["removed"] == {"discarded": 2}
    assert desk.told("archive", "restore", folder, "--dry-run")["missing"] == 2
    assert desk.told("archive", "restore", folder, "--yes")["changed"] == 2
    assert desk.told("archive", "restore", folder, "--yes")["known"] == 2
    assert desk.told("messages", "show", "2")["messages"][0]["state"] == "discarded"
    assert desk.told("messages", "redrive", "2")["changed"] == 1


def test_a_row_that_cannot_be_read_is_listed_shown_with_its_bytes_and_discarded(desk: Desk) -> None:
    due = "now()" if desk.kind == "postgres" else "0"
    desk.sql(
        f"update pillarbox_outbox set waits = 'retry', available_at = {due}, headers = '[\"s3cret\"]' where id = 1"
    )

    (listed,) = [one for one in desk.told("messages", "list")["messages"] if one["id"] == 1]
    assert listed["unreadable"].startswith("unreadable row: headers")
    for words in (("messages", "list"), ("messages", "show", "1"), ("status",), ("failures",)):
        assert "s3cret" not in desk.run(*words).out
    (shown,) = desk.told("messages", "show", "1", "--payload")["messages"]
    assert base64.b64decode(shown["raw_base64"]["headers"]) == b'["s3cret"]'
    assert "raw headers" in desk.run("messages", "show", "1", "--payload").out
    assert desk.told("messages", "discard", "1", "--reason", "junk")["changed"] == 1
    assert desk.told("messages", "redrive", "1")["changed"] == 1
    assert desk.ids("--state", "pending") == [1, 5, 6]


@pytest.mark.parametrize("name", ["99999999999999999999999", "9223372036854775808", "²", "-1x"])
def test_an_id_that_no_message_can_have_is_told(desk: Desk, name: str) -> None:
    ran = desk.run("messages", "show", "--", name)
    assert ran.code == 2
    assert "is neither the id nor the message id" in ran.err


def test_why_messages_failed_is_grouped(desk: Desk) -> None:
    (group,) = desk.told("failures")["failures"]
    assert (group["count"], group["error"], group["example_id"]) == (2, "HTTP 422 no account", 2)


def test_every_change_is_counted_first_made_as_said_and_kept_in_the_journal(desk: Desk) -> None:
    changes = (
        ("redriven", ("redrive", "--error", "account"), 2),
        ("deferred", ("defer", "--destination", "mail", "--for", "2h"), 1),
        ("discarded", ("discard", "--key", "k1", "--reason", "by hand"), 2),
    )
    for action, words, count in changes:
        dry = desk.told("messages", *words, "--dry-run")
        assert (dry["action"], dry["matched"], dry["changed"], dry["dry_run"]) == (action, count, 0, True)
        refused = desk.run("messages", *words)
        assert (refused.code, "add --yes" in refused.err) == (2, True)
        done = desk.told("messages", *words, "--yes")
        assert (done["matched"], done["changed"]) == (count, count)
    desk.sql("update pillarbox_history set status = 'delivered' where id = 2")
    assert desk.told("messages", "replay", "--since", "1h", "--yes")["changed"] == 1
    journal = desk.sql("select action, by from pillarbox_journal where message_id is not null order by id")
    assert [tuple(line) for line in journal] == [
        (action, "ann") for action in ["redriven"] * 2 + ["deferred"] + ["discarded"] * 2 + ["replayed"]
    ]


def test_a_relay_delivers_what_waits(desk: Desk) -> None:
    desk.sql("delete from pillarbox_relay")
    desk.sql("delete from pillarbox_claim")
    ran = desk.run("relay", "--once", "--to", "billing=memory:", "--to", "mail=memory:")
    assert ran.code == 0, ran.err
    assert desk.ids("--state", "delivered") == [1, 3, 5, 6]
    examined = desk.run("doctor", "--to", "billing=memory:")
    assert "critical" not in examined.err, examined.out


def test_what_a_relay_had_in_hand_that_is_gone_can_be_changed(desk: Desk) -> None:
    assert desk.run("messages", "discard", "3", "--reason", "nobody serves it").code == 1
    desk.sql("delete from pillarbox_relay")
    assert desk.ids("--state", "pending", "--destination", "billing") == [1, 3, 5]
    assert desk.told("messages", "discard", "--destination", "billing", "--reason", "gone", "--yes")["changed"] == 5
    assert desk.told("messages", "redrive", "3", "--to", "mail")["changed"] == 1
    assert desk.ids("--destination", "mail") == [3, 6]


def test_a_dry_run_says_on_stdout_what_it_would_be(desk: Desk) -> None:
    ran = desk.run("messages", "redrive", "--destination", "billing", "--dry-run")
    assert (ran.code, ran.out, ran.err) == (0, "2 messages (2 failed) would be redriven. Nothing was changed.\n", "")


def test_pauses_are_told_and_kept(desk: Desk) -> None:
    assert desk.told("pause", "billing", "--reason", "moving")["paused"]
    assert "paused by ann" in desk.run("status").out
    assert [desk.told("resume", "billing")["changed"] for _ in range(2)] == [True, False]
    journal = desk.sql("select action, by, reason from pillarbox_journal order by id")
    assert [tuple(line) for line in journal] == [("paused", "ann", "moving"), ("resumed", "ann", None)]


def test_what_an_inbox_could_not_handle(desk: Desk) -> None:
    desk.sql(_INBOX)
    assert desk.told("inbox", "redrive", "--consumer", "mailer", "--dry-run") == {
        "matched": 2, "redriven": 0, "dry_run": True,
    }  # fmt: skip
    assert desk.run("inbox", "redrive", "--consumer", "mailer").code == 2
    assert desk.told("inbox", "redrive", "m1")["redriven"] == 1
    assert desk.told("inbox", "discard", "--error", "X", "--reason", "by hand", "--yes")["discarded"] == 1
    missing = desk.run("inbox", "redrive", "m9")
    assert (missing.code, "m9" in missing.sentence) == (5, True)
    states = desk.sql("select status from pillarbox_inbox order by message_id")
    assert [tuple(line) for line in states] == [("started",), ("done",)]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("messages", "show", "99"), 5),
        (("messages", "redrive", "99"), 5),
        (("messages", "redrive", "1"), 1),
        (("messages", "show", "nonsense"), 2),
        (("pause", "no such;name"), 2),
        (("check", "-o", "nagios"), 2),
        (("check",), 7),
    ],
)
def test_exit_codes(desk: Desk, words: tuple[str, ...], code: int) -> None:
    assert desk.run(*words).code == code
