"""Fixtures that more than one folder of tests uses. Servers are found by `tests.support.servers`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.granted import Logins
from tests.support.granted import mariadb_logins as open_mariadb_logins
from tests.support.granted import postgres_logins as open_postgres_logins
from tests.support.mariadb_server import MariadbServer, scratch_mariadb
from tests.support.postgres_server import PostgresServer, scratch_database, scratch_schema
from tests.support.private_postgres import PrivatePostgres
from tests.support.private_rabbitmq import PrivateRabbitmq
from tests.support.rabbitmq_server import found_rabbitmq
from tests.support.rabbitmq_server import private_rabbitmq as running_rabbitmq
from tests.support.servers import ServerMissing, found, missing
from tests.support.tables import MariadbTables, PostgresTables, SqliteTables

# A shell starts what it puts in the background with SIGINT ignored, and all that the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about the code.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL database of this session's own."""
    with found(PostgresServer(), environ=os.environ) as server, scratch_database(server) as url:
        yield url


@pytest.fixture
def postgres_schema(postgres_url: str) -> Iterator[str]:
    """The name of a new, empty schema in `postgres_url`."""
    with scratch_schema(postgres_url) as name:
        yield name


@pytest.fixture(scope="session")
def postgres_tables(postgres_url: str) -> Iterator[PostgresTables]:
    """Lends schemas of `postgres_url` with empty tables, for tests that change rows only."""
    with closing(PostgresTables(postgres_url)) as tables:
        yield tables


@pytest.fixture(scope="session")
def sqlite_tables() -> Iterator[SqliteTables]:
    """Makes files with empty tables."""
    with closing(SqliteTables()) as tables:
        yield tables


@pytest.fixture(scope="session")
def postgres_logins(postgres_url: str) -> Iterator[Logins]:
    """A login of each role that `pillarbox schema grants` knows, on the server of `postgres_url`."""
    with open_postgres_logins(postgres_url) as logins:
        yield logins


@pytest.fixture
def private_postgres() -> Iterator[Callable[[], PrivatePostgres]]:
    """Starts PostgreSQL servers that the test may stop, kill and start again."""
    with ExitStack() as servers:

        def start() -> PrivatePostgres:
            try:
                return servers.enter_context(closing(PrivatePostgres.started()))
            except ServerMissing as reason:
                missing(PostgresServer(), reason=str(reason), environ=os.environ)

        yield start


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[str]:
    """A MariaDB or MySQL server that others may use too."""
    with found(MariadbServer(), environ=os.environ) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_tables(mariadb_server: str) -> Iterator[MariadbTables]:
    """Lends databases with empty tables, for tests that change rows only."""
    with closing(MariadbTables(mariadb_server)) as tables:
        yield tables


@pytest.fixture(scope="session")
def mariadb_logins(mariadb_server: str) -> Iterator[Logins]:
    """A login of each role that `pillarbox schema grants` knows, on `mariadb_server`."""
    with open_mariadb_logins(mariadb_server) as logins:
        yield logins


@pytest.fixture
def mariadb_url(mariadb_server: str) -> Iterator[str]:
    """A MariaDB database of the test's own, empty."""
    with scratch_mariadb(mariadb_server) as url:
        yield url


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    """A RabbitMQ server that others may use too: take names of your own, and remove them."""
    with found_rabbitmq() as url:
        yield url


@pytest.fixture
def private_rabbitmq() -> PrivateRabbitmq:
    """A RabbitMQ server that the test may kill and start again. The same for all tests: leave it empty."""
    return running_rabbitmq()


@pytest.fixture
def tmp_sqlite(tmp_path: Path) -> Path:
    """Where a test's SQLite file may go. Nothing is there yet."""
    return tmp_path / "pillarbox.db"
