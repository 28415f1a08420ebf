"""What each role may do on PostgreSQL, and what it may not: real roles, real statements."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import get_args

import psycopg
import pytest
from psycopg import sql

from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.stores.postgres.grants import Role, build_grants
from tests.support.granted import Granted, granted_roles

Connection = psycopg.Connection[tuple[object, ...]]

WRITE = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
        headers, source, subject, correlation_id, causation_id, event_time, available_at, waits)
    values (gen_random_uuid(), 'shop', 1, 'event', 't', 't', 'k', 'p', 'c', '{}', 's', null, 'c', null, now(),
        null, null)
"""
FORGE = """
    insert into pillarbox_outbox (id, message_id, destination, partition, kind, type, topic, payload, content_type,
        source, correlation_id, event_time, created_at, available_at, waits, attempts, status_at)
    overriding system value
    select id, message_id, destination, partition, kind, type, topic, payload, content_type, source, correlation_id,
        event_time, created_at, now(), 'retry', 0, now() from pillarbox_history where id = 100
"""
CLOSE = """
    with closed as (delete from pillarbox_outbox where id = any (array[1]) returning *)
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, key, payload,
        content_type, headers, source, subject, correlation_id, causation_id, event_time, created_at, available_at,
        attempts, last_error, status_at, status)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source,
        subject, correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, now(),
        'delivered' from closed
"""
ACCEPT = """
    insert into pillarbox_inbox (consumer, source, message_id, status) values ('c', 's', 'm', 'done')
    on conflict (consumer, source, message_id) do update
        set status = 'done', duplicates = pillarbox_inbox.duplicates + 1
    returning duplicates
"""
RESCHEDULE = (
    "update pillarbox_outbox set available_at = now(), waits = 'retry', attempts = attempts + 1, last_error = 'x', "
    "status_at = now() where id = 1"
)

REGISTER = """
    insert into pillarbox_relay values (gen_random_uuid(), 's', 'h', 1, 'v', '{}', '{}', false, now(), now())
"""

