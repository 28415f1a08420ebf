"""Redis Streams as a destination. Needs the extra `redis`."""

from __future__ import annotations

from pillarbox.transports.redis.settings import RedisSettings, redis_settings
from pillarbox.transports.redis.transport import RedisTransport, redis_transport

__all__ = ["RedisSettings", "RedisTransport", "redis_settings", "redis_transport"]
