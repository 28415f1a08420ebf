"""The ninth version of the tables."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from pillarbox.integrations.django.operations import ChangeTables


class Migration(migrations.Migration):
    dependencies: ClassVar = [("pillarbox", "0009_partitions")]
    operations: ClassVar = [ChangeTables(since=8, to=9)]
