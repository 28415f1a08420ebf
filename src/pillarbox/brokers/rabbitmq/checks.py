"""Settings of the broker that could lose messages, each found with why it matters and what to do."""

from __future__ import annotations

import asyncio
import base64
import http.client
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol, TypeVar
from urllib.parse import quote
from uuid import UUID

import msgspec

from pillarbox.brokers.checks import report_critical, report_info, report_warning, sort_findings
from pillarbox.brokers.rabbitmq.encoding import MessageEncoder
from pillarbox.brokers.rabbitmq.settings import NAME
from pillarbox.brokers.settings import Login, parse_endpoint
from pillarbox.contracts.finding import Finding
from pillarbox.errors import ConfigError, MessageRejected
from pillarbox.message import Kind, Message
from pillarbox.redaction import redact_line

__all__ = [
    "Binding",
    "Exchange",
    "Inspection",
    "Management",
    "Node",
    "Queue",
    "check_exchange",
    "check_nodes",
    "check_queue",
    "match_bindings",
]

_MAX_QUEUES: Final = 100
_SET_MANAGEMENT: Final = "Set the option management to the management API's address, such as http://host:15672."


class _Route(msgspec.Struct, frozen=True):
    """The address that a topic's messages go to."""

    topic: str
    exchange: str
    routing_key: str | None
    """None when more than the topic decides."""


