"""Assertions about published messages for Django's tests.

They read through the test's own connection, so that `TestCase` sees messages before they are committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from pillarbox.events import DEFAULT_TYPES, Types
from pillarbox.integrations.django import conf
from pillarbox.integrations.django.models import Message as Row
from pillarbox.message import Message
from pillarbox.stores.factory import open_store
from pillarbox.testing.kit import OutboxKit

__all__ = ["DjangoKit"]

_TABLES: Final = ("outbox", "history", "claim", "journal", "inbox", "destination", "rollup")
"""Tables that tests fill. The others belong to relays and migrations."""


class DjangoKit(OutboxKit):
    """`published`, `assert_published` and `assert_not_published`, for `TestCase` and `TransactionTestCase`.

    class OrderTests(TestCase):
        def test_an_order_is_announced(self) -> None:
            place_order(7)
            DjangoKit().assert_published(OrderPlaced, order_id=7)
    """

    def __init__(self, *, using: str | None = None, types: Types = DEFAULT_TYPES) -> None:
        super().__init__(types=types)
        self._using = using or conf.get_database()

    def messages(self, **conditions: Any) -> Sequence[Message]:
        """Return the messages that the test's connection sees, open and closed, in order.

        Conditions are fields of the model `Message`.
        """
        return [row.to_message() for row in Row.objects.using(self._using).filter(**conditions).order_by("id")]

    async def messages_async(self, **conditions: Any) -> Sequence[Message]:
        """Do the same as `messages`, in async code."""
        messages: Sequence[Message] = await sync_to_async(self.messages)(**conditions)
        return messages

    def clear(self) -> None:
        """Delete every message and inbox record. For `TransactionTestCase`: Django's flush leaves them."""
        connection = connections[self._using]
        with transaction.atomic(using=self._using), connection.cursor() as cursor:
            for name in _TABLES:
                cursor.execute(f"delete from {connection.ops.quote_name(conf.get_table(name))}")  # noqa: S608 - our own

    def drain(self, *destinations: str) -> int:
        """Deliver all that is committed and due now with a real relay; return how many messages it took."""
        if connections[self._using].in_atomic_block:
            raise TypeError("Inside a block, as all of TestCase is, nothing is committed: use TransactionTestCase.")
        self.store = open_store(conf.build_store_url(self._using), names=conf.get_names())
        return super().drain(*destinations)
