"""MariaDB and MySQL for tests: where to look for a server, and how to run a private one."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from tests.support.packages import install
from tests.support.private_program import PrivateProgram
from tests.support.servers import ServerMissing

__all__ = [
    "MariadbServer",
    "PrivateMariadb",
    "PrivateMysql",
    "connected",
    "drop_database",
    "is_mariadb",
    "options",
    "scratch_mariadb",
]


class PrivateMariadb(PrivateProgram):
    """A server whose root needs no password. `settings` are words of its command line, such as `--sql-mode=`."""

    names = ("mariadbd",)

    def __init__(self, program: Path, *settings: str) -> None:
        super().__init__(program)
        self.settings = settings

    @property
    def url(self) -> str:
        """Where it answers, as root. The same after each restart."""
        return f"mysql://root@127.0.0.1:{self.port}"

    def arguments(self) -> Sequence[str]:
        place = (f"--datadir={self.folder / 'data'}", f"--socket={self.folder / 's'}", f"--port={self.port}")
        return ("--no-defaults", *_AS_ROOT, *place, "--bind-address=127.0.0.1", *_SMALL, *self.settings)

    def launch(self) -> None:
        if not (self.folder / "data").exists():
            self._install()
        super().launch()

    def answers(self) -> bool:
        """It listens before it lets anybody in."""
        try:
            connected(self.url).close()
        except pymysql.Error:
            return False
        return True

    def _install(self) -> None:
        maker = shutil.which("mariadb-install-db") or shutil.which("mariadb-install-db", path=_FOLDERS)
        if maker is None:
            raise ServerMissing("mariadb-install-db is not installed")
        how = ["--no-defaults", f"--datadir={self.folder / 'data'}", "--auth-root-authentication-method=normal"]
        made = subprocess.run(
            [maker, *how, *_AS_ROOT, "--skip-test-db"], cwd=self.folder, env=self.environment(),
            capture_output=True, check=False,
        )  # fmt: skip
        if made.returncode != 0:
            raise ServerMissing(f"mariadb-install-db failed, and wrote: {made.stdout.decode(errors='replace')[-500:]}")


class PrivateMysql(PrivateMariadb):
    """The same of MySQL, from the pinned packages."""

    names = ("mysqld",)

    @classmethod
    def found(cls) -> Path:
        return install("mysql") / "usr" / "sbin" / "mysqld"

    def arguments(self) -> Sequence[str]:
        tree = self.program.parents[1]
        share, plugins = tree / "share" / "mysql", tree / "lib" / "mysql" / "plugin"
        files = (f"--basedir={tree}", f"--lc-messages-dir={share}", f"--character-sets-dir={share / 'charsets'}")
        more = (f"--plugin-dir={plugins}", "--secure-file-priv=NULL", "--mysqlx=OFF")
        no_defaults, *others = super().arguments()
        return (no_defaults, *files, *more, *others)

    def _install(self) -> None:
        made = subprocess.run(
            [self.program, *self.arguments(), "--initialize-insecure"],
            cwd=self.folder, env=self.environment(), capture_output=True, check=False,
        )  # fmt: skip
        if made.returncode != 0:
            raise ServerMissing(f"mysqld --initialize failed, and wrote: {made.stderr.decode(errors='replace')[-500:]}")


_FOLDERS = "/usr/bin:/usr/local/bin:/opt/homebrew/bin"
_AS_ROOT = ("--user=root",) if os.geteuid() == 0 else ()
_SMALL = (
    "--innodb-buffer-pool-size=64M",
    "--innodb-flush-log-at-trx-commit=2",  # a killed server loses nothing by it, only a killed machine does
)


@dataclass(frozen=True, slots=True)
class MariadbServer:
    """How tests find MariaDB, or MySQL."""

    port: int = 3306
    name: str = "MariaDB"
    variable: str = "PILLARBOX_TEST_MARIADB"
    remedy: str = "install MariaDB"

    def usual_urls(self) -> Sequence[str]:
        return [f"mysql://root@127.0.0.1:{self.port}"]

    def refusal(self, url: str) -> str | None:
        """Usable means that it answers and lets us make databases."""
        try:
            with scratch_mariadb(url):
                return None
        except pymysql.Error as error:
            return str(error.args[-1]).rstrip(".")

    def start_private(self) -> PrivateMariadb:
        """A server of our own on a free port."""
        return PrivateMariadb(PrivateMariadb.found()).started()


def options(url: str) -> dict[str, Any]:
    """What drivers want to be told of a URL."""
    parts = urlsplit(url)
    told = {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
    return told | {"host": parts.hostname, "port": parts.port or 3306, "database": parts.path.strip("/") or None}


def connected(url: str, **more: Any) -> Any:
    """A connection, by default one that does not commit by itself."""
    return pymysql.connect(**options(url), connect_timeout=5, **more)


def is_mariadb(url: str) -> bool:
    """Whether the server is MariaDB and not MySQL, for tests of what only one of them has."""
    with closing(connected(url)) as connection:
        return "MariaDB" in connection.get_server_info()


@contextmanager
def scratch_mariadb(url: str) -> Iterator[str]:
    """The URL of a new, empty database on that server, dropped afterwards whoever is still connected to it."""
    name = f"pb_{os.getpid()}_{secrets.token_hex(4)}"
    _run(url, f"create database `{name}`")
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        drop_database(url, name)


def drop_database(url: str, name: str) -> None:
    """Drop a database, whoever is connected to it."""
    # A transaction that a test left open would make it wait: whoever is still there goes first.
    with closing(connected(url, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("select id from information_schema.processlist where db = %s", (name,))
        for (number,) in cursor.fetchall():
            try:
                connection.kill(number)
            except pymysql.Error:  # it left by itself
                continue
        cursor.execute(f"drop database if exists `{name}`")


def _run(url: str, statement: str) -> None:
    with closing(connected(url, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
