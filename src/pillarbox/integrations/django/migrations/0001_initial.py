"""The first version of the tables."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from pillarbox.integrations.django.operations import ChangeTables


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [ChangeTables(since=0, to=1)]
