"""Database roles and logins of each sort, with the rights that `pillarbox schema grants` prints and no others."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import get_args
from urllib.parse import quote, urlsplit

import psycopg
from psycopg import sql

from pillarbox.message import Names
from pillarbox.stores.mariadb.grants import grants as build_mariadb_grants
from pillarbox.stores.migrations import build_script, split_script
from pillarbox.stores.postgres.grants import Role, build_grants, build_portable_grants
from tests.support.mariadb_server import connected

__all__ = ["Granted", "Logins", "create_postgres_logins", "granted_roles", "mariadb_logins", "postgres_logins"]

_PASSWORD = "canary"


@dataclass(frozen=True, slots=True)
class Logins:
    """One login of each role on a server. A role gets its rights on tables when its URL is asked for."""

    users: Mapping[Role, str]
    _granted: set[tuple[str, str | None, Role]] = field(default_factory=set)

    def url_as(self, role: Role, url: str, names: Names, *, is_portable: bool = False) -> str:
        """Return the URL of the same database with the login of that role. The tables must be there."""
        if (url, names.schema, role) not in self._granted:
            _grant(role, self.users[role], url, names, is_portable=is_portable)
            self._granted.add((url, names.schema, role))
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"{self.users[role]}:{_PASSWORD}@{host}").geturl()

    def run(self, role: Role, url: str, *statements: str) -> None:
        """Run statements of the database's owner, with the role's login in place of `{login}`."""
        is_mysql = url.startswith("mysql")
        login = f"'{self.users[role]}'@'%'" if is_mysql else self.users[role]
        _run(url, [statement.format(login=login) for statement in statements])


def _grant(role: Role, user: str, url: str, names: Names, *, is_portable: bool) -> None:
    if url.startswith("mysql"):
        # Whoever names tables without a database means the one of the URL.
        _run(url, split_script(build_mariadb_grants({role: f"{user}@%"}, names=names)))
    else:
        build = build_portable_grants if is_portable else build_grants
        _run(url, [build({role: user}, names=names)])


def _run(url: str, statements: Iterable[str]) -> None:
    if url.startswith("mysql"):
        with closing(connected(url, autocommit=True)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def create_postgres_logins(url: str) -> Logins:
    """New logins on a server that is thrown away."""
    users = _name_users()
    _run(url, [f"create role {user} login password '{_PASSWORD}'" for user in users.values()])
    return Logins(users)


@contextmanager
def postgres_logins(url: str) -> Iterator[Logins]:
    """New logins on the server of this database, gone afterwards."""
    logins = create_postgres_logins(url)
    try:
        yield logins
    finally:
        listed = ", ".join(logins.users.values())
        _run(url, [f"drop owned by {listed} cascade", f"drop role {listed}"])


@contextmanager
def mariadb_logins(url: str) -> Iterator[Logins]:
    """New logins on this server, gone afterwards."""
    users = _name_users()
    _run(url, [f"create user '{user}'@'%' identified by '{_PASSWORD}'" for user in users.values()])
    try:
        yield Logins(users)
    finally:
        _run(url, [f"drop user '{user}'@'%'" for user in users.values()])


def _name_users() -> dict[Role, str]:
    suffix = secrets.token_hex(4)
    return {role: f"pb_{role}_{suffix}" for role in get_args(Role)}


@dataclass(frozen=True, slots=True)
class Granted:
    """Where they are, and what they are called."""

    url: str
    names: Names
    roles: Mapping[Role, str]

    def url_as(self, role: Role) -> str:
        """The same database, with the rights of that role and no other."""
        option = f"-c role={self.roles[role]}".replace(" ", "\\ ").replace("\\ ", " ", 1)
        return f"{self.url}?options={quote(option, safe='')}"


@contextmanager
def granted_roles(url: str) -> Iterator[Granted]:
    """New tables and new roles, gone afterwards. The roles' names must be quoted, to see that they are."""
    suffix = secrets.token_hex(4)
    names = Names(f"grants_{suffix}")
    roles: dict[Role, str] = {role: f'Pillarbox "{role}" {suffix}' for role in get_args(Role)}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(build_script("postgresql", names=names).encode())
        for name in roles.values():
            connection.execute(sql.SQL("create role {}").format(sql.Identifier(name)))
        try:
            for _ in range(2):
                connection.execute(build_grants(roles, names=names).encode())
            yield Granted(url, names, roles)
        finally:
            connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(f"grants_{suffix}")))
            for name in roles.values():
                connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))
