"""Writes through a Django connection: in its atomic block, on the driver's connection beneath it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pillarbox.errors import NotInTransaction
from pillarbox.protocols import InboxAsk, Insert
from pillarbox.writers.finding import writer_class

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["DjangoWriter"]


class DjangoWriter:
    """Joins the innermost `transaction.atomic()` of `django.db.connection`, or of `connections["other"]`."""

    is_async: ClassVar = False
    __slots__ = ("_tx",)

    def __init__(self, tx: BaseDatabaseWrapper) -> None:
        self._tx = tx

    def insert(self, batch: Insert) -> None:
        with self._tx.wrap_database_errors:
            self._beneath().insert(batch)

    def ask(self, ask: InboxAsk) -> Any:
        with self._tx.wrap_database_errors:
            return self._beneath().ask(ask)

    def _beneath(self) -> Any:
        tx = self._tx
        if not tx.in_atomic_block:
            raise NotInTransaction(
                f"The Django connection {tx.alias!r} is not inside transaction.atomic(), so the message would be "
                "committed on its own: publish inside the block that saves the business data, or set ATOMIC_REQUESTS."
            )
        tx.validate_no_broken_transaction()
        tx.ensure_connection()
        driver = tx.connection
        return writer_class(type(driver))(driver)  # type: ignore[arg-type]  # a class has a hash
