"""Secrets in URLs: taken from the environment by reference, and hidden whenever a URL is shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from pillarbox.errors import ConfigError

__all__ = ["expanded", "redacted"]

_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_OPTION: Final = re.compile(
    r"([?&][^&=]*(?:pass|pwd|secret|token|key|credential|auth)[^&=]*=)[^&]*", re.IGNORECASE
)


class _Parts(NamedTuple):
    """A URL cut where secrets begin and end; joined together it is the URL again."""

    scheme: str
    login: str
    host: str
    place: str
    query: str


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """The URL with each `${NAME}` replaced by that environment variable.

    A value in the login or the query is percent-encoded on its way in, so a password may hold any character.
    A reference that is the whole text stands for the whole URL.
    """
    if whole := _REFERENCE.fullmatch(text):
        return _value(whole, environ)
    parts = _cut(text)
    return "".join(
        (
            parts.scheme,
            _REFERENCE.sub(lambda found: quote(_value(found, environ), safe=""), parts.login),
            _REFERENCE.sub(lambda found: _value(found, environ), parts.host + parts.place),
            _REFERENCE.sub(lambda found: quote(_value(found, environ), safe=""), parts.query),
        )
    )


def redacted(url: str) -> str:
    """The URL with its password, and every option that sounds like a secret, as `***`.

    Where a password was not encoded and so cannot be told from the rest, everything that may be it is hidden.
    """
    parts = _cut(url)
    if parts.login + parts.host and "@" in parts.place + parts.query:
        return f"{parts.scheme}***@{url.rpartition('@')[2]}"
    query = _SECRET_OPTION.sub(r"\1***", parts.query)
    return f"{parts.scheme}{_hidden_password(parts.login)}{parts.host}{parts.place}{query}"


def _cut(url: str) -> _Parts:
    scheme, mark, rest = url.rpartition("://") if "://" not in url else url.partition("://")
    rest, question, query = rest.partition("?")
    authority = re.split(r"[/#]", rest, maxsplit=1)[0]
    login, at, host = authority.rpartition("@")
    return _Parts(scheme + mark, login + at, host, rest[len(authority) :], question + query)


def _value(reference: re.Match[str], environ: Mapping[str, str]) -> str:
    name = reference[1]
    if not _NAME.fullmatch(name):
        raise ConfigError("A ${…} in the store URL does not hold the name of an environment variable; write ${NAME}.")
    if name not in environ:
        raise ConfigError(f"The store URL refers to ${{{name}}}, but that environment variable is not set.")
    return environ[name]


def _hidden_password(login: str) -> str:
    user, colon, _ = login.partition(":")
    return f"{user}:***@" if colon else login
