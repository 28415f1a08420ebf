"""Settings of the NATS transport and receiver: the same from a URL, a TOML table and code."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import ClassVar, Final

from pillarbox.brokers.nats.encoding import is_pattern
from pillarbox.brokers.settings import BrokerSettings, Endpoint, TransportUrl, parse_endpoint, parse_settings
from pillarbox.brokers.templates import compile_template
from pillarbox.errors import ConfigError
from pillarbox.redaction import Secret
from pillarbox.settings import join_words

__all__ = [
    "NAME",
    "NatsConnectionSettings",
    "NatsReceiverSettings",
    "NatsSettings",
    "nats_receiver_settings",
    "nats_settings",
]

NAME: Final = "nats"
_PORT: Final = 4222
_STREAM_NAME: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_PLACEHOLDER: Final = re.compile(r"\{\w+\}")


class NatsConnectionSettings(BrokerSettings, frozen=True, kw_only=True):
    """Servers and login. A login in the URL without a colon is a token, as NATS clients write it."""

    _owner: ClassVar[str] = "nats transport"

    tls: bool = False
    """Insist on an encrypted connection. Without it, the connection is encrypted if the server demands it."""
    token: Secret | None = None
    nkey: Secret | None = None
    """The seed of a user's key, `SU…`."""
    credentials: str | None = None
    """A file with a user's JWT and seed, as `nsc` writes it."""
    inbox: str = "_INBOX"
    """The prefix of the subjects that answers and messages come to."""

    @property
    def endpoint(self) -> Endpoint:
        """The servers, and the login in the URL."""
        if not self.url.startswith("nats://"):
            raise ConfigError(f"The {self._owner}'s URL begins with nats://; for an encrypted connection set tls=true.")
        return parse_endpoint(self.url, port=_PORT, transport=NAME)

    def describe_clear_login(self) -> str | None:
        # A key proves itself by a signature, and is not sent.
        has_login = self.token or self.user or self.endpoint.user
        return "the option tls=true" if has_login and not self.tls and self.endpoint.is_remote else None

    def _check_inbox(self) -> None:
        if not is_pattern(self.inbox) or "*" in self.inbox or ">" in self.inbox:
            raise ConfigError(f"The option inbox of the {self._owner} is not a subject that something can begin with.")

    def _check_login(self) -> None:
        endpoint = self.endpoint
        user, password = self.user or endpoint.user, self.password or endpoint.password
        ways = {"credentials": self.credentials, "nkey": self.nkey, "token": self.token, "a user": user}
        given = [way for way, value in ways.items() if value]
        if len(given) > 1:
            raise ConfigError(f"The {self._owner} is told to log in by {join_words(given)}; leave one.")
        if password and not user:
            raise ConfigError(f"The {self._owner} has a password and no user; add user=NAME.")
        if self.user and not password:
            raise ConfigError(f"The {self._owner} has a user and no password; add password=env:NAME.")


class NatsSettings(NatsConnectionSettings, frozen=True, kw_only=True):
    """A server or a cluster, and the addresses of messages there. Wrong settings raise `ConfigError` when built."""

    subject: str = "{topic}"
    """The subject that a message is published to; a template."""
    stream: str | None = None
    """The stream that must take it. Not set: whichever has the subject."""
    declare: bool = False
    """Create the stream when connecting, if it does not exist."""
    subjects: tuple[str, ...] = ()
    """The subjects of a declared stream. Not set: the subject template with `>` for what varies at its end."""
    replicas: int = 1
    """The servers that keep a copy of a declared stream."""
    duplicate_window: timedelta = timedelta(minutes=2)
    """The time for which a declared stream recognises a repeat."""
    window: int = 4_000
    """Messages in flight at once on the connection."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.endpoint.path:
            raise ConfigError(
                "The nats transport's URL has a path, which means nothing; the option subject says where."
            )
        compile_template(self.subject, option="subject", transport=NAME)
        if not 1 <= self.window <= 100_000:
            raise ConfigError("The option window of the nats transport must be between 1 and 100000.")
        if not 1 <= self.replicas <= 5:
            raise ConfigError("The option replicas of the nats transport must be between 1 and 5.")
        if not timedelta(milliseconds=100) <= self.duplicate_window <= timedelta(days=365):
            raise ConfigError("The option duplicate_window of the nats transport must be between 100 ms and 365 days.")
        self._check_stream()
        self._check_login()
        self._check_inbox()

    @property
    def declared_subjects(self) -> tuple[str, ...]:
        """The subjects that a declared stream gets; none when the template can lead to all."""
        if self.subjects:
            return self.subjects
        fixed, *varying = _PLACEHOLDER.split(self.subject)
        if not varying:
            return (self.subject,)
        prefix, dot, _ = fixed.rpartition(".")
        return (f"{prefix}.>",) if dot else ()

    def _check_stream(self) -> None:
        if self.stream is not None and not _STREAM_NAME.fullmatch(self.stream):
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


class NatsReceiverSettings(NatsConnectionSettings, frozen=True, kw_only=True):
    """One durable consumer of one stream. Wrong settings raise `ConfigError` when built."""

    _owner: ClassVar[str] = "nats receiver"

    stream: str
    """The stream to read."""
    durable: str
    """The name of the durable consumer. Receivers with the same one share the work."""
    subject: str | None = None
    """Only messages of these subjects, such as `orders.>`. Not set: all of the stream."""
    declare: bool = False
    """Create the durable consumer, if it does not exist. An existing one stays as it is."""
    ack_wait: timedelta = timedelta(seconds=30)
    """Of a declared consumer: how long after our last sign of life the server redelivers what was not acknowledged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.endpoint.path:
            raise ConfigError("The nats receiver's URL has a path, which means nothing; stream and durable say what.")
        for option, value in (("stream", self.stream), ("durable", self.durable)):
            if not _STREAM_NAME.fullmatch(value):
                raise ConfigError(f"The option {option} of the nats receiver is no name: leave out spaces and . * > /.")
        for option, pattern in (("subject", self.subject), ("inbox", self.inbox)):
            if pattern is not None and not is_pattern(pattern):
                raise ConfigError(f"The option {option} of the nats receiver is no subject: write words between dots.")
        self._check_inbox()
        if not timedelta(milliseconds=100) <= self.ack_wait <= timedelta(days=1):
            raise ConfigError("The option ack_wait of the nats receiver must be between 100 ms and 1 day.")
        self._check_login()


def nats_settings(url: TransportUrl) -> NatsSettings:
    """Build the transport's settings from a URL and the options beside it."""
    return parse_settings(NatsSettings, url, broker=NAME)


def nats_receiver_settings(url: TransportUrl) -> NatsReceiverSettings:
    """Build the receiver's settings from a URL and the options beside it."""
    return parse_settings(NatsReceiverSettings, url, broker=NAME, kind="receiver", required=("stream", "durable"))
