"""Redaction: hides secrets in texts, URLs and tracebacks, and makes text from outside fit to show and to store.

| function             | hides                                          | characters                | shortens to     |
|----------------------|------------------------------------------------|--------------------------|-----------------|
| `redact`             | what looks like a password, a token or a key   | as they are              |                 |
| `redact_line`        | the same                                       | printable, on one line   | 300 characters  |
| `redact_error`       | the same, in the type and the text of an error | printable, on one line   | 300 characters  |
| `redact_block`       | the same                                       | printable, line by line  | the last 8,000  |
| `format_traceback`   | the same                                       | printable, line by line  | the last 8,000  |
| `redact_url`         | the password, and options that may be secret   | printable                |                 |
| `display_url`        | the whole login, the path and every option     | printable                |                 |
| `hide_secrets`       | values that are known to be secret             | as they are              |                 |
| `escape_controls`    |                                                | printable, others escaped |                 |

Text from outside is what a broker, a database, a handler, a row or another package wrote. It passes through
`redact_line` or `redact_block` where it enters: before it is logged, stored or raised. `Secret` holds the value of an
option; `expand_variables` fills `${NAME}` into a URL.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from pillarbox.errors import ConfigError

__all__ = [
    "Secret",
    "display_url",
    "escape_controls",
    "expand_variables",
    "find_place",
    "format_traceback",
    "hide_secrets",
    "is_reference",
    "redact",
    "redact_block",
    "redact_error",
    "redact_line",
    "redact_url",
]

_MAX_LINE: Final = 300
_MAX_BLOCK: Final = 8_000


# --- characters ---


def escape_controls(text: str) -> str:
    r"""Write every character that is not printable as an escape, such as `\x1b`; line breaks stay.

    Nothing that is left moves a cursor, changes a colour, hides text or changes its direction.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _escape(one) for one in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def _to_printable(text: str, *, keep: str = "") -> str:
    """Replace every character that is not printable by a space: NUL, escapes, surrogates, direction marks."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else " " for one in text)


# --- texts ---

# Every repetition is bounded, or possessive and the last: the text may have been written to make this take long.
_NAMED: Final = re.compile(
    r"""(?P<name>(?<![\w-])(?:[\w-]{0,64}"""
    r"""(?:passw(?:or)?d|passphrase|pwd|secret|token|api[-_]?key|access[-_]?key|account[-_]?key|private[-_]?key"""
    r"""|credential|signature|nkey|jwt)[\w-]{0,64}|pass|pw|key\.pem)["']?\s{0,4}[=:]\s{0,4})"""
    r"""(?P<value>(?:"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?)(?:[^\s,;)\]}]\S*+)?"""
    r"""|[\[(][^\])\n]{0,2000}+[\])]?|(?:(?:bearer|basic)\s{1,4})?\S++)""",
    re.IGNORECASE,
)
_LINE_NAMED: Final = re.compile(
    r"""(?P<name>(?:cookie|authorization)["']?\s{0,4}[=:]\s{0,4})"""
    r"""(?P<value>(?:"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?)|(?:bearer|basic)\s{1,4}\S++|[^\n]++)""",
    re.IGNORECASE,
)
"""Headers that hold several values: everything to the end of the line, unless it is in quotes."""
_SPOKEN: Final = re.compile(
    r"""(?P<name>\bidentified\s{1,4}(?:by|with|as)\s{1,4}(?:password\s{1,4})?"""
    r"""|\bpassword\s{1,4}(?=['"])|--?[\w-]{0,40}(?:password|passwd|secret|token)\s{1,4}"""
    r"""|\bargs beginning with:\s{0,4}(?=(?P<all>)))"""
    r"""(?P<value>(?(all)[^\n]++|(?:"(?:[^"\\]|\\.|"")*+"?|'(?:[^'\\]|\\.|'')*+'?|\S++)))""",
    re.IGNORECASE,
)
"""Secrets after a word: in SQL, on a command line, and in Redis's answer to a command it does not know."""
_BARE_LOGIN: Final = re.compile(r"(?<![\w/%.+-])[\w%.+-]{1,100}:(?!//)[^\s@]{1,2000}@\S*")
"""`user:password@host` without a scheme."""
_BEARER: Final = re.compile(r"\b(bearer|basic)\s{1,4}[\w.~+/=-]{8,2000}", re.IGNORECASE)
_SHAPED: Final = re.compile(
    r"whs(?:ec|k)_[\w+/=-]{1,500}"  # a webhook's secret
    r"|\bS[ACNOUX][A-Z2-7]{56}\b"  # a seed of NATS
    r"|\beyJ[\w-]{8,4000}\.[\w-]{8,4000}\.[\w-]{0,2000}"  # a JSON web token
    r"|\b(?:gh[pousr]_|github_pat_|xox[abprs]-|sk_live_|rk_live_|glpat-)[\w-]{8,500}"  # a token of a well-known service
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,20000}(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)


def redact(text: str) -> str:
    """Hide everything in the text that looks like a password, a token or a key."""
    if "://" in text:
        text = _URL_IN_TEXT.sub(_redact_found_url, _SPACED_URL.sub(r"\1://***", text))
    if "@" in text:
        text = _BARE_LOGIN.sub("***", text)
    for pattern in (_LINE_NAMED, _NAMED, _SPOKEN):
        text = pattern.sub(_hide_value, text)
    return _SHAPED.sub("***", _BEARER.sub(r"\1 ***", text))


def _hide_value(found: re.Match[str]) -> str:
    # Our own advice, such as "add password=env:NAME", holds no secret.
    value = found["value"].rstrip(_CLOSING)
    return found[0] if _SOURCE.fullmatch(value) else f"{found['name']}***{found['value'][len(value) :]}"


def redact_line(text: str, *, limit: int = _MAX_LINE) -> str:
    """Put text from outside on one line: redacted, printable, storable in every database, cut to the limit."""
    if len(text) > 8 * limit:
        # Up to a space: half a secret may no longer look like one.
        text = text[: 8 * limit].rpartition(" ")[0] or text[:limit]
    line = redact(" ".join(_to_printable(text).split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def redact_error(error: BaseException | None, *, limit: int = _MAX_LINE) -> str:
    """Put the type and the text of an error on one line, as `redact_line` does. An error may have no text to give."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__}: its text cannot be read"
    return redact_line(text, limit=limit)


def redact_block(text: str, *, limit: int = _MAX_BLOCK) -> str:
    """Make text of several lines from outside fit to show and to store. Of a long one the end is kept."""
    if len(text) > 8 * limit:
        # From a whole line: half a secret may no longer look like one.
        text = text[-8 * limit :].partition("\n")[2] or text[-limit:]
    text = redact(_to_printable(text, keep="\n"))
    return text if len(text) <= limit else f"…{text[1 - limit :]}"


def format_traceback(error: BaseException) -> str:
    """Format the traceback of an error, redacted. Of a long one the end is kept, because it names the cause."""
    return redact_block("".join(traceback.format_exception(error)))


_PLACE: Final = re.compile(r"""^ {2}File "([^"\n]{1,400})", line (\d{1,9})(?:, in ([^\n]{1,200}))?$""", re.MULTILINE)


