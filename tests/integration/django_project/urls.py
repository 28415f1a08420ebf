"""Views that publish, and views that fail afterwards."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from pillarbox.integrations.django import in_atomic, publish
from tests.integration.django_project.shop.models import Order, Told


def place(request: HttpRequest, word: str) -> HttpResponse:
    order = Order.objects.create(note=word)
    publish(Told(order.id, word))
    if word == "fails":
        raise LookupError("as told")
    return HttpResponse(word)


async def place_async(request: HttpRequest, word: str) -> HttpResponse:
    return await in_atomic(place, request, word)


urlpatterns: list[Any] = [path("sync/<word>", place), path("async/<word>", place_async)]
