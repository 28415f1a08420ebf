"""The order service's tables in MariaDB, in the database that the demo made for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from pillarbox.demo.books import Entries, RolledBack
from pillarbox.demo.judge import Order
from pillarbox.demo.orders import order_placed, outbox
from pillarbox.demo.story import Attempt
from pillarbox.names import Names
from pillarbox.stores.mariadb.driver import connected, mapped_errors
from pillarbox.stores.urls import StoreUrl

__all__ = ["MariadbBook"]

T = TypeVar("T")

_WRITERS: Final = 4
_TIMEOUT: Final = 30.0
_TABLES: Final = (
    "create table shop.customer (name varchar(100) primary key, orders integer not null)",
    "create table shop.orders (order_id varchar(100) primary key, customer varchar(100) not null, "
    "number integer not null, amount integer not null)",
    "create table shop.rolled_back (order_id varchar(100) primary key)",
)
# Writers of one customer wait here for each other, so the ids of their messages follow the order of their commits.
_NEXT_NUMBER: Final = "insert into shop.customer values (%s, 1) on duplicate key update orders = orders + 1"
_NUMBER: Final = "select orders from shop.customer where name = %s"
_COUNTS: Final = "select (select count(*) from shop.orders), (select count(*) from shop.rolled_back)"


class MariadbBook:
    """Several writers at once. The order of a customer's orders is that of the locks on the customer's row."""

    writers = _WRITERS

    def __init__(self, url: StoreUrl, *, names: Names) -> None:
        self._url = url
        assert names.schema is not None, "the demo has a database of its own"  # noqa: S101
        self._schema = names.schema
        self._outbox = outbox(names)
        self._connections: list[Any] = []
        self._idle: asyncio.Queue[Any] = asyncio.Queue()

    async def open(self) -> None:
        for _ in range(_WRITERS):
            connection = await asyncio.to_thread(connected, self._url.dsn, timeout=_TIMEOUT)
            self._connections.append(connection)
            self._idle.put_nowait(connection)

    async def close(self) -> None:
        for connection in self._connections:
            with suppress(Exception):
                connection.close()

    async def create(self) -> None:
        def work(connection: Any) -> None:
            for table in _TABLES:
                self._fetched(connection, table)

        await self._run(work)

    async def remove(self) -> None:
        await self._run(lambda connection: self._fetched(connection, f"drop database `{self._schema}`"))

    async def place(self, attempt: Attempt) -> None:
        await self._run(lambda connection: self._place(connection, attempt))

    def _place(self, connection: Any, attempt: Attempt) -> None:
        connection.begin()
        try:
            self._write(connection, attempt)
            if not attempt.commits:
                raise RolledBack
            connection.commit()
        except RolledBack:
            connection.rollback()
            self._fetched(connection, "insert into shop.rolled_back values (%s)", attempt.order_id)

    def _write(self, connection: Any, attempt: Attempt) -> None:
        self._fetched(connection, _NEXT_NUMBER, attempt.customer)
        ((number,),) = self._fetched(connection, _NUMBER, attempt.customer)
        order = (attempt.order_id, attempt.customer, number, attempt.amount)
        self._fetched(connection, "insert into shop.orders values (%s, %s, %s, %s)", *order)
        self._outbox.publish(connection, order_placed(attempt, number=number))

    async def counts(self) -> tuple[int, int]:
        ((committed, rolled_back),) = await self._run(lambda connection: self._fetched(connection, _COUNTS))
        return committed, rolled_back

    async def entries(self) -> Entries:
        def work(connection: Any) -> Entries:
            orders = self._fetched(connection, "select order_id, customer, number from shop.orders")
            rolled_back = self._fetched(connection, "select order_id from shop.rolled_back")
            return Entries([Order(*row) for row in orders], [row[0] for row in rolled_back])

        return await self._run(work)

    async def _run(self, work: Callable[[Any], T]) -> T:
        connection = await self._idle.get()
        try:
            with mapped_errors():
                return await asyncio.to_thread(work, connection)
        finally:
            self._idle.put_nowait(connection)

    def _fetched(self, connection: Any, sql: str, *values: object) -> list[Any]:
        """With our own database in the place of `shop`."""
        with connection.cursor() as cursor:
            cursor.execute(sql.replace("shop.", f"`{self._schema}`."), values or None)
            return list(cursor.fetchall())
