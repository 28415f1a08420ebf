"""The shop's one model."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import models

from pillarbox import event
from pillarbox.integrations.django.models import AggregateModel


@event("django.told", key="order", subject="word")
@dataclass
class Told:
    order: int | None
    word: str


class Order(AggregateModel):
    note = models.TextField(default="")
    id: int

    class Meta:
        app_label = "shop"

    def tell(self, word: str) -> None:
        self.raise_event(lambda: Told(self.id, word))
