"""`[relay]`: the relay as a whole, and what holds for every destination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pillarbox.config import Config, Section, read_section
from pillarbox.config.fields import Field, fields_of
from pillarbox.config.origins import DEFAULT, Layer, Origin, Path
from pillarbox.config.sections import layers_of, merged
from pillarbox.config.values import value_as
from pillarbox.durations import FOREVER
from pillarbox.errors import ConfigError
from pillarbox.relay.settings import DestinationSettings, RelaySettings

__all__ = ["OWN_FIELDS", "SHARED_FIELDS", "Served", "check_ends", "relay_section", "served_names", "shared_layers"]

OWN_FIELDS: Final = fields_of(DestinationSettings, without=("name",))
"""Options of a destination itself; whatever else stands in its table is its transport's."""
SHARED_FIELDS: Final = tuple(field for field in OWN_FIELDS if field.path != ("dead_letter",))
"""Those that may stand in `[relay]` too, for every destination that says nothing else."""

_AT: Final = ("relay",)
_SERVED: Final = Field(("destinations",), Sequence[str], ())
_BESIDE: Final = (*SHARED_FIELDS, _SERVED)
_ENDLESS: Final = frozenset({"delivered", "failed", "skipped", "discarded", "inbox"})


def relay_section(config: Config) -> Section[RelaySettings]:
    """What is said about the relay as a whole."""
    section = read_section(config, RelaySettings, at=_AT, beside=_BESIDE)
    check_ends(section, at=_AT)
    if not section.settings.duties:
        raise ConfigError("A relay needs at least one duty: send, retry, recover or clean.")
    return section


class Served(msgspec.Struct, frozen=True):
    """The names of the destinations that the relay was told to serve, none for all of them; and who told it."""

    names: Sequence[str] = ()
    origin: Origin = DEFAULT


def served_names(config: Config) -> Served:
    """Which destinations are to be served. `ConfigError` when one is named twice."""
    given = merged(_layers(config)).get(_SERVED.path)
    if given is None:
        return Served()
    names: Sequence[str] = value_as(_SERVED.type, given.value)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"The destination {name} is named twice; give each a name of its own: NAME=URL.")
    return Served(names, given.origin)


def shared_layers(config: Config) -> Sequence[Layer]:
    """What each source says for every destination, the weakest first."""
    wanted = {field.path for field in SHARED_FIELDS}
    return [{path: given for path, given in layer.items() if path in wanted} for layer in _layers(config)]


def check_ends(section: Section[Any], *, at: Path) -> None:
    """`ConfigError` where somebody is to wait forever: the word is for keeping."""
    for field in fields_of(type(section.settings)):
        value = section.value(field.path)
        if FOREVER in (value if isinstance(value, tuple) else (value,)) and field.path[-1] not in _ENDLESS:
            raise ConfigError(f"{section.origin(field.path).of((*at, *field.path))} cannot be forever.")


def _layers(config: Config) -> Sequence[Layer]:
    return layers_of(config, [*fields_of(RelaySettings), *_BESIDE], at=_AT)
