"""Probes of a real relay: healthy, starting, cut off from its store, cut off from a destination, hung, stopping."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pillarbox import Outbox
from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.memory import MemoryTransport
from pillarbox.contracts.transport import Outcome, Transport
from pillarbox.errors import ConfigError
from pillarbox.message import Message, Names
from pillarbox.operations.health import HealthApp, HealthServer, Probes, ProbeSettings, parse_address
from pillarbox.operations.prometheus import PrometheusTelemetry
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.driver import DriverName
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.sqlite.store import SqliteStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.redis_server import RedisServer
from tests.support.servers import found

PATIENCE = 60.0
OFTEN = timedelta(milliseconds=100)
SETTINGS = RelaySettings(lease=timedelta(seconds=2), watch_interval=timedelta(milliseconds=100))


class Served:
    """A relay, and its probes over HTTP."""

    def __init__(
        self,
        relay_store: Any,
        probe_store: Callable[[], Any],
        *,
        file: Path | None = None,
        also: Mapping[str, Callable[[], Transport]] = MappingProxyType({}),
        readiness: bool | None = None,
    ) -> None:
        self.file = str(file)
        self.transport = MemoryTransport()
        self.metrics = PrometheusTelemetry()
        transports = {"billing": lambda: self.transport, **also}
        destinations = [
            Destination(transport, DestinationSettings(name=name, ping_interval=OFTEN, readiness=readiness))
            for name, transport in transports.items()
        ]
        self.relay = Relay(relay_store, destinations, settings=SETTINGS, telemetry=self.metrics)
        self.server = HealthServer(
            lambda: HealthApp(Probes(probe_store(), lambda: self.relay.health), collectors=[self.metrics]),
            host="127.0.0.1",
            port=0,
        )
        self.server.start()

    def get(self, path: str) -> tuple[int, str]:
        """Blocks, as another program would."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", f"/{path}")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def publish(self) -> None:
        """A message, so that the relay has a reason to speak to the destination."""
        with contextlib.closing(sqlite3.connect(self.file)) as connection, connection:
            Outbox(routes="billing", source="/shop").publish(connection, {"n": 1}, type="ticked")

    def told(self, path: str) -> tuple[int, list[str]]:
        code, body = self.get(path)
        return code, json.loads(body)["reasons"]

    def until(self, path: str, code: int) -> list[str]:
        """The reasons, once the probe answers so. Blocks."""
        ends = time.monotonic() + PATIENCE
        while True:
            said, reasons = self.told(path)
            if said == code:
                return reasons
            assert time.monotonic() < ends, f"{path} still says {said}: {reasons}"
            time.sleep(0.05)

    async def becomes(self, path: str, code: int) -> list[str]:
        return await asyncio.to_thread(self.until, path, code)

    async def is_cut_off(self) -> None:
        """Until it says that the store is away: the last answer of the tables is good for a moment longer."""
        async with asyncio.timeout(PATIENCE):
            reason = ""
            while not reason.startswith("the store cannot be reached"):
                (reason,) = await self.becomes("readyz", 503)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    file = tmp_path / "shop.db"
    await open_schema(parse_store_url(f"sqlite:///{file}"), names=Names()).install()
    made = Served(SqliteStore(file), lambda: SqliteStore(file), file=file)
    yield made
    await asyncio.to_thread(made.server.stop)


async def test_starting_healthy_and_stopping(served: Served) -> None:
    assert await asyncio.to_thread(served.told, "readyz") == (503, ["it is starting"])
    await served.becomes("livez", 200)
    async with served.relay:
        await served.becomes("readyz", 200)
        await served.becomes("livez", 200)
    assert await served.becomes("readyz", 503) == ["it is stopping"]
    await served.becomes("livez", 200)


async def test_a_destination_that_cannot_be_reached_is_named(served: Served) -> None:
    async with served.relay:
        await served.becomes("readyz", 200)
        served.transport.go_down()
        served.publish()
        assert await served.becomes("readyz", 503) == ["the destination billing cannot be reached"]
        await served.becomes("livez", 200)
        served.transport.come_back()
        await served.becomes("readyz", 200)


