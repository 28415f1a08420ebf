"""What the Redis transport can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.transports.endpoints import BrokerSettings, Endpoint, endpoint_of
from pillarbox.transports.settings import settings_from
from pillarbox.transports.templates import address
from pillarbox.transports.urls import TransportUrl

__all__ = ["NAME", "Durability", "RedisSettings", "redis_settings"]

NAME: Final = "redis"
_PORT: Final = 6379
_DURABILITY: Final = re.compile(r"none|(?P<wait>wait):(?P<replicas>[1-9]\d?)|(?P<aof>waitaof)(?::(?P<more>\d\d?))?")


class Durability(msgspec.Struct, frozen=True):
    """What must have happened to a batch before it counts as delivered."""

    is_synced: bool = False
    """It is on the disk of the server that took it."""
    replicas: int = 0
    """So many replicas have it; on disk, if `is_synced`."""


class RedisSettings(BrokerSettings, frozen=True, kw_only=True):
    """One server, and how messages are added to its streams. Wrong settings are a `ConfigError` when they are made.

    The path of the URL is the number of the database, 0 if there is none.
    """

    key: str = "{topic}"
    """The stream that a message is added to; a template."""
    durability: str = "none"
    """`none`: the server has it in memory. `wait:N`: so have N replicas. `waitaof`: it is on the server's disk;
    `waitaof:N`: and on the disks of N replicas."""
    create: bool = True
    """Let the first message make the stream."""
    maxlen: int | None = None
    """Drop the oldest entries of a stream above about this number, whether or not anyone has read them."""
    max_payload: int | None = None
    """Bytes of the largest payload that the server takes. If not set, the server is asked, or 512 MiB."""
    connections: int = 8
    """Batches under way at once: each has a connection of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        address(self.key, option="key", transport=NAME)
        if len(self.endpoint.hosts) > 1:
            raise ConfigError("The redis transport takes one server; it knows neither clusters nor sentinels.")
        _ = self.database, self.wanted
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
        return self.url.startswith("rediss:")

    @property
    def endpoint(self) -> Endpoint:
        """The server, and the login in the URL."""
        if not self.url.startswith(("redis://", "rediss://")):
            raise ConfigError("The redis transport's URL begins with redis:// or rediss://.")
        return endpoint_of(self.url, port=_PORT, transport=NAME)

    @property
    def database(self) -> int:
        """The number after the host."""
        path = self.endpoint.path or "0"
        if not path.isascii() or not path.isdigit() or len(path) > 9:
            raise ConfigError("The path of the redis transport's URL is the number of a database, such as /0.")
        return int(path)

    @property
    def wanted(self) -> Durability:
        """The option durability, taken apart."""
        match = _DURABILITY.fullmatch(self.durability)
        if match is None:
            raise ConfigError(
                "The option durability of the redis transport is none, wait:N, waitaof or waitaof:N, with N replicas "
                "up to 99."
            )
        return Durability(match["aof"] is not None, int(match["replicas"] or match["more"] or 0))


def redis_settings(url: TransportUrl) -> RedisSettings:
    """The settings in a URL and the options beside it."""
    if "url" in url.options:
        raise ConfigError("The redis transport's URL is given twice: leave out the option url.")
    return settings_from(RedisSettings, {**url.options, "url": url.address}, transport=NAME)
