"""An aggregate with one raised event, against an outbox row that is mapped and added by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from decimal import Decimal
from typing import Final
from uuid import UUID

from sqlalchemy import Numeric, SmallInteger, make_url
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from benchmarks.database import URL
from benchmarks.orders import CUSTOMER, SCHEMA, TOTAL, build_event, build_row
from benchmarks.write import compare_loops, open_shop
from pillarbox import Aggregate, Outbox

__all__ = ["domain_events"]

_OUTBOX: Final = Outbox(routes="default", source="/shop", schema=SCHEMA)


class _Base(DeclarativeBase):
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012


class _Order(Aggregate, _Base):
    __tablename__ = "orders"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[Decimal] = mapped_column(Numeric)


class _Row(_Base):
    """The columns that have no usable default."""

    __tablename__ = "pillarbox_outbox"
    id: Mapped[int] = mapped_column(primary_key=True)
    message_id: Mapped[UUID]
    destination: Mapped[str]
    partition: Mapped[int] = mapped_column(SmallInteger)
    kind: Mapped[str]
    type: Mapped[str]
    topic: Mapped[str]
    key: Mapped[str]
    payload: Mapped[bytes]
    content_type: Mapped[str]
    source: Mapped[str]
    correlation_id: Mapped[str]
    event_time: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True))


async def domain_events() -> None:
    """`write.domain_events`: an order that raises, in an attached AsyncSession, against a second mapped object."""
    async with _sessions() as raising, _sessions() as plain, open_shop() as shop:
        _OUTBOX.attach(raising)

        async def ours(ids: list[UUID]) -> None:
            for order_id in ids:
                async with raising.begin() as session:
                    order = _Order(id=order_id, customer=CUSTOMER, total=Decimal(TOTAL))
                    order.raise_event(build_event(order_id))
                    session.add(order)

        async def bare(ids: list[UUID]) -> None:
            for order_id in ids:
                async with plain.begin() as session:
                    session.add(_Order(id=order_id, customer=CUSTOMER, total=Decimal(TOTAL)))
                    row = build_row(build_event(order_id))._asdict()
                    session.add(
                        _Row(
                            destination="default", kind="event", type="orders.placed", topic="orders",
                            content_type="application/json", source="/shop", **row,
                        )
                    )  # fmt: skip

        await compare_loops("write.domain_events", ours=ours, bare=bare, shop=shop, target=0.85, driver="sqlalchemy")


@asynccontextmanager
async def _sessions() -> AsyncIterator[async_sessionmaker[AsyncSession]]:
    engine = create_async_engine(make_url(URL).set(drivername="postgresql+asyncpg"))
    yield async_sessionmaker(engine)
    await engine.dispose()
