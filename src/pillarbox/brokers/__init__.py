"""Transports and receivers, one module or folder for each broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.lazy import lazy_names

if TYPE_CHECKING:
    from pillarbox.brokers.factory import receiver_from_url, transport_from_url
else:
    # A broker's own module is imported without the factory.
    __getattr__ = lazy_names(
        __name__,
        {"receiver_from_url": "pillarbox.brokers.factory", "transport_from_url": "pillarbox.brokers.factory"},
    )

__all__ = ["receiver_from_url", "transport_from_url"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
