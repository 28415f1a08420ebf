"""Handling what a broker delivers, once in effect."""

from __future__ import annotations

from pillarbox.consumer.consumer import Consumer
from pillarbox.consumer.settings import ConsumerSettings

__all__ = ["Consumer", "ConsumerSettings"]
