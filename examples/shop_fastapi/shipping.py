"""Sends a parcel for each order, exactly once, and says so."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from sqlalchemy import MetaData, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from examples.shop_fastapi import wiring
from examples.shop_fastapi.messages import OrderPlaced, ParcelSent
from pillarbox import Consumer, Outbox
from pillarbox.integrations.asgi import lifespan

SERVICE: Final = "shipping"


class Base(DeclarativeBase):
    metadata = MetaData(schema=SERVICE)


class Parcel(Base):
    __tablename__ = "parcels"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    article: Mapped[str]


outbox = Outbox(routes="broker", source="/shipping", schema=SERVICE)
sessions = wiring.sessions()
receiver = wiring.receiver(SERVICE, topic="orders")
consumer = Consumer(SERVICE, receiver=receiver, database=wiring.sessions(), schema=SERVICE)

app = FastAPI(title="Shipping", lifespan=lifespan(lambda: wiring.relay(SERVICE), lambda: consumer))


@consumer.on(OrderPlaced)
async def send(event: OrderPlaced, session: AsyncSession) -> None:
    """The parcel, the record that this message was handled, and the message about the parcel commit together."""
    parcel = Parcel(order_id=event.order_id, article=event.article)
    session.add(parcel)
    await session.flush()
    await outbox.publish(session, ParcelSent(parcel_id=parcel.id, order_id=event.order_id))
    print(f"shipping: parcel {parcel.id} goes out for order {event.order_id} ({event.article})", flush=True)


@app.get("/parcels")
async def parcels() -> list[int]:
    """The order of each parcel."""
    async with sessions() as session:
        return [*await session.scalars(select(Parcel.order_id).order_by(Parcel.id))]
