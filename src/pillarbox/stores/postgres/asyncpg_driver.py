"""asyncpg: the store uses its connections and pools as they are."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import asyncpg

from pillarbox.stores.postgres.driver import Connection, OnConnect, Pool, Refusal

__all__ = ["AsyncpgDriver"]

_MAX_PREPARED: Final = 200
"""The number of statements that a direct connection keeps prepared."""


class _Connection(asyncpg.Connection):
    """Keeps its settings when it goes back to the pool: a reset would cost a round trip and unpin the plans."""

    def get_reset_query(self) -> str:
        return ""


class AsyncpgDriver:
    """`Driver` on asyncpg."""

    errors: ClassVar[tuple[type[Exception], ...]] = (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
        TimeoutError,
    )

    async def connect(self, url: str, *, timeout: float, command_timeout: float | None = None) -> Connection:
        connection: Any = await asyncpg.connect(
            url, timeout=timeout, command_timeout=command_timeout, statement_cache_size=0
        )
        return connection  # type: ignore[no-any-return]

    async def create_pool(
        self,
        url: str,
        *,
        size: int,
        timeout: float,
        on_connect: OnConnect | None = None,
        is_direct: bool = True,
    ) -> Pool:
        pool: Any = await asyncpg.create_pool(
            url,
            min_size=size,
            max_size=size,
            connection_class=_Connection,
            init=on_connect,
            timeout=timeout,
            command_timeout=timeout,
            statement_cache_size=_MAX_PREPARED if is_direct else 0,
            max_inactive_connection_lifetime=0,
        )
        return pool  # type: ignore[no-any-return]

    def parse_refusal(self, error: Exception) -> Refusal | None:
        if not isinstance(error, asyncpg.PostgresError):
            return None
        return Refusal(error.sqlstate or "", str(error).partition("\n")[0])

    def unwrap(self, connection: Any) -> Any:
        return connection
