"""The target of `--to`: where the relays deliver, and how the consumer receives what arrives there."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, Protocol, TypeAlias
from urllib.parse import quote, urlsplit

import msgspec

from pillarbox.brokers.factory import receiver_from_url, transport_from_url
from pillarbox.cloudevents import HTTP, CloudEvent, read
from pillarbox.decoding import to_cloudevent
from pillarbox.errors import ConfigError, DecodeError, MessageRejected, MissingExtra, TransportUnavailable
from pillarbox.redaction import display_url, expand_variables, redact_line

__all__ = ["Endpoint", "Handler", "Target", "TargetKind", "open_endpoint", "parse_target"]

TargetKind: TypeAlias = Literal["http", "rabbitmq", "nats", "redis"]

_KINDS: Final[Mapping[str, TargetKind]] = {
    "http": "http", "amqp": "rabbitmq", "amqps": "rabbitmq", "nats": "nats", "redis": "redis", "rediss": "redis",
}  # fmt: skip
_LOOPBACK: Final = ("127.0.0.1", "localhost")
# Below the ports that systems give to outgoing connections: while the consumer is down, a relay that connects to such a
# port could be connected with itself.
_PORTS: Final = range(20_000, 32_000)
_SLOWEST_ANSWER: Final = 0.02
"""Seconds until an HTTP answer: a request under way is what a killed relay leaves behind."""
_PREFETCH: Final = 50


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One URL for the relays and one for the consumer. Both may hold a password."""

    kind: TargetKind
    transport_url: str
    """For the relays, with its options."""
    receiver_url: str
    """Where the consumer listens, or what it reads at a broker."""
    name: str = ""
    """The name of the demo's own exchange, queue, stream or key at a broker."""

    def __repr__(self) -> str:
        return f"Target({self.kind!r}, {self.name!r})"


class Handler(Protocol):
    """Applies messages for the consumer."""

    def apply(self, message: CloudEvent) -> None:
        """Apply it and commit. `MessageRejected` for what is no order; then nothing was written."""

    def refuse(self, message: CloudEvent, reason: str) -> None:
        """Keep what will never be applied, and commit."""


class Endpoint(Protocol):
    """The consumer's end of a target."""

    async def prepare(self) -> None:
        """Make what the relays send to; `TransportUnavailable` when there is no such broker."""

    async def remove(self) -> None:
        """Remove what `prepare` made."""

    async def is_ready(self) -> bool:
        """Return whether the relays can deliver now."""

    async def serve(self, handler: Handler) -> None:
        """Give the handler one message after another, and acknowledge what it took, until cancelled or killed."""


def parse_target(url: str | None) -> Target:
    """Return the target that a URL names; `ConfigError` where the demo's consumer cannot receive."""
    text = expand_variables((url or "http://127.0.0.1").strip(), os.environ)
    name = f"pillarbox-demo-{secrets.token_hex(4)}"
    match _KINDS.get(text.partition(":")[0].lower()):
        case "http":
            return _http_target(text)
        case "rabbitmq":
            # A classic queue puts back what a killed consumer had at its old place.
            ours = {"queue": name, "exchange": name, "declare": "true", "queue_type": "classic"}
            return _broker_target(
                "rabbitmq", text, name, sends={"exchange": name, "routing_key": "{topic}"},
                receives=ours | {"prefetch": str(_PREFETCH)},
            )  # fmt: skip
        case "nats":
            return _broker_target(
                "nats", text, name, sends={"stream": name, "subject": f"{name}.{{topic}}"},
                receives={"stream": name, "durable": "demo", "declare": "true", "ack_wait": "2s"},
            )  # fmt: skip
        case "redis":
            # The name of the consumer stays the same, so that it first reads what it had when it was killed.
            return _broker_target(
                "redis", text, name, sends={"key": name},
                receives={"stream": name, "group": "demo", "consumer": "one", "declare": "true"},
            )  # fmt: skip
    raise ConfigError(
        "The demo delivers over HTTP, RabbitMQ, NATS and Redis: give --to as http://127.0.0.1:PORT, amqp://…, nats://… "
        "or redis://…, or leave it out."
    )


def open_endpoint(target: Target) -> Endpoint:
    """Return the consumer's end of this target, not yet prepared. `MissingExtra` when its client is not installed."""
    return HttpEndpoint(target) if target.kind == "http" else BrokerEndpoint(target)


