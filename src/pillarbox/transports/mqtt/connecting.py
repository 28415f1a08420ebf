"""From settings to a link: connect, log in, and agree on terms."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pillarbox.errors import TransportUnavailable
from pillarbox.transports.endpoints import Login
from pillarbox.transports.mqtt.client import MqttClient
from pillarbox.transports.mqtt.dialing import dialed
from pillarbox.transports.mqtt.link import Link, Terms
from pillarbox.transports.mqtt.settings import MqttSettings
from pillarbox.transports.mqtt.verdicts import Policy, advice_on_connecting
from pillarbox.transports.mqtt.wire import Wire
from pillarbox.transports.redaction import one_line

if TYPE_CHECKING:
    from paho.mqtt.client import Client, ConnectFlags
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

__all__ = ["greeted", "linked"]


async def linked(settings: MqttSettings, *, login: Login, tls: ssl.SSLContext | None) -> Link:
    """A link to the broker, on the terms that its greeting allows; `TransportUnavailable` when there is none."""
    wire, terms = await greeted(settings, login=login, tls=tls)
    try:
        return Link(
            wire,
            terms=_agreed(terms, settings),
            policy=Policy(where=settings.shown, no_subscribers=settings.no_subscribers),
        )
    except BaseException:
        wire.hang_up("we gave up")
        raise


async def greeted(
    settings: MqttSettings, *, login: Login, tls: ssl.SSLContext | None
) -> tuple[Wire, Properties | None]:
    """A connection to the first of the brokers that takes us, and what it said; or why the last one did not.

    The session begins empty and ends with the connection: nothing is left that broker or client would send again.
    """
    refused = TransportUnavailable("The mqtt transport has no broker to connect to.")
    hosts = settings.endpoint.hosts
    seconds = settings.timeout.total_seconds() / len(hosts)
    for host, port in hosts:
        try:
            with _told(settings.shown, seconds):
                async with asyncio.timeout(seconds):
                    sock = await dialed(host, port, tls=tls, seconds=seconds)
                    client = MqttClient(client_id=f"{settings.client_id}-{secrets.token_hex(8)}", sock=sock)
                    if login.user or login.password:
                        client.username_pw_set(login.user, login.password)
                    wire = Wire(client)
                    return wire, await _greeting(wire, host, port, settings=settings)
        except TransportUnavailable as error:
            refused = error
    raise refused


async def _greeting(wire: Wire, host: str, port: int, *, settings: MqttSettings) -> Properties | None:
    """Send CONNECT, and return what the CONNACK says."""
    where = settings.shown
    said: asyncio.Future[tuple[ReasonCode, Properties | None]] = asyncio.get_running_loop().create_future()

    def connected(
        _client: Client, _data: object, _flags: ConnectFlags, reason: ReasonCode, terms: Properties | None
    ) -> None:
        if not said.done():
            said.set_result((reason, terms))

    def broken(reason: str) -> None:
        if not said.done():
            text = f"{where} hung up while we connected ({reason}): check that MQTT 5 is spoken there."
            said.set_exception(TransportUnavailable(text))

    wire.client.on_connect = connected
    wire.on_broken = broken
    try:
        wire.client.connect(host, port, math.ceil(settings.keepalive.total_seconds()), clean_start=True)
        reason, terms = await said
        if reason.is_failure:
            code = reason.value
            raise TransportUnavailable(
                f"{where} refused the connection ({reason}, 0x{code:02x}); {advice_on_connecting(code)}."
            )
        if wire.client.socket() is None:
            raise TransportUnavailable(f"{where} hung up as soon as we were connected.")
    except BaseException:
        wire.hang_up("we gave up")
        raise
    wire.keep_alive()
    return terms


def _agreed(terms: Properties | None, settings: MqttSettings) -> Terms:
    """What the broker left out means that it has no limit."""
    if getattr(terms, "MaximumQoS", 2) < settings.qos:
        raise TransportUnavailable(
            f"{settings.shown} takes no messages of QoS {settings.qos}; set another qos, or change the broker."
        )
    if settings.retain and not getattr(terms, "RetainAvailable", 1):
        raise TransportUnavailable(f"{settings.shown} retains no messages; set retain=false, or change the broker.")
    return Terms(
        seconds=settings.timeout.total_seconds(),
        qos=settings.qos,
        retain=settings.retain,
        window=min(settings.window, getattr(terms, "ReceiveMaximum", 65_535)),
        most=getattr(terms, "MaximumPacketSize", None),
    )


@contextmanager
def _told(where: str, seconds: float) -> Iterator[None]:
    """Turn errors of connecting into ours, once, with the cause kept."""
    try:
        yield
    except TimeoutError as error:
        raise TransportUnavailable(f"{where} did not answer within {seconds:g} s while we connected.") from error
    except ssl.SSLError as error:
        reason = one_line(str(getattr(error, "verify_message", "") or error.reason or "no TLS"))
        raise TransportUnavailable(
            f"{where} cannot be trusted or spoken to by TLS ({reason}): check its certificate and the options ca and "
            "client_certificate."
        ) from error
    except OSError as error:
        raise TransportUnavailable(
            f"{where} cannot be reached ({_reason(error)}): check that it runs, and the URL's host and port."
        ) from error


def _reason(error: OSError) -> str:
    """The loop puts words of its own where the system's would say more."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return one_line(error.strerror or type(error).__name__)
    return os.strerror(error.errno)
