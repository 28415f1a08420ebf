"""The rights that are granted on MariaDB are enough for the real writers and the real store, and not for more."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args
from urllib.parse import urlsplit

import pymysql
import pytest

from pillarbox.contracts.finding import Severity
from pillarbox.contracts.store import FailedOutcome, Settlement
from pillarbox.contracts.writer import Accept, Fail, Insert, Start
from pillarbox.errors import ConfigError, StoreError, StoreForbidden
from pillarbox.message import Names, State
from pillarbox.stores.mariadb.grants import grants
from pillarbox.stores.mariadb.schema import MariadbSchema
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.migrations import build_script, split_script
from pillarbox.stores.postgres.grants import Role
from pillarbox.stores.urls import parse_store_url
from pillarbox.writers.mysql import PymysqlWriter
from tests.support.granted_store import (
    ALL,
    LEASE,
    live_as_a_relay,
    look_as_a_viewer,
    message,
    move_as_an_operator,
    owned,
)
from tests.support.mariadb_server import connected
from tests.support.operations.doctor import diagnose, severities

PASSWORD = "canary"


@dataclass(frozen=True, slots=True)
class Granted:
    url: str
    users: dict[Role, str]

    def url_as(self, role: Role) -> str:
        parts = urlsplit(self.url)
        return parts._replace(netloc=f"{self.users[role]}:{PASSWORD}@{parts.hostname}:{parts.port}").geturl()


@pytest.fixture(scope="module")
def granted(mariadb_server: str) -> Iterator[Granted]:
    """New tables and new users, gone afterwards."""
    suffix = secrets.token_hex(3)
    names = Names(f"grants_{suffix}")
    users: dict[Role, str] = {role: f"pb_{role}_{suffix}" for role in get_args(Role)}
    with closing(connected(mariadb_server, autocommit=True)) as connection, connection.cursor() as cursor:
        run(cursor, *split_script(build_script("mysql", names=names)))
        run(cursor, *(f"create user '{user}'@'%' identified by '{PASSWORD}'" for user in users.values()))
        try:
            for _ in range(2):
                accounts: dict[Role, str] = {role: f"{user}@%" for role, user in users.items()}
                run(cursor, *split_script(grants(accounts, names=names)))
            yield Granted(urlsplit(mariadb_server)._replace(path=f"/grants_{suffix}").geturl(), users)
        finally:
            run(cursor, f"drop database `grants_{suffix}`", *(f"drop user '{user}'@'%'" for user in users.values()))


def run(cursor: Any, *statements: str) -> None:
    for statement in statements:
        cursor.execute(statement)


@pytest.fixture(autouse=True)
def empty(granted: Granted) -> None:
    with closing(connected(granted.url, autocommit=True)) as connection, connection.cursor() as cursor:
        tables = ("outbox", "history", "journal", "lane", "claim", "rollup")
        run(cursor, *(f"delete from pillarbox_{table}" for table in tables))


@asynccontextmanager
async def opened(granted: Granted, role: Role) -> AsyncIterator[MariadbStore]:
    store = MariadbStore(granted.url_as(role), connections=1)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


StoreAs = Callable[[Role], AbstractAsyncContextManager[MariadbStore]]


@pytest.fixture
def store_as(granted: Granted) -> StoreAs:
    return lambda role: opened(granted, role)


def write(granted: Granted, role: Role, *, count: int = 1, delay: timedelta | None = None) -> None:
    messages = [message() for _ in range(count)]
    batch = Insert(names=Names(), messages=messages, delay=delay, serialize_keys=True)
    with closing(connected(granted.url_as(role))) as connection:
        PymysqlWriter(connection).insert(batch)
        connection.commit()


@pytest.mark.parametrize("role", ["writer", "consumer"])
async def test_the_writers_write(granted: Granted, store_as: StoreAs, role: Role) -> None:
    write(granted, role)
    write(granted, role, count=3)
    write(granted, role, delay=LEASE)

    async with store_as("relay") as store:
        assert len(await store.find(ALL, limit=100)) == 5
    with closing(connected(granted.url_as(role))) as connection, connection.cursor() as cursor:
        for forbidden in ("select * from pillarbox_outbox", "delete from pillarbox_outbox"):
            with pytest.raises(pymysql.OperationalError, match="denied"):
                cursor.execute(forbidden)


def test_a_consumer_accepts_once(granted: Granted) -> None:
    accept = Accept(names=Names(), consumer="c", source="s", message_id="m")
    with closing(connected(granted.url_as("consumer"))) as connection:
        writer = PymysqlWriter(connection)
        connection.begin()

        assert [writer.execute(accept), writer.execute(accept)] == [True, False]


async def test_a_relay_lives_its_life(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer", count=4)
    async with store_as("relay") as store:
        ids, left = await live_as_a_relay(store)

    assert left == ids[2:]


async def test_a_relay_forges_nothing(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer")
    async with store_as("relay") as store:
        fence = await owned(store)
        (one,) = (await store.read("shop", partitions=[1], cursor=None, limit=10)).messages
        failed = FailedOutcome(message_id=one.id, state=State.FAILED, attempts=5, error="no")
        await store.settle(fence, Settlement(failures=[failed]))
        with pytest.raises(StoreError, match="schema grants"):
            await store.redrive(ALL, by="me", limit=1)


async def test_an_operator_moves_messages(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer", count=3)
    async with store_as("operator") as store:
        await move_as_an_operator(store)


async def test_a_viewer_looks_at_everything_but_payloads(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer")
    async with store_as("viewer") as store:
        await look_as_a_viewer(store)


PAYLOADS = (
    "handler pillarbox_outbox open",
    "handler pillarbox_history open",
    "handler pillarbox_inbox open",
    "handler pillarbox_shown_outbox open",
    "handler pillarbox_messages open",
    "select id from pillarbox_outbox",
    "select id from pillarbox_history",
    "select message_id from pillarbox_inbox",
    "select payload from pillarbox_messages",
    "select * from pillarbox_messages",
    "select payload from pillarbox_shown_outbox",
    "select payload from pillarbox_shown_history",
    "select message from pillarbox_shown_inbox",
    "select message from pillarbox_own_inbox",
    "show create view pillarbox_shown_outbox",
    "create or replace view pillarbox_shown_outbox as select * from pillarbox_outbox",
    "lock tables pillarbox_outbox read",
    "checksum table pillarbox_outbox",
)
CHANGES = (
    "update pillarbox_shown_outbox set topic = 'x'",
    "delete from pillarbox_shown_history",
    "update pillarbox_shown_inbox set status = 'done'",
    "insert into pillarbox_consumer values ('x', 'y')",
    "delete from pillarbox_slot",
    "insert into pillarbox_slot values (7)",
    "truncate pillarbox_slot",
    "alter table pillarbox_slot add column x int",
)


def attack(
    granted: Granted,
    role: Role,
    statements: Iterable[str],
    *,
    match: str = "denied|not .*BASE TABLE|Unknown column|CHECK OPTION",
) -> None:
    with closing(connected(granted.url_as(role), autocommit=True)) as connection, connection.cursor() as cursor:
        for statement in statements:
            with pytest.raises(pymysql.Error, match=match):
                cursor.execute(statement)


@pytest.mark.parametrize("role", ["viewer", "writer"])
def test_no_way_leads_to_a_payload(granted: Granted, role: Role) -> None:
    write(granted, "writer")

    attack(granted, role, PAYLOADS)


@pytest.mark.parametrize("role", ["writer", "consumer", "viewer"])
def test_nobody_changes_what_is_not_his(granted: Granted, role: Role) -> None:
    attack(granted, role, CHANGES)


@pytest.mark.parametrize("mode", ["", "STRICT_ALL_TABLES"])
@pytest.mark.parametrize("role", ["writer", "consumer"])
def test_a_writer_locks_slots_and_cannot_change_one(granted: Granted, role: Role, mode: str) -> None:
    def read() -> list[int]:
        with closing(connected(granted.url)) as connection, connection.cursor() as cursor:
            run(cursor, "select slot from pillarbox_slot order by slot")
            return [slot for (slot,) in cursor.fetchall()]

    with closing(connected(granted.url_as(role), autocommit=True)) as connection, connection.cursor() as cursor:
        run(cursor, f"set sql_mode = '{mode}'", "select slot from pillarbox_slot where slot in (1, 2) for update")
        for value in ("slot + 1", "slot - 1", "255 - slot", "300", "-1", "null", "'x'", "1.5", "slot ^ 1"):
            for how in ("update", "update ignore"):
                for order in ("", " order by slot desc", " where slot = 7"):
                    with suppress(pymysql.Error):
                        cursor.execute(f"{how} pillarbox_slot set slot = {value}{order}")

    assert read() == list(range(256))


@pytest.fixture
def only_mail(granted: Granted) -> Iterator[None]:
    """The consumer's account is that of the consumer `mail` alone."""
    schema = urlsplit(granted.url).path.strip("/")
    with closing(connected(granted.url, autocommit=True)) as connection, connection.cursor() as cursor:

        def name(consumers: list[str] | None) -> None:
            account = f"{granted.users['consumer']}@%"
            run(cursor, *split_script(grants({"consumer": account}, names=Names(schema), consumers=consumers)))

        run(cursor, "delete from pillarbox_inbox")
        run(
            cursor,
            "insert into pillarbox_inbox (consumer, source, message_id, status) values ('c', 's', 'm', 'failed')",
        )
        name(["it's \\ other"])
        name(["mail"])
        yield
        name(None)


