"""Packs what was ordered: `manage.py pillarbox consume examples.shop_django.shop.warehouse:consumer`."""

from __future__ import annotations

from django.conf import settings

from examples.shop_django.shop.messages import OrderCancelled, OrderPlaced
from examples.shop_django.shop.models import Parcel
from pillarbox import Consumer
from pillarbox.brokers import receiver_from_url
from pillarbox.integrations.django import transactions

receiver = receiver_from_url(settings.BROKER, options={"stream": "SHOP", "durable": "warehouse", "declare": True})
consumer = Consumer("warehouse", receiver=receiver, database=transactions)


@consumer.on(OrderPlaced)
def pack(event: OrderPlaced) -> None:
    """Inside `transaction.atomic()`, together with the record that this message was handled."""
    Parcel.objects.create(order_id=event.order_id, article=event.article)
    print(f"warehouse: a {event.article} is packed for order {event.order_id}", flush=True)


@consumer.on(OrderCancelled)
def unpack(event: OrderCancelled) -> None:
    """Messages of one key come in order, so the parcel is there."""
    Parcel.objects.filter(order_id=event.order_id).update(status="unpacked")
    print(f"warehouse: order {event.order_id} is unpacked", flush=True)