@pytest.mark.parametrize(
    ("url", "readiness", "code"),
    [
        ("http://127.0.0.1:9/hooks?allow_private=true", None, 200),
        ("http://127.0.0.1:9/hooks?allow_private=true", True, 503),
        ("redis://127.0.0.1:9", None, 503),
        ("redis://127.0.0.1:9", False, 200),
        ("amqp://127.0.0.1:9", None, 503),
        ("nats://127.0.0.1:9", None, 503),
    ],
)
async def test_brokers_count_and_webhooks_only_where_their_destination_says_so(
    tmp_path: Path, url: str, readiness: bool | None, code: int
) -> None:
    """Nobody listens at port 9."""
    file = tmp_path / "shop.db"
    await open_schema(parse_store_url(f"sqlite:///{file}"), names=Names()).install()
    made = Served(
        SqliteStore(file), lambda: SqliteStore(file), file=file, readiness=readiness,
        also={"events": lambda: transport_from_url(url)},
    )  # fmt: skip
    try:
        async with made.relay:
            cannot = "the destination events cannot be reached"
            async with asyncio.timeout(PATIENCE):
                while cannot not in (await asyncio.to_thread(made.get, "readyz"))[1]:  # noqa: ASYNC110 - a thread asks
                    await asyncio.sleep(0.05)
            status, body = await asyncio.to_thread(made.get, "readyz")
            assert (status, json.loads(body)["notes" if code == 200 else "reasons"]) == (code, [cannot])
    finally:
        await asyncio.to_thread(made.server.stop)


async def test_cut_off_from_one_broker_an_idle_relay_names_it_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    await open_schema(parse_store_url(f"sqlite:///{file}"), names=Names()).install()
    with found(RedisServer(), environ=os.environ) as url:
        place = urlsplit(url)
        async with FaultProxy(place.hostname or "127.0.0.1", place.port or 6379) as proxy:
            broker = place._replace(netloc=f"{proxy.host}:{proxy.port}").geturl()
            made = Served(
                SqliteStore(file), lambda: SqliteStore(file), also={"events": lambda: transport_from_url(broker)}
            )
            try:
                async with made.relay:
                    await made.becomes("readyz", 200)
                    await proxy.down()
                    assert await made.becomes("readyz", 503) == ["the destination events cannot be reached"]
                    await made.becomes("livez", 200)
                    await proxy.up()
                    await made.becomes("readyz", 200)
            finally:
                await asyncio.to_thread(made.server.stop)


