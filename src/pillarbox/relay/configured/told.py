"""What a destination's transport is told."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from pillarbox.config.nearest import nearest
from pillarbox.config.origins import Given, Layer, Path
from pillarbox.errors import ConfigError, MissingExtra
from pillarbox.protocols import Transport
from pillarbox.relay.configured.section import OWN_FIELDS
from pillarbox.stores.url_secrets import expanded
from pillarbox.transports.opening import transport_from_url
from pillarbox.transports.redaction import redacted
from pillarbox.transports.urls import transport_url

__all__ = ["Told"]

_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_SECRET: Final = re.compile(r"pass|pwd|secret|token|key|credential|auth|login|dsn", re.IGNORECASE)
_BY_REFERENCE: Final = ("env:", "file:")


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A URL and the options beside it. Shown, it keeps them to itself."""

    name: str
    url: Given | None
    options: Layer
    environ: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Told({self.name!r})"

    def transport(self) -> Transport:
        """The transport, not yet connected. `ConfigError` says which destination it is about, and no secret."""
        try:
            return transport_from_url(self._expanded(), options=self.nested())
        except MissingExtra:
            raise
        except ConfigError as error:
            raise ConfigError(self._blamed(str(error).removesuffix("."))) from error

    def nested(self) -> dict[str, object]:
        """The options as the file would have them: a name with a dot is one entry of a table."""
        found: dict[str, Any] = {}
        for path, given in self.options.items():
            table = found
            for name in path[:-1]:
                table = table.setdefault(name, {})
            table[path[-1]] = given.value
        return found

    def shown_url(self) -> str | None:
        """The URL for people: no login, no path, no options."""
        if self.url is None:
            return None
        text = str(self.url.value)
        try:
            return str(transport_url(self._expanded(), options={}))
        except ConfigError:
            return text if _REFERENCE.fullmatch(text) else "***"

    def shown_options(self) -> Iterator[tuple[Path, object]]:
        """The options for people. What may be a secret is *** unless it only says where the secret is."""
        for path, given in sorted(self.options.items()):
            yield path, _shown(path, given.value)

    def _expanded(self) -> str:
        """The URL with its `${NAME}` filled in."""
        if self.url is None:
            raise ConfigError("It has no url.")
        if not isinstance(self.url.value, str):
            raise ConfigError("Its url must be a text.")
        for variable in _REFERENCE.findall(self.url.value):
            if variable not in self.environ:
                raise ConfigError(f"Its url refers to ${{{variable}}}, but that environment variable is not set.")
        return expanded(self.url.value, self.environ)

    def _blamed(self, reason: str) -> str:
        """Which destination it is; of an option that its transport does not know, who gave it and what may be meant."""
        for path, given in self.options.items():
            if f"no option {path[0]!r}" in reason:
                near = nearest(path[0], [field.path[0] for field in OWN_FIELDS])
                reason = f"{reason} (given by {given.origin.of(('destinations', self.name, *path))}; {near})"
        return f"Destination {self.name} cannot be served: {reason}."


def _shown(path: Path, value: object) -> object:
    if isinstance(value, list):
        return [_shown(path, part) for part in value]
    if isinstance(value, (bool, int, float)) or str(value).startswith(_BY_REFERENCE):
        return value
    # Entries of a table are headers and the like: their names say nothing about how secret they are.
    return "***" if len(path) > 1 or _SECRET.search(path[0]) else redacted(str(value))
