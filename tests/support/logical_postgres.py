"""A private PostgreSQL whose log can be read by others, with Pillarbox's tables, and a plain reader of a slot."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url
from tests.support.private_postgres import PrivatePostgres

__all__ = ["execute", "install_logical", "read_slot"]


def install_logical(server: PrivatePostgres) -> str:
    """Have the server write a logical log, and install the tables; return its URL."""
    version = execute(server.url, "show server_version_num")[0][0]
    if int(version) < 150_000:
        pytest.skip("PostgreSQL 15 or newer is needed, for row filters (apt-get install postgresql)")
    execute(server.url, "alter system set wal_level = logical")
    server.stop()
    server.start()
    asyncio.run(open_schema(parse_store_url(server.url), names=Names()).install())
    return server.url


def execute(url: str, statement: str, *values: object) -> list[Any]:
    """Run one statement and return its rows, if it has any."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def read_slot(server: PrivatePostgres, slot: str, *, publication: str) -> Iterator[subprocess.Popen[bytes]]:
    """Read a slot until the end of the block, and confirm everything within a second: `pg_recvlogical`."""
    program = server.programs / "pg_recvlogical"
    if not program.exists():
        pytest.skip("pg_recvlogical is not installed (apt-get install postgresql-client)")
    options = ["-o", "proto_version=1", "-o", f"publication_names={publication}"]
    reader = subprocess.Popen(
        [program, "-d", server.url, "-S", slot, "--start", "-f", "-", "-s", "1", "-F", "1", "--no-loop", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield reader
    finally:
        reader.kill()
        reader.wait(30)
