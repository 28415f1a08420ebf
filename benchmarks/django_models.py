"""Publishing from Django: an order that raises its event, against a second model for the outbox row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

from benchmarks.database import URL
from benchmarks.orders import CUSTOMER, SCHEMA, TOTAL, build_event, build_row
from benchmarks.write import compare_loops, open_shop

__all__ = ["django_models"]

_SAME: Final = {
    "destination": "default",
    "kind": "event",
    "type": "orders.placed",
    "topic": "orders",
    "content_type": "application/json",
    "source": "/shop",
}


async def django_models() -> None:
    """`write.django`: an `AggregateModel` that raises, against an order and an outbox row, both saved in one block."""
    _set_up()
    from django.db import connections, models, transaction

    from pillarbox.integrations.django.models import AggregateModel

    class Columns(models.Model):
        id = models.UUIDField(primary_key=True)
        customer = models.TextField()
        total = models.DecimalField(max_digits=12, decimal_places=2)

        class Meta:
            abstract = True

    class RaisingOrder(Columns, AggregateModel):
        class Meta:
            app_label = "bench"
            db_table = f'"{SCHEMA}"."orders"'

    class PlainOrder(Columns):
        class Meta:
            app_label = "bench"
            db_table = f'"{SCHEMA}"."orders"'

    class Row(models.Model):
        """The columns that have no usable default."""

        id = models.BigAutoField(primary_key=True)
        message_id = models.UUIDField()
        destination = models.TextField()
        partition = models.SmallIntegerField()
        kind = models.TextField()
        type = models.TextField()
        topic = models.TextField()
        key = models.TextField()
        payload = models.BinaryField()
        content_type = models.TextField()
        source = models.TextField()
        correlation_id = models.TextField()
        event_time = models.DateTimeField()

        class Meta:
            app_label = "bench"
            db_table = f'"{SCHEMA}"."pillarbox_outbox"'

    def ours(ids: list[UUID]) -> None:
        for order_id in ids:
            with transaction.atomic():
                order = RaisingOrder(id=order_id, customer=CUSTOMER, total=Decimal(TOTAL))
                order.raise_event(build_event(order_id))
                order.save(force_insert=True)

    def bare(ids: list[UUID]) -> None:
        for order_id in ids:
            with transaction.atomic():
                PlainOrder(id=order_id, customer=CUSTOMER, total=Decimal(TOTAL)).save(force_insert=True)
                Row(**_SAME, **build_row(build_event(order_id))._asdict()).save(force_insert=True)

    # A thread of its own, as in a web server: Django's connections belong to threads, and refuse to be used in a loop.
    with ThreadPoolExecutor(1) as thread:

        def in_thread(work: Callable[..., Any]) -> Any:
            return lambda *given: asyncio.get_running_loop().run_in_executor(thread, work, *given)

        async with open_shop() as shop:
            await compare_loops(
                "write.django", ours=in_thread(ours), bare=in_thread(bare), shop=shop, target=0.85, driver="psycopg"
            )
            await in_thread(connections.close_all)()


def _set_up() -> None:
    import django
    from django.conf import settings

    where = urlsplit(URL)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": where.path.strip("/"),
        "USER": where.username or "",
        "PASSWORD": unquote(where.password or ""),
        "HOST": where.hostname or "",
        "PORT": where.port or "",
    }
    if not settings.configured:
        settings.configure(
            INSTALLED_APPS=["pillarbox.integrations.django"],
            DATABASES={"default": database},
            PILLARBOX={"source": "/shop", "routes": "default", "schema": SCHEMA},
            USE_TZ=True,
        )
        django.setup()
