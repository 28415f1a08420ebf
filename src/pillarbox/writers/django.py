"""Writer for Django connections: in the atomic block, on the driver's connection beneath it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, TypeVar, cast

from pillarbox.contracts.writer import InboxCommand, Insert, Writer
from pillarbox.errors import NotInTransaction
from pillarbox.writers.registry import find_writer_class

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["DjangoWriter"]

R = TypeVar("R")

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
            self._join_driver().insert(batch)

    def execute(self, command: InboxCommand[R]) -> R:
        with self._tx.wrap_database_errors:
            return self._join_driver().execute(command)

    def _join_driver(self) -> Writer:
        tx = self._tx
        if not tx.in_atomic_block and _would_autocommit(tx):
            raise NotInTransaction(_OUTSIDE.format(alias=tx.alias, why=""))
        if tx.atomic_blocks and all(getattr(block, "_from_testcase", False) for block in tx.atomic_blocks):
            raise NotInTransaction(_OUTSIDE.format(alias=tx.alias, why=" but the one that TestCase puts around a test"))
        tx.validate_no_broken_transaction()
        tx.ensure_connection()
        driver = tx.connection
        return cast("Writer", find_writer_class(type(driver))(driver))  # type: ignore[arg-type]  # a class has a hash


def _would_autocommit(tx: BaseDatabaseWrapper) -> bool:
    # Asking Django would open the connection, which async code must not do; before it is open, the settings decide.
    return bool(tx.settings_dict["AUTOCOMMIT"] if tx.connection is None else tx.autocommit)
