"""The store refuses to register a relay: it waits, and ends only for what a person must mend before its first start."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from pillarbox.contracts.store import Store
from pillarbox.errors import PillarboxError, SchemaMissing, StoreForbidden
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.mariadb.grants import grants as build_mariadb_grants
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.migrations import split_script
from pillarbox.stores.postgres.driver import DriverName
from pillarbox.stores.postgres.grants import build_grants
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.telemetry import Telemetry
from tests.support.granted import Logins
from tests.support.mariadb_server import connected
from tests.support.relay_behaviour.scene import Scene, Script, mariadb_scene, postgres_scene, until
from tests.support.relay_behaviour.wire import Wire

_REFUSE = {
    "sqlite": ["create trigger refuse before insert on {relay} begin select raise(abort, 'no room'); end"],
    "mysql": [
        "create trigger refuse before insert on {relay} for each row "
        "signal sqlstate 'HY000' set mysql_errno = {number}, message_text = 'no room'"
    ],
    "postgresql": [
        "create function refuse() returns trigger language plpgsql as $$ begin raise sqlstate '{state}'; end $$",
        "create trigger refuse before insert on {relay} for each row execute function refuse()",
    ],
}
_PERMIT = {
    "sqlite": ["drop trigger refuse"],
    "mysql": ["drop trigger refuse"],
    "postgresql": ["drop function refuse() cascade"],
}


class Failures(Telemetry):
    """Remembers what failed."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Exception]] = []
        self.lost = 0

    def on_store_failed(self, what: str, error: Exception) -> None:
        self.seen.append((what, error))

    def on_lease_lost(self, *, reason: str) -> None:
        self.lost += 1

    def count(self, what: str) -> int:
        return sum(one == what for one, _ in self.seen)


def run(scene: Scene, *statements: str) -> None:
    """Run statements past the store."""
    match urlsplit(scene.url).scheme:
        case "sqlite":
            with closing(sqlite3.connect(scene.url.removeprefix("sqlite:///"), timeout=30)) as file, file:
                for statement in statements:
                    file.execute(statement)
        case "mysql":
            with closing(connected(scene.url, autocommit=True)) as server, server.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        case _:
            with psycopg.connect(scene.url, options=f"-c search_path={scene.names.schema}") as server:
                for statement in statements:
                    server.execute(statement.encode())


def build_relay(scene: Scene, store: Store, sink: Script, telemetry: Telemetry) -> Relay:
    destination = Destination(lambda: sink, DestinationSettings(name="sink"))
    return Relay(store, [destination], settings=scene.quick(), telemetry=telemetry)


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(relay.run())
    try:
        yield task
    finally:
        relay.stop()
        await task


@pytest.mark.parametrize("refusal", [{"state": "58030", "number": 1114}, {"state": "XX000", "number": 1644}])
async def test_a_refused_registration_is_waited_for_at_the_start_and_after_a_lost_lease(
    scene: Scene, refusal: dict[str, Any]
) -> None:
    """An I/O error, a full table, and errors that nobody foresaw."""
    scheme = urlsplit(scene.url).scheme
    relays = scene.names.table("relay", quote="")
    sink, failures = Script(), Failures()
    refuse = [text.format(relay=relays, **refusal) for text in _REFUSE[scheme]]
    run(scene, *refuse)
    async with running(build_relay(scene, scene.open_store(), sink, failures)) as task:
        for number in (1, 2):
            await scene.put((number, "a"))
            before = failures.count("registering")
            await until(lambda: failures.count("registering") >= before + 2)  # noqa: B023 - awaited in its round
            assert not task.done()
            run(scene, *_PERMIT[scheme])
            await until(lambda: sink.numbers()[-1:] == [number])  # noqa: B023
            if number == 1:
                run(scene, *refuse, f"delete from {relays}")
                await until(lambda: failures.lost)
        assert sink.numbers() == [1, 2]


@pytest.mark.parametrize("error", [SchemaMissing("no tables"), StoreForbidden("no right")])
async def test_what_a_person_must_mend_ends_the_first_start_alone(scene: Scene, error: PillarboxError) -> None:
    class Refusing(Wire):
        refuses = True

        def _over_the_line(self, name: str, call: Any) -> Any:
            passed = super()._over_the_line(name, call)

            async def called(*args: Any, **options: Any) -> Any:
                if name == "register" and self.refuses:
                    raise error
                return await passed(*args, **options)

            return called

    sink, failures, wire = Script(), Failures(), Refusing(scene.open_store())
    with pytest.raises(type(error)):
        await build_relay(scene, wire.store, sink, failures).run()

    wire.refuses = False
    async with running(build_relay(scene, wire.store, sink, failures)) as task:
        await scene.put((1, "a"))
        await until(lambda: sink.numbers() == [1])
        wire.refuses = True
        run(scene, f"delete from {scene.names.table('relay', quote='')}")
        await until(lambda: failures.count("registering") >= 2)
        assert not task.done()
        wire.refuses = False
        await scene.put((2, "a"))
        await until(lambda: sink.numbers() == [1, 2])


async def test_a_stop_ends_the_wait(scene: Scene) -> None:
    failures, wire = Failures(), Wire(scene.open_store())
    wire.broken.add("register")
    async with running(build_relay(scene, wire.store, Script(), failures)):
        await until(lambda: failures.count("registering"))


# --- the account's connections are used up ---


@pytest.fixture
def limited_role(postgres_url: str) -> Iterator[str]:
    """A role that may have five connections: those of a store, and one for heartbeats."""
    name = f"limited_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f"create role {name} login connection limit 5".encode())
        try:
            yield name
        finally:
            server.execute(f"drop owned by {name}; drop role {name}".encode())


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_connections_that_are_used_up_are_waited_for_on_postgresql(
    postgres_url: str, postgres_schema: str, postgres_logins: Logins, limited_role: str, driver: DriverName
) -> None:
    sink, failures = Script(), Failures()
    parts = urlsplit(postgres_url)
    url = parts._replace(netloc=f"{limited_role}@{parts.hostname}:{parts.port}").geturl()
    async with postgres_scene(postgres_url, postgres_schema, postgres_logins, driver=driver) as scene:
        run(scene, build_grants({"relay": limited_role}, names=scene.names))
        await scene.put((1, "a"))
        with closing(psycopg.connect(url)) as other:
            store = PostgresStore(url, schema=postgres_schema, driver=driver, connections=4)
            async with running(build_relay(scene, store, sink, failures)) as task:
                await until(lambda: failures.count("registering"))
                assert not task.done()
                other.close()
                await until(lambda: sink.numbers() == [1])


async def test_connections_that_are_used_up_are_waited_for_on_mariadb(mariadb_url: str, mariadb_logins: Logins) -> None:
    sink, failures = Script(), Failures()
    name = f"limited_{secrets.token_hex(4)}"
    parts = urlsplit(mariadb_url)
    url = parts._replace(netloc=f"{name}:x@{parts.hostname}:{parts.port}").geturl()
    async with mariadb_scene(mariadb_url, mariadb_logins) as scene:
        run(
            scene,
            f"create user {name} identified by 'x' with max_user_connections 4",
            *split_script(build_mariadb_grants({"relay": name}, names=scene.names)),
        )
        try:
            await scene.put((1, "a"))
            other = connected(url)
            async with running(build_relay(scene, MariadbStore(url), sink, failures)) as task:
                await until(lambda: failures.count("connecting"))
                assert not task.done()
                other.close()
                await until(lambda: sink.numbers() == [1])
        finally:
            run(scene, f"drop user {name}")
