"""Redis Streams for a consumer: a consumer group, acknowledged entry by entry. Valkey too. Needs the extra `redis`."""

from __future__ import annotations

from pillarbox.receivers.redis.receiver import RedisReceiver, redis_receiver
from pillarbox.receivers.redis.settings import RedisReceiverSettings

__all__ = ["RedisReceiver", "RedisReceiverSettings", "redis_receiver"]