@pytest.mark.usefixtures("only_mail")
def test_a_consumer_touches_no_row_of_another(granted: Granted) -> None:
    other, own = (Accept(names=Names(), consumer=name, source="s", message_id="m") for name in ("c", "mail"))
    fail = Fail(names=Names(), consumer="c", source="s", message_id="n", attempts=1, error="x", message=b"x")
    start = Start(names=Names(), consumer="c", source="s", message_id="m")
    with closing(connected(granted.url_as("consumer"))) as connection:
        writer = PymysqlWriter(connection)
        for command in (other, start, fail):
            with pytest.raises(pymysql.Error, match="CHECK OPTION"):
                writer.execute(command)
        with connection.cursor() as cursor:
            for blind in (
                "update pillarbox_own_inbox set status = 'done'",
                "select * from pillarbox_own_inbox for update",
            ):
                assert cursor.execute(blind) == 0
        assert [writer.execute(own), writer.execute(own)] == [True, False]
        connection.commit()
    attack(granted, "consumer", (
        "select * from pillarbox_inbox",
        "update pillarbox_inbox set status = 'done'",
        "handler pillarbox_inbox open",
        "delete from pillarbox_own_inbox",
        "update pillarbox_own_inbox set consumer = 'c'",
        "replace into pillarbox_own_inbox (consumer, source, message_id, status) values ('c', 's', 'm', 'done')",
        "insert into pillarbox_consumer values (substring_index(user(), '@', 1), 'c')",
        "delete from pillarbox_consumer",
    ))  # fmt: skip
    with closing(connected(granted.url)) as connection, connection.cursor() as cursor:
        run(cursor, "select consumer, status from pillarbox_inbox order by consumer")

        assert list(cursor.fetchall()) == [(b"c", "failed"), (b"mail", "done")]


