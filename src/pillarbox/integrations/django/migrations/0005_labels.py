"""The fourth version of the tables."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from pillarbox.integrations.django.operations import ChangeTables


class Migration(migrations.Migration):
    dependencies: ClassVar = [("pillarbox", "0004_delivery")]
    operations: ClassVar = [ChangeTables(since=3, to=4)]
