"""Django: `"pillarbox.integrations.django"` in INSTALLED_APPS, and PILLARBOX in the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.integrations.django.outbox import in_atomic, outbox, publish, send, transactions
from pillarbox.lazy import lazy_names

if TYPE_CHECKING:
    from pillarbox.integrations.django.models import AggregateModel
    from pillarbox.integrations.django.testing import DjangoKit
else:
    # Models exist only after Django has loaded its settings, and tests need pytest.
    __getattr__ = lazy_names(
        __name__,
        {
            "AggregateModel": "pillarbox.integrations.django.models",
            "DjangoKit": "pillarbox.integrations.django.testing",
        },
    )

__all__ = [
    "AggregateModel",
    "DjangoKit",
    "in_atomic",
    "outbox",
    "publish",
    "send",
    "transactions",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
