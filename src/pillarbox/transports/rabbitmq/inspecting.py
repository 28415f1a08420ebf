"""Looks at the broker's side: over AMQP what exists, over the management API how it is set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.errors import MessageRejected
from pillarbox.message import Kind, Message
from pillarbox.protocols import Finding, Severity
from pillarbox.transports.rabbitmq import findings
from pillarbox.transports.rabbitmq.connecting import Broker
from pillarbox.transports.rabbitmq.management import Binding, Management, NotSeen
from pillarbox.transports.rabbitmq.parcels import Parcels

__all__ = ["Inspection"]

_MOST_QUEUES: Final = 100
_WITHOUT_API: Final = "Set the option management to the management API's address, such as http://host:15672."


class _Route(msgspec.Struct, frozen=True):
    """Where a topic's messages go."""

    topic: str
    exchange: str
    routing_key: str | None
    """None when it is made of more than the topic."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be found out about the way of some topics."""

    broker: Broker
    parcels: Parcels
    management: Management | None

    async def findings(self, topics: Sequence[str]) -> Sequence[Finding]:
        """Worst first."""
        routes = [route for topic in topics if (route := self._route(topic)) is not None]
        found = [finding async for finding in self._existence(routes)]
        if self.management is None:
            what = "Over AMQP only the existence of an exchange or a queue can be seen, not how it is set."
            found.append(findings.not_seen(what, fix=_WITHOUT_API))
        else:
            found += [finding async for finding in self._settings(self.management, routes)]
        worst = list(Severity)
        return sorted(found, key=lambda finding: worst.index(finding.severity), reverse=True)

    def _route(self, topic: str) -> _Route | None:
        stand_in = _stand_in(topic)
        try:
            exchange = self.parcels.exchange(stand_in)
        except MessageRejected:
            return None
        try:
            return _Route(topic, exchange, self.parcels.routing_key(stand_in))
        except MessageRejected:
            return _Route(topic, exchange, None)

    async def _existence(self, routes: Sequence[_Route]) -> AsyncIterator[Finding]:
        for exchange in {route.exchange for route in routes if route.exchange}:
            if not await self.broker.has_exchange(exchange):
                yield findings.exchange_missing(exchange)
        for queue in {route.routing_key for route in routes if not route.exchange and route.routing_key}:
            if not await self.broker.has_queue(queue):
                yield findings.queue_missing(queue)

    async def _settings(self, management: Management, routes: Sequence[_Route]) -> AsyncIterator[Finding]:
        queues = {route.routing_key for route in routes if not route.exchange and route.routing_key}
        try:
            for exchange in {route.exchange for route in routes if route.exchange}:
                way = _Way(management, exchange, [route for route in routes if route.exchange == exchange])
                for finding in await way.findings():
                    yield finding
                queues |= way.queues
            for name in sorted(queues)[:_MOST_QUEUES]:
                for finding in findings.of_queue(await management.queue(name)):
                    yield finding
            for finding in findings.of_nodes(await management.nodes()):
                yield finding
        except NotSeen as reason:
            yield findings.not_seen(f"Not all of the settings could be seen: {reason}.", fix=_WITHOUT_API)
        if len(queues) > _MOST_QUEUES:
            what = f"Only {_MOST_QUEUES} of {len(queues)} queues were looked at."
            yield findings.not_seen(what, fix="Look at the others with rabbitmqctl list_queues.")


class _Way:
    """From one exchange to the queues behind it, also by way of other exchanges."""

    def __init__(self, management: Management, exchange: str, routes: Sequence[_Route]) -> None:
        self._management = management
        self._exchange = exchange
        self._routes = routes
        self.queues: set[str] = set()

    async def findings(self) -> Sequence[Finding]:
        exchange = await self._management.exchange(self._exchange)
        bindings = await self._management.bindings(self._exchange)
        found = [*findings.of_exchange(exchange)]
        for route in self._routes:
            followed = self._followed(bindings, route, kind=exchange.type)
            if not followed and route.routing_key is not None and exchange.alternate is None:
                found.append(findings.unroutable(route.topic, self._exchange, route.routing_key))
            await self._follow(followed, {self._exchange})
        return found

    def _followed(self, bindings: Sequence[Binding], route: _Route, *, kind: str) -> Sequence[Binding]:
        followed = None if route.routing_key is None else findings.leads_to(bindings, route.routing_key, kind=kind)
        return bindings if followed is None else followed

    async def _follow(self, bindings: Sequence[Binding], seen: set[str]) -> None:
        """Behind another exchange every queue counts: better one too many than one too few."""
        for binding in bindings:
            if binding.destination_type == "queue":
                self.queues.add(binding.destination)
            elif binding.destination not in seen:
                await self._follow(await self._management.bindings(binding.destination), {*seen, binding.destination})


def _stand_in(topic: str) -> Message:
    """A message that has only its topic: what an address needs beyond it cannot be known."""
    return Message(
        id=0, message_id=UUID(int=0), destination="", partition=0, kind=Kind.EVENT, type="", topic=topic, key=None,
        payload=b"", content_type="", headers={}, source="", subject=None, correlation_id="", causation_id=None,
        event_time=datetime(1970, 1, 1, tzinfo=UTC),
    )  # fmt: skip
