"""Where the shop's pages are."""

from __future__ import annotations

from django.urls import path

from examples.shop_django.shop import views

urlpatterns = [
    path("orders", views.place),
    path("orders/<int:order_id>/cancel", views.cancel),
    path("parcels", views.parcels),
]
