"""The seventh version of the tables."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from pillarbox.integrations.django.operations import ChangeTables


class Migration(migrations.Migration):
    dependencies: ClassVar = [("pillarbox", "0007_history")]
    operations: ClassVar = [ChangeTables(since=6, to=7)]
