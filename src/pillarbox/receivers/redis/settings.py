"""What the Redis receiver can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

import os
import re
import secrets
import socket
from datetime import timedelta
from typing import Final

from pillarbox.errors import ConfigError
from pillarbox.receivers.identity import identity
from pillarbox.transports.endpoints import BrokerSettings
from pillarbox.transports.redis.settings import RedisSettings
from pillarbox.transports.settings import settings_from
from pillarbox.transports.urls import TransportUrl

__all__ = ["GIVEN_BACK", "NAME", "RedisReceiverSettings", "new_name", "redis_receiver_settings"]

NAME: Final = "redis"
GIVEN_BACK: Final = "given-back"
"""The consumer that holds what was given back, until anybody takes it."""
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


class RedisReceiverSettings(BrokerSettings, frozen=True, kw_only=True):
    """One consumer group of one stream. Wrong settings are a `ConfigError` when they are made.

    The path of the URL is the number of the database, 0 if there is none.
    """

    stream: str
    """What is read."""
    group: str
    """The name that the server keeps our place under. Receivers with the same one share the work."""
    consumer: str | None = None
    """Our own name in the group, unlike that of any process that runs. Not set: a new one for each receiver."""
    declare: bool = False
    """Make the stream and the group, from the stream's start, if they are not there."""
    claim_after: timedelta = timedelta(seconds=30)
    """How long after the last sign of life of a consumer another takes over what it had in hand."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.startswith(("redis://", "rediss://")):
            raise ConfigError("The redis receiver's URL begins with redis:// or rediss://.")
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
        """Where to connect, and as whom: the same as for the transport."""
        return RedisSettings(
            url=self.url, user=self.user, password=self.password, timeout=self.timeout, insecure=self.insecure,
            verify=self.verify, ca=self.ca, client_certificate=self.client_certificate, client_key=self.client_key,
            max_payload=1,  # said, so that the server is not asked: nothing is sent
        )  # fmt: skip


def redis_receiver_settings(url: TransportUrl) -> RedisReceiverSettings:
    """The settings in a URL and the options beside it."""
    if "url" in url.options:
        raise ConfigError("The redis receiver's URL is given twice: leave out the option url.")
    for option in ("stream", "group"):
        if option not in url.options:
            raise ConfigError(f"The redis receiver needs a {option}: add {option}=NAME.")
    return settings_from(RedisReceiverSettings, {**url.options, "url": url.address}, transport=NAME)


def new_name() -> str:
    """A consumer that nobody else is, and whose process a person can find."""
    return identity(f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")
