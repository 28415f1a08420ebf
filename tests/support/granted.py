"""Tables and one database role of each sort, with the rights that `pillarbox schema grants` prints."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import get_args
from urllib.parse import quote

import psycopg
from psycopg import sql

from pillarbox.message import Names
from pillarbox.stores.migrations import build_script
from pillarbox.stores.postgres.grants import Role, build_grants

__all__ = ["Granted", "granted_roles"]


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
