"""PostgreSQL for tests: where to look for it, and how to run a private one."""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import psycopg
from psycopg import sql

from tests.support.private_postgres import PrivatePostgres

__all__ = ["PostgresServer", "scratch_database", "scratch_schema"]


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """How tests find PostgreSQL."""

    port: int = 5432
    name: str = "PostgreSQL"
    variable: str = "PILLARBOX_TEST_POSTGRES"
    remedy: str = "install PostgreSQL, or run make venv, which brings one"

    def usual_urls(self) -> Sequence[str]:
        """The usual port, as `postgres` and as oneself."""
        users = dict.fromkeys(("postgres", *_own_name()))
        return [
            f"postgresql://{quote(user, safe='')}@127.0.0.1:{self.port}/{database}"
            for user in users
            for database in ("test", "postgres")
        ]

    def refusal(self, url: str) -> str | None:
        """Usable means that it answers and lets us make databases."""
        try:
            with psycopg.connect(url, connect_timeout=2) as connection:
                row = connection.execute(_MAY_CREATE).fetchone()
        except psycopg.Error as error:
            return str(error).strip().splitlines()[0].rstrip(".")
        return None if row == (True,) else "its user may not create databases"

    def start_private(self) -> PrivatePostgres:
        """A server of our own on a free port."""
        return PrivatePostgres.started()


_MAY_CREATE = "select rolsuper or rolcreatedb from pg_roles where rolname = current_user"


def _own_name() -> Sequence[str]:
    try:
        return (getpass.getuser(),)
    except (KeyError, OSError):  # a container's user without an entry in passwd
        return ()


@contextmanager
def scratch_database(url: str) -> Iterator[str]:
    """The URL of a new database on that server, dropped afterwards whoever is still connected."""
    name = f"pillarbox_test_{os.getpid()}_{secrets.token_hex(4)}"
    _run(url, sql.SQL("create database {}").format(sql.Identifier(name)))
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        _run(url, sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@contextmanager
def scratch_schema(url: str) -> Iterator[str]:
    """The name of a new, empty schema, dropped afterwards with all that is in it."""
    name = f"s_{secrets.token_hex(6)}"
    _run(url, sql.SQL("create schema {}").format(sql.Identifier(name)))
    try:
        yield name
    finally:
        _run(url, sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))


def _run(url: str, statement: sql.Composed) -> None:
    # A transaction that a test left open becomes an error here, not a hang.
    with psycopg.connect(url, autocommit=True, options="-c lock_timeout=10s") as connection:
        connection.execute(statement)
