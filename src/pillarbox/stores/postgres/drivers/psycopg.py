"""psycopg 3, for those who have no asyncpg."""

from __future__ import annotations

import asyncio
import re
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pillarbox.errors import ConfigError
from pillarbox.stores.postgres.drivers import Connection, Init, Pool, Refusal
from pillarbox.stores.postgres.drivers.psycopg_connection import ADAPTERS, ERRORS, Line, PsycopgConnection
from pillarbox.stores.postgres.drivers.psycopg_pool import PsycopgPool

__all__ = ["PsycopgDriver"]

_PREPARED: Final = 200
"""How many statements a direct connection keeps prepared."""

# A server that can (14 and newer, on Linux) looks whether we are still there: what we gave up must not keep its locks.
_SESSION: Final = """
    set timezone = 'UTC';
    select set_config(name, '1s', false) from pg_settings
     where name = 'client_connection_check_interval' and version() like '%linux%'
"""

# libpq tells of a login in words alone.
_REFUSED_LOGINS: Final = (
    ("28P01", re.compile(r"password authentication failed|no password supplied")),
    ("28000", re.compile(r"no pg_hba\.conf entry|role \".*\" (does not exist|is not permitted)")),
    ("3D000", re.compile(r"database \".*\" does not exist")),
)
_FATAL: Final = re.compile(r"FATAL:\s+(.+)")


class PsycopgDriver:
    """`Driver` on psycopg."""

    errors: ClassVar[tuple[type[Exception], ...]] = ERRORS

    async def connect(self, url: str, *, timeout: float, command_timeout: float | None = None) -> Connection:
        return await _connected(url, timeout=timeout, command_timeout=command_timeout, is_direct=False)

    async def pool(
        self,
        url: str,
        *,
        size: int,
        timeout: float,
        init: Init | None = None,
        is_direct: bool = True,
    ) -> Pool:
        async def connect() -> PsycopgConnection:
            connection = await _connected(url, timeout=timeout, command_timeout=timeout, is_direct=is_direct)
            try:
                if is_direct:
                    await connection.execute(_SESSION)
                if init is not None:
                    await init(connection)
            except BaseException:
                await connection.close()
                raise
            return connection

        pool = PsycopgPool(connect, size=size)
        await pool.fill()
        return pool

    def refusal(self, error: Exception) -> Refusal | None:
        if not isinstance(error, psycopg.Error):
            return None
        if error.sqlstate is not None:
            return Refusal(error.sqlstate, error.diag.message_primary or _first_line(error))
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return _refused_login(str(error))
        return Refusal("", _first_line(error))

    def handle(self, connection: Any) -> Any:
        return connection.raw


async def _connected(url: str, *, timeout: float, command_timeout: float | None, is_direct: bool) -> PsycopgConnection:
    async with asyncio.timeout(timeout):
        raw = await Line.connect(
            _conninfo(url), autocommit=True, prepare_threshold=0 if is_direct else None, context=ADAPTERS
        )
    raw.patience = command_timeout
    raw.prepared_max = _PREPARED
    return PsycopgConnection(raw, is_direct=is_direct)


def _refused_login(text: str) -> Refusal | None:
    fatal = _FATAL.search(text)
    for state, words in _REFUSED_LOGINS:
        if (said := words.search(text)) is not None:
            return Refusal(state, said[0] if fatal is None else fatal[1])
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _conninfo(url: str) -> str:
    """As libpq takes it, to whom a search path is no parameter but a setting."""
    place, _, query = url.partition("?")
    pairs = dict(pair.split("=", 1) for pair in query.split("&") if pair)
    path = unquote(pairs.pop("search_path", ""))
    try:
        known = conninfo_to_dict(f"{place}?{'&'.join(f'{name}={value}' for name, value in pairs.items())}")
    except psycopg.ProgrammingError:  # it quotes what it does not understand, which may be the password
        raise ConfigError(
            "The PostgreSQL URL cannot be read by psycopg: write special characters in the user, the password and "
            "the options as %XX."
        ) from None
    if path:
        escaped = re.sub(r"([\\\s])", r"\\\1", path)
        known["options"] = f"{known.get('options', '')} -c search_path={escaped}".strip()
    return make_conninfo("", **known)
