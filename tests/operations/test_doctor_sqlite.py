"""The doctor at an SQLite store: each finding, with a file of which it is true."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from pillarbox import Outbox
from pillarbox.contracts.finding import Severity
from pillarbox.contracts.store import RelayInfo
from pillarbox.stores.migrations import latest_version
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.sqlite.checks import build_findings
from tests.support.next_version import build_release
from tests.support.operations.doctor import codes, diagnose, finding, install, severities

CRITICAL = Severity.CRITICAL


@pytest.fixture
async def url(tmp_sqlite: Path) -> str:
    """A file with our tables."""
    await install(f"sqlite:///{tmp_sqlite}")
    return f"sqlite:///{tmp_sqlite}"


def run(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


def publish(path: Path, *, to: str, count: int = 1) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for number in range(count):
            Outbox(routes=to, source="/shop").publish(connection, {"n": number}, type="orders.placed", topic="orders")


async def test_a_new_store_is_fine(url: str) -> None:
    assert codes(await diagnose(url)) == []


async def test_looking_changes_no_row(url: str, tmp_sqlite: Path) -> None:
    publish(tmp_sqlite, to="orders", count=3)
    before = dump(tmp_sqlite)

    await diagnose(url)

    assert dump(tmp_sqlite) == before


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


async def test_no_file(tmp_sqlite: Path) -> None:
    report = await diagnose(f"sqlite:///{tmp_sqlite}")

    assert severities(report) == {"store.unusable": CRITICAL}
    assert "There is no SQLite file" in finding(report, "store.unusable").what
    assert os.listdir(tmp_sqlite.parent) == []


async def test_no_tables(tmp_sqlite: Path) -> None:
    run(tmp_sqlite, "create table business (id integer)")

    assert severities(await diagnose(f"sqlite:///{tmp_sqlite}")) == {"store.schema-missing": CRITICAL}


async def test_tables_of_a_later_release(url: str, tmp_sqlite: Path) -> None:
    run(tmp_sqlite, "insert into pillarbox_schema (version) values (99)")

    assert severities(await diagnose(url)) == {"store.schema-newer": CRITICAL}


async def test_tables_of_an_earlier_release(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.stores.sync_sql.store.load_release", lambda _: build_release(99))

    assert severities(await diagnose(url)) == {"store.schema-outdated": CRITICAL}


async def test_tables_of_the_next_release_that_this_one_may_use(url: str, tmp_sqlite: Path) -> None:
    latest = latest_version("sqlite")
    run(
        tmp_sqlite,
        "insert into pillarbox_schema (version, readable_from, writable_from) "
        f"values ({latest + 1}, {latest}, {latest})",
    )

    assert severities(await diagnose(url)) == {"store.schema-ahead": Severity.INFO}


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ("drop index pillarbox_outbox_due_idx", CRITICAL),
        ("create index mine on pillarbox_outbox (topic)", Severity.WARNING),
    ],
)
async def test_tables_that_are_not_what_their_version_should_have(
    url: str, tmp_sqlite: Path, change: str, severity: Severity
) -> None:
    run(tmp_sqlite, change)

    assert severities(await diagnose(url)) == {"store.schema-mixed": severity}


async def test_commits_that_do_not_wait_for_the_disk(url: str) -> None:
    assert severities(await diagnose(f"{url}?synchronous=normal")) == {"sqlite.commits-not-awaited": Severity.WARNING}


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of somebody for whom the rights on files count: they do not for root."""
    folder, user = Path(tempfile.mkdtemp()), os.geteuid()
    try:
        if user == 0:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        yield folder
    finally:
        os.seteuid(user)
        shutil.rmtree(folder)


@pytest.mark.parametrize(("mode", "code"), [(0o444, "store.unusable"), (None, "store.unreachable")])
async def test_a_file_or_folder_that_cannot_be_written(unprivileged: Path, mode: int | None, code: str) -> None:
    path = unprivileged / "shop.db"
    await install(f"sqlite:///{path}")
    os.chmod(unprivileged if mode is None else path, 0o500 if mode is None else mode)

    assert severities(await diagnose(f"sqlite:///{path}")) == {code: CRITICAL}


async def test_a_file_that_somebody_keeps_locked(url: str, tmp_sqlite: Path) -> None:
    with closing(sqlite3.connect(tmp_sqlite, isolation_level=None)) as writer:
        writer.execute("begin exclusive")
        report = await diagnose(url)

    assert severities(report) == {"store.unreachable": CRITICAL}
    assert "locked" in finding(report, "store.unreachable").what


