"""The order service's tables in PostgreSQL, in the schema that the demo made for itself."""

from __future__ import annotations

from typing import Any, Final

from pillarbox.demo.books import Entries, RolledBack
from pillarbox.demo.judge import Order
from pillarbox.demo.orders import order_placed, outbox
from pillarbox.demo.story import Attempt
from pillarbox.errors import MissingExtra
from pillarbox.names import Names
from pillarbox.stores.postgres.connection import mapped_errors

try:
    import asyncpg
except ModuleNotFoundError as error:
    raise MissingExtra("asyncpg", extra="postgres", needed_for="The demo on PostgreSQL") from error

__all__ = ["PostgresBook"]

_WRITERS: Final = 4
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

    def __init__(self, dsn: str, *, names: Names) -> None:
        self._dsn = dsn
        assert names.schema is not None, "the demo has a schema of its own"  # noqa: S101
        self._schema = names.schema
        self._outbox = outbox(names)
        self._pool: Any = None

    async def open(self) -> None:
        with mapped_errors():
            self._pool = await asyncpg.create_pool(self._dsn, min_size=1, max_size=_WRITERS, statement_cache_size=0)

    async def close(self) -> None:
        await self._pool.close()

    async def create(self) -> None:
        await self._pool.execute(self._sql(_TABLES))

    async def remove(self) -> None:
        await self._pool.execute(f'drop schema "{self._schema}" cascade')

    async def place(self, attempt: Attempt) -> None:
        async with self._pool.acquire() as connection:
            try:
                async with connection.transaction():
                    await self._write(connection, attempt)
                    if not attempt.commits:
                        raise RolledBack
            except RolledBack:
                await connection.execute(self._sql("insert into shop.rolled_back values ($1)"), attempt.order_id)

    async def _write(self, connection: Any, attempt: Attempt) -> None:
        number = await connection.fetchval(self._sql(_NEXT_NUMBER), attempt.customer)
        order = (attempt.order_id, attempt.customer, number, attempt.amount)
        await connection.execute(self._sql("insert into shop.orders values ($1, $2, $3, $4)"), *order)
        await self._outbox.publish(connection, order_placed(attempt, number=number))

    async def counts(self) -> tuple[int, int]:
        committed, rolled_back = await self._pool.fetchrow(self._sql(_COUNTS))
        return committed, rolled_back

    async def entries(self) -> Entries:
        orders = await self._pool.fetch(self._sql("select order_id, customer, number from shop.orders"))
        rolled_back = await self._pool.fetch(self._sql("select order_id from shop.rolled_back"))
        return Entries([Order(*row) for row in orders], [row["order_id"] for row in rolled_back])

    def _sql(self, statement: str) -> str:
        """With our own schema in the place of `shop`."""
        return statement.replace("shop.", f'"{self._schema}".')
