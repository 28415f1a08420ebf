"""`--http`: the probes and metrics of a relay that runs in this program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pillarbox.cli.logs import program_log
from pillarbox.errors import MissingExtra
from pillarbox.health.app import HealthApp
from pillarbox.health.probes import Probes
from pillarbox.health.serving import HealthServer, address_of
from pillarbox.protocols import Store
from pillarbox.relay.relay import Relay
from pillarbox.telemetry import Telemetry

__all__ = ["listeners_for", "serving"]


def listeners_for(http: str | None) -> list[Telemetry]:
    """Who listens beside the log: metrics where they are served, spans where an SDK records them."""
    return [*_metrics(http), *_spans()]


def _spans() -> list[Telemetry]:
    try:
        from pillarbox.telemetry.opentelemetry import OpenTelemetry, is_recording
    except MissingExtra:
        return []
    return [OpenTelemetry()] if is_recording() else []


def _metrics(http: str | None) -> list[Telemetry]:
    """Nobody counts where it is not served, or the client library is missing."""
    if http is None:
        return []
    address_of(http)
    try:
        from pillarbox.telemetry.prometheus import PrometheusTelemetry
    except MissingExtra:
        return []
    return [PrometheusTelemetry()]


@contextmanager
def serving(
    http: str | None, relay: Relay, open_own_store: Callable[[], Store], listeners: Sequence[Telemetry]
) -> Iterator[None]:
    """Serve while the block runs; nothing without an address."""
    if http is None:
        yield
        return
    host, port = address_of(http)
    collectors = [one for one in listeners if hasattr(one, "collect")]
    server = HealthServer(
        lambda: HealthApp(Probes(open_own_store(), lambda: relay.pulse), collectors=collectors), host=host, port=port
    )
    server.start()
    program_log.info("probes and metrics are served at http://%s:%d", host, server.port)
    try:
        yield
    finally:
        server.stop()
