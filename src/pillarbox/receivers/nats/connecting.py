"""Finds the way to a server, and says in a sentence why there is none."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from pillarbox.errors import TransportUnavailable
from pillarbox.receivers.nats.settings import NAME, NatsReceiverSettings
from pillarbox.transports.nats.client import Client
from pillarbox.transports.nats.keys import KeyLogin, login_by_credentials, login_by_seed
from pillarbox.transports.redaction import one_line
from pillarbox.transports.tls import tls_context

__all__ = ["Server", "said"]

_PING: Final = 10
"""Seconds between pings. A server that leaves two unanswered is given up."""
_REFUSALS: Final = ("authorization", "authentication", "account")


class _Login(msgspec.Struct, frozen=True):
    """As whom we come. Shown, it keeps everything to itself."""

    user: str | None = None
    password: str | None = None
    token: str | None = None
    key: KeyLogin | None = None

    def __repr__(self) -> str:
        return "_Login(***)"


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where to connect, and as whom. Secrets are read when it is made."""

    where: str
    settings: NatsReceiverSettings
    login: _Login
    tls: ssl.SSLContext

    @classmethod
    def of(cls, settings: NatsReceiverSettings, *, environ: Mapping[str, str]) -> Server:
        """`ConfigError` for a secret or a certificate that cannot be read."""
        where = f"NATS at {settings.shown.removeprefix('nats://')}"
        return cls(
            where=where,
            settings=settings,
            login=_login(settings, environ),
            tls=tls_context(settings, transport=NAME, where=where),
        )

    def __repr__(self) -> str:
        return f"Server({self.where!r})"

    async def client(self, *, closed: Callable[[], Awaitable[None]]) -> Client:
        """A client, connected to the first server that takes us. `closed` is called when it no longer is."""
        refusals = []
        for host, port in self.settings.endpoint.hosts:
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            try:
                return await self._client(f"nats://{place}", closed)
            except TransportUnavailable as error:
                refusals.append(error)
        raise refusals[0]

    async def _client(self, url: str, closed: Callable[[], Awaitable[None]]) -> Client:
        key = self.login.key
        client = Client(must_encrypt=self.settings.tls, nkey=None if key is None else key.nkey)
        errors: list[Exception] = []

        async def failed(error: Exception) -> None:
            # Of several, the first says why; while connecting, the client itself tells only that no server is left.
            if len(errors) < 1:
                errors.append(error)

        try:
            async with asyncio.timeout(self.settings.timeout.total_seconds()):
                await self._greet(client, url, failed=failed, closed=closed)
        except Exception as error:
            await _close(client)
            raise TransportUnavailable(self._told(errors[0] if errors else error)) from error
        except BaseException:
            await _close(client)
            raise
        return client

    async def _greet(
        self,
        client: Client,
        url: str,
        *,
        failed: Callable[[Exception], Awaitable[None]],
        closed: Callable[[], Awaitable[None]],
    ) -> None:
        login, key = self.login, self.login.key
        jwt = None if key is None or key.jwt is None else bytearray(key.jwt.encode())
        await client.connect(
            servers=[url],
            name="pillarbox",
            user=login.user,
            password=login.password,
            token=login.token,
            signature_cb=None if key is None else key.sign,
            user_jwt_cb=None if jwt is None else lambda: jwt,
            tls=self.tls,
            inbox_prefix=self.settings.inbox,
            # What was delivered over a connection can be acknowledged over it alone, so it must not come back unseen.
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            ping_interval=_PING,
            connect_timeout=self.settings.timeout.total_seconds(),  # type: ignore[arg-type]  # said to be an int
            error_cb=failed,
            closed_cb=closed,
        )

    def _told(self, error: BaseException) -> str:
        if isinstance(error, ssl.SSLError):
            return (
                f"{self.where} cannot be trusted or spoken to by TLS ({said(error)}): check its certificate and the "
                "options ca and client_certificate."
            )
        reason = said(error)
        if any(word in reason.lower() for word in _REFUSALS):
            return f"{self.where} refuses the login ({reason}): check user, password, token or key."
        if isinstance(error, TimeoutError):
            reason = f"no answer within {self.settings.timeout.total_seconds():g} s"
        return f"{self.where} cannot be reached ({reason}): check that it runs, and the URL."


def said(error: BaseException) -> str:
    """The error in a few words."""
    if isinstance(error, ssl.SSLError):
        return one_line(str(getattr(error, "verify_message", "") or error.reason or "no TLS"))
    return one_line(str(error)).removeprefix("nats: ").strip("'") or type(error).__name__


def _login(settings: NatsReceiverSettings, environ: Mapping[str, str]) -> _Login:
    if settings.credentials is not None:
        return _Login(key=login_by_credentials(settings.credentials))
    if settings.nkey is not None:
        return _Login(key=login_by_seed(settings.nkey.read(option="nkey", environ=environ)))
    if settings.token is not None:
        return _Login(token=settings.token.read(option="token", environ=environ))
    login = settings.login(settings.endpoint, environ=environ)
    if login.user is not None and login.password is None:
        return _Login(token=login.user)
    return _Login(user=login.user, password=login.password)


async def _close(client: Client) -> None:
    with contextlib.suppress(Exception):
        await client.close()
