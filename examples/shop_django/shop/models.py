"""Orders say themselves what has happened to them."""

from __future__ import annotations

from django.db import models

from examples.shop_django.shop.messages import OrderPlaced
from pillarbox.integrations.django import AggregateModel


class Order(AggregateModel):
    article = models.TextField()
    status = models.TextField(default="new")

    def place(self) -> None:
        """Nothing is written yet: `save` writes the order and the message in one transaction."""
        self.status = "placed"
        self.raise_event(lambda: OrderPlaced(order_id=self.pk, article=self.article))


class Parcel(models.Model):
    """What the warehouse makes of an order."""

    order_id = models.BigIntegerField()
    article = models.TextField()
    status = models.TextField(default="packed")
