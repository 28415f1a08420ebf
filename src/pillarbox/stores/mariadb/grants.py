"""Least rights that each part of a system needs on MariaDB and MySQL, as SQL text. Connects to nothing.

The roles and their rights are those of PostgreSQL, with two differences that these servers need. A viewer gets views:
rights on columns would not hide a payload, for HANDLER reads whole rows. A consumer gets a view too, which shows an
account the rows of its own consumers, because there are no rights on rows. Writers may also lock the slots of their
keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.stores.postgres.grants import Role, check_consumers, list_rights

__all__ = ["grants"]

_LONGEST_USER: Final = 32
"""Characters of a user's name that MySQL takes; MariaDB takes more."""
_EVERY: Final = "*"
"""Consumer that stands for every one."""
_WRITERS: Final = frozenset({"writer", "consumer"})
_VIEWS: Final[Mapping[Role, Mapping[str, str]]] = {
    "viewer": {table: f"shown_{table}" for table in ("outbox", "history", "inbox")},
    "consumer": {"inbox": "own_inbox"},
}
"""Views that a role gets instead of the tables that payloads, or other consumers' rows, are in."""


def grants(roles: Mapping[Role, str], *, names: Names, consumers: Sequence[str] | None = None) -> str:
    """Return GRANT statements for these accounts, `name` or `name@host`, which must exist.

    The consumer's account may write the inbox rows of `consumers` alone. None lets it write those of every consumer.
    """
    if not roles:
        raise ConfigError("No role was named, so there is nothing to grant; give at least one, such as --relay NAME.")
    # What an older release granted too much goes first, for an account may have several roles.
    lines = [line for role, account in roles.items() for line in _build_revokes(role, account, names)]
    lines += [line for role, account in roles.items() for line in _build_grants(role, account, names)]
    if (account := roles.get("consumer")) is not None:
        lines += _restrict_consumer(account, check_consumers(consumers), names)
    return "\n".join(lines) + "\n"


def _build_revokes(role: Role, account: str, names: Names) -> Iterator[str]:
    quoted = _quote_account(account)
    for table in _VIEWS.get(role, {}):
        # A right that is not there cannot be revoked, so a harmless one is granted first.
        yield f"grant references on {names.table(table, quote='`')} to {quoted};"
        yield f"revoke all privileges on {names.table(table, quote='`')} from {quoted};"


def _build_grants(role: Role, account: str, names: Names) -> Iterator[str]:
    quoted = _quote_account(account)
    yield f"-- {role}"
    for table, privileges in _list_privileges(role, names).items():
        yield f"grant {privileges} on {table} to {quoted};"


def _restrict_consumer(account: str, consumers: Sequence[str] | None, names: Names) -> Iterator[str]:
    """Write which consumers an account may be. New ones first: it may be working."""
    table = names.table("consumer", quote="`")
    user = f"unhex('{_split_account(account)[0].encode().hex()}')"
    own = [f"unhex('{name.encode().hex()}')" for name in ([_EVERY] if consumers is None else consumers)]
    yield f"insert ignore into {table} (account, consumer) values {', '.join(f'({user}, {name})' for name in own)};"
    yield f"delete from {table} where account = {user} and consumer not in ({', '.join(own)});"


def _list_privileges(role: Role, names: Names) -> Mapping[str, str]:
    """Return the privileges on each table or view, with the columns of each."""
    views = {names.table(table): names.table(view) for table, view in _VIEWS.get(role, {}).items()}
    tables: dict[str, dict[str, list[str]]] = {}
    for right in sorted(list_rights(role, names=names), key=lambda one: one.column is None):
        if right.table == names.table("sleeper") or right.privilege == "execute":
            continue  # nobody is notified here, and history has no partitions
        place = views.get(right.table, right.table).replace('"', "`")
        privileges = tables.setdefault(place, {})
        if right.column is None or right.table in views:  # a view has no column that its role may not use
            privileges[right.privilege] = []  # after its columns: it is for all of them
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
    name, host = _split_account(account)
    return f"'{name}'@'{host}'"


def _split_account(account: str) -> tuple[str, str]:
    name, _, host = account.rpartition("@") if "@" in account else (account, "", "%")
    if not name or len(name) > _LONGEST_USER or any(mark in account for mark in "'\\\0"):
        raise ConfigError(f"An account is written name or name@host, the name at most {_LONGEST_USER} characters long.")
    return name, host