def test_rights_that_an_older_release_granted_are_taken_back(granted: Granted) -> None:
    viewer, consumer = (f"'{granted.users[role]}'@'%'" for role in ("viewer", "consumer"))
    schema = urlsplit(granted.url).path.strip("/")
    with closing(connected(granted.url, autocommit=True)) as connection, connection.cursor() as cursor:
        run(
            cursor,
            f"grant select (id, topic) on pillarbox_outbox to {viewer}",
            f"grant select (id) on pillarbox_history to {viewer}",
            f"grant select, insert, update on pillarbox_inbox to {consumer}",
        )
        accounts: dict[Role, str] = {role: f"{granted.users[role]}@%" for role in ("viewer", "consumer", "relay")}
        run(cursor, *split_script(grants(accounts, names=Names(schema))))

    attack(granted, "viewer", PAYLOADS)
    attack(granted, "consumer", ("select * from pillarbox_inbox", "update pillarbox_inbox set status = 'done'"))


@pytest.fixture
def neighbours(granted: Granted) -> Iterator[tuple[str, str]]:
    """Two accounts, of which one has the other's name and more behind an @: the second is the consumer `mail` alone."""
    short = f"c_{secrets.token_hex(3)}"
    accounts = (f"{short}@corp", short)
    schema = urlsplit(granted.url).path.strip("/")
    with closing(connected(granted.url, autocommit=True)) as connection, connection.cursor() as cursor:
        run(cursor, *(f"create user '{name}'@'%' identified by '{PASSWORD}'" for name in accounts))
        try:
            run(cursor, "delete from pillarbox_inbox")
            for consumer in ("mail", "sms"):
                run(
                    cursor,
                    "insert into pillarbox_inbox (consumer, source, message_id, status) "
                    f"values ('{consumer}', 's', 'm', 'failed')",
                )
            roles: dict[Role, str] = {"consumer": f"{short}@%"}
            run(cursor, *split_script(grants(roles, names=Names(schema), consumers=["mail"])))
            view = f"`{schema}`.pillarbox_own_inbox"
            run(cursor, f"grant select, insert, update on {view} to '{accounts[0]}'@'%'")
            yield accounts
        finally:
            run(cursor, *(f"drop user '{name}'@'%'" for name in accounts))
            run(cursor, f"delete from pillarbox_consumer where account in ('{accounts[0]}', '{short}')")


