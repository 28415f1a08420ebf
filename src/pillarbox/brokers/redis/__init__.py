"""Redis Streams as a destination. Needs the extra `redis`."""

from __future__ import annotations

from pillarbox.brokers.redis.receiver import RedisReceiver, redis_receiver
from pillarbox.brokers.redis.settings import RedisReceiverSettings, RedisSettings, redis_settings
from pillarbox.brokers.redis.transport import RedisTransport, redis_transport

__all__ = [
    "RedisReceiver",
    "RedisReceiverSettings",
    "RedisSettings",
    "RedisTransport",
    "redis_receiver",
    "redis_settings",
    "redis_transport",
]
