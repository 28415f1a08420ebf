"""What the shop says, and what of it was committed. Django is imported when it is set up."""

from __future__ import annotations

from typing import Any


def words(alias: str) -> list[str]:
    """The committed messages by their word, in order."""
    from django.db import connections

    with connections[alias].cursor() as cursor:
        cursor.execute("select subject from pillarbox_outbox order by id")
        return [word for (word,) in cursor.fetchall()]


def order(**values: Any) -> Any:
    from tests.integration.django_project.shop.models import Order

    return Order(**values)


def told(word: str) -> Any:
    from tests.integration.django_project.shop.models import Told

    return Told(1, word)
