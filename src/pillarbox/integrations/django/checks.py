"""What `manage.py check` says of common mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from pillarbox.errors import ConfigError, PillarboxError
from pillarbox.integrations.django import conf
from pillarbox.integrations.django.publishing import outbox
from pillarbox.stores.scripts import latest

__all__ = ["check_settings"]


@register()
def check_settings(**_: Any) -> list[CheckMessage]:
    """PILLARBOX can be used, and its database too."""
    return list(_findings())


def _findings() -> Iterator[CheckMessage]:
    given = conf.given()
    if not given:
        yield Error(
            "PILLARBOX is not set.",
            hint='Set PILLARBOX = {"source": "/shop", "routes": "broker"}.',
            id="pillarbox.E001",
        )
        return
    if unknown := sorted(given.keys() - conf.KNOWN):
        yield Error(
            f"PILLARBOX has no {', '.join(unknown)}.",
            hint=f"It has {', '.join(sorted(conf.KNOWN))}.",
            id="pillarbox.E002",
        )
        return
    if conf.alias() not in settings.DATABASES:
        yield Error(
            f"PILLARBOX uses the database {conf.alias()!r}, which DATABASES does not have.",
            hint="Name one of DATABASES as using, or leave it out.", id="pillarbox.E003",
        )  # fmt: skip
        return
    yield from _of_the_database(settings.DATABASES[conf.alias()])
    try:
        outbox.__wrapped__()
    except (PillarboxError, ImportError, TypeError) as error:
        yield Error("PILLARBOX describes no outbox.", hint=str(error), id="pillarbox.E004")


def _of_the_database(database: dict[str, Any]) -> Iterator[CheckMessage]:
    vendor = database["ENGINE"].rpartition(".")[2].removesuffix("3")
    try:
        latest(vendor)
    except ConfigError:
        yield Error(
            f"PILLARBOX uses {database['ENGINE']}, for which there is no store.",
            hint="Use PostgreSQL or SQLite for the database with the messages.", id="pillarbox.E005",
        )  # fmt: skip
    if vendor == "sqlite" and str(database["NAME"]).startswith((":memory:", "file::memory:")):
        yield Warning(
            "PILLARBOX uses a database in memory, which no relay can read.",
            hint="That is fine in tests. Give it a file otherwise.", id="pillarbox.W001",
        )  # fmt: skip
