"""Least rights that each part of a system needs on MariaDB and MySQL, as SQL text. Connects to nothing.

The roles and their rights are those of PostgreSQL. Writers may also lock the slots of their keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.stores.postgres.grants import Role, list_rights

__all__ = ["grants"]

_LONGEST_USER: Final = 32
"""Characters of a user's name that MySQL takes; MariaDB takes more."""
_WRITERS: Final = frozenset({"writer", "consumer"})


def grants(roles: Mapping[Role, str], *, names: Names) -> str:
    """Return GRANT statements for these accounts, `name` or `name@host`, which must exist."""
    if not roles:
        raise ConfigError("No role was named, so there is nothing to grant; give at least one, such as --relay NAME.")
    return "\n".join(line for role, account in roles.items() for line in _build_grants(role, account, names)) + "\n"


def _build_grants(role: Role, account: str, names: Names) -> Iterator[str]:
    quoted = _quote_account(account)
    yield f"-- {role}"
    for table, privileges in _list_privileges(role, names).items():
        yield f"grant {privileges} on {table} to {quoted};"


def _list_privileges(role: Role, names: Names) -> Mapping[str, str]:
    """Return each table's privileges, with the columns of each."""
    tables: dict[str, dict[str, list[str]]] = {}
    for right in sorted(list_rights(role, names=names), key=lambda one: one.column is None):
        privileges = tables.setdefault(right.table.replace('"', "`"), {})
        if right.column is None:  # after its columns: it is for all of them
            privileges[right.privilege] = []
        elif right.column != "tx":
            privileges.setdefault(right.privilege, []).append(f"`{right.column}`")
    if role in _WRITERS:
        tables[names.table("slot", quote="`")] = {"select": [], "update": []}
    return {
        table: ", ".join(_format_privilege(privilege, columns) for privilege, columns in privileges.items())
        for table, privileges in tables.items()
    }


def _format_privilege(privilege: str, columns: list[str]) -> str:
    return f"{privilege} ({', '.join(columns)})" if columns else privilege


def _quote_account(account: str) -> str:
    name, _, host = account.rpartition("@") if "@" in account else (account, "", "%")
    if not name or len(name) > _LONGEST_USER or any(mark in account for mark in "'\\\0"):
        raise ConfigError(f"An account is written name or name@host, the name at most {_LONGEST_USER} characters long.")
    return f"'{name}'@'{host}'"