class Broker(Protocol):
    """What can be asked over AMQP."""

    async def has_exchange(self, name: str) -> bool: ...

    async def has_queue(self, name: str) -> bool: ...


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Follows the messages of some topics through the broker, to the queues that get them."""

    broker: Broker
    encoder: MessageEncoder
    management: Management | None

    async def run(self, topics: Sequence[str]) -> Sequence[Finding]:
        """Return all findings, worst first."""
        routes = [route for topic in topics if (route := self._find_route(topic)) is not None]
        found = [finding async for finding in self._check_existence(routes)]
        if self.management is None:
            what = "Over AMQP only the existence of an exchange or a queue can be seen, not how it is set."
            found.append(_report_not_inspected(what, fix=_SET_MANAGEMENT))
        else:
            found += [finding async for finding in self._check_settings(self.management, routes)]
        return sort_findings(found)

    def _find_route(self, topic: str) -> _Route | None:
        stand_in = _build_stand_in(topic)
        try:
            exchange = self.encoder.exchange(stand_in)
        except MessageRejected:
            return None
        try:
            return _Route(topic, exchange, self.encoder.routing_key(stand_in))
        except MessageRejected:
            return _Route(topic, exchange, None)

    async def _check_existence(self, routes: Sequence[_Route]) -> AsyncIterator[Finding]:
        for exchange in {route.exchange for route in routes if route.exchange}:
            if not await self.broker.has_exchange(exchange):
                yield _report_missing_exchange(exchange)
        for queue in {route.routing_key for route in routes if not route.exchange and route.routing_key}:
            if not await self.broker.has_queue(queue):
                yield _report_missing_queue(queue)

    async def _check_settings(self, management: Management, routes: Sequence[_Route]) -> AsyncIterator[Finding]:
        queues = {route.routing_key for route in routes if not route.exchange and route.routing_key}
        try:
            for exchange in {route.exchange for route in routes if route.exchange}:
                walk = _ExchangeWalk(management, exchange, [route for route in routes if route.exchange == exchange])
                for finding in await walk.check():
                    yield finding
                queues |= walk.queues
            for name in sorted(queues)[:_MAX_QUEUES]:
                for finding in check_queue(await management.read_queue(name)):
                    yield finding
            for finding in check_nodes(await management.read_nodes()):
                yield finding
        except NotVisible as reason:
            yield _report_not_inspected(f"Not all of the settings could be seen: {reason}.", fix=_SET_MANAGEMENT)
        if len(queues) > _MAX_QUEUES:
            what = f"Only {_MAX_QUEUES} of {len(queues)} queues were looked at."
            yield _report_not_inspected(what, fix="Look at the others with rabbitmqctl list_queues.")


class _ExchangeWalk:
    """Collects the queues behind one exchange, also those behind other exchanges that it is bound to."""

    def __init__(self, management: Management, exchange: str, routes: Sequence[_Route]) -> None:
        self._management = management
        self._exchange = exchange
        self._routes = routes
        self.queues: set[str] = set()

    async def check(self) -> Sequence[Finding]:
        exchange = await self._management.read_exchange(self._exchange)
        bindings = await self._management.read_bindings(self._exchange)
        found = [*check_exchange(exchange)]
        for route in self._routes:
            followed = self._select_bindings(bindings, route, kind=exchange.type)
            if not followed and route.routing_key is not None and exchange.alternate is None:
                found.append(_report_unroutable(route.topic, self._exchange, route.routing_key))
            await self._follow(followed, {self._exchange})
        return found

    def _select_bindings(self, bindings: Sequence[Binding], route: _Route, *, kind: str) -> Sequence[Binding]:
        followed = None if route.routing_key is None else match_bindings(bindings, route.routing_key, kind=kind)
        return bindings if followed is None else followed

    async def _follow(self, bindings: Sequence[Binding], seen: set[str]) -> None:
        # Behind another exchange every queue counts: better one too many than one too few.
        for binding in bindings:
            if binding.destination_type == "queue":
                self.queues.add(binding.destination)
            elif binding.destination not in seen:
                await self._follow(
                    await self._management.read_bindings(binding.destination), {*seen, binding.destination}
                )


def _build_stand_in(topic: str) -> Message:
    """Build a message that has only its topic: whatever else an address needs cannot be known here."""
    return Message(
        id=0, message_id=UUID(int=0), destination="", partition=0, kind=Kind.EVENT, type="", topic=topic, key=None,
        payload=b"", content_type="", headers={}, source="", subject=None, correlation_id="", causation_id=None,
        event_time=datetime(1970, 1, 1, tzinfo=UTC),
    )  # fmt: skip


# --- findings ------------------------------------------------------------------------------------


def _report_missing_exchange(name: str) -> Finding:
    return report_critical(
        "rabbitmq.exchange-missing",
        what=f"There is no exchange {_quote(name)}.",
        why="Publishing to it is an outage: messages wait until it is there.",
        fix="Declare it, or set declare=true on the destination.",
    )


def _report_missing_queue(name: str) -> Finding:
    return report_critical(
        "rabbitmq.queue-missing",
        what=f"There is no queue {_quote(name)}.",
        why="The default exchange has nowhere to put these messages: they come back, and fail.",
        fix="Declare the queue, durable, or correct the destination's routing_key.",
    )


def _report_unroutable(topic: str, exchange: str, routing_key: str) -> Finding:
    return report_critical(
        "rabbitmq.unroutable",
        what=f"No queue is bound to the exchange {_quote(exchange)} for the routing key {_quote(routing_key)} "
        f"of the topic {_quote(topic)}.",
        why="Its messages come back, and wait in the outbox; with missing_topology=reject they fail.",
        fix="Bind a durable queue, or correct the destination's routing_key.",
    )


def _report_not_inspected(what: str, *, fix: str) -> Finding:
    return report_info(
        "rabbitmq.not-inspected",
        what=what,
        why="A queue that is not durable, drops its oldest messages when full, or lets them expire would not be "
        "noticed.",
        fix=fix,
    )


def check_exchange(exchange: Exchange) -> Iterator[Finding]:
    """Yield findings about what an exchange can do to messages."""
    name = _quote(exchange.name)
    if not exchange.durable:
        yield report_warning(
            "rabbitmq.exchange-not-durable",
            what=f"The exchange {name} is not durable.",
            why="It is gone after a restart of the broker, with all its bindings: messages wait, or come back and "
            "fail.",
            fix="Delete it and declare it durable.",
        )
    if exchange.auto_delete:
        yield report_warning(
            "rabbitmq.exchange-auto-delete",
            what=f"The exchange {name} deletes itself with its last binding.",
            why="Messages wait until somebody declares it again.",
            fix="Delete it and declare it without auto-delete.",
        )
    if exchange.alternate is not None:
        yield report_warning(
            "rabbitmq.alternate-exchange",
            what=f"The exchange {name} has an alternate exchange, {_quote(exchange.alternate)}.",
            why="What no queue is bound for goes there and counts as delivered, instead of coming back.",
            fix="Make sure that a durable queue behind it is read, or remove the argument alternate-exchange.",
        )


def check_queue(queue: Queue) -> Iterator[Finding]:
    """Yield findings about what a queue can do to messages that it was given."""
    yield from _check_durability(queue)
    yield from _check_limits(queue)
    if queue.type == "quorum":
        yield from _check_dead_letters(queue)


def _check_durability(queue: Queue) -> Iterator[Finding]:
    name = _quote(queue.name)
    if not queue.durable or queue.exclusive:
        yield report_warning(
            "rabbitmq.queue-not-durable",
            what=f"The queue {name} is {'exclusive' if queue.exclusive else 'not durable'}.",
            why="It is gone with all its messages after a restart, though they were confirmed.",
            fix="Declare it durable, better as a quorum queue (x-queue-type: quorum).",
        )
    if queue.auto_delete or queue.find_argument("expires") is not None:
        yield report_warning(
            "rabbitmq.queue-deletes-itself",
            what=f"The queue {name} deletes itself when nobody uses it.",
            why="A consumer that is away for a while loses what it had not read.",
            fix="Declare it without auto-delete and x-expires.",
        )
    if queue.type == "classic" and queue.durable:
        yield report_info(
            "rabbitmq.queue-on-one-node",
            what=f"The queue {name} is a classic queue.",
            why="It is on one node: confirmed messages are lost with that node's disk, and out of reach while it is "
            "down.",
            fix="On a cluster, use a quorum queue (x-queue-type: quorum).",
        )


def _check_limits(queue: Queue) -> Iterator[Finding]:
    name = _quote(queue.name)
    is_limited = any(queue.find_argument(limit) is not None for limit in ("max-length", "max-length-bytes"))
    if is_limited and queue.find_argument("overflow") not in ("reject-publish", "reject-publish-dlx"):
        what = "keeps so many messages and no more" if queue.type == "stream" else "drops its oldest messages when full"
        yield report_warning(
            "rabbitmq.queue-drops",
            what=f"The queue {name} {what}.",
            why="New messages are confirmed, and others are lost for them.",
            fix="Set x-overflow to reject-publish: then messages wait in the outbox instead.",
        )
    if queue.find_argument("message-ttl") is not None:
        yield report_warning(
            "rabbitmq.queue-expires-messages",
            what=f"Messages in the queue {name} expire.",
            why="What is not read in time is dropped or dead-lettered, though it was confirmed.",
            fix="Remove x-message-ttl, or make sure that the dead letters are read.",
        )


def _check_dead_letters(queue: Queue) -> Iterator[Finding]:
    name = _quote(queue.name)
    if queue.find_argument("dead-letter-exchange") is None:
        yield report_warning(
            "rabbitmq.queue-delivery-limit",
            what=f"The quorum queue {name} has no dead-letter exchange.",
            why="A message that is returned more often than the delivery limit (from RabbitMQ 4.0 on: 20) is dropped.",
            fix="Set x-dead-letter-exchange, or x-delivery-limit to -1.",
        )
    elif queue.find_argument("dead-letter-strategy") != "at-least-once":
        yield report_warning(
            "rabbitmq.dead-letter-at-most-once",
            what=f"The quorum queue {name} dead-letters at most once.",
            why="A dead letter that cannot be put where it should go is lost.",
            fix="Set x-dead-letter-strategy to at-least-once, and x-overflow to reject-publish, which it needs.",
        )


def check_nodes(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Yield findings about the nodes with an alarm."""
    for node in nodes:
        if node.mem_alarm or node.disk_free_alarm:
            yield report_critical(
                "rabbitmq.alarm",
                what=f"The node {_quote(node.name)} is short of {'memory' if node.mem_alarm else 'disk'}.",
                why="The whole cluster takes no messages until that is over: they wait in the outbox.",
                fix="Give it memory or disk, or drain its queues.",
            )