WRITES = {"write a message": WRITE}
DELIVERS = {
    "read messages": "select * from pillarbox_outbox where id > 0 order by id",
    "lock messages": "select id from pillarbox_outbox where id = 1 for update skip locked",
    "reschedule one": RESCHEDULE,
    "close one": CLOSE,
    "read closed ones": "select * from pillarbox_history",
    "lock closed ones": "select id from pillarbox_history where id = 100 for update skip locked",
    "purge closed ones": "delete from pillarbox_history where id = 100",
    "lock dedup records": "select status from pillarbox_inbox for update skip locked",
    "claim": "insert into pillarbox_claim (relay_id, number, message_ids) values (gen_random_uuid(), 1, '{1}')",
    "repeat a claim": "update pillarbox_claim set message_ids = '{}', strikes = strikes + 1",
    "finish a claim": "delete from pillarbox_claim",
    "make a lane": "insert into pillarbox_lane (destination, partition) values ('new', 1) on conflict do nothing",
    "take a lane": "update pillarbox_lane set epoch = epoch + 1, relay_id = gen_random_uuid()",
    "hold a lane": "select epoch from pillarbox_lane for share",
    "register": REGISTER,
    "renew": "update pillarbox_relay set expires_at = now()",
    "leave": "delete from pillarbox_relay",
    "pause": "insert into pillarbox_destination values ('shop', 'me', now(), 'why')",
    "resume": "delete from pillarbox_destination",
    "see pauses": "select * from pillarbox_destination",
    "keep the journal": "insert into pillarbox_journal (destination, action, at, by) values ('shop', 'x', now(), 'me')",
    "read the journal": "select * from pillarbox_journal",
    "purge the journal": "delete from pillarbox_journal",
    "read the version": "select max(version) from pillarbox_schema",
    "ask for messages": "select * from pillarbox_messages",
    "purge the inbox": "delete from pillarbox_inbox where status = 'done'",
    "be woken": "listen pillarbox",
}
MOVES = {
    "redrive": FORGE,
    "discard a failed one": "update pillarbox_history set status = 'discarded' where id = 100",
}
ACCEPTS = {"record a message as seen": ACCEPT, "look one up": "select status from pillarbox_inbox"}
READ_PAYLOADS = {
    "read an open payload": "select payload from pillarbox_outbox",
    "read a closed payload": "select payload from pillarbox_history",
    "read a payload in the view": "select payload from pillarbox_messages",
    "read everything in the view": "select * from pillarbox_messages",
    "read a received message": "select message from pillarbox_inbox",
}
LOOKS = {
    "see messages": "select id, destination, key, headers, state, last_error from pillarbox_messages",
    "see open ones": "select tx, id, waits from pillarbox_outbox",
    "see closed ones": "select id, status, relay_id from pillarbox_history",
    "see the inbox": "select consumer, source, message_id, status, duplicates from pillarbox_inbox",
    "see relays": "select * from pillarbox_relay, pillarbox_lane, pillarbox_claim, pillarbox_destination",
    "see the journal": "select * from pillarbox_journal",
    "see the version": "select * from pillarbox_schema",
}
READS = {"read open ones": "select id from pillarbox_outbox", "read closed ones": "select id from pillarbox_history"}
TAMPERS = {
    "change a closed message": "update pillarbox_history set payload = 'other'",
    "change a payload": "update pillarbox_outbox set payload = 'other'",
    "change a key": "update pillarbox_outbox set key = 'other', partition = 2",
    "change a version": "update pillarbox_schema set version = 999 where version = 1",
    "truncate": "truncate pillarbox_outbox",
    "disarm the trigger": "alter table pillarbox_outbox disable trigger user",
}
REROUTES = {"forward to another destination": "update pillarbox_outbox set destination = 'elsewhere'"}
FORGES = {"write past the writer": FORGE, "write a message": WRITE}
OVERREACHES = {
    "choose an id": WRITE.replace("(message_id,", "(id, message_id,").replace(
        "values (gen", "overriding system value values (1, gen"
    ),
    "choose the transaction": WRITE.replace("(message_id,", "(tx, message_id,").replace("values (", "values ('1', "),
    "backdate": WRITE.replace("waits)", "created_at)").replace("null, null)", "null, now())"),
    "spend attempts": WRITE.replace("waits)", "attempts)").replace("null, null)", "null, 9)"),
    "learn the id": WRITE + " returning id",
    "delete": "delete from pillarbox_outbox",
    "reschedule": RESCHEDULE,
    "touch lanes": "update pillarbox_lane set epoch = 0",
    "see relays": "select * from pillarbox_relay",
}
HIDES = {"remove a dedup record": "delete from pillarbox_inbox"}
ATTACHES = {
    "wake relays from another table": (
        "create temporary table own (a int); create trigger t after insert on own for each statement "
        "execute function pillarbox_wake()"
    ),
    "wake relays by a call": "select pillarbox_wake()",
}
OWNS = {
    "hang a trigger on the outbox": (
        "create trigger t after insert on pillarbox_outbox for each row execute function "
        "suppress_redundant_updates_trigger()"
    ),
    "truncate the history": "truncate pillarbox_history",
    "draw an id": "select nextval(pg_get_serial_sequence('pillarbox_outbox', 'id'))",
    "set the next id": "select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 1)",
    "lock out the writers": "lock table pillarbox_outbox in access exclusive mode",
    "lift the rows' rights": "alter table pillarbox_inbox disable row level security",
}
RENAMES = {"give a record to another consumer": "update pillarbox_inbox set consumer = 'other'"}


def without(statements: Mapping[str, str], name: str) -> dict[str, str]:
    return {other: statement for other, statement in statements.items() if other != name}


MAY: Mapping[Role, Mapping[str, str]] = {
    "writer": WRITES,
    "consumer": WRITES | ACCEPTS,
    "relay": DELIVERS | REROUTES,
    "operator": DELIVERS | MOVES | WRITES | REROUTES,
    "viewer": LOOKS,
}
MAY_NOT: Mapping[Role, Mapping[str, str]] = {
    "writer": OVERREACHES | TAMPERS | REROUTES | READS | READ_PAYLOADS | ACCEPTS | HIDES | ATTACHES | OWNS,
    "consumer": OVERREACHES | TAMPERS | REROUTES | READS | HIDES | ATTACHES | OWNS | RENAMES,
    "relay": FORGES
    | TAMPERS
    | RENAMES
    | ATTACHES
    | without(OWNS, "lock out the writers")
    | {"discard by hand": MOVES["discard a failed one"], "hide a dedup": ACCEPT},
    "operator": without(TAMPERS, "change a closed message") | RENAMES | ATTACHES | {"hide a dedup": ACCEPT},
    "viewer": READ_PAYLOADS
    | TAMPERS
    | REROUTES
    | FORGES
    | HIDES
    | ATTACHES
    | OWNS
    | RENAMES
    | {"close": CLOSE, "reschedule": RESCHEDULE, "read whole rows": "select to_jsonb(m) from pillarbox_messages m"},
}
CASES = [(role, what) for role in get_args(Role) for what in MAY[role]]
REFUSALS = [(role, what) for role in get_args(Role) for what in MAY_NOT[role]]


