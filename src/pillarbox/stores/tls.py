"""TLS of store connections: a server on another machine must prove itself by a certificate, or the URL says otherwise.

Where the URL does not mention it, PostgreSQL gets `sslmode=verify-full` and MySQL `ssl=on`. The authorities are those
that the URL names, or that the system trusts. Every connection of a store passes through here, whoever opens it.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.hosts import is_local_host

__all__ = [
    "SYSTEM_AUTHORITIES",
    "check_certificate_files",
    "describe_unverified",
    "find_authorities",
    "is_certificate_error",
    "secure_mysql_url",
    "secure_postgres_url",
]

SYSTEM_AUTHORITIES: Final = "system"
"""The word of libpq for the authorities that the system trusts: `sslrootcert=system`."""
_OWN_AUTHORITIES: Final = Path("~/.postgresql/root.crt")
"""The file that libpq and asyncpg read when none is named."""
_CERTIFICATE_FILES: Final = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl"})
_BUNDLES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_VERIFYING_MODES: Final = ("verify-ca", "verify-full")
_PORT: Final = re.compile(r"(?<=[^:]):\d{1,5}$")
# What libpq, asyncpg and PyMySQL say. A connection that breaks later says SSL too, but none of these.
_CERTIFICATE_WORDS: Final = re.compile(
    r"certificate|does ?n[o']t support SSL|rejected SSL upgrade|SSL is required", re.IGNORECASE
)


def secure_postgres_url(url: str, *, environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL with the options by which a server on another machine must prove itself.

    A choice that was made stays: `sslmode` in the URL, or PGSSLMODE.
    """
    parts = _split(url)
    mode = parts.options.get("sslmode") or environ.get("PGSSLMODE", "")
    if not mode and _is_remote_postgres(parts, environ):
        mode = "verify-full"
        parts.options["sslmode"] = mode
    has_authorities = "sslrootcert" in parts.options or environ.get("PGSSLROOTCERT") or _has_own_authorities()
    if mode == "verify-full" and not has_authorities:
        parts.options["sslrootcert"] = SYSTEM_AUTHORITIES
    return parts.join()


def secure_mysql_url(url: str) -> str:
    """Return the URL with the option by which a server on another machine must prove itself; `ssl` in it stays."""
    parts = _split(url)
    if "ssl" not in parts.options and _is_remote_mysql(parts):
        parts.options["ssl"] = "on"
    return parts.join()


def describe_unverified(url: str, *, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the choice, such as `sslmode=require`, by which a server on another machine need not prove itself.

    None where it must, and where no other machine is asked.
    """
    if url.startswith("postgresql:"):
        parts = _split(url)
        name = "sslmode" if "sslmode" in parts.options else "PGSSLMODE"
        mode = parts.options.get("sslmode") or environ.get("PGSSLMODE") or "verify-full"
        return f"{name}={mode}" if mode not in _VERIFYING_MODES and _is_remote_postgres(parts, environ) else None
    if url.startswith("mysql:"):
        parts = _split(url)
        mode = parts.options.get("ssl", "on")
        return f"ssl={mode}" if mode != "on" and _is_remote_mysql(parts) else None
    return None


def check_certificate_files(url: str) -> None:
    """Raise `StoreUnavailable` if the URL names a file of PostgreSQL's that cannot be read.

    asyncpg says no more than "No such file or directory", as it does for a socket that is not there.
    """
    options = _split(url).options
    for name in _CERTIFICATE_FILES & options.keys():
        path = unquote(options[name])
        try:
            with Path(path).expanduser().open("rb"):
                pass
        except OSError as error:
            if (name, path) != ("sslrootcert", SYSTEM_AUTHORITIES):
                raise StoreUnavailable(
                    f"The file {path} of the option {name} in the store URL cannot be read ({error.strerror}): "
                    "correct the path."
                ) from error


def find_authorities() -> str | None:
    """Find the file of the authorities that the system trusts; None where they are in no file.

    Drivers do not: asyncpg knows no such word, and the libpq of a wheel looks in the folders of the machine that
    built it.
    """
    own = ssl.get_default_verify_paths().cafile
    return next((path for path in (own, *_BUNDLES) if path and Path(path).exists()), None)


def is_certificate_error(error: BaseException, text: str) -> bool:
    """Return whether a connection failed because the server could not prove itself, or offers no TLS."""
    return isinstance(error, ssl.SSLCertVerificationError) or _CERTIFICATE_WORDS.search(text) is not None


class _Parts(NamedTuple):
    """A URL by its parts; the options are still percent-encoded."""

    address: str
    hosts: str
    options: dict[str, str]

    def join(self) -> str:
        options = "&".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.address}?{options}" if options else self.address


def _split(url: str) -> _Parts:
    address, _, query = url.partition("?")
    scheme, mark, rest = address.partition("://")
    if not mark or not scheme.isalnum() or "#" in url:  # drivers end the host at a #, and would go elsewhere
        raise ConfigError("The store is given as a URL: write postgresql://user@host/database or mysql://…")
    options = dict(pair.split("=", 1) for pair in query.split("&") if "=" in pair)
    return _Parts(address, unquote(rest.partition("/")[0].rpartition("@")[2]), options)


def _is_remote_postgres(parts: _Parts, environ: Mapping[str, str]) -> bool:
    """Return whether a driver may connect to another machine. They disagree which of two hosts wins: any may."""
    named = [parts.hosts, *(unquote(parts.options.get(name, "")) for name in ("host", "hostaddr"))]
    if "service" in parts.options or (environ.get("PGSERVICE") and not any(named)):  # a file says which host
        return True
    if not any(named):
        named.append(environ.get("PGHOST", ""))
    named.append(environ.get("PGHOSTADDR", ""))
    return any(_is_remote(host) for hosts in named for host in hosts.split(","))


def _is_remote_mysql(parts: _Parts) -> bool:
    return not parts.options.get("unix_socket") and any(_is_remote(host) for host in parts.hosts.split(","))


def _is_remote(host: str) -> bool:
    return not is_local_host(_PORT.sub("", host))


def _has_own_authorities() -> bool:
    try:
        return _OWN_AUTHORITIES.expanduser().exists()
    except (RuntimeError, OSError):  # there is no home, or it may not be looked at
        return False
