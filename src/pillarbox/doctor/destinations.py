"""Looking at one destination: reached as a relay reaches it, its settings read, left again. Sends nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from pillarbox.doctor.bounds import Bounds, Unanswered
from pillarbox.doctor.destination_findings import cannot_be_made, not_inspected, silent, unreachable
from pillarbox.errors import ConfigError
from pillarbox.protocols import Finding, Inspector, Transport

__all__ = ["examine_destination"]


async def examine_destination(
    make: Callable[[], Transport], *, topics: Callable[[], Awaitable[Sequence[str]]], bounds: Bounds
) -> Sequence[Finding]:
    """What was found. Whatever goes wrong, also in a transport that is not ours, is a finding too."""
    try:
        transport = make()
    except ConfigError as error:
        return [cannot_be_made(error)]
    try:
        await bounds.run(_reach(transport))
        return await _inspected(transport, await topics(), bounds)
    except Unanswered:
        return [silent(bounds.within.total_seconds())]
    except Exception as error:
        return [unreachable(error)]
    finally:
        with suppress(Exception):
            await bounds.run(_close(transport))


async def _reach(transport: Transport) -> None:
    await transport.open()
    await transport.ping()


async def _inspected(transport: Transport, topics: Sequence[str], bounds: Bounds) -> Sequence[Finding]:
    if not isinstance(transport, Inspector):
        return []
    inspector: Any = transport
    try:
        found: Sequence[Finding] = await bounds.run(inspector.inspect(topics=topics))
    except Exception as error:
        return [not_inspected(error)]
    return found


async def _close(transport: Transport) -> None:
    await transport.close()
