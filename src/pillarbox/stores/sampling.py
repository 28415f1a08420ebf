"""How long a delivery took, from what a store has of it."""

from __future__ import annotations

from datetime import datetime, timedelta

from pillarbox.protocols import Sample

__all__ = ["sample_of"]


def sample_of(destination: str, topic: str, latency: float, end_to_end: float, at: datetime) -> Sample:
    """From seconds. Clocks are set back now and then: no latency is below 0."""
    return Sample(
        destination=destination,
        topic=topic,
        latency=timedelta(seconds=max(latency, 0.0)),
        end_to_end=timedelta(seconds=end_to_end),
        at=at,
    )