def see(granted: Granted, account: str) -> list[bytes]:
    """Return the consumers whose rows an account sees."""
    parts = urlsplit(granted.url)
    with (
        closing(
            pymysql.connect(
                host=parts.hostname or "", port=parts.port or 3306, user=account, password=PASSWORD,
                database=parts.path.strip("/"),
            )
        ) as connection,
        connection.cursor() as cursor,
    ):  # fmt: skip
        run(cursor, "select consumer from pillarbox_own_inbox order by consumer")
        return [row[0] for row in cursor.fetchall()]


def test_an_account_whose_name_begins_like_another_has_none_of_its_rows(
    granted: Granted, neighbours: tuple[str, str]
) -> None:
    longer, short = neighbours
    assert (see(granted, short), see(granted, longer)) == ([b"mail"], [])


def test_an_account_that_is_not_listed_has_no_rows_and_one_of_every_consumer_has_all(
    granted: Granted, neighbours: tuple[str, str]
) -> None:
    longer, short = neighbours
    schema = urlsplit(granted.url).path.strip("/")
    with closing(connected(granted.url, autocommit=True)) as connection, connection.cursor() as cursor:
        run(cursor, f"delete from pillarbox_consumer where account = '{short}'")
        assert (see(granted, short), see(granted, longer)) == ([], [])
        run(cursor, *split_script(grants({"consumer": f"{longer}@%"}, names=Names(schema))))
        assert (see(granted, short), see(granted, longer)) == ([], [b"mail", b"sms"])
        run(cursor, *split_script(grants({"consumer": f"{longer}@%"}, names=Names(schema), consumers=["sms"])))
        assert (see(granted, short), see(granted, longer)) == ([], [b"sms"])


def test_a_consumer_that_reaches_the_view_through_a_role_is_listed_by_its_own_name(
    granted: Granted, neighbours: tuple[str, str]
) -> None:
    """A role is nobody who connects: its name in the list gives its members nothing."""
    longer, _ = neighbours
    schema, role = urlsplit(granted.url).path.strip("/"), f"r_{secrets.token_hex(3)}"
    with closing(connected(granted.url, autocommit=True)) as connection, connection.cursor() as cursor:
        run(cursor, f"create role {role}")
        try:
            run(
                cursor,
                f"revoke select, insert, update on `{schema}`.pillarbox_own_inbox from '{longer}'@'%'",
                f"grant select on `{schema}`.pillarbox_own_inbox to {role}",
                f"grant {role} to '{longer}'@'%'",
                f"set default role {role} for '{longer}'@'%'",
                f"insert into pillarbox_consumer values ('{role}', 'mail')",
            )
            assert see(granted, longer) == []
            run(cursor, f"insert into pillarbox_consumer values ('{longer}', 'sms')")
            assert see(granted, longer) == [b"sms"]
        finally:
            run(cursor, f"drop role {role}", f"delete from pillarbox_consumer where account = '{role}'")


@pytest.mark.parametrize("account", ["", "a'b", "x" * 33, "a\\b"])
def test_an_account_that_cannot_be_written_is_refused(account: str) -> None:
    with pytest.raises(ConfigError, match="name or name@host"):
        grants({"relay": account}, names=Names())


def test_nobody_to_grant_to() -> None:
    with pytest.raises(ConfigError, match="No role was named"):
        grants({}, names=Names())


async def test_comparing_the_tables_without_the_right_to_make_temporary_ones_is_refused_in_a_sentence(
    granted: Granted,
) -> None:
    user, schema = f"pb_looks_{secrets.token_hex(3)}", urlsplit(granted.url).path.strip("/")
    with closing(connected(granted.url, autocommit=True)) as connection, connection.cursor() as cursor:
        run(cursor, f"create user '{user}'@'%' identified by '{PASSWORD}'")
        try:
            run(cursor, f"grant select, show view on `{schema}`.* to '{user}'@'%'")
            url = Granted(granted.url, {"viewer": user}).url_as("viewer")
            with pytest.raises(StoreForbidden, match="may not create temporary tables"):
                await MariadbSchema(parse_store_url(url), names=Names()).verify()
        finally:
            run(cursor, f"drop user '{user}'@'%'")


async def test_the_doctor_checks_what_a_relay_may_see_and_warns_of_nothing_that_it_lacks(granted: Granted) -> None:
    """Comparing the tables with new ones takes rights that a relay does not need."""
    found = severities(await diagnose(granted.url_as("relay")))

    assert found.pop("store.schema-not-compared") is Severity.INFO
    assert set(found) <= {"mysql.commits-not-awaited", "mysql.binary-log-not-awaited"}  # how the tests' server is set