@pytest.fixture(scope="module")
def granted(postgres_url: str) -> Iterator[Granted]:
    """The tables, one message of each sort, and a role of each sort."""
    with granted_roles(postgres_url) as granted:
        with psycopg.connect(postgres_url) as connection:
            _fill(connection, granted.names)
        yield granted


@pytest.fixture(scope="module")
def names(granted: Granted) -> Names:
    return granted.names


@pytest.fixture(scope="module")
def roles(granted: Granted) -> Mapping[Role, str]:
    return granted.roles


def _fill(connection: Connection, names: Names) -> None:
    """Message 1 is open, 100 closed, and there is a row in each table that a statement wants to find one in."""
    closed = CLOSE.replace("id = any (array[1])", "true").replace("select id,", "select 100,")
    first = WRITE.replace("(message_id,", "(id, message_id,").replace("values (", "overriding system value values (1, ")
    relay = [DELIVERS[what] for what in ("claim", "register", "keep the journal")]
    lane = "insert into pillarbox_lane (destination, partition) values ('shop', 1)"
    pause = "insert into pillarbox_destination values ('paused', 'me', now(), 'why')"
    for statement in (WRITE, closed, first, ACCEPT, lane, pause, *relay):
        connection.execute(names.qualify(statement).encode())


@pytest.fixture
def connection(granted: Granted) -> Iterator[Connection]:
    """What a test did is undone."""
    with psycopg.connect(granted.url) as connection:
        yield connection
        connection.rollback()


def become(connection: Connection, role: str) -> None:
    connection.execute(sql.SQL("set local role {}").format(sql.Identifier(role)))


@pytest.mark.parametrize(("role", "what"), CASES)
def test_what_a_role_is_for_works(
    connection: Connection, roles: Mapping[Role, str], names: Names, role: Role, what: str
) -> None:
    become(connection, roles[role])

    assert connection.execute(names.qualify(MAY[role][what]).encode()).rowcount != 0


@pytest.mark.parametrize(("role", "what"), REFUSALS)
def test_what_a_role_is_not_for_is_refused(
    connection: Connection, roles: Mapping[Role, str], names: Names, role: Role, what: str
) -> None:
    become(connection, roles[role])

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(names.qualify(MAY_NOT[role][what]).encode())


def test_every_refused_statement_is_one_that_the_owner_could_run(connection: Connection, names: Names) -> None:
    """Or a slip in its spelling would pass for a refusal."""
    for statements in MAY_NOT.values():
        for statement in statements.values():
            with connection.transaction(force_rollback=True):
                if "overriding" in statement:
                    connection.execute(names.qualify("delete from pillarbox_outbox").encode())
                if statement == ATTACHES["wake relays by a call"]:
                    continue  # nobody can: it is for triggers
                connection.execute(names.qualify(statement).encode())


def test_a_role_without_the_schema_sees_nothing(connection: Connection, names: Names) -> None:
    stranger = f"stranger_{secrets.token_hex(4)}"
    connection.execute(sql.SQL("create role {}").format(sql.Identifier(stranger)))
    become(connection, stranger)

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(names.qualify("select id from pillarbox_messages").encode())


def test_a_viewer_sees_every_column_but_the_payloads(
    connection: Connection, roles: Mapping[Role, str], names: Names
) -> None:
    hidden = connection.execute(
        """select table_name || '.' || column_name from information_schema.columns
            where table_schema = %s and table_name !~ '_history_(default|p[0-9]+)$'
              and not has_column_privilege(%s, format('%%I.%%I', table_schema, table_name), column_name, 'select')
            order by 1""",
        (names.schema, roles["viewer"]),
    ).fetchall()

    assert [column for (column,) in hidden] == [
        "pillarbox_history.payload",
        "pillarbox_inbox.message",
        "pillarbox_messages.payload",
        "pillarbox_outbox.payload",
    ]


