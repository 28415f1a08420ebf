"""Views that publish, and views that fail afterwards."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from pillarbox.integrations.django import in_atomic, publish
from tests.integration.django_project.shop.models import Order, Told


def place(request: HttpRequest, word: str) -> HttpResponse:
    order = Order.objects.create(note=word)
    publish(Told(order.id, word))
    if word == "fails":
        raise LookupError("as told")
    return HttpResponse(word)


@transaction.non_atomic_requests
async def place_async(request: HttpRequest, word: str) -> HttpResponse:
    return await in_atomic(place, request, word)


async def place_bare(request: HttpRequest) -> HttpResponse:
    publish(Told(1, "bare"))
    return HttpResponse()


urlpatterns: list[Any] = [
    path("sync/<word>", place),
    path("async/<word>", place_async),
    path("bare", place_bare),
    path("admin/", admin.site.urls),
    path("ops/pillarbox/", include("pillarbox.integrations.django.dashboard")),
]