def find_place(trace: str | None) -> str:
    """Return the last line of code in a formatted traceback, such as `shop.py, line 12, in bill`; nothing if none."""
    places = _PLACE.findall(trace or "")
    if not places:
        return ""
    file, line, function = places[-1]
    return _to_printable(f"{file}, line {line}" + (f", in {function}" if function else ""))


# --- URLs ---

_HOST: Final = r"(?:\[[0-9A-Fa-f:.%]{2,64}\]|[A-Za-z0-9_.%~${}-]{1,255})(?::(?:\d{1,5}|PORT|\$\{\w{1,64}\}))?"
_PLAIN_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,40})://"
    r"(?:(?P<login>[^\s/?#@\[\]\\<>\"'`|^]{0,2000})@)?"
    rf"(?P<hosts>(?:{_HOST}(?:,{_HOST}){{0,32}})?)"
    r"(?P<path>(?:/[^\s?#@\\]{0,2000})?)"
    r"(?:\?(?P<query>[^\s?#@\\]{0,8000}))?"
)
"""A URL of which it is certain where the login begins and ends. `/`, `?`, `#` or `@` in a password must be encoded."""
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,40}(?=://)")
_URL_IN_TEXT: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,40})://(?P<rest>\S*)")
_SPACED_URL: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{0,40})://[^\s/:@]{0,200}:"
    r"(?:(?!\d{1,5}(?![^\s/?#,;:.)\]}\"']))[^\s@]{0,500}\s[^@\n]{0,200}|\d{1,5}\s[^\s@]{1,200})@\S*"
)
"""A URL in a text whose password may hold spaces: an `@` comes later, in the next word if a port may be before it."""
_SOURCE: Final = re.compile(r"(?:env:[A-Za-z_]\w{0,100}|file:[\w./~-]{1,400}|\$\{\w{1,100}\})")
"""A reference that says where a secret is, and not what it is."""
_URL_END: Final = re.compile(r"[\"'`<>|]")
_PUNCTUATION: Final = ".,:;!?)]}"
_CLOSING: Final = ".,;)]}"
_USER_SCHEMES: Final = frozenset(
    {
        "amqp", "amqps", "kafka", "mariadb", "mqtt", "mqtts", "mysql", "postgres", "postgresql", "redis", "rediss",
        "redis+sentinel", "rediss+sentinel",
    }
)  # fmt: skip
"""Here a login without a colon is the name of a user. Elsewhere, as in nats:// and https://, it may be a token."""
_HOSTLESS_SCHEMES: Final = frozenset({"mariadb", "mysql", "postgres", "postgresql"})
"""Here a login may come without a host: the server is on this machine, or an option names it."""
_PLACE_SCHEMES: Final = frozenset({"handlers", "memory"})
"""Here the part after the colon is a name in Python, and no login."""
_FILE_SCHEMES: Final = frozenset({"file", "sqlite"})
_SHOWN_OPTIONS: Final = frozenset(
    {
        "ack_wait", "application_name", "assignor", "batch", "bind", "ca", "claim_after", "client_certificate",
        "client_id", "compression", "concurrency", "connections", "consumer", "database", "dbname", "declare", "driver",
        "durability", "durable", "duplicate_window", "exchange", "exchange_type", "gone", "group", "host", "insecure",
        "keep", "keepalive", "max_message_bytes", "max_payload", "maxlen", "method", "mode", "no_subscribers",
        "partitions", "pooler", "port", "prefetch", "qos", "queue", "queue_type", "region", "rejects", "replicas",
        "replication", "retain", "routing_key", "sasl", "search_path", "session_timeout", "single_active", "ssl",
        "ssl_ca", "sslmode", "sslrootcert", "start", "stream", "subject", "subjects", "synchronous",
        "target_session_attrs", "timeout", "tls", "topic", "topics", "unix_socket", "verify", "window",
    }
)  # fmt: skip
"""Options whose values are shown. All others may hold a secret, whatever they are called."""


