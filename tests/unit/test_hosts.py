"""Several servers in one URL: which one is tried, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox.errors import TransportUnavailable
from pillarbox.hosts import HostList, connect_first
from pillarbox.stores.mariadb.connection import list_servers as list_mysql_servers
from pillarbox.stores.postgres.driver import list_servers as list_postgres_servers


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_servers_are_tried_as_they_are_named() -> None:
    hosts = HostList(["a", "b", "c"])
    assert hosts.order() == ["a", "b", "c"]
    hosts.note_success("c")
    assert hosts.order() == ["a", "b", "c"]  # so that processes with one URL agree


def test_one_that_failed_comes_last_for_a_while() -> None:
    clock = Clock()
    hosts = HostList(["a", "b", "c"], clock=clock)
    hosts.note_failure("a")
    assert hosts.order() == ["b", "c", "a"]
    clock.now += 1
    hosts.note_failure("b")
    assert hosts.order() == ["c", "a", "b"]
    hosts.note_success("a")
    assert hosts.order() == ["a", "c", "b"]
    clock.now += 60
    assert hosts.order() == ["a", "b", "c"]


def test_each_gets_an_equal_share_of_what_is_left() -> None:
    clock = Clock()
    shares = []
    for host, seconds in HostList(["a", "b", "c"], clock=clock).divide(9.0):
        shares.append((host, seconds))
        clock.now += seconds if host == "a" else 0.0
    assert shares == [("a", 3.0), ("b", 3.0), ("c", 6.0)]


async def test_a_broker_is_the_first_server_that_accepts() -> None:
    hosts = HostList(["away", "here"])

    async def connect(host: str, seconds: float) -> str:
        assert seconds > 0
        if host == "away":
            raise TransportUnavailable("away is away")
        return host

    assert await connect_first(hosts, connect, seconds=10, errors=TransportUnavailable) == "here"
    assert hosts.order() == ["here", "away"]


async def test_if_no_server_accepts_the_first_reason_is_told() -> None:
    async def connect(host: str, seconds: float) -> str:
        raise TransportUnavailable(f"{host} is away")

    with pytest.raises(TransportUnavailable, match="a is away"):
        await connect_first(HostList(["a", "b"]), connect, seconds=10, errors=TransportUnavailable)


async def test_a_server_that_kept_us_waiting_is_the_last_next_time() -> None:
    hosts = HostList(["frozen", "here"])

    async def connect(host: str, seconds: float) -> str:
        await asyncio.Event().wait()
        return host

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await connect_first(hosts, connect, seconds=10, errors=TransportUnavailable)
    assert hosts.order() == ["here", "frozen"]


def test_postgresql_wants_the_server_that_takes_writes_of_several() -> None:
    assert list_postgres_servers("postgresql://u:p@a:1,b/shop?sslmode=disable").order() == [
        "postgresql://u:p@a:1/shop?sslmode=disable&target_session_attrs=read-write",
        "postgresql://u:p@b/shop?sslmode=disable&target_session_attrs=read-write",
    ]


@pytest.mark.parametrize(
    "url", ["postgresql://a/shop", "postgresql:///shop", "postgresql://a,b/shop?target_session_attrs=prefer-standby"]
)
def test_postgresql_urls_that_the_driver_reads_as_they_are(url: str) -> None:
    assert list_postgres_servers(url).order() == [url]


def test_postgresql_keeps_what_the_url_asks_for() -> None:
    first, _ = list_postgres_servers("postgresql://a,b/shop?target_session_attrs=any").order()
    assert first == "postgresql://a/shop?target_session_attrs=any"


def test_mysql_servers_of_a_url() -> None:
    servers = list_mysql_servers("mysql://u:p@127.0.0.1:3306,[::1]:3307/shop").order()
    assert [server.name for server in servers] == ["127.0.0.1:3306", "[::1]:3307"]
    assert servers[1].dsn == "mysql://u:p@[::1]:3307/shop"


def test_a_remote_server_among_local_ones_has_all_of_them_prove_themselves() -> None:
    servers = list_mysql_servers("mysql://u@127.0.0.1,db.example/shop").order()
    assert all(server.dsn.endswith("?ssl=on") for server in servers)
