"""The one place that speaks HTTP. Connects only to addresses that were checked, and tells errors apart."""

from __future__ import annotations

import io
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Final, NoReturn

from pillarbox.errors import MissingExtra, PillarboxError, TransportError, TransportUnavailable
from pillarbox.transports.http.lookup import ForbiddenAddress, Lookup, checked
from pillarbox.transports.http.verdicts import Answer
from pillarbox.transports.redaction import one_line

try:
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult
    from yarl import URL
except ModuleNotFoundError as error:
    raise MissingExtra("aiohttp", extra="http", needed_for="The http transport") from error

__all__ = ["Connection", "NoAnswer"]

_MOST_READ: Final = 64 * 1024
_LARGE: Final = 512 * 1024
"""Above it, a body is handed over in pieces, so that a slow endpoint cannot hold up the loop."""
_KEPT_ALIVE: Final = 4.0
"""Seconds. Shorter than servers commonly wait, so that they seldom hang up just when the next request starts."""


class NoAnswer(TransportError):
    """The request may have been taken or not: there was no answer to it, or none that is HTTP."""


class Connection:
    """A pool of connections to one endpoint. Follows no redirect, uses no proxy, keeps no cookie."""

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
                # Names are looked up and checked for every connection, never from memory.
                connector=aiohttp.TCPConnector(
                    resolver=self._resolver,
                    use_dns_cache=False,
                    limit=self._limit,
                    ssl=self._tls or True,
                    keepalive_timeout=_KEPT_ALIVE,
                ),
                timeout=aiohttp.ClientTimeout(total=self._seconds, sock_connect=self._seconds / 3),
                headers={"user-agent": f"pillarbox/{version('pillarbox')}", "accept-encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def exchange(self, method: str, *, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send one request and read its answer, of a long one the beginning.

        `TransportUnavailable` when there is no connection, or it breaks; `NoAnswer` when time runs out.
        """
        if self._session is None:
            raise TransportUnavailable("The http transport is not open; call open() first.")
        data = io.BytesIO(body) if len(body) > _LARGE else body
        with self._told():
            async with self._session.request(
                method, self._url, headers=headers, data=data or None, allow_redirects=False
            ) as response:
                return Answer(
                    status=response.status,
                    retry_after=response.headers.get("retry-after"),
                    body=await _beginning(response),
                )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn the driver's errors into ours, once, with the cause kept."""
        try:
            yield
        except PillarboxError:
            raise
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._unreachable(error)
        except TimeoutError as error:
            raise NoAnswer(
                f"{self._where} did not answer within {self._seconds:g} s; whether it took the message is not known."
            ) from error
        except aiohttp.ClientResponseError as error:
            raise NoAnswer(
                f"{self._where} answered with something that is not HTTP: {one_line(error.message)}."
            ) from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise TransportUnavailable(
                f"The connection to {self._where} broke before the answer was complete ({_reason(error)}).",
                mid_send=True,
            ) from error

    def _unreachable(self, error: aiohttp.ClientError) -> NoReturn:
        if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)):
            raise TransportUnavailable(
                f"{self._where} cannot be trusted or spoken to by TLS ({_reason(error)}): check its certificate and "
                "the options ca and client_certificate."
            ) from error
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        if isinstance(cause, ForbiddenAddress):
            raise TransportUnavailable(f"{self._where} must not be connected to: {cause}.") from error
        raise TransportUnavailable(
            f"{self._where} cannot be reached ({_reason(cause)}): check that it runs, and the URL's host and port."
        ) from error


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """What the answer holds, up to a limit; what is beyond it closes the connection instead of being read."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _MOST_READ:
            response.close()
            break
    return bytes(body[:_MOST_READ])


def _reason(error: BaseException) -> str:
    """Never the driver's own text: it repeats the URL, whose path and query may be secret."""
    if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)):
        error = error.__cause__ or error
    if isinstance(error, ssl.SSLError):
        return one_line(str(getattr(error, "verify_message", "") or error.reason or "no TLS"))
    if isinstance(error, OSError) and isinstance(error, aiohttp.ClientError):
        return os.strerror(error.errno) if error.errno else type(error).__name__
    return one_line((isinstance(error, OSError) and error.strerror) or type(error).__name__)


class _CheckedResolver(AbstractResolver):
    """Hands out only addresses that were checked: those are then connected to."""

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
        asked = checked(self._lookup, host, port, allow_private=self._allow_private, seconds=self._seconds)
        return [_result(host, address, port) for address in await asked]

    async def close(self) -> None:
        """There is nothing to let go of."""


def _result(host: str, address: str, port: int) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=socket.AF_INET6 if ":" in address else socket.AF_INET,
        proto=socket.IPPROTO_TCP,
        flags=socket.AI_NUMERICHOST,
    )
