"""PyMySQL: how a connection is opened, and how its errors are told."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from pillarbox.errors import ConfigError, MissingExtra, PillarboxError, SchemaMissing, StoreError, StoreUnavailable

try:
    import pymysql
    from pymysql.constants import CLIENT
except ModuleNotFoundError as error:
    raise MissingExtra("pymysql", extra="mariadb", needed_for="The MariaDB store") from error

__all__ = ["CONFLICTS", "Sql", "connected", "is_over", "mapped_errors", "number_of"]

CONFLICTS: Final = frozenset({1020, 1062, 1213})
"""Another transaction was in the way, and this one is undone: changed under it, the same key, a deadlock."""
_LOGIN: Final = frozenset({1044, 1045, 1698, 1862, 2059})
_RIGHTS: Final = frozenset({1142, 1143, 1227, 1370})
_MISSING: Final = frozenset({1146, 1356})
_PASSING: Final = frozenset({1040, 1041, 1047, 1053, 1158, 1159, 1160, 1161, 1205, 1290, 1317, 1792, 1836, 1927, 1969})
"""Resources, shutdown, networks, lock timeout, read-only, killed."""
_CLIENT_ERRORS: Final = range(2000, 3000)
_SERVER_GONE: Final = 4031

# The fence takes a lock and then looks at what the lock's last holder did: a snapshot of its own would hide that. And
# who is frozen in the middle of a transaction must not keep its locks: others wait to take its lanes over.
_SESSION: Final = (
    "set session transaction isolation level read committed",
    "set session sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'",
    "set session innodb_lock_wait_timeout = 5, group_concat_max_len = 1048576",
)
_MARIADB_SESSION: Final = "set session idle_transaction_timeout = 10"


class Sql(NamedTuple):
    """A piece of SQL among the values: it goes into the statement as it is."""

    text: str


def connected(dsn: str, *, timeout: float) -> Any:
    """A connection that commits each statement, unless told to begin."""
    with mapped_errors():
        connection: Any = pymysql.connect(
            **_arguments(dsn),
            charset="utf8mb4",
            autocommit=True,
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=max(1, int(timeout)),
            read_timeout=timeout,
            write_timeout=timeout,
        )
        connection.encoders = {**connection.encoders, Sql: _as_it_is}
        with connection.cursor() as cursor:
            for statement in _SESSION:
                cursor.execute(statement)
            if "MariaDB" in connection.get_server_info():
                cursor.execute(_MARIADB_SESSION)
    return connection


def _as_it_is(value: Sql, _: object = None) -> str:
    return value.text


def _arguments(dsn: str) -> dict[str, Any]:
    parts = urlsplit(dsn)
    options = dict(parse_qsl(parts.query))
    tls = _tls(options)
    where: dict[str, Any] = {"host": parts.hostname or "127.0.0.1", "port": parts.port or 3306}
    if "unix_socket" in options:
        where = {"unix_socket": options["unix_socket"]}
    return {
        **where,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path[1:]),
        "ssl": tls,
        "ssl_disabled": tls is None,
    }


def _tls(options: Mapping[str, str]) -> ssl.SSLContext | None:
    """Verified where it is asked for, or where a certificate is named."""
    if not {"ssl_ca", "ssl_cert"} & options.keys() and options.get("ssl", "off") == "off":
        return None
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca"))
        if "ssl_cert" in options:
            context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    except OSError as error:
        raise ConfigError(
            f"A certificate of the store URL cannot be used ({error}): check the files after ssl_ca, ssl_cert and "
            "ssl_key."
        ) from error
    if options.get("ssl") == "unverified":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def number_of(error: BaseException) -> int:
    """MySQL's number of an error; 0 where it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def is_over(error: BaseException) -> bool:
    """Whether the connection is of no more use after it."""
    if isinstance(error, (pymysql.InterfaceError, OSError)):
        return True
    return isinstance(error, pymysql.Error) and (
        number_of(error) in _CLIENT_ERRORS or number_of(error) in (1053, 1927, _SERVER_GONE)
    )


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn the driver's errors into ours, once, with the cause kept. No URL and no password is repeated."""
    try:
        yield
    except PillarboxError:
        raise
    except pymysql.Error as error:
        raise _told(error) from error
    except (OSError, ssl.SSLError) as error:
        raise _away(error) from error


def _told(error: pymysql.Error) -> StoreError:
    number, text = number_of(error), error.args[-1] if error.args else type(error).__name__
    if number in _MISSING:
        return SchemaMissing(f"A table is missing ({text}): run `pillarbox schema install`.")
    if number in _LOGIN:
        return StoreUnavailable(f"MariaDB refused the login ({text}): check the URL's user and password.")
    if number == 1049:
        return StoreUnavailable(
            f"MariaDB is there, but there is an {text[0].lower()}{text[1:]}: create it or correct the URL."
        )
    if number in _RIGHTS:
        return StoreError(f"MariaDB refused it ({text}): see `pillarbox schema grants`.")
    if number in CONFLICTS or number in _PASSING:
        return StoreUnavailable(f"MariaDB is not able to answer now ({text}): it will be tried again.")
    if is_over(error):
        return _away(error)
    return StoreError(f"MariaDB refused it ({type(error).__name__} {number}: {text}).")


def _away(error: BaseException) -> StoreUnavailable:
    text = str(error.args[-1]) if error.args else type(error).__name__
    return StoreUnavailable(
        f"MariaDB cannot be reached ({text or type(error).__name__}): check that it runs, and the URL's host and port."
    )
