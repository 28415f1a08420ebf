"""Settings of the Redis transport and receiver: the same from a URL, a TOML table and code."""

from __future__ import annotations

import os
import re
import secrets
import socket
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.brokers.settings import BrokerSettings, Endpoint, TransportUrl, parse_endpoint, parse_settings
from pillarbox.brokers.templates import compile_template
from pillarbox.decoding import to_usable_id
from pillarbox.errors import ConfigError
from pillarbox.redaction import Secret
from pillarbox.settings import join_words

__all__ = [
    "GIVEN_BACK",
    "NAME",
    "Durability",
    "RedisReceiverSettings",
    "RedisSettings",
    "build_consumer_name",
    "redis_receiver_settings",
    "redis_settings",
]

NAME: Final = "redis"
_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_SCHEMES: Final = ("redis://", "rediss://", "redis+sentinel://", "rediss+sentinel://")
_MASTER: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
GIVEN_BACK: Final = "given-back"
"""The consumer in each group that holds the entries given back, until another claims them."""
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_DURABILITY: Final = re.compile(r"none|(?P<wait>wait):(?P<replicas>[1-9]\d?)|(?P<aof>waitaof)(?::(?P<more>\d\d?))?")


class Durability(msgspec.Struct, frozen=True):
    """The condition for a batch to count as delivered, beyond the server's reply."""

    is_synced: bool = False
    """It is on the disk of the server that took it."""
    replicas: int = 0
    """As many replicas have it; on disk, if `is_synced`."""


class RedisSettings(BrokerSettings, frozen=True, kw_only=True):
    """One server, or the master that sentinels name, and its streams. Wrong settings raise `ConfigError` when built.

    The path of the URL is the number of the database, 0 if there is none. After sentinels it is the master's name, and
    then the number: `redis+sentinel://s1,s2,s3/mymaster/0`.
    """

    sentinel_user: str | None = None
    sentinel_password: Secret | None = None
    """The login at the sentinels, which is not the server's."""

    key: str = "{topic}"
    """The stream that a message is added to; a template."""
    durability: str = "none"
    """`none`: the server has it in memory. `wait:N`: so have N replicas. `waitaof`: it is on the server's disk;
    `waitaof:N`: and on the disks of N replicas."""
    create: bool = True
    """Let the first message create the stream."""
    maxlen: int | None = None
    """Drop the oldest entries of a stream above about this number, whether or not anyone has read them."""
    max_payload: int | None = None
    """Bytes of the largest payload that the server takes. If not set, the server is asked, or 512 MiB."""
    connections: int = 8
    """Batches in flight at once: each has a connection of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        compile_template(self.key, option="key", transport=NAME)
        if len(self.endpoint.hosts) > 1 and not self.has_sentinels:
            raise ConfigError(
                "The redis transport takes one server, or the sentinels of one: redis+sentinel://s1,s2,s3/mymaster. It "
                "does not know Redis Cluster."
            )
        if (self.sentinel_user or self.sentinel_password) and not self.has_sentinels:
            raise ConfigError(
                "The options sentinel_user and sentinel_password of the redis transport need a URL with "
                "redis+sentinel://."
            )
        if self.sentinel_user and not self.sentinel_password:
            raise ConfigError("The redis transport has a sentinel_user and no sentinel_password; add it.")
        _ = self.database, self.master, self.required_durability
        if self.maxlen is not None and self.maxlen < 1:
            raise ConfigError("The option maxlen of the redis transport must be at least 1; leave it out for no limit.")
        if self.max_payload is not None and self.max_payload < 1:
            raise ConfigError("The option max_payload of the redis transport must be at least 1.")
        if not 1 <= self.connections <= 1_000:
            raise ConfigError("The option connections of the redis transport must be between 1 and 1000.")
        if not self.is_encrypted and (self.ca or self.client_certificate):
            raise ConfigError("The options ca and client_certificate of the redis transport need a URL with rediss://.")

    @property
    def is_encrypted(self) -> bool:
        """TLS from the first byte."""
        return self.url.startswith(("rediss:", "rediss+"))

    @property
    def has_sentinels(self) -> bool:
        """The URL names sentinels, which know the server."""
        return self.url.partition(":")[0].endswith("+sentinel")

    @property
    def endpoint(self) -> Endpoint:
        """The server or the sentinels, and the server's login in the URL."""
        if not self.url.startswith(_SCHEMES):
            raise ConfigError(f"The redis transport's URL begins with {join_words(_SCHEMES, last='or')}.")
        return parse_endpoint(self.url, port=_SENTINEL_PORT if self.has_sentinels else _PORT, transport=NAME)

    def describe_clear_login(self) -> str | None:
        endpoint = self.endpoint
        has_login = self.password or endpoint.password or self.sentinel_password
        scheme = "rediss+sentinel" if self.has_sentinels else "rediss"
        return f"a URL with {scheme}://" if has_login and not self.is_encrypted and endpoint.is_remote else None

    @property
    def database(self) -> int:
        """The number after the host."""
        path = self.endpoint.path or ""
        path = (path.partition("/")[2] if self.has_sentinels else path) or "0"
        if not path.isascii() or not path.isdigit() or len(path) > 9:
            raise ConfigError("The path of the redis transport's URL is the number of a database, such as /0.")
        return int(path)

    @property
    def master(self) -> str | None:
        """The name by which sentinels know the server; None without sentinels."""
        if not self.has_sentinels:
            return None
        name = (self.endpoint.path or "").partition("/")[0]
        if not _MASTER.fullmatch(name):
            raise ConfigError(
                "The redis transport's URL names sentinels and no master: write redis+sentinel://s1,s2,s3/mymaster."
            )
        return name

    @property
    def required_durability(self) -> Durability:
        """The option durability, parsed."""
        match = _DURABILITY.fullmatch(self.durability)
        if match is None:
            raise ConfigError(
                "The option durability of the redis transport is none, wait:N, waitaof or waitaof:N, with N replicas "
                "up to 99."
            )
        return Durability(match["aof"] is not None, int(match["replicas"] or match["more"] or 0))


