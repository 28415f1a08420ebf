"""RabbitMQ's management API, read only: what AMQP itself does not show."""

from __future__ import annotations

import asyncio
import base64
import http.client
import ssl
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.transports.endpoints import Login, endpoint_of
from pillarbox.transports.rabbitmq.settings import NAME

__all__ = ["Binding", "Exchange", "Management", "Node", "NotSeen", "Queue", "management_at"]

_LONGEST: Final = 16 * 1024 * 1024
T = TypeVar("T")


class NotSeen(Exception):
    """The API does not show it. The text says why."""


class Exchange(msgspec.Struct, frozen=True):
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    arguments: Mapping[str, object] = {}
    policy: str | None = None
    by_policy: Mapping[str, object] = {}
    """What that policy sets."""

    @property
    def alternate(self) -> str | None:
        """The exchange that takes what no queue here is bound for."""
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

    def argument(self, name: str) -> object:
        """What is set by the queue's own arguments, or by a policy."""
        policy = self.effective_policy_definition
        by_policy = policy.get(name) if isinstance(policy, Mapping) else None
        return self.arguments.get(f"x-{name}", by_policy)


class Node(msgspec.Struct, frozen=True):
    name: str
    mem_alarm: bool = False
    disk_free_alarm: bool = False


class Management(msgspec.Struct, frozen=True, kw_only=True):
    """The API of one virtual host. Every question is a thread's, for as long as `timeout` seconds."""

    host: str
    port: int
    login: Login
    vhost: str
    timeout: float
    tls: ssl.SSLContext | None = None

    async def exchange(self, name: str) -> Exchange:
        exchange = await self._get(f"exchanges/{self._place(name)}", Exchange)
        if not exchange.policy:
            return exchange
        policy = await self._get(f"policies/{self._place(exchange.policy)}", Policy)
        return msgspec.structs.replace(exchange, by_policy=policy.definition)

    async def bindings(self, exchange: str) -> Sequence[Binding]:
        return await self._get(f"exchanges/{self._place(exchange)}/bindings/source", list[Binding])

    async def queue(self, name: str) -> Queue:
        return await self._get(f"queues/{self._place(name)}", Queue)

    async def nodes(self) -> Sequence[Node]:
        return await self._get("nodes", list[Node])

    def _place(self, name: str) -> str:
        return f"{quote(self.vhost, safe='')}/{quote(name, safe='')}"

    async def _get(self, path: str, kind: type[T]) -> T:
        """`NotSeen` when there is no answer, or none that says what was asked."""
        try:
            status, body = await asyncio.to_thread(self._asked, f"/api/{path}")
            if status == 200:
                return msgspec.json.decode(body, type=kind)
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            raise NotSeen(f"the management API cannot be asked ({type(error).__name__})") from error
        if status in (401, 403):
            raise NotSeen("the management API does not let this user look: give it the tags monitoring and policymaker")
        raise NotSeen(f"the management API answered {status}")

    def _asked(self, path: str) -> tuple[int, bytes]:
        """Follows no redirect."""
        line = self._line()
        try:
            secret = base64.b64encode(f"{self.login.user}:{self.login.password}".encode()).decode()
            line.request("GET", path, headers={"authorization": f"Basic {secret}"})
            answer = line.getresponse()
            return answer.status, answer.read(_LONGEST)
        finally:
            line.close()

    def _line(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        return http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout, context=self.tls)


def management_at(url: str, *, login: Login, vhost: str, timeout: float, tls: ssl.SSLContext) -> Management:
    """The API at this address; a login in the address goes before ours. `ConfigError` for what is no address."""
    scheme = url.partition(":")[0].lower()
    if scheme not in ("http", "https"):
        raise ConfigError("The option management of the rabbitmq transport begins with http:// or https://.")
    endpoint = endpoint_of(url, port=15672 if scheme == "http" else 15671, transport=NAME)
    if endpoint.password is not None:
        login = Login(endpoint.user, endpoint.password.read(option="management"))
    host, port = endpoint.hosts[0]
    return Management(
        host=host, port=port, login=login, vhost=vhost, timeout=timeout, tls=tls if scheme == "https" else None
    )