class Mute(MemoryTransport):
    """Takes messages, and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = asyncio.Event()

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.sent.set()
        await asyncio.Event().wait()
        return []


async def test_messages_that_stay_in_its_hands_make_it_unlive_and_those_of_others_do_not(tmp_path: Path) -> None:
    """Over the claims that are in the tables, as old as they are there."""
    file = tmp_path / "shop.db"
    await open_schema(parse_store_url(f"sqlite:///{file}"), names=Names()).install()
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        Outbox(routes="billing", source="/shop").publish(connection, {"n": 1}, type="ticked")
    transport = Mute()
    destination = Destination(lambda: transport, DestinationSettings(name="billing", send_timeout=timedelta(hours=1)))
    stuck = Relay(SqliteStore(file), [destination], settings=SETTINGS)
    other = Relay(
        SqliteStore(file), [Destination(MemoryTransport, DestinationSettings(name="mail"))], settings=SETTINGS
    )
    settings = ProbeSettings(stuck_after=timedelta(minutes=10))
    run = asyncio.create_task(stuck.run())
    probes = [
        Probes(SqliteStore(file), health, settings=settings) for health in (lambda: stuck.health, lambda: other.health)
    ]
    try:
        async with other, asyncio.timeout(PATIENCE):
            await transport.sent.wait()
            while not other.health.relay_id:  # noqa: ASYNC110 - it registers
                await asyncio.sleep(0.01)
            assert [(await one.check_liveness()).ok for one in probes] == [True, True]
            with contextlib.closing(sqlite3.connect(file)) as connection, connection:
                connection.execute("update pillarbox_claim set claimed_at = claimed_at - 601 * 1000000")
            while (result := await probes[0].check_liveness()).ok:  # noqa: ASYNC110 - the last answer holds a moment
                await asyncio.sleep(0.05)
            assert list(result.reasons) == ["1 messages have been in its hands for over 10m"]
            assert (await probes[1].check_liveness()).ok
    finally:
        run.cancel()
        await asyncio.gather(run, *(one.close() for one in probes), return_exceptions=True)


async def test_a_loop_that_hangs_is_neither_ready_nor_alive(served: Served) -> None:
    async with served.relay:
        await served.becomes("readyz", 200)
        told: list[list[str]] = []

        def look() -> None:
            told.append(served.until("readyz", 503))
            told.append(served.until("livez", 503))

        looking = threading.Thread(target=look)
        looking.start()
        looking.join(2 * PATIENCE)  # the relay's loop is this one, and does not turn meanwhile
        assert len(told) == 2
        assert "renew its lease" in told[0][0]


both_drivers = pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])


@contextlib.asynccontextmanager
async def through_a_proxy(
    postgres_url: str, postgres_schema: str, *, driver: DriverName
) -> AsyncIterator[tuple[Served, FaultProxy]]:
    """A relay and its probes that both reach PostgreSQL through a proxy, the relay running and ready."""
    await open_schema(parse_store_url(postgres_url), names=Names(postgres_schema)).install()
    parts = urlsplit(postgres_url)
    async with FaultProxy(parts.hostname or "127.0.0.1", parts.port or 5432) as proxy:
        url = parts._replace(netloc=f"{parts.username or 'postgres'}@{proxy.host}:{proxy.port}").geturl()

        def store() -> PostgresStore:
            patience = timedelta(seconds=3)
            return PostgresStore(url, schema=postgres_schema, driver=driver, connections=2, timeout=patience)

        made = Served(store(), store)
        try:
            async with made.relay:
                await made.becomes("readyz", 200)
                yield made, proxy
                proxy.heal()
                await proxy.up()
        finally:
            await asyncio.to_thread(made.server.stop)


async def stays_alive(served: Served, *, leases: int) -> None:
    """Liveness holds for that long, asked again and again."""
    ends = time.monotonic() + leases * SETTINGS.lease.total_seconds()
    while time.monotonic() < ends:
        assert await asyncio.to_thread(served.told, "livez") == (200, [])
        await asyncio.sleep(0.1)


@both_drivers
async def test_cut_off_from_the_store_it_lives_and_is_not_ready(
    postgres_url: str, postgres_schema: str, driver: DriverName
) -> None:
    async with through_a_proxy(postgres_url, postgres_schema, driver=driver) as (made, proxy):
        await proxy.down()
        await made.is_cut_off()
        await stays_alive(made, leases=4)
        await proxy.up()
        await made.becomes("readyz", 200)


@both_drivers
async def test_a_store_that_never_answers_does_not_hang_the_probes(
    postgres_url: str, postgres_schema: str, driver: DriverName
) -> None:
    async with through_a_proxy(postgres_url, postgres_schema, driver=driver) as (made, proxy):
        proxy.hang()
        await made.is_cut_off()
        await stays_alive(made, leases=4)
        assert (await asyncio.to_thread(made.get, "metrics"))[0] == 200
        proxy.heal()
        await made.becomes("readyz", 200)


async def test_metrics_are_there_and_nothing_else_is(served: Served) -> None:
    async with served.relay:
        await served.becomes("readyz", 200)
        code, text = await asyncio.to_thread(served.get, "metrics")
    families = {family.name for family in text_string_to_metric_families(text)}
    assert code == 200
    assert {"outbox_unsent_count", "outbox_max_age_seconds", "outbox_relays", "outbox_delivered"} <= families
    assert (await asyncio.to_thread(served.get, "anything"))[0] == 404


def _is_closed(line: socket.socket) -> bool:
    """Wait until the other side has closed it; return False if it sent something."""
    line.settimeout(PATIENCE)
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def test_whoever_only_opens_connections_keeps_no_probe_out(served: Served) -> None:
    address = "127.0.0.1", served.server.port
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(address)) for _ in range(200)]
        assert served.get("nothing")[0] == 404
        # All beyond the limit were closed, the oldest first.
        assert all(_is_closed(line) for line in idle[:100])


def test_a_request_without_an_end_is_cut(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.server.port)) as line:
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                line.sendall(b"GET /livez HTTP/1.1\r\nx: " + b"a" * 1_024)
        assert _is_closed(line)
    assert served.get("nothing")[0] == 404


async def test_an_address_that_is_taken_is_said(served: Served, tmp_path: Path) -> None:
    second = HealthServer(
        lambda: HealthApp(Probes(SqliteStore(tmp_path / "shop.db"), lambda: served.relay.health)),
        host="127.0.0.1",
        port=served.server.port,
    )
    with pytest.raises(
        ConfigError, match=r"cannot be served at .*: choose another address, or stop what listens there"
    ):
        second.start()


@pytest.mark.parametrize("text", ["9464", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9464"):
        parse_address(text)


def test_addresses() -> None:
    assert parse_address("10.0.0.1:1") == ("10.0.0.1", 1)
    assert parse_address("[::1]:9464") == ("::1", 9464)
    assert parse_address(":9464") == ("127.0.0.1", 9464)
