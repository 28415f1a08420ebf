"""MariaDB servers for tests: a private one survives being killed, and a scratch database is dropped in any case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest

from tests.support.mariadb_server import MariadbServer, PrivateMariadb, connected, options, scratch_mariadb
from tests.support.servers import ServerMissing, found


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMariadb]:
    try:
        started = MariadbServer().start_private()
    except ServerMissing as reason:
        pytest.skip(f"No private MariaDB for this test: {reason}.")
    with closing(started):
        yield started


def databases(url: str) -> set[str]:
    with closing(connected(url)) as connection, connection.cursor() as cursor:
        cursor.execute("show databases")
        return {name for (name,) in cursor.fetchall()}


def test_what_is_committed_survives_a_kill(server: PrivateMariadb) -> None:
    with scratch_mariadb(server.url) as url:
        with closing(connected(url)) as connection:
            connection.query("create table kept (id int primary key)")
            connection.query("insert into kept values (1)")
            connection.commit()
        server.kill()
        assert MariadbServer(port=server.port).refusal(server.url) is not None
        server.start()
        with closing(connected(url)) as connection, connection.cursor() as cursor:
            cursor.execute("select id from kept")
            assert cursor.fetchall() == ((1,),)


def test_it_removes_no_temporary_tables_of_other_servers(server: PrivateMariadb) -> None:
    """A server that starts removes those of its temporary folder, whose server may be running."""
    with closing(connected(server.url)) as connection, connection.cursor() as cursor:
        cursor.execute("select @@tmpdir")
        assert cursor.fetchone() == (str(server.folder),)


def test_a_closed_one_leaves_nothing_behind() -> None:
    try:
        server = MariadbServer().start_private()
    except ServerMissing as reason:
        pytest.skip(f"No private MariaDB for this test: {reason}.")
    server.close()
    assert server.pid is None
    assert not server.folder.exists()


def test_a_scratch_database_is_dropped_whoever_is_in_it(server: PrivateMariadb) -> None:
    with scratch_mariadb(server.url) as url:
        left = connected(url)
        left.query("create table locked (id int primary key)")
        left.query("insert into locked values (1)")
        name = options(url)["database"]
        assert name in databases(server.url)
    assert name not in databases(server.url)
    with pytest.raises(pymysql.Error):
        left.query("select 1")


def test_the_variable_names_a_server(server: PrivateMariadb) -> None:
    with found(MariadbServer(), environ={"PILLARBOX_TEST_MARIADB": server.url}) as url:
        assert url == server.url


def test_a_url_is_read_as_drivers_want_it() -> None:
    assert options("mysql://me:p%40ss@db:3307/shop") == {
        "user": "me", "password": "p@ss", "host": "db", "port": 3307, "database": "shop",
    }  # fmt: skip