def test_a_writer_wakes_a_sleeping_relay_without_seeing_it(
    connection: Connection, roles: Mapping[Role, str], names: Names
) -> None:
    sleeping = "insert into pillarbox_sleeper values (gen_random_uuid(), now() + interval '1 minute')"
    connection.execute(names.qualify(sleeping).encode())
    connection.execute("listen pillarbox")
    become(connection, roles["writer"])
    connection.execute(names.qualify(WRITE).encode())
    connection.execute("reset role")
    connection.execute(names.qualify("delete from pillarbox_sleeper").encode())
    connection.execute(names.qualify("delete from pillarbox_outbox where id <> 1").encode())
    connection.commit()

    assert [notice.channel for notice in connection.notifies(timeout=5, stop_after=1)] == ["pillarbox"]


def test_a_consumer_touches_no_row_of_another(connection: Connection, granted: Granted, names: Names) -> None:
    connection.execute(build_grants({"consumer": granted.roles["consumer"]}, names=names, consumers=["mail"]).encode())
    become(connection, granted.roles["consumer"])
    for attack in (
        ACCEPT,
        ACCEPT.replace("'m'", "'not yet there'"),
        ACCEPT.replace("'done')", "'failed')"),
        "insert into pillarbox_inbox (consumer, source, message_id, status) values ('c', 's', 'm', 'done') "
        "on conflict do nothing",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute(names.qualify(attack).encode())
    for blind in (
        "update pillarbox_inbox set status = 'started'",
        "select message from pillarbox_inbox for update",
    ):
        assert connection.execute(names.qualify(blind).encode()).rowcount == 0
    own = names.qualify(ACCEPT.replace("'c'", "'mail'")).encode()

    assert [connection.execute(own).fetchone() for _ in range(2)] == [(0,), (1,)]
    become(connection, granted.roles["relay"])
    assert connection.execute(names.qualify("select consumer from pillarbox_inbox order by 1").encode()).fetchall() == [
        ("c",),
        ("mail",),
    ]


def test_consumers_are_named_anew_and_freed_again(connection: Connection, granted: Granted, names: Names) -> None:
    role, odd = granted.roles["consumer"], "it's \\ $own$ a consumer"
    for consumers, may in ((["mail"], False), (["x", odd], True), (["mail"], False), (None, True)):
        with connection.transaction(force_rollback=False):
            connection.execute(build_grants({"consumer": role}, names=names, consumers=consumers).encode())
        with connection.transaction(force_rollback=True):
            become(connection, role)
            insert = names.qualify("insert into pillarbox_inbox values (%s, 's', 'new', 'done')").encode()
            if may:
                connection.execute(insert, (odd,))
            else:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(insert, (odd,))


def test_rights_that_an_older_release_granted_are_taken_back(
    connection: Connection, granted: Granted, names: Names
) -> None:
    role = granted.roles["consumer"]
    connection.execute(f"grant update on {names.table('inbox')} to {sql.Identifier(role).as_string()}".encode())
    connection.execute(build_grants({"consumer": role}, names=names).encode())
    become(connection, role)

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(names.qualify(RENAMES["give a record to another consumer"]).encode())


@pytest.mark.parametrize("consumers", [[], [""], ["a\0b"]])
def test_consumers_that_cannot_be_named_are_refused(consumers: list[str]) -> None:
    with pytest.raises(ConfigError, match="the names of its consumers"):
        build_grants({"consumer": "shop"}, names=Names(), consumers=consumers)


def test_nobody_named_and_nonsense_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one of --writer, --consumer, --relay, --operator, --viewer"):
        build_grants({}, names=Names())
    for name in ("", "x" * 64, "a\0b"):
        with pytest.raises(ConfigError, match="A role's name"):
            build_grants({"writer": name}, names=Names())


def test_without_a_schema_none_is_mentioned() -> None:
    assert "schema" not in build_grants({"writer": "shop"}, names=Names())
