"""`[destinations.NAME]`: how each is served, and what its transport is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pillarbox.config import Config, Section
from pillarbox.config.destinations import destination_layers
from pillarbox.config.nearest import nearest
from pillarbox.config.origins import Layer, Path
from pillarbox.config.sections import check_key, merged, settled
from pillarbox.errors import ConfigError, UnknownDestination
from pillarbox.relay.configured.section import OWN_FIELDS, check_ends, served_names, shared_layers
from pillarbox.relay.configured.told import Told
from pillarbox.relay.relay import Destination
from pillarbox.relay.settings import DestinationSettings

__all__ = ["ConfiguredDestination", "configured_destinations", "served_destinations"]

_URL: Final = ("url",)
_OWN: Final = (_URL, *(field.path for field in OWN_FIELDS))
_TABLES: Final = {path[0] for path in _OWN}


class ConfiguredDestination(msgspec.Struct, frozen=True, kw_only=True):
    """One destination as it was configured."""

    section: Section[DestinationSettings]
    told: Told

    @property
    def name(self) -> str:
        return self.section.settings.name

    def destination(self) -> Destination:
        """For a relay. `ConfigError` or `MissingExtra` when its transport could not be made."""
        self.told.transport()
        return Destination(self.told.transport, self.section.settings)


def configured_destinations(config: Config) -> Mapping[str, ConfiguredDestination]:
    """Every destination that is configured, by name."""
    shared = shared_layers(config)
    made = {name: _made(config, name, shared, own) for name, own in destination_layers(config, _OWN).items()}
    for name, one in made.items():
        to = one.section.settings.dead_letter
        if to is not None and to not in made:
            raise UnknownDestination(f"The dead_letter of destination {name} is the unknown {to}: {nearest(to, made)}.")
    return made


def served_destinations(config: Config) -> Sequence[ConfiguredDestination]:
    """Those that the relay is to serve: the ones it was told, or all."""
    names, known = served_names(config).names, configured_destinations(config)
    if not known:
        raise ConfigError(
            "No destination is configured: give --to NAME=URL, set PILLARBOX_DESTINATION_NAME_URL, or write "
            "[destinations.NAME] with a url in the file."
        )
    for name in names:
        if name not in known:
            raise UnknownDestination(f"There is no destination {name}: {nearest(name, known)}.")
    return [known[name] for name in names or known]


def _made(config: Config, name: str, shared: Sequence[Layer], own: Sequence[Layer]) -> ConfiguredDestination:
    """A stronger source wins; within a source, what is said about the destination itself."""
    given = merged(layer for pair in zip(shared, own, strict=True) for layer in pair)
    at = ("destinations", name)
    for path in given:
        if path[0] in _TABLES:
            check_key(path, _OWN, at=at, where=given[path].origin.where)
    _check_retry(given, at=at)
    section = settled(DestinationSettings, given, OWN_FIELDS, at=at, fixed={("name",): name})
    check_ends(section, at=at)
    options = {path: one for path, one in given.items() if path not in _OWN}
    told = Told(name=name, url=given.get(_URL), options=options, environ=config.environ)
    return ConfiguredDestination(section=section, told=told)


def _check_retry(given: Layer, *, at: Path) -> None:
    """Delays double, or they follow a schedule."""
    schedule = given.get(("retry", "schedule"))
    if schedule is None or schedule.value in ("none", []):
        return
    for name in ("first", "longest"):
        if (other := given.get(("retry", name))) is not None:
            raise ConfigError(
                f"{schedule.origin.of((*at, 'retry', 'schedule'))} and {other.origin.of((*at, 'retry', name))} "
                "exclude each other: leave one."
            )
