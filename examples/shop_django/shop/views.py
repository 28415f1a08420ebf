"""What people do in the shop."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from examples.shop_django.shop.messages import OrderCancelled
from examples.shop_django.shop.models import Order, Parcel
from pillarbox.integrations.django import publish


@csrf_exempt  # for curl
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    """The model raises the event, and saving publishes it."""
    order = Order(article=request.GET["article"])
    order.place()
    order.save()
    print(f"shop: order {order.pk} is placed ({order.article})", flush=True)
    return JsonResponse({"order_id": order.pk}, status=201)


@csrf_exempt
@require_POST
def cancel(request: HttpRequest, order_id: int) -> JsonResponse:
    """What bypasses `save` is published by hand, in the same block."""
    get_object_or_404(Order, pk=order_id)
    with transaction.atomic():
        Order.objects.filter(pk=order_id).update(status="cancelled")
        publish(OrderCancelled(order_id=order_id))
    print(f"shop: order {order_id} is cancelled", flush=True)
    return JsonResponse({"order_id": order_id})


def parcels(request: HttpRequest) -> JsonResponse:
    """What the warehouse has packed."""
    return JsonResponse({"parcels": [*Parcel.objects.values("order_id", "article", "status").order_by("pk")]})
