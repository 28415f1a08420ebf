"""Relays over many stores: each is served, and what goes wrong with one stays with it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from pillarbox.config import Config
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import ConfigError, StoreError
from pillarbox.message import Message, Names
from pillarbox.relay import relays as relays_module
from pillarbox.relay.addresses import Found, StoreAddress, Stores, Tenants, TenantSettings, parse_address
from pillarbox.relay.archive import read_archive
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.relays import Relays, StoreHealth
from pillarbox.relay.settings import DestinationSettings, RelaySettings, Retention, SharingSettings
from pillarbox.stores import directory
from pillarbox.stores.directory import query_column
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url
from tests.support.many_stores import ManyStores, list_numbers, to_destination, until_running
from tests.support.relay_behaviour.scene import LEASE, Script, until

QUICK = RelaySettings(lease=LEASE, watch_interval=timedelta(milliseconds=50), poll_interval=timedelta(milliseconds=50))
NUMBERS = range(20)


def find_store(relays: Relays, name: str) -> StoreHealth:
    known = {one.name: one for one in relays.stores}
    return known.get(name, StoreHealth(name=name, address="", state="starting"))


def has_failed(relays: Relays, name: str) -> bool:
    return find_store(relays, name).state == "failed"


def has_arrived(sink: Script, name: str, count: int) -> bool:
    return len(list_numbers(sink, name)) >= count


def has_begun(sink: Script, name: str, count: int) -> bool:
    return sum(message.topic == name for message in sink.under_way) >= count


async def until_delivered(sink: Script, *names: str) -> None:
    await until(lambda: all(set(list_numbers(sink, name)) >= set(NUMBERS) for name in names))


async def test_every_store_is_served_in_order_over_one_transport(many: ManyStores) -> None:
    opened = 0

    class Counted(Script):
        async def open(self) -> None:
            nonlocal opened
            opened += 1

    names, sink = ("schema_a", "schema_b", "file_a", "file_b"), Counted()
    stores = await many.install(*names)
    for name in names:
        await many.put(name, NUMBERS)
    async with Relays(stores, [to_destination(sink)], settings=QUICK) as relays:
        await until_delivered(sink, *names)
        for name in names:
            await many.put(name, range(20, 30))
        await until(lambda: len(sink.taken) >= 30 * len(names))
        assert [one.state for one in relays.stores] == ["running"] * len(names)
    assert opened == 1
    for name in names:
        by_key = {key: [n for n in list_numbers(sink, name) if n % 3 == key] for key in range(3)}
        assert by_key == {key: [n for n in range(30) if n % 3 == key] for key in range(3)}


async def test_stores_of_all_kinds_are_served_beside_one_that_is_away(
    tmp_path: Path, postgres_url: str, mariadb_url: str
) -> None:
    many = ManyStores(tmp_path, postgres_url, mariadb={"mysql_a": mariadb_url})
    names, sink = ("mysql_a", "schema_kinds", "file_a"), Script()
    away = {"mysql_away": "mysql://somebody:s3cret@127.0.0.1:1/nothing"}
    try:
        stores = await many.install(*names)
        async with Relays({**away, **stores}, [to_destination(sink)], settings=QUICK) as relays:
            await until_running(relays, *names)
            await until(partial(has_failed, relays, "mysql_away"))
            for name in names:
                await many.put(name, NUMBERS)
            await until_delivered(sink, *names)
            assert "s3cret" not in repr(relays.stores)
    finally:
        await many.clean()


async def test_a_store_that_cannot_be_served_is_shown_and_served_once_it_can_be(many: ManyStores) -> None:
    sink, good = Script(), await many.install("file_a", "schema_a")
    bad = {"file_gone": many.url("file_gone"), "schema_gone": many.url("schema_gone")}
    bad["away"] = "postgresql://somebody:s3cret@127.0.0.1:1/nothing"
    async with Relays({**good, **bad}, [to_destination(sink)], settings=QUICK) as relays:
        await until_running(relays, *good)
        for name in bad:
            await until(partial(has_failed, relays, name))
        assert "s3cret" not in repr(relays.stores)
        assert "pillarbox schema" in (find_store(relays, "schema_gone").error or "")
        for name in good:
            await many.put(name, NUMBERS)
        await until_delivered(sink, *good)
        await many.install("file_gone", "schema_gone")
        for name in ("file_gone", "schema_gone"):
            await many.put(name, NUMBERS)
        await until_delivered(sink, "file_gone", "schema_gone")
        assert find_store(relays, "schema_gone").error is None
        assert find_store(relays, "away").state == "failed"


async def test_a_store_with_an_old_schema_waits_for_its_upgrade_alone(many: ManyStores) -> None:
    sink, stores = Script(), await many.install("schema_old", "file_a")
    schema = open_schema(stores["schema_old"])
    await schema.downgrade(target=await schema.version() - 1)
    async with Relays(stores, [to_destination(sink)], settings=QUICK) as relays:
        await until(lambda: find_store(relays, "schema_old").state == "failed")
        await many.put("file_a", NUMBERS)
        await until_delivered(sink, "file_a")
        await schema.upgrade()
        await many.put("schema_old", NUMBERS)
        await until_delivered(sink, "schema_old")


async def test_a_schema_that_is_dropped_while_it_is_served_hurts_no_other(many: ManyStores) -> None:
    sink, stores = Script(), await many.install("schema_a", "schema_dropped")
    async with Relays(stores, [to_destination(sink)], settings=QUICK) as relays:
        await until_running(relays)
        await many.drop("schema_dropped")
        await many.put("schema_a", NUMBERS)
        await until_delivered(sink, "schema_a")
        await many.install("schema_dropped")
        await many.put("schema_dropped", NUMBERS)
        await until_delivered(sink, "schema_dropped")


async def test_a_file_that_is_removed_and_put_back_is_served_anew(many: ManyStores) -> None:
    sink, stores = Script(), await many.install("file_a", "file_b")
    shutil.copy(many.folder / "file_b.db", many.folder / "saved.db")
    async with Relays(stores, [to_destination(sink)], settings=QUICK) as relays:
        await until_running(relays)
        for path in many.folder.glob("file_b.db*"):
            path.unlink()
        await until(lambda: find_store(relays, "file_b").state == "failed")
        await many.put("file_a", NUMBERS)
        await until_delivered(sink, "file_a")
        shutil.move(many.folder / "saved.db", many.folder / "file_b.db")
        await many.put("file_b", NUMBERS)
        await until_delivered(sink, "file_b")


@pytest.mark.parametrize(("locked", "other"), [("schema_locked", "schema_a"), ("file_locked", "file_a")])
async def test_a_locked_store_holds_no_other_up(many: ManyStores, locked: str, other: str) -> None:
    """The locked one has messages to deliver, and one thread or two connections are all that stores share."""
    sink, stores = Script(), await many.install(locked, other)
    sharing = SharingSettings(store_connections=4, store_threads=3)
    async with Relays(stores, [to_destination(sink)], settings=QUICK, sharing=sharing) as relays:
        await until_running(relays)
        await many.put(locked, NUMBERS)
        await until_delivered(sink, locked)
        async with many.locked(locked, "pillarbox_lane"):
            for first in range(0, 100, 20):
                await many.put(other, range(first, first + 20))
                await until(partial(has_arrived, sink, other, first + 20), within=20)
        await many.put(locked, range(20, 40))
        await until(lambda: len(list_numbers(sink, locked)) >= 40)


async def test_a_flood_gets_its_share_of_the_window_and_no_more(many: ManyStores) -> None:
    """Nothing is acknowledged: whatever is sent is in flight."""
    sink, stores = Script(batch=100), await many.install("file_flood", "file_a", "schema_a", "schema_flood")
    sink.gate.clear()
    sharing = SharingSettings(total_window=100)
    await many.put("file_flood", range(2_000), keys=1_000)
    await many.put("schema_flood", range(2_000), keys=1_000)
    async with Relays(stores, [to_destination(sink)], settings=QUICK, sharing=sharing) as relays:
        await until_running(relays)
        for name in ("file_flood", "schema_flood"):
            await until(partial(has_begun, sink, name, 20))
        await many.put("file_a", range(10), keys=10)
        await many.put("schema_a", range(10), keys=10)
        calm = ("file_a", "schema_a")
        await until(lambda: sum(message.topic in calm for message in sink.under_way) == 20)
        assert len(sink.under_way) <= sharing.total_window
        sink.gate.set()
        await until(lambda: len(sink.taken) >= 4_020)
    assert sorted(list_numbers(sink, "file_flood")) == list(range(2_000))


async def test_the_share_of_a_store_that_starts_late_is_kept_for_it(
    many: ManyStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood is alone for a second. Nothing is acknowledged, so it gives nothing back."""
    monkeypatch.setattr(relays_module, "_START_STEP", 1.0)
    late = ("file_a", "file_b", "schema_a")
    sink, stores = Script(batch=10), await many.install("file_flood", *late)
    sink.gate.clear()
    await many.put("file_flood", range(300), keys=300)
    for name in late:
        await many.put(name, range(9), keys=9)
    sharing = SharingSettings(total_window=100)
    async with Relays(stores, [to_destination(sink)], settings=QUICK, sharing=sharing):
        await until(lambda: sum(message.topic in late for message in sink.under_way) == 27, within=50)
        assert len(sink.under_way) <= sharing.total_window
        sink.gate.set()


