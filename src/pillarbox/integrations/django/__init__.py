"""Django: `"pillarbox.integrations.django"` in INSTALLED_APPS, and PILLARBOX in the settings."""

from __future__ import annotations

from pillarbox.integrations.django.consuming import transactions
from pillarbox.integrations.django.publishing import in_atomic, outbox, publish, send

__all__ = ["in_atomic", "outbox", "publish", "send", "transactions"]