def match_bindings(bindings: Sequence[Binding], routing_key: str, *, kind: str) -> Sequence[Binding] | None:
    """Return the bindings that match a routing key; None when only the broker can tell."""
    if kind == "fanout":
        return bindings
    if kind == "direct":
        return [binding for binding in bindings if binding.routing_key == routing_key]
    if kind == "topic":
        return [binding for binding in bindings if _compile_pattern(binding.routing_key).fullmatch(f".{routing_key}")]
    return None


def _compile_pattern(binding: str) -> re.Pattern[str]:
    """Compile a topic binding: `*` is one word, `#` any number of them; each word has its dot before it."""
    words = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return re.compile("".join(words.get(word, rf"\.{re.escape(word)}") for word in binding.split(".")), re.DOTALL)


def _quote(name: str) -> str:
    return repr(redact_line(name))


# --- the management API --------------------------------------------------------------------------

_MAX_ANSWER: Final = 16 * 1024 * 1024
T = TypeVar("T")


class NotVisible(Exception):
    """The API does not show it. The text is the reason."""


class Exchange(msgspec.Struct, frozen=True):
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    arguments: Mapping[str, object] = {}
    policy: str | None = None
    by_policy: Mapping[str, object] = {}
    """The settings of that policy."""

    @property
    def alternate(self) -> str | None:
        """The exchange that gets what no queue here is bound for."""
        name = self.arguments.get("alternate-exchange", self.by_policy.get("alternate-exchange"))
        return None if name is None else str(name)


