"""HTTP client of the transport. Connects only to checked addresses, and maps the driver's errors."""

from __future__ import annotations

import io
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Final

from pillarbox.brokers.errors import describe_error, not_open_error, tls_error, unreachable_error
from pillarbox.brokers.http.addresses import ForbiddenAddress, Lookup, resolve_allowed
from pillarbox.brokers.http.errors import Response
from pillarbox.errors import MissingExtra, PillarboxError, TransportError, TransportUnavailable
from pillarbox.progress import StallTimeout, bound_unsent, note_progress
from pillarbox.redaction import redact_line

try:
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult
    from yarl import URL
except ModuleNotFoundError as error:
    raise MissingExtra("aiohttp", extra="http", needed_for="The http transport") from error

__all__ = ["HttpConnection", "NoResponse"]

_MAX_RESPONSE: Final = 64 * 1024
_LARGE_BODY: Final = 64 * 1024
"""A larger body is written in pieces, so that a slow endpoint cannot block the event loop, and progress shows."""
_KEEPALIVE_SECONDS: Final = 4.0
"""Shorter than servers commonly wait, so that they seldom close a connection just when the next request starts."""


class NoResponse(TransportError):
    """There was no response to a request, or none that is HTTP. The endpoint may have taken the message."""


class HttpConnection:
    """Pool of connections to one endpoint. Follows no redirect, uses no proxy, keeps no cookie."""

    def __init__(
        self,
        url: str,
        *,
        where: str,
        timeout: timedelta,
        limit: int,
        tls: ssl.SSLContext | None,
        allow_private: bool,
        lookup: Lookup,
    ) -> None:
        self._url = URL(url, encoded=True)
        self._where = where
        self._seconds = timeout.total_seconds()
        self._limit = limit
        self._tls = tls
        self._resolver = _CheckedResolver(lookup, allow_private=allow_private, seconds=self._seconds / 3)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the pool. Connects to nothing yet."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=self._resolver,
                    # Without a cache, the address of every single connection is checked.
                    use_dns_cache=False,
                    limit=self._limit,
                    ssl=self._tls or True,
                    keepalive_timeout=_KEEPALIVE_SECONDS,
                    socket_factory=_make_socket,
                ),
                # `StallTimeout` bounds a request: a large body on a slow link takes its time.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._seconds / 3),
                headers={"user-agent": f"pillarbox/{version('pillarbox')}", "accept-encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trace_configs=[_trace_reuse()],
                trust_env=False,
            )

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def request(
        self, method: str, *, headers: Mapping[str, str], body: bytes = b"", path: str | None = None
    ) -> Response:
        """Send one request and read its response, of a long one the beginning. `path` is another one of the server.

        Raises `TransportUnavailable` if there is no connection or it breaks, and `NoResponse` when the time is up. The
        time begins again with each piece of the body that the network takes, and not with what the endpoint answers.
        """
        # A server may close a connection that was idle just when the next request is sent on it. That is no outage: the
        # request goes again, and each time a connection leaves the pool, so that the last try has a new one.
        for _ in range(self._limit):
            use = _ConnectionUse()
            try:
                return await self._request(method, headers=headers, body=body, path=path, use=use)
            except TransportUnavailable as error:
                if not (error.mid_send and use.is_reused and not use.has_answer):
                    raise
        return await self._request(method, headers=headers, body=body, path=path, use=_ConnectionUse())

    async def _request(
        self, method: str, *, headers: Mapping[str, str], body: bytes, path: str | None, use: _ConnectionUse
    ) -> Response:
        if self._session is None:
            raise not_open_error("http transport")
        data = _Body(body) if len(body) > _LARGE_BODY else body
        url = self._url if path is None else self._url.origin().join(URL(path, encoded=True))
        with self._map_errors():
            async with (
                StallTimeout(self._seconds),
                self._session.request(
                    method, url, headers=headers, data=data or None, allow_redirects=False, trace_request_ctx=use
                ) as response,
            ):
                use.has_answer = True
                return Response(
                    status=response.status,
                    retry_after=response.headers.get("retry-after"),
                    body=await _read_body(response),
                )

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        try:
            yield
        except PillarboxError:
            raise
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise self._map_connect_error(error) from error
        except TimeoutError as error:
            raise NoResponse(
                f"{self._where} did not answer within {self._seconds:g} s; whether it took the message is not known."
            ) from error
        except aiohttp.ClientResponseError as error:
            raise NoResponse(
                f"{self._where} answered with something that is not HTTP: {redact_line(error.message)}."
            ) from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise TransportUnavailable(
                f"The connection to {self._where} broke before the answer was complete ({_describe(error)}).",
                mid_send=True,
            ) from error

    def _map_connect_error(self, error: aiohttp.ClientError) -> TransportUnavailable:
        if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)):
            return tls_error(self._where, _describe(error.__cause__ or error))
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        if isinstance(cause, ForbiddenAddress):
            return TransportUnavailable(f"{self._where} must not be connected to: {cause}.")
        return unreachable_error(self._where, _describe(cause))


def _make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    connection = socket.socket(address[0], address[1], address[2])
    bound_unsent(connection)
    return connection


class _ConnectionUse:
    """What became of the connection of one request."""

    is_reused = False
    """The connection had carried a request before."""
    has_answer = False
    """The head of the response came."""


def _trace_reuse() -> aiohttp.TraceConfig:
    """Note in its `_ConnectionUse` that a request got a connection of the pool."""

    async def note_reuse(_: aiohttp.ClientSession, context: Any, __: aiohttp.TraceConnectionReuseconnParams) -> None:
        context.trace_request_ctx.is_reused = True

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(note_reuse)
    return trace


class _Body(io.BytesIO):
    """Body of a request. The client reads the next piece when the network has taken the one before."""

    def read(self, size: int | None = -1, /) -> bytes:
        note_progress()
        return super().read(size)


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    """Read the body up to a limit. Beyond it the connection is closed, so that no endpoint can keep us reading."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _MAX_RESPONSE:
            response.close()
            break
    return bytes(body[:_MAX_RESPONSE])


def _describe(error: BaseException) -> str:
    """Describe an error without aiohttp's own text: it repeats the URL, whose path and query may be secret."""
    if isinstance(error, ssl.SSLError):
        return describe_error(error)
    if isinstance(error, OSError) and isinstance(error, aiohttp.ClientError):
        return os.strerror(error.errno) if error.errno else type(error).__name__
    return redact_line((isinstance(error, OSError) and error.strerror) or type(error).__name__)


class _CheckedResolver(AbstractResolver):
    """Resolver that returns only checked addresses, which are the ones that are then connected to."""

    def __init__(self, lookup: Lookup, *, allow_private: bool, seconds: float) -> None:
        self._lookup = lookup
        self._allow_private = allow_private
        self._seconds = seconds

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - aiohttp asks for any
    ) -> list[ResolveResult]:
        addresses = await resolve_allowed(
            self._lookup, host, port, allow_private=self._allow_private, seconds=self._seconds
        )
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Do nothing: the resolver holds no resources."""
