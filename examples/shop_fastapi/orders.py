"""Takes orders and announces them. Hears from shipping when they are on their way."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from sqlalchemy import MetaData, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from examples.shop_fastapi import wiring
from examples.shop_fastapi.messages import OrderPlaced, ParcelSent
from pillarbox import Consumer, Outbox
from pillarbox.integrations.asgi import ContextMiddleware, lifespan

SERVICE: Final = "orders"


class Base(DeclarativeBase):
    metadata = MetaData(schema=SERVICE)


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    article: Mapped[str]
    status: Mapped[str] = mapped_column(default="placed")


outbox = Outbox(routes="broker", source="/orders", schema=SERVICE)
sessions = wiring.sessions()
receiver = wiring.receiver(SERVICE, topic="shipping")
consumer = Consumer(SERVICE, receiver=receiver, database=wiring.sessions(), schema=SERVICE)

app = FastAPI(title="Orders", lifespan=lifespan(lambda: wiring.relay(SERVICE), lambda: consumer))
app.add_middleware(ContextMiddleware)


@app.post("/orders", status_code=201)
async def place(article: str) -> dict[str, int]:
    """The order and the message about it commit together, or not at all."""
    async with sessions.begin() as session:
        order = Order(article=article)
        session.add(order)
        await session.flush()
        await outbox.publish(session, OrderPlaced(order_id=order.id, article=article))
    print(f"orders: order {order.id} is placed ({article})", flush=True)
    return {"order_id": order.id}


@app.get("/orders")
async def orders() -> dict[int, str]:
    """The status of each order."""
    async with sessions() as session:
        return {order.id: order.status for order in await session.scalars(select(Order).order_by(Order.id))}


@consumer.on(ParcelSent)
async def shipped(event: ParcelSent, session: AsyncSession) -> None:
    order = await session.get_one(Order, event.order_id)
    order.status = "shipped"
    print(f"orders: order {order.id} is shipped in parcel {event.parcel_id}", flush=True)
