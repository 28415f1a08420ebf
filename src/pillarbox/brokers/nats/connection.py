"""Connecting to NATS, for the transport and the receiver. When a connection breaks it stays broken."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from pillarbox.brokers.nats.errors import map_connect_error
from pillarbox.brokers.nats.nkeys import KeyLogin, login_by_credentials, login_by_seed
from pillarbox.brokers.nats.settings import NAME, NatsConnectionSettings
from pillarbox.brokers.tls import build_tls_context
from pillarbox.errors import MissingExtra, TransportUnavailable
from pillarbox.hosts import HostList
from pillarbox.progress import bound_unsent

__all__ = ["Client", "Server", "close_client", "connect_client"]

try:
    from nats.aio.client import DEFAULT_PENDING_SIZE, DEFAULT_PING_INTERVAL
    from nats.aio.client import Client as NatsClient
    from nats.errors import ProtocolError, SecureConnWantedError
    from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser
except ModuleNotFoundError as error:
    raise MissingExtra("nats-py", extra="nats", needed_for="The nats transport") from error

_CLIENT_NAME: Final = "pillarbox"


_LARGEST_MESSAGE: Final = 65 * 1024 * 1024
"""Bytes of payload and headers: servers take at most 64 MiB."""
_LONGEST_LINE: Final = 1024 * 1024


class _BoundedParser(Parser):
    """Ends the connection over a message or a line that is larger than any server may send."""

    async def parse(self, data: bytes = b"") -> None:
        await super().parse(data)
        line = len(self.buf) if self.state == AWAITING_CONTROL_LINE else 0
        if self.needed > _LARGEST_MESSAGE or line > _LONGEST_LINE:
            raise ProtocolError("the server announced more than a message can have")


class Client(NatsClient):
    """A client whose connection dies once, at once, and takes what was not written with it."""

    def __init__(self, *, must_encrypt: bool = False, nkey: str | None = None) -> None:
        super().__init__()
        self._ps = _BoundedParser(self)
        self._must_encrypt = must_encrypt
        self._public_nkey = nkey
        self.written = 0
        """Bytes that `write` has written so far."""

    def write(self, commands: bytes) -> None:
        """Hand many commands to the socket at once: one by one the client takes five times as long.

        This bypasses the client's own buffer, so the caller must bound what it writes.
        """
        if not self.is_connected or self._transport is None:
            raise ConnectionResetError("the connection is closed")
        self._transport.write(commands)
        self.written += len(commands)

    def bound_unsent(self) -> None:
        """Have the progress of large messages on a slow link show."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            bound_unsent(writer.get_extra_info("socket"))

    def count_sent(self) -> int:
        """Return how many of the written bytes the network has taken."""
        writer = getattr(self._transport, "_io_writer", None)
        return self.written - (0 if writer is None else writer.transport.get_write_buffer_size())

    def abort(self) -> None:
        """Close the socket, whether or not the other side still reads."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    def _connect_command(self) -> bytes:
        # The client encrypts only if the server asks for it, and anyone in between can remove that. Checked here,
        # because this command carries the login.
        writer = getattr(self._transport, "_io_writer", None)
        if self._must_encrypt and (writer is None or writer.get_extra_info("ssl_object") is None):
            raise SecureConnWantedError
        return super()._connect_command()

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        # The server stores whatever block a publisher sends. The client dies over some of them without closing, and
        # the receiver would wait for ever.
        try:
            return await super()._process_headers(headers)
        except (ValueError, IndexError):
            return None

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        # The client would flush once more, and wait for a peer that may be silent or has failed at TLS.
        self._pending.clear()
        self._pending_data_size = 0
        self.abort()
        self._transport = None
        await super()._close(status, do_cbs)


class _Login(msgspec.Struct, frozen=True):
    """One of the ways to log in. Its text hides everything."""

    user: str | None = None
    password: str | None = None
    token: str | None = None
    key: KeyLogin | None = None

    def __repr__(self) -> str:
        return "_Login(***)"


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server or a cluster, with login and TLS."""

    addresses: HostList[str]
    """Host and port of each server."""
    where: str
    """The servers, for people."""
    login: _Login
    tls: ssl.SSLContext
    must_encrypt: bool
    inbox: str
    seconds: float
    """To connect, and for each answer."""

    @classmethod
    def from_settings(cls, settings: NatsConnectionSettings, *, environ: Mapping[str, str]) -> Server:
        """Read secrets and certificates; raise `ConfigError` for one that cannot be read."""
        addresses = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in settings.endpoint.hosts]
        where = f"NATS at {','.join(addresses)}"
        return cls(
            addresses=HostList(addresses),
            where=where,
            login=_read_login(settings, environ),
            tls=build_tls_context(settings, transport=NAME, where=where),
            must_encrypt=settings.tls,
            inbox=settings.inbox,
            seconds=settings.timeout.total_seconds(),
        )

    def build_client(self) -> Client:
        """Return a client that is not connected."""
        return Client(must_encrypt=self.must_encrypt, nkey=None if self.login.key is None else self.login.key.nkey)

    def __repr__(self) -> str:
        return f"Server({self.where!r})"


