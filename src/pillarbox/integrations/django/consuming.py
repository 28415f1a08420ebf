"""The transactions of a consumer: Django's, so that handlers use models as views do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from pillarbox.integrations.django import conf

__all__ = ["transactions"]


@contextmanager
def transactions(using: str | None = None) -> Iterator[Any]:
    """`transaction.atomic()` for `Consumer(database=transactions)`.

    A message is to its connection what a request is: one that broke is let go, and CONN_MAX_AGE says how long a good
    one is kept.
    """
    connection = connections[using or conf.alias()]
    connection.close_if_unusable_or_obsolete()
    try:
        with transaction.atomic(using=connection.alias):
            yield connection
    finally:
        connection.close_if_unusable_or_obsolete()
