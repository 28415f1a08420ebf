"""What the NATS transport can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from pillarbox.errors import ConfigError
from pillarbox.transports.endpoints import BrokerSettings, Endpoint, endpoint_of
from pillarbox.transports.nats.subjects import is_pattern
from pillarbox.transports.secret import Secret
from pillarbox.transports.settings import listed, settings_from
from pillarbox.transports.templates import address
from pillarbox.transports.urls import TransportUrl

__all__ = ["NAME", "NatsSettings", "nats_settings"]

NAME: Final = "nats"
_PORT: Final = 4222
_STREAM: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_PLACEHOLDER: Final = re.compile(r"\{\w+\}")


class NatsSettings(BrokerSettings, frozen=True, kw_only=True):
    """A server or a cluster, and how messages are addressed there. Wrong settings are a `ConfigError` when made.

    A login in the URL without a colon is a token, as NATS clients have it.
    """

    subject: str = "{topic}"
    """What a message is published to; a template."""
    stream: str | None = None
    """The stream that must take it. Not set: whichever has the subject."""
    declare: bool = False
    """Make the stream when connecting, if it is not there."""
    subjects: tuple[str, ...] = ()
    """The subjects of a declared stream. Not set: the subject template with `>` for what varies at its end."""
    replicas: int = 1
    """The servers that keep a copy of a declared stream."""
    duplicate_window: timedelta = timedelta(minutes=2)
    """How long a declared stream recognises a message that it has already."""
    tls: bool = False
    """Insist on an encrypted connection. Without it, it is encrypted if the server demands so."""
    token: Secret | None = None
    nkey: Secret | None = None
    """The seed of a user's key, `SU…`."""
    credentials: str | None = None
    """A file with a user's JWT and seed, as `nsc` writes it."""
    inbox: str = "_INBOX"
    """What the subjects of acknowledgements begin with."""
    window: int = 4_000
    """Messages under way at once on the connection."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.endpoint.path:
            raise ConfigError(
                "The nats transport's URL has a path, which means nothing; the option subject says where."
            )
        address(self.subject, option="subject", transport=NAME)
        self._check_numbers()
        self._check_stream()
        self._check_login()
        if not is_pattern(self.inbox) or "*" in self.inbox or ">" in self.inbox:
            raise ConfigError("The option inbox of the nats transport is not a subject that something can begin with.")

    @property
    def endpoint(self) -> Endpoint:
        """The servers, and the login in the URL."""
        if not self.url.startswith("nats://"):
            raise ConfigError("The nats transport's URL begins with nats://; for an encrypted connection set tls=true.")
        return endpoint_of(self.url, port=_PORT, transport=NAME)

    @property
    def declared_subjects(self) -> tuple[str, ...]:
        """What a declared stream is to take."""
        return self.subjects or _varying(self.subject)

    def _check_numbers(self) -> None:
        if not 1 <= self.window <= 100_000:
            raise ConfigError("The option window of the nats transport must be between 1 and 100000.")
        if not 1 <= self.replicas <= 5:
            raise ConfigError("The option replicas of the nats transport must be between 1 and 5.")
        if not timedelta(milliseconds=100) <= self.duplicate_window <= timedelta(days=365):
            raise ConfigError("The option duplicate_window of the nats transport must be between 100 ms and 365 days.")

    def _check_stream(self) -> None:
        if self.stream is not None and not _STREAM.fullmatch(self.stream):
            raise ConfigError("The option stream of the nats transport is no name: leave out spaces and . * > / \\.")
        if not self.declare:
            return
        if self.stream is None:
            raise ConfigError("declare=true of the nats transport needs the name of the stream: add stream=NAME.")
        if not self.declared_subjects:
            raise ConfigError(
                "declare=true of the nats transport needs subjects, for example subjects=orders.>, because the option "
                "subject begins with what varies, and a stream cannot take everything."
            )
        if not all(is_pattern(subject) for subject in self.subjects):
            raise ConfigError("The option subjects of the nats transport has something that is no subject.")

    def _check_login(self) -> None:
        endpoint = self.endpoint
        ways = {
            "credentials": self.credentials,
            "nkey": self.nkey,
            "token": self.token,
            "a user": self.user or endpoint.user,
        }
        given = [way for way, value in ways.items() if value]
        if len(given) > 1:
            raise ConfigError(f"The nats transport is told to log in by {listed(given)}; leave one.")
        if (self.password or endpoint.password) and not (self.user or endpoint.user):
            raise ConfigError("The nats transport has a password and no user; add user=NAME.")
        if self.user and not (self.password or endpoint.password):
            raise ConfigError("The nats transport has a user and no password; add password=env:NAME.")


def nats_settings(url: TransportUrl) -> NatsSettings:
    """The settings in a URL and the options beside it."""
    if "url" in url.options:
        raise ConfigError("The nats transport's URL is given twice: leave out the option url.")
    return settings_from(NatsSettings, {**url.options, "url": url.address}, transport=NAME)


def _varying(template: str) -> tuple[str, ...]:
    """The subjects that a template can lead to; none when it can lead to all."""
    fixed, *varying = _PLACEHOLDER.split(template)
    if not varying:
        return (template,)
    whole, dot, _ = fixed.rpartition(".")
    return (f"{whole}.>",) if dot else ()