class Policy(msgspec.Struct, frozen=True):
    definition: Mapping[str, object] = {}


class Binding(msgspec.Struct, frozen=True):
    destination: str
    destination_type: str
    routing_key: str = ""


class Queue(msgspec.Struct, frozen=True):
    name: str
    type: str = "classic"
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, object] = {}
    effective_policy_definition: object = None
    """A table; where there is none, some versions say so with an empty list."""

    def find_argument(self, name: str) -> object:
        """Return what the queue's own arguments set, or else a policy."""
        policy = self.effective_policy_definition
        by_policy = policy.get(name) if isinstance(policy, Mapping) else None
        return self.arguments.get(f"x-{name}", by_policy)


class Node(msgspec.Struct, frozen=True):
    name: str
    mem_alarm: bool = False
    disk_free_alarm: bool = False


class Management(msgspec.Struct, frozen=True, kw_only=True):
    """The management API of one virtual host. Every request runs in a thread, for at most `timeout` seconds."""

    host: str
    port: int
    login: Login
    vhost: str
    timeout: float
    tls: ssl.SSLContext | None = None

    @classmethod
    def from_url(cls, url: str, *, login: Login, vhost: str, timeout: float, tls: ssl.SSLContext) -> Management:
        """Build the client for an address, whose login goes before ours; raise `ConfigError` for a wrong address."""
        scheme = url.partition(":")[0].lower()
        if scheme not in ("http", "https"):
            raise ConfigError("The option management of the rabbitmq transport begins with http:// or https://.")
        endpoint = parse_endpoint(url, port=15672 if scheme == "http" else 15671, transport=NAME)
        if endpoint.password is not None:
            login = Login(endpoint.user, endpoint.password.read(option="management"))
        host, port = endpoint.hosts[0]
        return cls(
            host=host, port=port, login=login, vhost=vhost, timeout=timeout, tls=tls if scheme == "https" else None
        )

    async def read_exchange(self, name: str) -> Exchange:
        exchange = await self._get(f"exchanges/{self._build_path(name)}", Exchange)
        if not exchange.policy:
            return exchange
        policy = await self._get(f"policies/{self._build_path(exchange.policy)}", Policy)
        return msgspec.structs.replace(exchange, by_policy=policy.definition)

    async def read_bindings(self, exchange: str) -> Sequence[Binding]:
        return await self._get(f"exchanges/{self._build_path(exchange)}/bindings/source", list[Binding])

    async def read_queue(self, name: str) -> Queue:
        return await self._get(f"queues/{self._build_path(name)}", Queue)

    async def read_nodes(self) -> Sequence[Node]:
        return await self._get("nodes", list[Node])

    def _build_path(self, name: str) -> str:
        return f"{quote(self.vhost, safe='')}/{quote(name, safe='')}"

    async def _get(self, path: str, kind: type[T]) -> T:
        """Request and decode; raise `NotVisible` when there is no answer, or one that cannot be read."""
        try:
            status, body = await asyncio.to_thread(self._fetch, f"/api/{path}")
            if status == 200:
                return msgspec.json.decode(body, type=kind)
        except (OSError, http.client.HTTPException, msgspec.MsgspecError, RecursionError) as error:
            raise NotVisible(f"the management API cannot be asked ({type(error).__name__})") from error
        if status in (401, 403):
            raise NotVisible(
                "the management API does not let this user look: give it the tags monitoring and policymaker"
            )
        raise NotVisible(f"the management API answered {status}")

    def _fetch(self, path: str) -> tuple[int, bytes]:
        """Return status and body. Follows no redirect: that could lead the login anywhere."""
        connection = self._connect()
        try:
            secret = base64.b64encode(f"{self.login.user}:{self.login.password}".encode()).decode()
            connection.request("GET", path, headers={"authorization": f"Basic {secret}"})
            answer = connection.getresponse()
            return answer.status, answer.read(_MAX_ANSWER)
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        return http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout, context=self.tls)
