"""Secrets in options: given by reference, read once, and never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pillarbox.errors import ConfigError

__all__ = ["Secret", "hidden"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST: Final = 64 * 1024
_SHORTEST_HIDDEN: Final = 4
"""Shorter texts occur by chance, and hiding them would only garble an answer."""


class Secret:
    """The value of an option that nobody should read in a log.

    `env:NAME` stands for an environment variable, `file:/path` for the content of a file without the line break at
    its end; anything else is the value itself. Shown, a reference is itself and a value is `***`.
    """

    __slots__ = ("_given",)

    def __init__(self, given: str) -> None:
        self._given = given

    def read(self, *, option: str, environ: Mapping[str, str] = os.environ) -> str:
        """The value; `ConfigError` names the option whose reference leads nowhere."""
        if self._given.startswith("env:"):
            return _from_environment(self._given[4:], option, environ)
        if self._given.startswith("file:"):
            return _from_file(self._given[5:], option)
        return self._given

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __str__(self) -> str:
        return self._given if self._given.startswith(("env:", "file:")) else "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._given == other._given

    def __hash__(self) -> int:
        return hash(self._given)


def hidden(text: str, secrets: Iterable[str]) -> str:
    """The text with every occurrence of these values as `***`: what a far side echoes is shown to people."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_HIDDEN:
            text = text.replace(secret, "***")
    return text


def _from_environment(name: str, option: str, environ: Mapping[str, str]) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"The option {option} begins with env: and is no name of a variable; write env:NAME.")
    if not environ.get(name):
        raise ConfigError(f"The option {option} refers to the environment variable {name}, which is not set; set it.")
    return environ[name]


def _from_file(path: str, option: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_LONGEST + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The option {option} refers to a file that cannot be read: {_reason(error)}.") from None
    value = text.removesuffix("\n").removesuffix("\r")
    if not value or len(value) > _LONGEST:
        raise ConfigError(f"The option {option} refers to a file that is empty or larger than {_LONGEST} characters.")
    return value


def _reason(error: Exception) -> str:
    return f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else "it is not UTF-8 text"
