"""Writes through a Django connection: in its atomic block, on the driver's connection beneath it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pillarbox.errors import NotInTransaction
from pillarbox.protocols import InboxAsk, Insert
from pillarbox.writers.finding import writer_class

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["DjangoWriter"]

_OUTSIDE: Final = (
    "The Django connection {alias!r} is not inside transaction.atomic(){why}, so the message would be committed on its "
    "own: publish inside the block that saves the business data, set ATOMIC_REQUESTS, or await in_atomic(…) in async "
    "code."
)


class DjangoWriter:
    """Joins the innermost `transaction.atomic()` of `django.db.connection`, or of `connections["other"]`.

    The block that `TestCase` puts around each test does not count: production has none, and would autocommit.
    """

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
        if not tx.in_atomic_block and _would_autocommit(tx):
            raise NotInTransaction(_OUTSIDE.format(alias=tx.alias, why=""))
        if tx.atomic_blocks and all(getattr(block, "_from_testcase", False) for block in tx.atomic_blocks):
            raise NotInTransaction(_OUTSIDE.format(alias=tx.alias, why=" but the one that TestCase puts around a test"))
        tx.validate_no_broken_transaction()
        tx.ensure_connection()
        driver = tx.connection
        return writer_class(type(driver))(driver)  # type: ignore[arg-type]  # a class has a hash


def _would_autocommit(tx: BaseDatabaseWrapper) -> bool:
    """As the connection is, or will be when it is made. Asking Django would make it, which async code must not."""
    return bool(tx.settings_dict["AUTOCOMMIT"] if tx.connection is None else tx.autocommit)
