"""Redaction: hides secrets in texts, URLs and tracebacks, and shortens them for logs, errors and the journal.

| function             | hides                                          | shortens to            |
|----------------------|------------------------------------------------|------------------------|
| `redact`             | what looks like a password, a token or a key   |                        |
| `redact_line`        | the same                                       | one line of 300        |
| `format_traceback`   | the same                                       | the last 8,000         |
| `redact_url`         | the password and secret options of a URL       |                        |
| `hide_secrets`       | values that are known to be secret             |                        |

`Secret` holds the value of an option; `expand_variables` fills `${NAME}` into a URL.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from pillarbox.errors import ConfigError

__all__ = ["Secret", "expand_variables", "format_traceback", "hide_secrets", "redact", "redact_line", "redact_url"]

_MAX_LINE: Final = 300
_MAX_TRACEBACK: Final = 8_000
_INVISIBLE: Final = "\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL: Final = re.compile(f"[\x00-\x1f{_INVISIBLE}]")
_CONTROL_EXCEPT_NEWLINE: Final = re.compile(f"[\x00-\x09\x0b-\x1f{_INVISIBLE}]")

# Every repetition is bounded: the text may have been written to make this take long.
_LOGIN: Final = re.compile(r"(://[^\s/@:]{0,200}):[^\s@]{0,500}@")
_NAMED: Final = re.compile(
    r"""(?P<name>(?<![\w-])[\w-]{0,64}(?:passw(?:or)?d|pwd|secret|token|api[-_]?key|credential|authorization)"""
    r"""[\w-]{0,64}["']?\s{0,4}[=:]\s{0,4})"""
    r"""(?P<value>"[^"]{0,2000}"?|'[^']{0,2000}'?|(?:(?:bearer|basic)\s{1,4})?[^\s,;&'")\]}]{1,2000})""",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(r"\b(bearer|basic)\s{1,4}[\w.~+/=-]{8,2000}", re.IGNORECASE)
_WEBHOOK: Final = re.compile(r"whs(?:ec|k)_[\w+/=-]{1,500}")


def redact(text: str) -> str:
    """Hide everything in the text that looks like a password, a token or a key."""
    text = _LOGIN.sub(r"\1:***@", text)
    text = _NAMED.sub(r"\g<name>***", text)
    return _WEBHOOK.sub("***", _BEARER.sub(r"\1 ***", text))


def redact_line(text: str, *, limit: int = _MAX_LINE) -> str:
    """Put the text on one line, redacted, without control characters, and cut it to the limit."""
    if len(text) > 8 * limit:
        # Up to a space: half a secret may no longer look like one.
        text = text[: 8 * limit].rpartition(" ")[0] or text[:limit]
    line = redact(" ".join(_CONTROL.sub(" ", text).split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def format_traceback(error: BaseException) -> str:
    """Format the traceback of an error, redacted. Of a long one the end is kept, because it names the cause."""
    text = "".join(traceback.format_exception(error))[-8 * _MAX_TRACEBACK :]
    text = redact(_CONTROL_EXCEPT_NEWLINE.sub(" ", text))
    return text if len(text) <= _MAX_TRACEBACK else f"…{text[1 - _MAX_TRACEBACK :]}"


_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_OPTION: Final = re.compile(
    r"([?&][^&=]*(?:pass|pwd|secret|token|key|credential|auth)[^&=]*=)[^&]*", re.IGNORECASE
)


class _UrlParts(NamedTuple):
    """Parts of a URL, split where secrets begin and end; joined together they are the URL again."""

    scheme: str
    login: str
    host: str
    place: str
    query: str


def expand_variables(text: str, environ: Mapping[str, str]) -> str:
    """Replace each `${NAME}` in the URL by that environment variable.

    A value in the login or the query is percent-encoded on its way in, so a password may hold any character.
    A reference that is the whole text stands for the whole URL.
    """
    if whole := _REFERENCE.fullmatch(text):
        return _read_variable(whole, environ)
    parts = _split_url(text)
    return "".join(
        (
            parts.scheme,
            _REFERENCE.sub(lambda found: quote(_read_variable(found, environ), safe=""), parts.login),
            _REFERENCE.sub(lambda found: _read_variable(found, environ), parts.host + parts.place),
            _REFERENCE.sub(lambda found: quote(_read_variable(found, environ), safe=""), parts.query),
        )
    )


def redact_url(url: str) -> str:
    """Hide the password of the URL, and every option that is named like a secret, as `***`.

    Where a password was not encoded and its end is uncertain, everything that may belong to it is hidden.
    """
    parts = _split_url(url)
    if parts.login + parts.host and "@" in parts.place + parts.query:
        return f"{parts.scheme}***@{url.rpartition('@')[2]}"
    query = _SECRET_OPTION.sub(r"\1***", parts.query)
    return f"{parts.scheme}{_hide_password(parts.login)}{parts.host}{parts.place}{query}"


def _split_url(url: str) -> _UrlParts:
    scheme, mark, rest = url.rpartition("://") if "://" not in url else url.partition("://")
    rest, question, query = rest.partition("?")
    authority = re.split(r"[/#]", rest, maxsplit=1)[0]
    login, at, host = authority.rpartition("@")
    return _UrlParts(scheme + mark, login + at, host, rest[len(authority) :], question + query)


def _read_variable(reference: re.Match[str], environ: Mapping[str, str]) -> str:
    name = reference[1]
    if not _NAME.fullmatch(name):
        raise ConfigError("A ${…} in the URL does not hold the name of an environment variable; write ${NAME}.")
    if name not in environ:
        raise ConfigError(f"The URL refers to ${{{name}}}, but that environment variable is not set.")
    return environ[name]


def _hide_password(login: str) -> str:
    user, colon, _ = login.partition(":")
    return f"{user}:***@" if colon else login


_MAX_SECRET_FILE: Final = 64 * 1024
_MIN_HIDDEN: Final = 4
"""Shorter values occur by chance, and hiding them would only garble the text."""


class Secret:
    """The value of an option that must not appear in a log.

    `env:NAME` stands for an environment variable, `file:/path` for the content of a file without the line break at
    its end; anything else is the value itself. Shown, a reference is itself and a value is `***`.
    """

    __slots__ = ("_given",)

    def __init__(self, given: str) -> None:
        self._given = given

    def read(self, *, option: str, environ: Mapping[str, str] = os.environ) -> str:
        """Return the value; raise `ConfigError` with the name of the option when its reference leads nowhere."""
        if self._given.startswith("env:"):
            return _read_environment(self._given[4:], option, environ)
        if self._given.startswith("file:"):
            return _read_file(self._given[5:], option)
        return self._given

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __str__(self) -> str:
        return self._given if self._given.startswith(("env:", "file:")) else "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._given == other._given

    def __hash__(self) -> int:
        return hash(self._given)


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """Hide every occurrence of these values as `***`: a broker may echo them in an error that people read."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _MIN_HIDDEN:
            text = text.replace(secret, "***")
    return text


def _read_environment(name: str, option: str, environ: Mapping[str, str]) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"The option {option} begins with env: and is no name of a variable; write env:NAME.")
    if not environ.get(name):
        raise ConfigError(f"The option {option} refers to the environment variable {name}, which is not set; set it.")
    return environ[name]


def _read_file(path: str, option: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_MAX_SECRET_FILE + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The option {option} refers to a file that cannot be read: {_describe_error(error)}."
        ) from None
    value = text.removesuffix("\n").removesuffix("\r")
    if not value or len(value) > _MAX_SECRET_FILE:
        raise ConfigError(
            f"The option {option} refers to a file that is empty or larger than {_MAX_SECRET_FILE} characters."
        )
    return value


def _describe_error(error: Exception) -> str:
    return f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else "it is not UTF-8 text"