def redact_url(url: str) -> str:
    """Hide the password of the URL, and every option that is not known to be harmless, as `***`.

    Where it is not certain which part is the password, all but the scheme is hidden. A text that is no URL is `***`.
    """
    if _REFERENCE.fullmatch(url):
        return url
    match = _match_plain(url)
    if match is None:
        scheme = _SCHEME.match(url)
        return f"{scheme[0]}://***" if scheme else "***"
    login = "" if match["login"] is None else f"{_hide_password(match['login'], match['scheme'])}@"
    return _to_printable(f"{match['scheme']}://{login}{match['hosts']}{match['path']}{_hide_options(match['query'])}")


def display_url(address: str) -> str:
    """Shorten a URL for people: no login, no options, and no path where there is a host; webhook paths are secret.

    Where it is not certain which part is the host, only the scheme is shown.
    """
    scheme, colon, location = address.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,40}", scheme):
        return "***"
    if not location.startswith("//"):
        is_shown = scheme in _PLACE_SCHEMES and re.fullmatch(r"[A-Za-z0-9_.:-]{0,200}", location)
        return f"{scheme}:{location if is_shown or not location else '…'}"
    match = _match_plain(address)
    if match is None or (location != "//" and not match["hosts"]):
        return f"{scheme}:…"
    return f"{scheme}://{match['hosts']}{'/…' if match['path'] not in ('', '/') else match['path']}"


def _match_plain(url: str) -> re.Match[str] | None:
    """Match a URL whose parts are certain; None on any doubt."""
    scheme = url.partition("://")[0].partition("+")[0].lower()
    if scheme in _FILE_SCHEMES and url.partition("://")[2].startswith("/"):
        return _FILE_URL.fullmatch(url)
    match = _PLAIN_URL.fullmatch(url)
    if match is None or (match["login"] is not None and not match["hosts"] and scheme not in _HOSTLESS_SCHEMES):
        return None
    return match


_FILE_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z+]{1,40})://(?P<login>(?!))?(?P<hosts>)(?P<path>/[^?#]{0,4000})(?:\?(?P<query>[^#]{0,8000}))?",
    re.DOTALL,
)
"""The URL of a file has no login, and its path may hold any character."""


