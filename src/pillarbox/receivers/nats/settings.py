"""What the NATS receiver can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from pillarbox.errors import ConfigError
from pillarbox.transports.endpoints import BrokerSettings, Endpoint, endpoint_of
from pillarbox.transports.secret import Secret
from pillarbox.transports.settings import listed, settings_from
from pillarbox.transports.urls import TransportUrl

__all__ = ["NAME", "NatsReceiverSettings", "nats_receiver_settings"]

NAME: Final = "nats"
_PORT: Final = 4222
_NAME: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_PATTERN: Final = re.compile(r"[^\s.\x00-\x1f\x7f]+(?:\.[^\s.\x00-\x1f\x7f]+)*")


class NatsReceiverSettings(BrokerSettings, frozen=True, kw_only=True):
    """One durable consumer of one stream. Wrong settings are a `ConfigError` when they are made.

    A login in the URL without a colon is a token, as NATS clients have it.
    """

    stream: str
    """What is read."""
    durable: str
    """The name that the server keeps our place under. Receivers with the same one share the work."""
    subject: str | None = None
    """Only messages of these subjects, such as `orders.>`. Not set: all of the stream."""
    declare: bool = False
    """Make the durable consumer, if it is not there. One that is stays as it is."""
    ack_wait: timedelta = timedelta(seconds=30)
    """Of a declared one: how long after our last sign of life the server delivers again what was not acknowledged."""
    tls: bool = False
    """Insist on an encrypted connection. Without it, it is encrypted if the server demands so."""
    token: Secret | None = None
    nkey: Secret | None = None
    """The seed of a user's key, `SU…`."""
    credentials: str | None = None
    """A file with a user's JWT and seed, as `nsc` writes it."""
    inbox: str = "_INBOX"
    """What the subjects begin with that messages come to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.endpoint.path:
            raise ConfigError("The nats receiver's URL has a path, which means nothing; stream and durable say what.")
        for option, value in (("stream", self.stream), ("durable", self.durable)):
            if not _NAME.fullmatch(value):
                raise ConfigError(f"The option {option} of the nats receiver is no name: leave out spaces and . * > /.")
        for option, pattern in (("subject", self.subject), ("inbox", self.inbox)):
            if pattern is not None and not _PATTERN.fullmatch(pattern):
                raise ConfigError(f"The option {option} of the nats receiver is no subject: write words between dots.")
        if "*" in self.inbox or ">" in self.inbox:
            raise ConfigError("The option inbox of the nats receiver is not a subject that something can begin with.")
        if not timedelta(milliseconds=100) <= self.ack_wait <= timedelta(days=1):
            raise ConfigError("The option ack_wait of the nats receiver must be between 100 ms and 1 day.")
        self._check_login()

    @property
    def endpoint(self) -> Endpoint:
        """The servers, and the login in the URL."""
        if not self.url.startswith("nats://"):
            raise ConfigError("The nats receiver's URL begins with nats://; for an encrypted connection set tls=true.")
        return endpoint_of(self.url, port=_PORT, transport=NAME)

    def _check_login(self) -> None:
        user = self.user or self.endpoint.user
        ways = {"credentials": self.credentials, "nkey": self.nkey, "token": self.token, "a user": user}
        given = [way for way, value in ways.items() if value]
        if len(given) > 1:
            raise ConfigError(f"The nats receiver is told to log in by {listed(given)}; leave one.")
        password = self.password or self.endpoint.password
        if password and not user:
            raise ConfigError("The nats receiver has a password and no user; add user=NAME.")
        if self.user and not password:
            raise ConfigError("The nats receiver has a user and no password; add password=env:NAME.")


def nats_receiver_settings(url: TransportUrl) -> NatsReceiverSettings:
    """The settings in a URL and the options beside it."""
    if "url" in url.options:
        raise ConfigError("The nats receiver's URL is given twice: leave out the option url.")
    for option in ("stream", "durable"):
        if option not in url.options:
            raise ConfigError(f"The nats receiver needs a {option}: add {option}=NAME.")
    return settings_from(NatsReceiverSettings, {**url.options, "url": url.address}, transport=NAME)
