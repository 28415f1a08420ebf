"""One connection to the server: commands out, replies in. The one place that speaks to redis-py."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Final

import msgspec

from pillarbox.errors import MissingExtra, TransportUnavailable
from pillarbox.transports.endpoints import Login
from pillarbox.transports.redaction import one_line
from pillarbox.transports.redis.entries import command
from pillarbox.transports.redis.settings import NAME, RedisSettings
from pillarbox.transports.redis.verdicts import Refusal
from pillarbox.transports.tls import tls_context

try:
    from redis.asyncio.connection import Connection, SSLConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import (
        AskError,
        AuthenticationError,
        AuthorizationError,
        BusyLoadingError,
        ClusterDownError,
        MasterDownError,
        MovedError,
        NoPermissionError,
        OutOfMemoryError,
        ReadOnlyError,
        RedisError,
        ResponseError,
    )
except ModuleNotFoundError as error:
    raise MissingExtra("redis", extra="redis", needed_for="The redis transport") from error

__all__ = ["Link", "LinkBroken", "Place", "linked"]

_MOST: Final = 512 * 1024 * 1024
"""Bytes of a field that a server takes unless it is told otherwise."""


class LinkBroken(Exception):
    """The connection is gone. The text says why."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is, and as whom we come. Secrets are read when it is made."""

    where: str
    login: Login
    tls: ssl.SSLContext | None
    settings: RedisSettings

    @classmethod
    def of(cls, settings: RedisSettings, *, environ: Mapping[str, str]) -> Place:
        """`ConfigError` for a secret or a certificate that cannot be read."""
        ((host, port),) = settings.endpoint.hosts
        where = f"Redis at {host}:{port}"
        return cls(
            where=where,
            login=settings.login(settings.endpoint, environ=environ),
            tls=tls_context(settings, transport=NAME, where=where) if settings.is_encrypted else None,
            settings=settings,
        )

    def __repr__(self) -> str:
        return f"Place({self.where!r})"


class Link:
    """A connection in order: as many replies are read as commands were sent, or it is broken."""

    def __init__(self, connection: Connection) -> None:
        self.used_at = 0.0
        self.most = _MOST
        """Bytes of a field that the server takes."""
        self._connection = connection

    @property
    def is_broken(self) -> bool:
        return not self._connection.is_connected

    async def send(self, commands: bytes) -> None:
        """Hand commands over; `LinkBroken` when that fails. Cancelled, it is broken too."""
        if self.is_broken:  # or redis-py would connect again, and the replies would be for something else
            raise LinkBroken("it is closed")
        try:
            await self._connection.send_packed_command([commands], check_health=False)
        except (RedisError, OSError) as error:
            raise LinkBroken(_reason(error)) from error

    async def reply(self) -> object:
        """The next reply: bytes, a number, a list, None, or a `Refusal`; `LinkBroken` when there is none."""
        try:
            return await self._connection.read_response(disable_decoding=True)
        except (ResponseError, AuthenticationError, BusyLoadingError) as error:
            # The last two are errors of the connection to redis-py, and it has closed it.
            return _refusal(error)
        except (RedisError, OSError) as error:
            raise LinkBroken(_reason(error)) from error

    async def ask(self, *words: str) -> object:
        """One command, and its reply."""
        await self.send(command(*words))
        return await self.reply()

    async def close(self) -> None:
        """Close it at once, whether or not the far side still reads."""
        writer = getattr(self._connection, "_writer", None)
        if writer is not None:
            writer.transport.abort()
        with contextlib.suppress(RedisError, OSError):
            await self._connection.disconnect(nowait=True)


async def linked(place: Place) -> Link:
    """A connection that the server has let in; `TransportUnavailable` says why there is none."""
    connection = _connection(place)
    link = Link(connection)
    seconds = place.settings.timeout.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            await connection.connect()  # type: ignore[no-untyped-call]
            link.most = place.settings.max_payload or await _largest(link)
    except TimeoutError:
        await link.close()
        raise TransportUnavailable(_unreached(place, f"no answer within {seconds:g} s")) from None
    except (RedisError, LinkBroken, OSError) as error:
        await link.close()
        raise TransportUnavailable(_told(error, place)) from error
    except BaseException:
        await link.close()
        raise
    return link


def _connection(place: Place) -> Connection:
    settings = place.settings
    ((host, port),) = settings.endpoint.hosts
    kind = Connection if place.tls is None else SSLConnection
    connection = kind(
        host=host,
        port=port,
        db=settings.database,
        username=place.login.user,
        password=place.login.password,
        client_name="pillarbox",
        protocol=2,
        # It would send a failed command again, up to ten times: an entry for each.
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=settings.timeout.total_seconds(),
        socket_timeout=None,  # a timer for every reply would cost more than the reply; there is one for all of them
    )
    if isinstance(connection, SSLConnection):
        # Its own would trust the system's certificates beside the option ca, and ask for a key's password.
        connection.ssl_context.context = place.tls
    return connection


async def _largest(link: Link) -> int:
    """What the server says of itself. Many let nobody ask."""
    reply = await link.ask("CONFIG", "GET", "proto-max-bulk-len")
    value = reply[1] if isinstance(reply, list) and len(reply) == 2 else b""
    return int(value) if isinstance(value, bytes) and value.isdigit() else _MOST


_CODES: Final = {
    AskError: "ASK",
    AuthenticationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MasterDownError: "MASTERDOWN",
    MovedError: "MOVED",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
"""redis-py takes these off the texts of what they become."""


def _refusal(error: RedisError) -> Refusal:
    code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), None)
    return Refusal(str(error) if code is None else f"{code} {error}")


def _told(error: Exception, place: Place) -> str:
    cause = error.__context__ if isinstance(error.__context__, ssl.SSLError) else error
    if isinstance(cause, ssl.SSLError):
        reason = one_line(str(getattr(cause, "verify_message", "") or cause.reason or "no TLS"))
        return (
            f"{place.where} cannot be trusted or spoken to by TLS ({reason}): check its certificate and the options ca "
            "and client_certificate."
        )
    if isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError)):
        return f"{place.where} refuses the login ({_reason(error)}): check user and password, and what they allow."
    if isinstance(error, BusyLoadingError):
        return f"{place.where} is loading its data: wait."
    return _unreached(place, _reason(error))


def _unreached(place: Place, why: str) -> str:
    speaks = "runs" if place.tls is None else "runs and speaks TLS"
    return f"{place.where} cannot be reached ({why}): check that it {speaks}, and the URL."


def _reason(error: Exception) -> str:
    return one_line(str(error)).rstrip(".") or type(error).__name__
