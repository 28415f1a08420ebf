"""Finds the way to the broker: the first server that takes us."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from pillarbox.errors import TransportUnavailable
from pillarbox.receivers.rabbitmq.reasons import TROUBLES, unreachable
from pillarbox.receivers.rabbitmq.settings import NAME, RabbitmqReceiverSettings
from pillarbox.transports.endpoints import Login, endpoint_of
from pillarbox.transports.tls import tls_context

if TYPE_CHECKING:
    from aiormq.connection import Connection

__all__ = ["Server"]

_HEARTBEAT: Final = 20
"""Seconds, if the broker agrees. The client gives a silent broker up after three times as long."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where to connect, and as whom. Secrets are read when it is made."""

    where: str
    hosts: tuple[tuple[str, int], ...]
    vhost: str
    login: Login
    auth: str
    seconds: float
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, settings: RabbitmqReceiverSettings, *, environ: Mapping[str, str]) -> Server:
        """`ConfigError` for a secret or a certificate that cannot be read."""
        where = f"RabbitMQ at {settings.shown}"
        endpoint = endpoint_of(settings.url, port=5671 if settings.is_encrypted else 5672, transport=NAME)
        return cls(
            where=where,
            hosts=endpoint.hosts,
            vhost=endpoint.path or "/",
            login=settings.login(endpoint, environ=environ),
            auth=settings.auth,
            seconds=settings.timeout.total_seconds(),
            tls=tls_context(settings, transport=NAME, where=where) if settings.is_encrypted else None,
        )

    def __repr__(self) -> str:
        return f"Server({self.where!r})"

    async def connection(self) -> Connection:
        """A connection; `TransportUnavailable` says why the last server that was tried refused."""
        last: TransportUnavailable | None = None
        for host, port in self.hosts:
            try:
                return await self._connection(host, port)
            except TransportUnavailable as error:
                last = error
        raise last or TransportUnavailable(f"{self.where} has no server.")

    async def _connection(self, host: str, port: int) -> Connection:
        connection = self._prepared(host, port)
        try:
            async with asyncio.timeout(self.seconds):
                await connection.connect()
        except TROUBLES as error:
            raise unreachable(error, where=self.where) from error
        except BaseException:
            with contextlib.suppress(*TROUBLES):
                await connection.close()
            raise
        return connection

    def _prepared(self, host: str, port: int) -> Connection:
        from aiormq.connection import Connection
        from yarl import URL

        url = URL.build(
            scheme="amqp" if self.tls is None else "amqps",
            host=host,
            port=port,
            user=self.login.user or "guest",
            password=self.login.password or ("guest" if self.login.user is None else ""),
            query={"auth": self.auth, "heartbeat": str(_HEARTBEAT), "name": "pillarbox"},
        )
        connection = Connection(url, context=self.tls)
        connection.vhost = self.vhost  # in a URL its slashes would be lost
        return connection
