"""Every command, filter and format on every store, in this process: what the program says is the same.

On a server with roles each command has no more rights than the role that it is for.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pillarbox import Outbox
from pillarbox.cli._errors import run
from pillarbox.cli._program import pillarbox
from pillarbox.contracts.store import Selection
from pillarbox.dashboard import Dashboard
from pillarbox.dashboard import Role as PageRole
from pillarbox.message import Names
from pillarbox.stores.factory import open_store
from pillarbox.stores.postgres.grants import Role
from pillarbox.stores.urls import parse_store_url
from tests.support.cli.program import RunResult
from tests.support.dashboard.client import Client, as_role
from tests.support.dashboard.seed import Relaying
from tests.support.mariadb_server import connected

_FAIL = """
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, key, payload,
                                   content_type, headers, source, correlation_id, event_time, created_at, attempts,
                                   last_error, status_at, status)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source,
           correlation_id, event_time, created_at, 5, 'HTTP 422 no account', created_at, 'failed'
      from pillarbox_outbox where id in (2, 4)"""
_SKIP = _FAIL.replace("select id, message_id, destination", "select id, message_id, '_skipped'").replace(
    "5, 'HTTP 422 no account', created_at, 'failed'", "0, 'no route matched', created_at, 'skipped'"
)
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

    async def fail_and_ask_page(self, errors: Sequence[str]) -> Any:
        """Let messages fail as a relay does it, one for each error; return the causes that the page shows."""
        url = parse_store_url(os.environ["PILLARBOX_STORE"])
        store = open_store(url, names=self._names)
        await store.open()
        try:
            outbox = Outbox(routes="hooks", source="/shop", schema=self._names.schema)
            with closing(self._connect()) as connection:
                for _ in errors:
                    outbox.publish(connection, {}, type="orders.placed")
                connection.commit()
            relay = Relaying(store, "hooks")
            await relay.start()
            for message, error in zip(await store.find(Selection(destination="hooks"), limit=100), errors, strict=True):
                await relay.fail("hooks", [message.id], error)
            # They failed at one destination, as the others did.
            self.sql("update pillarbox_history set destination = 'billing' where destination = 'hooks'")
            dashboard = Dashboard({"orders": open_store(url, names=self._names)}, authorize=as_role(PageRole.VIEWER))
            try:
                return (await Client(dashboard).json("/orders/failures"))["failures"]
            finally:
                await dashboard.close()
        finally:
            await store.close()

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
    assert (group["count"], group["fingerprint"]) == (2, "HTTP 422 no account")
    assert (group["error"], group["example_id"]) == ("HTTP 422 no account", 4)


def test_the_command_and_the_page_show_the_same_causes(desk: Desk) -> None:
    errors = [
        *(f"POST /charges/{number} answered 500: no customer {number}" for number in (17, 305, 4711)),
        *(f"POST /charges/{number} answered 404: no customer {number}" for number in (18, 306)),
        "KeyError: 'ann'", "KeyError: 'bob'",
    ]  # fmt: skip
    page = asyncio.run(desk.fail_and_ask_page(errors))
    command = desk.told("failures")["failures"]
    assert command == page
    assert [(one["count"], one["fingerprint"]) for one in command] == [
        (3, "POST /charges/# answered 500: no customer #"),
        (2, "HTTP 422 no account"),
        (2, "KeyError: '…'"),
        (2, "POST /charges/# answered 404: no customer #"),
    ]
    assert [one["fingerprint"] for one in desk.told("failures", "--limit", "1")["failures"]] == [
        command[0]["fingerprint"]
    ]
    text = desk.run("failures", "--limit", "1")
    assert "There may be more causes" in text.err + text.out
    # Of other filters the messages themselves are grouped, by the same rule.
    filtered = desk.told("failures", "--type", "orders.placed")["failures"]
    assert [(one["count"], one["fingerprint"]) for one in filtered] == [
        (one["count"], one["fingerprint"]) for one in command
    ]


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


def test_what_no_route_takes_is_counted_listed_sent_and_closed(desk: Desk) -> None:
    desk.sql(_SKIP.replace("in (2, 4)", "in (1, 5)"))
    desk.sql("delete from pillarbox_outbox where id in (1, 5)")
    document = desk.told("status")
    assert document["skipped"] == 2
    (alert,) = [one for one in document["alerts"] if one["name"] == "skipped"]
    assert (alert["severity"], "2 messages of topic orders were sent nowhere" in alert["what"]) == ("warning", True)
    assert "2 skipped, because no route takes them" in desk.run("status").out
    assert "_skipped" not in desk.run("status").out
    assert "2 messages of topic orders were sent nowhere" in desk.run("check").out
    assert "skipped=2" in desk.run("check", "-o", "nagios").out
    assert [one["id"] for one in desk.told("messages", "list")["messages"] if one["state"] == "skipped"] == [1, 5]
    nowhere = desk.run("messages", "redrive", "--state", "skipped", "--yes")
    assert (nowhere.code, "say with --to NAME" in nowhere.err) == (2, True)
    sent = desk.run("messages", "redrive", "--state", "skipped", "--to", "billing", "--topic", "orders", "--yes")
    assert (sent.code, "2 messages redriven" in sent.out) == (0, True), sent.err
    assert desk.told("messages", "list", "--state", "skipped")["messages"] == []
    desk.sql(_SKIP.replace("in (2, 4)", "in (1, 5)"))
    desk.sql("delete from pillarbox_outbox where id in (1, 5)")
    closed = desk.run("messages", "discard", "--state", "skipped", "--reason", "a typo", "--yes")
    assert (closed.code, "2 messages discarded" in closed.out) == (0, True), closed.err
    assert desk.told("status")["skipped"] == 0
    for which in (["--state", "discarded", "--topic", "orders", "--yes"], ["1"]):
        again = desk.run("messages", "redrive", *which)
        assert (again.code, "say with --to NAME where they go" in again.err) == (2, True), again
    assert desk.run("messages", "redrive", "1", "--to", "billing").code == 0


def test_a_purge_counts_no_held_message_which_it_does_not_remove(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILLARBOX_RELAY_RETENTION_FAILED", "0")
    closed = desk.told("purge", "--dry-run")["matched"]["failed"]
    desk.sql("update pillarbox_outbox set waits = 'held', last_error = 'HTTP 422' where id in (1, 5)")
    assert desk.told("purge", "--dry-run")["matched"]["failed"] == closed
    done = desk.told("purge", "--yes", "--archive", str(tmp_path / "archive"))
    assert (done["matched"]["failed"], done["removed"].get("failed", 0)) == (closed, closed)
    assert len(desk.ids("--phase", "held")) == 2


def test_messages_behind_a_held_one_are_due_everywhere_and_the_advice_names_the_key(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = "{billing}" if desk.kind == "postgres" else '["billing"]'
    soon = "now() + interval '9 s'" if desk.kind == "postgres" else str(int(time.time() * 1_000_000) + 9_000_000)
    desk.sql(f"update pillarbox_relay set destinations = '{served}', reachable = '{served}', expires_at = {soon}")
    ((partition,),) = desk.sql("select partition from pillarbox_outbox where id = 1")
    desk.sql("update pillarbox_outbox set waits = 'held', last_error = 'HTTP 422' where id = 1")
    desk.sql(f"update pillarbox_outbox set waits = 'parked', key = 'k0', partition = {partition} where id = 5")
    monkeypatch.setenv("PILLARBOX_ALERTS_OLDEST_WARNING", "0s")
    document = desk.told("status")
    (billing,) = [one for one in document["destinations"] if one["name"] == "billing"]
    assert [billing["due"]] == [len(desk.ids("--phase", "due", "--destination", "billing"))] == [1]
    assert [(one["key"], one["head_id"], one["is_held"], one["waiting"]) for one in document["blocked"]] == [
        ("k0", 1, True, 1)
    ]
    (alert,) = [one for one in document["alerts"] if one["name"] == "oldest" and one["destination"] == "billing"]
    assert "1 message waits behind others of 1 key. First is message 1 of the key k0, which is held" in alert["do"]
    assert "`pillarbox messages redrive 1`, or `pillarbox messages discard 1 --reason TEXT`" in alert["do"]
    assert "more relays" not in alert["do"]
    now = "now()" if desk.kind == "postgres" else "0"
    desk.sql(f"update pillarbox_outbox set waits = 'retry', available_at = {now} where id = 1")
    (alert,) = [
        one for one in desk.told("status")["alerts"] if one["name"] == "oldest" and one["destination"] == "billing"
    ]
    assert "First is message 1 of the key k0, which is tried again" in alert["do"]
    assert "`pillarbox messages show 1`" in alert["do"]
    assert "more relays" not in alert["do"]
    desk.sql(f"update pillarbox_outbox set waits = 'retry', key = null, available_at = {now} where id = 5")
    document = desk.told("status")
    (alert,) = [one for one in document["alerts"] if one["name"] == "oldest" and one["destination"] == "billing"]
    assert document["retrying"] == {"billing": 2}
    assert alert["do"] == (
        "2 messages wait for another attempt: see why with `pillarbox failures --attempts --destination billing`."
    )


def test_tries_stand_beside_attempts_with_the_time_of_the_first(desk: Desk) -> None:
    now = "now()" if desk.kind == "postgres" else str(int(time.time() * 1_000_000))
    long_ago = "now() - interval '1 hour'" if desk.kind == "postgres" else f"{now} - 3600000000"
    desk.sql(f"update pillarbox_outbox set waits = 'retry', available_at = {now}, last_error = 'away' where id = 1")
    line = (
        "insert into pillarbox_journal (message_id, destination, action, at, by, attempt, error) "
        "select message_id, destination, 'tried', {at}, 'r', 0, 'away' from pillarbox_outbox where id = 1"
    )
    for at in (long_ago, now, now):
        desk.sql(line.format(at=at))
    (shown,) = desk.told("messages", "show", "1")["messages"]
    (listed,) = [one for one in desk.told("messages", "list")["messages"] if one["id"] == 1]
    assert shown == listed
    assert (shown["attempts"], shown["tries"]["count"]) == (0, 3)
    assert shown["tries"]["first_at"] < shown["created_at"]
    assert {one["id"]: one["tries"] for one in desk.told("messages", "list")["messages"]}[6] is None
    assert re.search(r"0 +3 in 1h", desk.run("messages", "list").out)
    assert re.search(r"tries +3, the first at 20", desk.run("messages", "show", "1").out)
    (waiting,) = desk.told("status")["waiting"]
    assert (waiting["attempts"], waiting["tries"], waiting["oldest_id"]) == (0, 3, 1)
    assert waiting["first_try_at"] == shown["tries"]["first_at"]
    assert "3 in 1h" in desk.run("status").out
    desk.sql("update pillarbox_outbox set attempts = 4 where id = 1")
    (near,) = desk.told("status")["near_failure"]
    assert (near["attempts"], near["tries"]["count"]) == (4, 3)
