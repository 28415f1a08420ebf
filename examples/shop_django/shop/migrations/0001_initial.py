"""Orders and parcels."""

from __future__ import annotations

from django.db import migrations, models

from pillarbox import Aggregate


class Migration(migrations.Migration):
    initial = True
    dependencies: list[tuple[str, str]] = []  # noqa: RUF012 - as Django writes it
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("article", models.TextField()),
                ("status", models.TextField(default="new")),
            ],
            options={"abstract": False},
            bases=(Aggregate, models.Model),
        ),
        migrations.CreateModel(
            name="Parcel",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("order_id", models.BigIntegerField()),
                ("article", models.TextField()),
                ("status", models.TextField(default="packed")),
            ],
        ),
    ]