class BrokerEndpoint:
    """A queue or stream of the demo's own at a broker, read by Pillarbox's own receiver."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._receiver = receiver_from_url(target.receiver_url)

    async def prepare(self) -> None:
        with _explain_outage(self._target):
            if self._target.kind == "nats":
                await _declare_stream(self._target)
            await self._receiver.open()
            await self._receiver.close()

    async def remove(self) -> None:
        with _explain_outage(self._target):
            match self._target.kind:
                case "rabbitmq":
                    await _delete_queue(self._target)
                case "nats":
                    await _delete_nats_stream(self._target)
                case _:
                    await _delete_redis_stream(self._target)

    async def is_ready(self) -> bool:
        """Return True: the broker keeps what comes."""
        return True

    async def serve(self, handler: Handler) -> None:
        await self._receiver.open()
        while True:
            for incoming in await self._receiver.receive(limit=_PREFETCH):
                message = to_cloudevent(incoming)
                try:
                    handler.apply(message)
                except MessageRejected as error:
                    handler.refuse(message, str(error))
                await self._receiver.acknowledge(incoming)


class HttpEndpoint:
    """HTTP service without Pillarbox, as a partner has one: 204 once a message is committed, 422 to what is no order.

    Here the relays speak to the consumer itself, so while it is down nobody takes messages, and the poison message
    fails in the outbox.
    """

    def __init__(self, target: Target) -> None:
        parts = urlsplit(target.receiver_url)
        self._host, self._port, self._path = parts.hostname or "", parts.port or 0, parts.path

    async def prepare(self) -> None:
        """Do nothing: the consumer itself is what the relays send to."""

    async def remove(self) -> None:
        """Do nothing."""

    async def is_ready(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            return False
        writer.close()
        return True

    async def serve(self, handler: Handler) -> None:
        from aiohttp import web

        async def answer(request: web.Request) -> web.Response:
            if request.method != "POST":
                return web.Response(status=204)
            try:
                handler.apply(read(request.headers, await request.read(), binding=HTTP))
            except (DecodeError, MessageRejected) as error:
                return web.Response(status=422, text=str(error))
            await asyncio.sleep(random.uniform(0, _SLOWEST_ANSWER))  # noqa: S311 - how long something takes
            return web.Response(status=204)

        app = web.Application()
        app.router.add_route("*", self._path, answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._host, self._port).start()
        await asyncio.Event().wait()


def _broker_target(
    kind: TargetKind, url: str, name: str, *, sends: Mapping[str, str], receives: Mapping[str, str]
) -> Target:
    """Return a target of the demo's own at a broker. Options in the URL are the transport's."""
    address, _, query = url.partition("?")
    given = [option for option in query.split("&") if option]
    for option in given:
        if option.partition("=")[0] in sends:
            raise ConfigError(f"The demo sets {option.partition('=')[0]} itself: leave it out of --to.")
    return Target(
        kind=kind,
        transport_url=f"{address}?{'&'.join([*given, *_to_query(sends)])}",
        receiver_url=f"{address}?{'&'.join(_to_query(receives))}",
        name=name,
    )


def _to_query(options: Mapping[str, str]) -> list[str]:
    return [f"{option}={quote(value, safe='{}')}" for option, value in options.items()]


def _http_target(url: str) -> Target:
    """Return an endpoint of the demo's own, at a free port if the URL has none."""
    try:
        import aiohttp  # noqa: F401 - before any process is started
    except ModuleNotFoundError as error:
        raise MissingExtra("aiohttp", extra="http", needed_for="The demo") from error
    parts = urlsplit(url)
    host, port = parts.hostname or "", _parse_port(url) or _find_free_port()
    if host not in _LOOPBACK:
        raise ConfigError("The demo's own consumer listens at --to, so its host must be 127.0.0.1 or localhost.")
    path = parts.path if parts.path not in ("", "/") else "/orders"
    options = [option for option in parts.query.split("&") if option and not option.startswith("allow_private=")]
    at = f"http://{host}:{port}{path}"
    return Target(kind="http", transport_url=f"{at}?{'&'.join([*options, 'allow_private=true'])}", receiver_url=at)


def _parse_port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        raise ConfigError("The port in --to is not a number between 1 and 65535.") from None


def _find_free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ConfigError("No free port was found for the demo's consumer: name one with --to http://127.0.0.1:PORT.")


@contextmanager
def _explain_outage(target: Target) -> Iterator[None]:
    """Say in one sentence that the broker cannot be used, without its password."""
    try:
        yield
    except (OSError, TimeoutError, TransportUnavailable) as error:
        address = display_url(target.receiver_url.partition("?")[0])
        reason = redact_line(str(error) or type(error).__name__)
        raise TransportUnavailable(
            f"The broker {address} cannot be used for the demo ({reason}): check that it runs, and --to."
        ) from error


async def _declare_stream(target: Target) -> None:
    transport = transport_from_url(f"{target.transport_url}&declare=true")
    try:
        await transport.open()
    finally:
        await transport.close()


# Transports and receivers delete nothing at a broker, so what the demo made is removed with the clients themselves.


async def _delete_queue(target: Target) -> None:
    from pillarbox.brokers.rabbitmq.amqp import commands, encode
    from pillarbox.brokers.rabbitmq.connection import Connector
    from pillarbox.brokers.rabbitmq.settings import RabbitmqSettings

    connector = Connector(RabbitmqSettings(url=target.receiver_url.partition("?")[0]), environ=os.environ)
    connection = await connector.connect()
    try:
        for method in (commands.Queue.Delete(queue=target.name), commands.Exchange.Delete(exchange=target.name)):
            await connector.call_apart(connection, lambda channel, method=method: encode(channel, method))  # type: ignore[misc]
    finally:
        await connection.close()


async def _delete_nats_stream(target: Target) -> None:
    import nats

    client = await nats.connect(target.receiver_url.partition("?")[0], connect_timeout=10, allow_reconnect=False)
    try:
        await client.jetstream().delete_stream(target.name)
    finally:
        await client.close()


async def _delete_redis_stream(target: Target) -> None:
    from redis.asyncio import Redis

    async with Redis.from_url(target.receiver_url.partition("?")[0], socket_connect_timeout=10.0) as client:
        await client.delete(target.name)
