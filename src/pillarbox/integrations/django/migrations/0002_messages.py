"""Models that show messages, so that Django creates their permissions. The tables do not change."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from pillarbox.integrations.django import conf

_ID = ("id", models.BigIntegerField(primary_key=True, serialize=False))


class Migration(migrations.Migration):
    dependencies: ClassVar = [("pillarbox", "0001_initial")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="Message",
            fields=[_ID],
            options={
                "managed": False,
                "db_table": conf.get_table("messages"),
                "default_permissions": ("view",),
                "permissions": [
                    ("change_message", "Can redrive and discard messages"),
                    ("view_payload", "Can see the payload of messages"),
                ],
            },
        ),
        migrations.CreateModel(
            name="JournalLine",
            fields=[_ID],
            options={"managed": False, "db_table": conf.get_table("journal"), "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="Failure",
            fields=[],
            options={"proxy": True, "indexes": [], "constraints": [], "default_permissions": ()},
            bases=("pillarbox.message",),
        ),
    ]