def _hide_password(login: str, scheme: str) -> str:
    user, colon, _ = login.partition(":")
    if colon:
        return f"{user}:***"
    return user if scheme.partition("+")[0].lower() in _USER_SCHEMES else "***"


def _hide_options(query: str | None) -> str:
    return "" if query is None else "?" + "&".join(map(_hide_option, query.split("&")))


def _hide_option(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        return "***" if pair else ""
    return pair if name in _SHOWN_OPTIONS else f"{name}=***"


def _redact_found_url(found: re.Match[str]) -> str:
    """Redact what begins like a URL inside a text; on doubt the whole word but its scheme."""
    scheme, rest = found["scheme"], found["rest"]
    if rest.rstrip(_PUNCTUATION) == "…":  # our own advice, such as "give amqp://…"
        return found[0]
    quoted = _URL_END.search(rest)
    url = (rest if quoted is None else rest[: quoted.start()]).rstrip(_PUNCTUATION)
    after = rest[len(url) :]
    match = _match_plain(f"{scheme}://{url}")
    if "@" not in after:
        if match is not None:
            return redact_url(f"{scheme}://{url}") + after
        if scheme.lower() in ("http", "https") and "@" not in url and _match_plain(f"https://{url.partition('#')[0]}"):
            return redact_url(f"{scheme}://{url.partition('#')[0]}") + after
    return f"{scheme}://***"


_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _UrlParts(NamedTuple):
    """Parts of a URL, split where secrets begin and end; joined together they are the URL again."""

    scheme: str
    login: str
    host: str
    place: str
    query: str


def expand_variables(text: str, environ: Mapping[str, str], *, where: str = "The URL") -> str:
    """Replace each `${NAME}` in the URL by that environment variable. `where` names the URL in an error.

    A value in the login or the query is percent-encoded on its way in, so a password may hold any character.
    A reference that is the whole text stands for the whole URL.
    """
    if whole := _REFERENCE.fullmatch(text):
        return _read_variable(whole, environ, where)
    parts = _split_url(text)
    return "".join(
        (
            parts.scheme,
            _REFERENCE.sub(lambda found: quote(_read_variable(found, environ, where), safe=""), parts.login),
            _REFERENCE.sub(lambda found: _read_variable(found, environ, where), parts.host + parts.place),
            _REFERENCE.sub(lambda found: quote(_read_variable(found, environ, where), safe=""), parts.query),
        )
    )


def _split_url(url: str) -> _UrlParts:
    scheme, mark, rest = url.rpartition("://") if "://" not in url else url.partition("://")
    rest, question, query = rest.partition("?")
    authority = re.split(r"[/#]", rest, maxsplit=1)[0]
    login, at, host = authority.rpartition("@")
    return _UrlParts(scheme + mark, login + at, host, rest[len(authority) :], question + query)


def _read_variable(reference: re.Match[str], environ: Mapping[str, str], where: str) -> str:
    name = reference[1]
    if not _NAME.fullmatch(name):
        raise ConfigError("A ${…} in the URL does not hold the name of an environment variable; write ${NAME}.")
    if name not in environ:
        raise ConfigError(f"{where} refers to ${{{name}}}, but that environment variable is not set.")
    return environ[name]


# --- secrets ---

_MAX_SECRET_FILE: Final = 64 * 1024
_MIN_HIDDEN: Final = 4
"""Shorter values occur by chance, and hiding them would only garble the text."""


def is_reference(text: str) -> bool:
    """Return whether a text only says where a secret is: `env:NAME`, `file:/path` or `${NAME}`, and nothing more."""
    return _SOURCE.fullmatch(text) is not None


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
        if (found := _REFERENCE.fullmatch(self._given)) is not None:
            raise ConfigError(
                f"The option {option} refers to {found[0]}, which is replaced in URLs alone: write env:{found[1]}."
            )
        return self._given

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __str__(self) -> str:
        return self._given if is_reference(self._given) else "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._given == other._given

    def __hash__(self) -> int:
        return hash(self._given)


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """Hide every occurrence of these values as `***`: a broker may echo them in an error that people read.

    Where two of them overlap, or one holds the other, nothing of either is left.
    """
    places = sorted(
        (place, place + len(secret))
        for secret in set(secrets)
        if len(secret) >= _MIN_HIDDEN
        for place in _find_all(text, secret)
    )
    hidden, end = "", 0
    for start, stop in places:
        if start >= end:
            hidden += f"{text[end:start]}***"
        end = max(end, stop)
    return hidden + text[end:]


def _find_all(text: str, part: str) -> Iterator[int]:
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


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
