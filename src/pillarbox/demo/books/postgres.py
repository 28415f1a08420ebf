"""The order service's tables in PostgreSQL, in the schema that the demo made for itself."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from pillarbox.demo.books import Entries, RolledBack
from pillarbox.demo.judge import Order
from pillarbox.demo.orders import order_placed, outbox
from pillarbox.demo.story import Attempt
from pillarbox.names import Names
from pillarbox.stores.postgres.connection import mapped_errors
from pillarbox.stores.postgres.drivers import Connection, driver_called
from pillarbox.stores.urls import StoreUrl

__all__ = ["PostgresBook"]

_WRITERS: Final = 4
_PATIENCE: Final = 60.0
_TABLES: Final = """
create table shop.customer (name text primary key, orders integer not null);
create table shop.orders (order_id text primary key, customer text not null, number integer not null,
    amount integer not null);
create table shop.rolled_back (order_id text primary key);
"""
# Writers of one customer wait here for each other, so the ids of their messages follow the order of their commits.
_NEXT_NUMBER: Final = """
insert into shop.customer as customer values ($1, 1)
on conflict (name) do update set orders = customer.orders + 1 returning orders
"""
_COUNTS: Final = "select (select count(*) from shop.orders), (select count(*) from shop.rolled_back)"


class PostgresBook:
    """Several writers at once. The order of a customer's orders is that of the locks on the customer's row."""

    writers = _WRITERS

    def __init__(self, url: StoreUrl, *, names: Names) -> None:
        self._url = url
        self._driver = driver_called(url.driver)
        assert names.schema is not None, "the demo has a schema of its own"  # noqa: S101
        self._schema = names.schema
        self._outbox = outbox(names)
        self._pool: Any = None

    async def open(self) -> None:
        with mapped_errors(self._driver):
            self._pool = await self._driver.pool(self._url.dsn, size=_WRITERS, timeout=_PATIENCE, is_direct=False)

    async def close(self) -> None:
        await self._pool.close()

    async def create(self) -> None:
        async with self._lent() as connection:
            await connection.execute(self._sql(_TABLES))

    async def remove(self) -> None:
        async with self._lent() as connection:
            await connection.execute(f'drop schema "{self._schema}" cascade')

    async def place(self, attempt: Attempt) -> None:
        async with self._lent() as connection:
            try:
                async with connection.transaction(isolation="read_committed"):
                    await self._write(connection, attempt)
                    if not attempt.commits:
                        raise RolledBack
            except RolledBack:
                await connection.execute(self._sql("insert into shop.rolled_back values ($1)"), attempt.order_id)

    async def _write(self, connection: Connection, attempt: Attempt) -> None:
        number = await connection.fetchval(self._sql(_NEXT_NUMBER), attempt.customer)
        order = (attempt.order_id, attempt.customer, number, attempt.amount)
        await connection.execute(self._sql("insert into shop.orders values ($1, $2, $3, $4)"), *order)
        await self._outbox.publish(self._driver.handle(connection), order_placed(attempt, number=number))

    async def counts(self) -> tuple[int, int]:
        async with self._lent() as connection:
            committed, rolled_back = await connection.fetchrow(self._sql(_COUNTS))
        return committed, rolled_back

    async def entries(self) -> Entries:
        async with self._lent() as connection:
            orders = await connection.fetch(self._sql("select order_id, customer, number from shop.orders"))
            rolled_back = await connection.fetch(self._sql("select order_id from shop.rolled_back"))
        return Entries([Order(*row) for row in orders], [row[0] for row in rolled_back])

    def _lent(self) -> AbstractAsyncContextManager[Connection]:
        lent: AbstractAsyncContextManager[Connection] = self._pool.acquire(timeout=_PATIENCE)
        return lent

    def _sql(self, statement: str) -> str:
        """With our own schema in the place of `shop`."""
        return statement.replace("shop.", f'"{self._schema}".')
