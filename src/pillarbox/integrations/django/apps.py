"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["PillarboxConfig"]


class PillarboxConfig(AppConfig):
    """Tables by migrations, checks, and `manage.py pillarbox`."""

    name = "pillarbox.integrations.django"
    label = "pillarbox"
    verbose_name = "Pillarbox"

    def ready(self) -> None:
        from pillarbox.integrations.django import checks  # noqa: F401 - they register themselves