def _read_login(settings: NatsConnectionSettings, environ: Mapping[str, str]) -> _Login:
    if settings.credentials is not None:
        return _Login(key=login_by_credentials(settings.credentials))
    if settings.nkey is not None:
        return _Login(key=login_by_seed(settings.nkey.read(option="nkey", environ=environ)))
    if settings.token is not None:
        return _Login(token=settings.token.read(option="token", environ=environ))
    login = settings.login(settings.endpoint, environ=environ)
    if login.user is not None and login.password is None:
        return _Login(token=login.user)  # nats://TOKEN@host, as NATS clients write it
    return _Login(user=login.user, password=login.password)


async def connect_client(
    client: Client,
    server: Server,
    address: str,
    *,
    seconds: float,
    on_closed: Callable[[], Awaitable[None]],
    on_error: Callable[[Exception], Awaitable[None]] | None = None,
    set_up: Callable[[], Awaitable[None]] | None = None,
    pending_size: int = DEFAULT_PENDING_SIZE,
    ping_interval: int = DEFAULT_PING_INTERVAL,
) -> None:
    """Connect a client to one address, and `set_up` what uses it, both within so many seconds.

    `on_error` is called with errors that belong to no call, `on_closed` when the connection has ended.
    """
    errors: list[Exception] = []

    async def note_error(error: Exception) -> None:
        errors.append(error)
        if on_error is not None:
            await on_error(error)

    login, key = server.login, server.login.key
    jwt = None if key is None or key.jwt is None else bytearray(key.jwt.encode())
    try:
        async with asyncio.timeout(seconds):
            await client.connect(
                servers=[f"nats://{address}"],
                name=_CLIENT_NAME,
                user=login.user,
                password=login.password,
                token=login.token,
                signature_cb=None if key is None else key.sign,
                user_jwt_cb=None if jwt is None else lambda: jwt,
                tls=server.tls,
                inbox_prefix=server.inbox,
                # It would send again by itself what was published while it was away, and a delivery can be acknowledged
                # only over the connection that brought it.
                allow_reconnect=False,
                pending_size=pending_size,
                ping_interval=ping_interval,
                # It tries each server once more than this, and at once.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=seconds,  # type: ignore[arg-type]  # declared as int, but only compared and awaited
                error_cb=note_error,
                closed_cb=on_closed,
            )
            if set_up is not None:
                await set_up()
    except TransportUnavailable:
        await close_client(client)
        raise
    except Exception as error:
        await close_client(client)
        raise map_connect_error(_find_reason(errors) or error, server.where, seconds=seconds) from error
    except BaseException:
        await close_client(client)
        raise


def _find_reason(errors: Sequence[Exception]) -> Exception | None:
    """Return the error that says most. The client itself raises only that no server is left.

    It tries twice. A server that refuses a login says so and closes at once: a try whose write fails before the answer
    is read knows only of a lost connection.
    """
    said = (error for error in errors if not isinstance(error, OSError))
    return next(said, errors[0] if errors else None)


async def close_client(client: Client) -> None:
    """Close a client in any state."""
    with contextlib.suppress(Exception):
        await client.close()
