"""Finds the way to a server, again and again, and says in a sentence why there is none."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pillarbox.errors import TransportUnavailable
from pillarbox.transports.nats.client import Client
from pillarbox.transports.nats.connection import Connection
from pillarbox.transports.nats.keys import KeyLogin, login_by_credentials, login_by_seed
from pillarbox.transports.nats.settings import NAME, NatsSettings
from pillarbox.transports.redaction import one_line
from pillarbox.transports.tls import tls_context

__all__ = ["Server", "connected"]

_REFUSALS: Final = ("authorization", "authentication", "user authentication", "account")


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

    hosts: Sequence[tuple[str, int]]
    where: str
    login: _Login
    tls: ssl.SSLContext
    settings: NatsSettings

    @classmethod
    def of(cls, settings: NatsSettings, *, environ: Mapping[str, str]) -> Server:
        """`ConfigError` for a secret or a certificate that cannot be read."""
        hosts = settings.endpoint.hosts
        where = f"NATS at {','.join(_address(host, port) for host, port in hosts)}"
        return cls(
            hosts=hosts,
            where=where,
            login=_login(settings, environ),
            tls=tls_context(settings, transport=NAME, where=where),
            settings=settings,
        )

    def __repr__(self) -> str:
        return f"Server({self.where!r})"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _login(settings: NatsSettings, environ: Mapping[str, str]) -> _Login:
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


async def connected(server: Server) -> Connection:
    """A connection to the first server that takes us; `TransportUnavailable` says why none did."""
    refusals = []
    for host, port in server.hosts:
        try:
            return await _connected(server, host, port)
        except TransportUnavailable as error:
            refusals.append(error)
    raise refusals[0]


async def _connected(server: Server, host: str, port: int) -> Connection:
    settings, key = server.settings, server.login.key
    client = Client(must_encrypt=settings.tls, nkey=None if key is None else key.nkey)
    seconds = settings.timeout.total_seconds()
    connection = Connection(client, where=server.where, seconds=seconds, window=settings.window)
    try:
        async with asyncio.timeout(seconds):
            await _greet(client, connection, server, url=f"nats://{_address(host, port)}")
            await connection.listen()
    except TransportUnavailable:
        await connection.close()
        raise
    except Exception as error:
        await connection.close()
        raise TransportUnavailable(_told(connection.first_error or error, server)) from error
    except BaseException:
        await connection.close()
        raise
    return connection


async def _greet(client: Client, connection: Connection, server: Server, *, url: str) -> None:
    login, key, seconds = server.login, server.login.key, server.settings.timeout.total_seconds()
    jwt = None if key is None or key.jwt is None else bytearray(key.jwt.encode())
    await client.connect(
        servers=[url],
        name="pillarbox",
        user=login.user,
        password=login.password,
        token=login.token,
        signature_cb=None if key is None else key.sign,
        user_jwt_cb=None if jwt is None else lambda: jwt,
        tls=server.tls,
        inbox_prefix=server.settings.inbox,
        # It would buffer what is published while it is away, and send it again behind our back.
        allow_reconnect=False,
        pending_size=0,
        # It tries each server once more than this, and at once.
        max_reconnect_attempts=1,
        reconnect_time_wait=0,
        connect_timeout=seconds,  # type: ignore[arg-type]  # said to be an int, and only compared and waited for
        error_cb=connection.failed,
        closed_cb=connection.closed,
    )


def _told(error: BaseException, server: Server) -> str:
    where = server.where
    if isinstance(error, ssl.SSLError):
        reason = one_line(str(getattr(error, "verify_message", "") or error.reason or "no TLS"))
        return (
            f"{where} cannot be trusted or spoken to by TLS ({reason}): check its certificate and the options ca and "
            "client_certificate."
        )
    said = one_line(str(error)).removeprefix("nats: ").strip("'")
    if any(word in said.lower() for word in _REFUSALS):
        return f"{where} refuses the login ({said}): check user, password, token or key, and what the account allows."
    if isinstance(error, TimeoutError):
        said = f"no answer within {server.settings.timeout.total_seconds():g} s"
    return f"{where} cannot be reached ({said or type(error).__name__}): check that it runs, and the URL."
