"""What was published, in Django's tests: seen through the test's own connection, so `TestCase` sees it uncommitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections

from pillarbox.events import DEFAULT_TYPES, Types
from pillarbox.integrations.django import conf
from pillarbox.message import Message
from pillarbox.stores.postgres import rows as postgres_rows
from pillarbox.stores.stepwise import rows as sqlite_rows
from pillarbox.testing.kit import OutboxKit

__all__ = ["DjangoKit"]

_SELECT = "select {} from pillarbox_outbox order by id".format(", ".join(Message.__struct_fields__[:-2]))  # noqa: S608 - our own fields
"""The last two fields of a message are no columns of the table."""


class DjangoKit(OutboxKit):
    """`published`, `assert_published` and `assert_not_published`, for `TestCase` and `TransactionTestCase`.

    class OrderTests(TestCase):
        def test_an_order_is_announced(self) -> None:
            place_order(7)
            DjangoKit().assert_published(OrderPlaced, order_id=7)
    """

    def __init__(self, *, using: str | None = None, types: Types = DEFAULT_TYPES) -> None:
        super().__init__(types=types)
        self._using = using

    def messages(self, **conditions: Any) -> Sequence[Message]:
        """What the test's connection sees, in order. Conditions are fields of `Message` and their values."""
        connection = connections[self._using or conf.alias()]
        sql = conf.names().applied(_SELECT)
        if connection.vendor == "postgresql":
            sql = sql.replace("headers,", "headers::text,")
        with connection.cursor() as cursor:
            cursor.execute(sql)
            rows = cursor.fetchall()
        made = postgres_rows.message_of if connection.vendor == "postgresql" else sqlite_rows.message_of
        found = [made([bytes(value) if isinstance(value, memoryview) else value for value in row]) for row in rows]
        return [one for one in found if all(getattr(one, name) == value for name, value in conditions.items())]
