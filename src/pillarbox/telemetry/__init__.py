"""What the relay tells, and who listens: log lines, metrics, spans. Nothing is computed when nobody listens."""

from __future__ import annotations

from pillarbox.telemetry.logs import LoggingTelemetry
from pillarbox.telemetry.seam import SeveralTelemetries, Telemetry

__all__ = ["LoggingTelemetry", "SeveralTelemetries", "Telemetry"]
