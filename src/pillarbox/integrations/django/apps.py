"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["PillarboxConfig"]


class PillarboxConfig(AppConfig):
    """App with the tables' migrations, system checks, admin pages and `manage.py pillarbox`."""

    name = "pillarbox.integrations.django"
    label = "pillarbox"
    verbose_name = "Pillarbox"

    def ready(self) -> None:
        from pillarbox.integrations.django import checks  # noqa: F401 - importing registers them