class RedisReceiverSettings(BrokerSettings, frozen=True, kw_only=True):
    """One consumer group of one stream. Wrong settings raise `ConfigError` when built.

    The path of the URL is the number of the database, 0 if there is none.
    """

    stream: str
    """The stream to read."""
    group: str
    """The name of the consumer group. Receivers with the same one share the work."""
    consumer: str | None = None
    """Our own name in the group, unlike that of any process that runs. Not set: a new one for each receiver."""
    declare: bool = False
    """Create the stream, and the group from the stream's start, if they do not exist."""
    sentinel_user: str | None = None
    sentinel_password: Secret | None = None
    """The login at the sentinels, which is not the server's."""
    claim_after: timedelta = timedelta(seconds=30)
    """The time after a consumer's last sign of life when another one claims its entries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.startswith(_SCHEMES):
            raise ConfigError(f"The redis receiver's URL begins with {join_words(_SCHEMES, last='or')}.")
        for option, value in (("stream", self.stream), ("group", self.group), ("consumer", self.consumer)):
            if value is not None and not _NAME.fullmatch(value):
                raise ConfigError(f"The option {option} of the redis receiver is no name: write 1 to 200 characters.")
        if self.consumer == GIVEN_BACK:
            raise ConfigError(f"The option consumer of the redis receiver is not {GIVEN_BACK}: that name is taken.")
        if not timedelta(seconds=1) <= self.claim_after <= timedelta(days=1):
            raise ConfigError("The option claim_after of the redis receiver must be between 1 second and 1 day.")
        _ = self.server

    @property
    def server(self) -> RedisSettings:
        """The settings of the connection, as the transport has them."""
        return RedisSettings(
            url=self.url, user=self.user, password=self.password, timeout=self.timeout, insecure=self.insecure,
            verify=self.verify, ca=self.ca, client_certificate=self.client_certificate, client_key=self.client_key,
            sentinel_user=self.sentinel_user, sentinel_password=self.sentinel_password,
            max_payload=1,  # so that connecting does not ask the server for it: a receiver sends no payload
        )  # fmt: skip


def redis_settings(url: TransportUrl) -> RedisSettings:
    """Build the transport's settings from a URL and the options beside it."""
    return parse_settings(RedisSettings, url, broker=NAME)


def redis_receiver_settings(url: TransportUrl) -> RedisReceiverSettings:
    """Build the receiver's settings from a URL and the options beside it."""
    return parse_settings(RedisReceiverSettings, url, broker=NAME, kind="receiver", required=("stream", "group"))


def build_consumer_name() -> str:
    """Build a name that no other consumer has, and by which a person can find the process."""
    return to_usable_id(f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")
