"""Stores on another machine: the server proves itself by its certificate before it gets the login.

The servers are real and run here. The tests reach them by a name that is not this machine's: only its lookup is set.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pillarbox.clock import SystemClock
from pillarbox.contracts.finding import Severity
from pillarbox.errors import StoreUnavailable
from pillarbox.message import Names
from pillarbox.operations.doctor import StoreCheck, TimeLimit
from pillarbox.stores.factory import open_schema, open_store
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.postgres.driver import DriverName, load_driver
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.tls import secure_postgres_url
from pillarbox.stores.urls import parse_store_url
from tests.support.certificates import Authority
from tests.support.mariadb_server import PrivateMariadb, connected
from tests.support.private_postgres import PrivatePostgres
from tests.support.servers import ServerMissing

HOST = "db.pillarbox.example"
_POSTGRES_DRIVERS: tuple[DriverName, ...] = ("asyncpg", "psycopg")
DRIVERS = ["asyncpg", "psycopg", "mariadb"]
BAD = ["wrong name", "expired", "unknown authority", "self-signed"]


@pytest.fixture(autouse=True)
def lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name leads to this machine, as a wrong answer of a name server could lead anywhere."""
    real = socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **options: Any) -> Any:
        return real("127.0.0.1" if host in (HOST, HOST.encode()) else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for name in ("PGSSLMODE", "PGSSLROOTCERT", "PGHOST", "PGHOSTADDR", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


@dataclass(frozen=True)
class Certificates:
    authority: Path
    files: dict[str, Path]
    """Certificate and key, by what is wrong with it."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    stranger = Authority(tmp_path_factory.mktemp("stranger"), name="another authority")
    alone = Authority(tmp_path_factory.mktemp("alone"), name=HOST, alternative=f"DNS:{HOST}")
    return Certificates(
        authority.file,
        {
            "good": authority.signed("good", alternative=f"DNS:{HOST}"),
            "wrong name": authority.signed("wrong", alternative="DNS:other.example"),
            "expired": authority.signed("expired", alternative=f"DNS:{HOST}", days=-1),
            "unknown authority": stranger.signed("stranger", alternative=f"DNS:{HOST}"),
            "self-signed": alone.own,
        },
    )


class Postgres:
    """A server whose certificate can be changed, and taken away."""

    def __init__(self, server: PrivatePostgres) -> None:
        self.server = server
        self.port = server.port
        self._presented: Path | str | None = "nothing yet"

    def present(self, certificate: Path | None) -> None:
        if certificate == self._presented:
            return
        self._presented = certificate
        if certificate is not None:
            file = self.server.data / "server.pem"
            shutil.copy(certificate, file)
            shutil.chown(file, self.server.data.stat().st_uid, self.server.data.stat().st_gid)
            file.chmod(0o600)
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            for name, value in (("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.pem")):
                connection.execute(f"alter system set {name} = '{value}'")
            connection.execute(f"alter system set ssl = {'off' if certificate is None else 'on'}")
        # A restart, because a reload takes place at a time of the server's choice.
        self.server.stop()
        self.server.start()

    def url(self, driver: str, *, options: str = "") -> str:
        return f"postgresql+{driver}://postgres:hunter2@{HOST}:{self.port}/postgres{options}"


class Mariadb:
    """The same of MariaDB."""

    def __init__(self, server: PrivateMariadb) -> None:
        self.server = server
        self.port = server.port
        self._presented: Path | str | None = "nothing yet"

    def present(self, certificate: Path | None) -> None:
        if certificate == self._presented:
            return
        self._presented = certificate
        self.server.stop()
        file = self.server.folder / "server.pem"
        if certificate is not None:
            shutil.copy(certificate, file)
        self.server.settings = (
            ("--skip-ssl",) if certificate is None else (f"--ssl-cert={file}", f"--ssl-key={file}", "--ssl")
        )
        self.server.start()

    def url(self, driver: str, *, options: str = "") -> str:
        del driver
        return f"mysql://shop:hunter2@{HOST}:{self.port}/mysql{options}"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    try:
        server = PrivatePostgres.started()
    except ServerMissing as reason:
        pytest.skip(str(reason))
    with closing(server):
        yield Postgres(server)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[Mariadb]:
    try:
        server = PrivateMariadb(PrivateMariadb.found()).started()
    except ServerMissing as reason:
        pytest.skip(str(reason))
    with closing(server):
        with closing(connected(server.url, autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute("create user shop identified by 'hunter2'")
            cursor.execute("grant all on mysql.* to shop")
        yield Mariadb(server)


def find_server(driver: str, request: pytest.FixtureRequest) -> Postgres | Mariadb:
    server: Postgres | Mariadb = request.getfixturevalue("mariadb" if driver == "mariadb" else "postgres")
    return server


async def connect(url: str) -> None:
    """Open and close a store; there are no tables, which only a server that let us in can say."""
    store = open_store(url, asks_only=True)
    try:
        await store.open()
    finally:
        await store.close()


async def is_let_in(url: str) -> bool:
    try:
        assert await open_schema(url).version() == 0
    except StoreUnavailable:
        return False
    return True


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_server_that_proves_itself_gets_the_login(
    driver: str, request: pytest.FixtureRequest, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = find_server(driver, request)
    server.present(certificates.files["good"])
    named = "ssl_ca" if driver == "mariadb" else "sslrootcert"

    assert await is_let_in(server.url(driver, options=f"?{named}={certificates.authority}"))
    assert not await is_let_in(server.url(driver)), "the authority is none that the system trusts"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))  # as if the system trusted it
    assert await is_let_in(server.url(driver))


@pytest.mark.parametrize("wrong", BAD)
@pytest.mark.parametrize("driver", DRIVERS)
async def test_no_other_server_does(
    driver: str, wrong: str, request: pytest.FixtureRequest, certificates: Certificates
) -> None:
    server = find_server(driver, request)
    server.present(certificates.files[wrong])
    named = "ssl_ca" if driver == "mariadb" else "sslrootcert"
    url = server.url(driver, options=f"?{named}={certificates.authority}")

    for attempt in (connect(url), open_schema(url).version()):
        with pytest.raises(StoreUnavailable, match=f"certificate cannot be trusted.*{named}=FILE") as raised:
            await attempt
        assert "hunter2" not in str(raised.value)
    unchecked = "ssl=unverified" if driver == "mariadb" else "sslmode=require"
    assert await is_let_in(server.url(driver, options=f"?{unchecked}")), "the option does without"


@asynccontextmanager
async def recorded(port: int) -> AsyncIterator[tuple[int, bytearray]]:
    """A way to the server that keeps what its clients send."""
    sent = bytearray()
    tasks: set[asyncio.Task[None]] = set()

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, record: bytearray | None) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(65_536):
                    if record is not None:
                        record += data
                    target.write(data)
                    await target.drain()
        finally:
            target.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        for task in (
            asyncio.create_task(carry(reader, server_writer, sent)),
            asyncio.create_task(carry(server_reader, writer, None)),
        ):
            tasks.add(task)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1], sent
    finally:
        listener.close()
        await listener.wait_closed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transports that were closed are gone


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_server_without_tls_sees_no_login(driver: str, request: pytest.FixtureRequest) -> None:
    server = find_server(driver, request)
    server.present(None)
    user = b"shop" if driver == "mariadb" else b"postgres"

    async with recorded(server.port) as (port, sent):
        url = server.url(driver).replace(f":{server.port}/", f":{port}/")
        with pytest.raises(StoreUnavailable, match="or it has none"):
            await connect(url)
        assert user not in sent
        off = "ssl=off" if driver == "mariadb" else "sslmode=disable"
        assert await is_let_in(f"{url}?{off}")
        assert user in sent


async def test_every_door_of_a_store_checks(postgres: Postgres, mariadb: Mariadb, certificates: Certificates) -> None:
    """Also those that get a plain URL and not a parsed one, and the connection that listens."""
    postgres.present(certificates.files["unknown authority"])
    mariadb.present(certificates.files["unknown authority"])
    plain = f"postgresql://postgres:hunter2@{HOST}:{postgres.port}/postgres"

    stores: Sequence[Any] = [
        PostgresStore(plain, driver="asyncpg", connections=1),
        PostgresStore(plain, driver="psycopg", connections=1),
        PostgresStore(f"postgresql:///postgres?host={HOST}&port={postgres.port}", driver="asyncpg", connections=1),
        PostgresStore(f"postgresql:///postgres?host={HOST}&port={postgres.port}", driver="psycopg", connections=1),
        MariadbStore(mariadb.url(""), connections=1),
    ]
    for store in stores:
        with pytest.raises(StoreUnavailable, match="certificate"):
            await store.open()
    for name in _POSTGRES_DRIVERS:
        driver = load_driver(name)
        with pytest.raises((ssl.SSLError, psycopg.OperationalError), match="certificate"):
            await driver.connect(plain, timeout=10)


async def test_the_server_of_the_environment_must_prove_itself_too(
    postgres: Postgres, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.present(certificates.files["unknown authority"])
    monkeypatch.setenv("PGHOST", HOST)
    monkeypatch.setenv("PGPORT", str(postgres.port))
    for name in ("asyncpg", "psycopg"):
        assert not await is_let_in(f"postgresql+{name}://postgres@/postgres")
        monkeypatch.setenv("PGSSLMODE", "require")
        assert await is_let_in(f"postgresql+{name}://postgres@/postgres")
        monkeypatch.delenv("PGSSLMODE")


async def test_the_doctor_says_that_the_check_is_off(postgres: Postgres, certificates: Certificates) -> None:
    postgres.present(certificates.files["unknown authority"])
    check = StoreCheck(
        url=parse_store_url(postgres.url("asyncpg", options="?sslmode=require")),
        names=Names(),
        configured=[],
        lease=timedelta(seconds=10),
        clock=SystemClock(),
    )
    findings = (await check.run(TimeLimit(timedelta(seconds=20)))).findings
    (found,) = [finding for finding in findings if finding.code == "store.not-verified"]
    assert found.severity is Severity.WARNING
    assert "sslmode=require" in found.what
    assert "hunter2" not in str(found)


def test_the_name_of_the_tests_is_not_of_this_machine() -> None:
    assert "sslmode=verify-full" in secure_postgres_url(f"postgresql://{HOST}/x", environ={})
