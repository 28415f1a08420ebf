"""System checks: common mistakes that `manage.py check` reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections

from pillarbox.errors import ConfigError, PillarboxError
from pillarbox.integrations.django import conf
from pillarbox.integrations.django.outbox import outbox
from pillarbox.stores.migrations import latest_version

__all__ = ["check_settings"]


@register()
def check_settings(**_: Any) -> list[CheckMessage]:
    """Check that PILLARBOX is usable, and that its databases are."""
    return list(_check_setting())


def _check_setting() -> Iterator[CheckMessage]:
    setting = conf.read_setting()
    if not setting:
        yield Error(
            "PILLARBOX is not set.",
            hint='Set PILLARBOX = {"source": "/shop", "routes": "broker"}.',
            id="pillarbox.E001",
        )
        return
    if unknown := sorted(setting.keys() - conf.KEYS):
        yield Error(
            f"PILLARBOX has no {', '.join(unknown)}.",
            hint=f"It has {', '.join(sorted(conf.KEYS))}.",
            id="pillarbox.E002",
        )
        return
    if missing := [alias for alias in conf.list_databases() if alias not in settings.DATABASES]:
        yield Error(
            f"PILLARBOX uses the database {missing[0]!r}, which DATABASES does not have.",
            hint="Name one of DATABASES as using and in databases, or leave them out.", id="pillarbox.E003",
        )  # fmt: skip
        return
    for alias in conf.list_databases():
        yield from _check_database(alias)
    yield from _check_outbox()


def _check_outbox() -> Iterator[CheckMessage]:
    try:
        # Not the cached one: a test may have changed the settings.
        found, names = outbox.__wrapped__(), conf.get_names()
    except (PillarboxError, ImportError, TypeError) as error:
        yield Error("PILLARBOX describes no outbox.", hint=str(error), id="pillarbox.E004")
        return
    if found.names != names:
        yield Error(
            f"The outbox writes to {found.names.table('outbox')}, and the migrations make {names.table('outbox')}.",
            hint="Give PILLARBOX the schema and prefix of your outbox.", id="pillarbox.E006",
        )  # fmt: skip


def _check_database(alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    name = str(connection.settings_dict["NAME"])
    try:
        latest_version(connection.vendor)
    except ConfigError:
        yield Error(
            f"PILLARBOX uses {connection.settings_dict['ENGINE']}, for which there is no store.",
            hint="Use PostgreSQL, SQLite, MariaDB or MySQL for the database with the messages.", id="pillarbox.E005",
        )  # fmt: skip
    if connection.vendor == "postgresql" and not _has_psycopg_3():
        yield Error(
            "PILLARBOX uses PostgreSQL through psycopg2, which it cannot publish on.",
            hint='Install psycopg 3, which Django prefers: pip install "pillarbox[psycopg]".', id="pillarbox.E007",
        )  # fmt: skip
    if connection.vendor == "sqlite" and (name.startswith(":memory:") or "mode=memory" in name):
        yield Warning(
            "PILLARBOX uses a database in memory, which no relay can read.",
            hint="That is fine in tests. Give it a file otherwise.", id="pillarbox.W001",
        )  # fmt: skip


def _has_psycopg_3() -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return bool(is_psycopg3)