async def test_a_store_begins_with_one_message_until_it_has_its_share(
    many: ManyStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window is divided before there is a relay, and not again: whatever is sent is sent without a share."""
    monkeypatch.setattr(relays_module, "_DIVIDE_INTERVAL", 3_600)
    sink, stores = Script(), await many.install("file_a")
    await many.put("file_a", range(30), keys=30)
    async with Relays(stores, [to_destination(sink)], settings=QUICK):
        await until(lambda: has_arrived(sink, "file_a", 30))
    assert sink.sends == 30


async def test_poisoned_messages_of_one_store_hurt_no_other(many: ManyStores) -> None:
    def answer(message: Message) -> Outcome:
        is_poisoned = message.topic == "file_bad" and int(message.payload) % 2
        return Outcome(False, "poisoned", rejected=True) if is_poisoned else Outcome(True)

    sink, stores = Script(answer), await many.install("file_bad", "schema_a")
    await many.put("file_bad", range(300), keys=300)
    async with Relays(stores, [to_destination(sink)], settings=QUICK):
        await many.put("schema_a", NUMBERS)
        await until_delivered(sink, "schema_a")

        def count_failures() -> int:
            with closing(sqlite3.connect(many.folder / "file_bad.db")) as connection:
                sql = "select count(*) from pillarbox_history where status = 'failed'"
                return int(connection.execute(sql).fetchone()[0])

        await until(lambda: count_failures() == 150)
        await until(lambda: set(list_numbers(sink, "file_bad")) == set(range(0, 300, 2)))


async def test_the_connections_of_many_schemas_are_bounded(many: ManyStores) -> None:
    names = [f"schema_bound_{number}" for number in range(30)]
    stores, sink = await many.install(*names), Script()
    application = "pillarbox_bound_test"
    mark = "&" if "?" in many.postgres else "?"
    stores = {name: f"{many.postgres}{mark}application_name={application}&schema={name}" for name in stores}
    most = 0

    async def watch(connection: Any) -> None:
        nonlocal most
        while True:
            sql = "select count(*) from pg_stat_activity where application_name = $1"
            most = max(most, await connection.fetchval(sql, application))
            await asyncio.sleep(0.02)

    connection = await asyncpg.connect(many.postgres)
    watching = asyncio.create_task(watch(connection))
    sharing = SharingSettings(store_connections=5)
    try:
        async with Relays(
            stores, [to_destination(sink)], settings=RelaySettings(lease=LEASE), sharing=sharing
        ) as relays:
            await until_running(relays)
            for name in names:
                await many.put(name, NUMBERS)
            await until_delivered(sink, *names)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await connection.close()
    assert 0 < most <= sharing.store_connections + 1


# --- tenants ---


def write_directory(path: Path, *names: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table if not exists tenants (name)")
        connection.execute("delete from tenants")
        connection.executemany("insert into tenants values (?)", [(name,) for name in names])


def read_tenants(folder: Path) -> Tenants:
    settings = TenantSettings(
        store=f"sqlite:///{folder}/{{tenant}}.db", directory=f"sqlite:///{folder}/directory.db",
        query="select name from tenants", refresh=timedelta(milliseconds=50),
    )  # fmt: skip
    return Tenants(settings, environ={})


async def test_tenants_come_and_go_while_it_runs(many: ManyStores) -> None:
    sink, directory = Script(), many.folder / "directory.db"
    await many.install("acme", "globex")
    write_directory(directory, "acme")
    async with Relays(Stores({}, read_tenants(many.folder)), [to_destination(sink)], settings=QUICK) as relays:
        await many.put("acme", NUMBERS)
        await until_delivered(sink, "acme")
        write_directory(directory, "acme", "globex")
        await many.put("globex", NUMBERS)
        await until_delivered(sink, "globex")
        write_directory(directory, "globex")
        await until(lambda: [one.name for one in relays.stores] == ["globex"])
        with closing(sqlite3.connect(many.folder / "acme.db")) as connection:
            assert connection.execute("select count(*) from pillarbox_relay").fetchone() == (0,)


@pytest.mark.parametrize("row", ["../acme", "a b", "", "x" * 64, "ä", "a;drop table x", 7, None, b"acme", "-a", "a/b"])
async def test_a_row_that_is_no_name_is_refused_alone(many: ManyStores, row: object) -> None:
    sink = Script()
    await many.install("acme")
    write_directory(many.folder / "directory.db", "acme", row)
    async with Relays(Stores({}, read_tenants(many.folder)), [to_destination(sink)], settings=QUICK) as relays:
        await many.put("acme", NUMBERS)
        await until_delivered(sink, "acme")
        assert len(relays.refused) == 1
        assert [one.name for one in relays.stores] == ["acme"]


def test_a_schema_for_each_tenant_is_place_enough_for_its_name() -> None:
    settings = TenantSettings(
        store="postgresql:///shop", schema="t_{tenant}", prefix="box_", query="select 1", directory="sqlite:///d.db"
    )
    tenants = Tenants(settings, environ={})
    assert [tenants.get_address(name).names for name in ("acme", "globex")] == [
        Names("t_acme", "box_"),
        Names("t_globex", "box_"),
    ]


async def test_a_directory_of_too_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that lost its condition must not make the relay serve every row of a table."""
    monkeypatch.setattr(directory, "MOST_TENANTS", 3)
    for count in (3, 4):
        write_directory(tmp_path / "directory.db", *map(str, range(count)))
        found = query_column(parse_store_url(f"sqlite:///{tmp_path}/directory.db"), "select name from tenants")
        if count == 3:
            assert await found == ["0", "1", "2"]
        else:
            with pytest.raises(ConfigError, match="more than 3 rows"):
                await found


@pytest.mark.parametrize("kind", ["postgresql", "mysql", "sqlite"])
async def test_a_query_for_tenants_cannot_write(
    tmp_path: Path, postgres_url: str, postgres_schema: str, mariadb_url: str, kind: str
) -> None:
    urls = {
        "postgresql": f"{postgres_url}{'&' if '?' in postgres_url else '?'}schema={postgres_schema}",
        "mysql": mariadb_url,
        "sqlite": f"sqlite:///{tmp_path}/directory.db",
    }
    url = parse_store_url(urls[kind])
    await open_schema(url).install()
    assert await query_column(url, "select version from pillarbox_schema where version = 1") == [1]
    with pytest.raises(StoreError):
        await query_column(url, "insert into pillarbox_schema (version) values (77) returning version")
    assert await query_column(url, "select version from pillarbox_schema where version = 77") == []


async def test_the_rate_of_a_destination_is_that_of_all_stores_together(many: ManyStores) -> None:
    sink = Script()
    stores = await many.install("file_a", "file_b")
    settings = DestinationSettings(name="sink", rate=1_000.0)
    async with Relays(stores, [Destination(lambda: sink, settings)], settings=QUICK) as relays:
        await until_running(relays, *stores)
        limits = [served.relay and served.relay._sharing.rates.get("sink") for served in relays._served.values()]
        assert len(limits) == 2
        assert limits[0] is not None
        assert limits[0] is limits[1]


async def test_a_directory_that_is_away_changes_nothing(many: ManyStores) -> None:
    sink, directory = Script(), many.folder / "directory.db"
    await many.install("acme")
    write_directory(directory, "acme")
    async with Relays(Stores({}, read_tenants(many.folder)), [to_destination(sink)], settings=QUICK) as relays:
        await until_running(relays, "acme")
        directory.unlink()
        await until(lambda: relays.refused)
        await many.put("acme", NUMBERS)
        await until_delivered(sink, "acme")
        write_directory(directory, "acme")
        await until(lambda: not relays.refused)


async def test_a_directory_that_never_answered_ends_it_at_the_start(many: ManyStores) -> None:
    with pytest.raises(Exception, match="cannot be asked for tenants"):
        await Relays(Stores({}, read_tenants(many.folder)), [to_destination(Script())]).run()


class Moving:
    """Tenants of which one moves to another address while relays run."""

    refresh = timedelta(milliseconds=50)

    def __init__(self, address: StoreAddress) -> None:
        self.address = address

    async def find(self, *, taken: Iterable[str] = ()) -> Found:
        return Found({"acme": self.address})


async def test_a_tenant_that_moves_is_served_at_its_new_address_and_no_longer_at_the_old_one(many: ManyStores) -> None:
    sink = Script()
    urls = await many.install("old", "new")
    tenants: Any = Moving(parse_address(urls["old"]))
    async with Relays(Stores({}, tenants), [to_destination(sink)], settings=QUICK) as relays:
        await many.put("old", [1])
        await until(lambda: has_arrived(sink, "old", 1))
        tenants.address = parse_address(urls["new"])
        await many.put("new", [2])
        await until(lambda: has_arrived(sink, "new", 1))
        with closing(sqlite3.connect(many.folder / "old.db")) as connection:
            assert connection.execute("select count(*) from pillarbox_relay").fetchone() == (0,)
        assert [one.name for one in relays.stores] == ["acme"]


async def test_a_row_of_the_directory_does_not_replace_a_store_that_is_configured(many: ManyStores) -> None:
    urls = await many.install("acme", "own")
    write_directory(many.folder / "directory.db", "acme", "globex")
    own = parse_address(urls["own"])
    found = await Stores({"acme": own}, read_tenants(many.folder)).find()
    assert found.stores["acme"] == own
    assert sorted(found.stores) == ["acme", "globex"]
    (refused,) = found.refused
    assert "acme has the name of another store" in refused


async def test_the_archives_of_two_stores_are_in_folders_of_their_own(many: ManyStores) -> None:
    sink, folder = Script(), many.folder / "archive"
    urls = await many.install("acme", "globex")
    stores = Stores({name: parse_address(url) for name, url in urls.items()})
    keep = Retention(delivered=timedelta(0), every=timedelta(milliseconds=50), archive=str(folder))
    settings = msgspec.structs.replace(QUICK, retention=keep)
    async with Relays(stores, [to_destination(sink)], settings=settings):
        for name in urls:
            await many.put(name, NUMBERS)
        await until_delivered(sink, *urls)
        await until(lambda: all(len(list(read_archive(folder / name))) == len(NUMBERS) for name in urls))
    assert sorted(path.name for path in folder.iterdir()) == sorted(urls)
    topics = {name: {one.topic for one in read_archive(folder / name)} for name in urls}
    assert topics == {name: {name} for name in urls}


def test_tenants_need_a_place_for_their_name() -> None:
    with pytest.raises(ConfigError, match="tenant"):
        Tenants(TenantSettings(store="sqlite:///x.db", query="select 1"), environ={})


def test_a_database_for_each_tenant_needs_a_directory() -> None:
    with pytest.raises(ConfigError, match="directory"):
        Tenants(TenantSettings(store="postgresql:///{tenant}", query="select 1"), environ={})


async def test_once_serves_every_store_and_tells_which_it_could_not(many: ManyStores) -> None:
    sink, stores = Script(), await many.install("file_a", "schema_a")
    for name in stores:
        await many.put(name, NUMBERS)
    relays = Relays({**stores, "gone": many.url("file_gone")}, [to_destination(sink)], settings=QUICK)
    await relays.run(once=True)
    assert all(set(list_numbers(sink, name)) == set(NUMBERS) for name in stores)
    assert [one.name for one in relays.stores if one.error is not None] == ["gone"]


async def test_two_of_them_share_the_lanes_of_every_store_and_the_survivor_takes_all(many: ManyStores) -> None:
    first, second, stores = Script(), Script(), await many.install("file_a", "schema_a")
    settings = RelaySettings(lease=timedelta(seconds=2), watch_interval=timedelta(milliseconds=50))
    dying = asyncio.create_task(Relays(stores, [to_destination(first)], settings=settings).run())
    async with Relays(stores, [to_destination(second)], settings=settings) as relays:
        await until_running(relays)
        number = 0

        async def put_until(sink: Script, name: str) -> None:
            nonlocal number
            count = len(list_numbers(sink, name))
            while len(list_numbers(sink, name)) == count:
                await many.put(name, range(number, number + 50), keys=50)
                number += 50
                await asyncio.sleep(0.05)

        for name in stores:
            await put_until(first, name)
            await put_until(second, name)
        dying.cancel()  # like a kill: it leaves no registry
        await asyncio.gather(dying, return_exceptions=True)
        total = number
        await until(
            lambda: sum(len(set(list_numbers(first, n)) | set(list_numbers(second, n))) for n in stores) == total
        )


def test_a_configuration_names_its_stores(tmp_path: Path) -> None:
    from pillarbox.relay.configuration import read_store, read_stores

    file = tmp_path / "pillarbox.toml"
    file.write_text(
        '[stores.orders]\nurl = "sqlite:///o.db"\n[stores.billing]\nurl = "sqlite:///b.db"\nprefix = "x_"\n'
    )
    config = Config.load(file, environ={})
    assert {name: str(one) for name, one in read_stores(config).named.items()} == {
        "orders": "sqlite:///o.db", "billing": "sqlite:///b.db",
    }  # fmt: skip
    assert read_stores(config).named["billing"].names.prefix == "x_"
    with pytest.raises(ConfigError, match="--store NAME"):
        read_store(config)
    chosen = Config.load(file, environ={"PILLARBOX_STORE": "orders"})
    assert str(read_store(chosen)[0]) == "sqlite:///o.db"


_TWO = '[stores.acme]\nurl = "sqlite:///a.db"\n[stores.globex]\nurl = "sqlite:///g.db"\n'
_MANY_TENANTS = (
    '[tenants]\nstore = "sqlite:///{tenant}.db"\nquery = "select name from tenants"\ndirectory = "sqlite:///d.db"\n'
)


@pytest.mark.parametrize(
    ("text", "choice", "folder"),
    [
        (_TWO, "acme", "archive/acme"),
        (_TWO, "acme=sqlite:///other.db", "archive/acme"),
        ('[store]\nurl = "sqlite:///m.db"\n[stores.acme]\nurl = "sqlite:///a.db"\n', "main", "archive/main"),
        (_MANY_TENANTS, "acme", "archive/acme"),
        ('[stores.acme]\nurl = "sqlite:///a.db"\n', "acme", "archive"),
        ('[stores.acme]\nurl = "sqlite:///a.db"\n', None, "archive"),
        ('[store]\nurl = "sqlite:///m.db"\n', None, "archive"),
    ],
)
def test_a_relay_of_one_of_several_stores_archives_where_that_of_all_does(
    tmp_path: Path, text: str, choice: str | None, folder: str
) -> None:
    more = '[relay.retention]\narchive = "archive"\n[destinations.hooks]\nurl = "memory:"\n'
    (tmp_path / "pillarbox.toml").write_text(text + more)
    environ = {} if choice is None else {"PILLARBOX_STORE": choice}
    relay = Relay.from_config(tmp_path / "pillarbox.toml", environ=environ)
    assert relay._settings.retention.archive == folder