async def test_a_disk_with_little_room(url: str, tmp_sqlite: Path) -> None:
    """The real disk is as it is; what is little is said here."""
    store = SqliteStore(tmp_sqlite)
    facts = await store.read_facts()
    assert facts.free == pytest.approx(shutil.disk_usage(tmp_sqlite.parent).free, rel=0.2)

    (low,) = build_findings(facts, little_space=facts.free + 1, no_space=facts.free)
    (none,) = build_findings(facts, little_space=facts.free + 1, no_space=facts.free + 1)

    assert (low.code, low.severity) == ("sqlite.disk-nearly-full", Severity.WARNING)
    assert (none.code, none.severity) == ("sqlite.disk-full", CRITICAL)
    assert build_findings(facts, little_space=facts.free, no_space=facts.free) == []


async def test_a_log_that_a_reader_keeps_from_being_shortened(url: str, tmp_sqlite: Path) -> None:
    store = SqliteStore(tmp_sqlite)
    await store.open()
    with closing(sqlite3.connect(tmp_sqlite, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from pillarbox_outbox").fetchall()
        publish(tmp_sqlite, to="orders", count=50)
        facts = await store.read_facts()
        (found,) = build_findings(facts, long_log=10_000)
    await store.close()

    assert (found.code, found.severity) == ("sqlite.log-grows", Severity.WARNING)
    assert build_findings(facts, long_log=facts.log_size + 1) == []
    assert build_findings(await store.read_facts(), long_log=1) == []


# --- what waits ------------------------------------------------------------------------------------


async def test_messages_for_a_name_that_nobody_configured(url: str, tmp_sqlite: Path) -> None:
    publish(tmp_sqlite, to="orders")
    publish(tmp_sqlite, to="billnig", count=2)
    report = await diagnose(url)

    assert severities(report) == {"store.unserved-destination": CRITICAL}
    assert "2 messages wait for the destination billnig" in finding(report, "store.unserved-destination").what


async def test_a_name_that_another_relay_serves_is_not_forgotten(url: str, tmp_sqlite: Path) -> None:
    publish(tmp_sqlite, to="elsewhere")
    store = SqliteStore(tmp_sqlite)
    await store.open()
    relay = RelayInfo(
        relay_id=uuid4(), service="other", host="there", pid=1, version="0", destinations=["elsewhere"], reachable=[]
    )
    await store.register(relay, lease=timedelta(seconds=10))
    alive = codes(await diagnose(url))
    await store.leave(relay.relay_id)
    gone = codes(await diagnose(url))
    await store.close()

    assert (alive, gone) == ([], ["store.unserved-destination"])


async def test_a_paused_destination(url: str, tmp_sqlite: Path) -> None:
    publish(tmp_sqlite, to="orders", count=2)
    store = SqliteStore(tmp_sqlite)
    await store.open()
    await store.pause("orders", by="kim", reason="20 rejections in a row")
    report = await diagnose(url)
    await store.close()

    assert severities(report) == {"store.paused-destination": Severity.WARNING}
    assert "by kim (20 rejections in a row). 2 messages wait" in finding(report, "store.paused-destination").what


async def test_a_store_that_lives_in_one_process() -> None:
    assert severities(await diagnose("memory://")) == {"store.not-shared": Severity.WARNING}


async def test_a_store_that_hangs_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever hangs, and whether it can be cancelled or not: the report comes, and names what was not seen."""
    monkeypatch.setattr(SqliteStore, "counts", never)
    report = await diagnose(url, within=timedelta(milliseconds=300))

    assert severities(report)["store.not-checked"] is Severity.WARNING
    assert "What waits could not be looked at: no answer within 0.3 s" in finding(report, "store.not-checked").what


async def never(self: SqliteStore, *, limit: int) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return


def permit(path: str, mode: int) -> None:
    Path(path).chmod(mode)


@pytest.mark.skipif(os.name != "posix", reason="rights of others are those of POSIX")
async def test_a_file_that_everybody_can_read_is_found() -> None:
    folder = tempfile.mkdtemp(prefix="pillarbox-open-")  # pytest's own folders are closed to others
    path = f"{folder}/shop.db"
    try:
        permit(folder, 0o755)
        await install(f"sqlite:///{path}")
        assert codes(await diagnose(f"sqlite:///{path}")) == []

        permit(path, 0o646)
        found = finding(await diagnose(f"sqlite:///{path}"), "sqlite.open-to-others")
        assert found.severity is Severity.WARNING
        assert "may read and write" in found.what

        permit(folder, 0o700)
        assert codes(await diagnose(f"sqlite:///{path}")) == [], "nobody else can come to it"
    finally:
        shutil.rmtree(folder)
