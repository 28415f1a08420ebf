"""Which store, and under which names: the options that most commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from pillarbox.cli.configuring import store_options
from pillarbox.config import Config
from pillarbox.names import Names
from pillarbox.relay.configured import configured_store
from pillarbox.stores.urls import StoreUrl

__all__ = ["Target", "target_options"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Target:
    """A store and the names of its tables."""

    url: StoreUrl
    names: Names
    config: Config


def target_options(command: Callable[Concatenate[Target, P], R]) -> Callable[..., R]:
    """Adds --config, --store, --schema and --prefix, and hands them to the command as one `Target`."""

    @wraps(command)
    def with_target(config: Config, *args: Any, **kwargs: Any) -> R:
        url, names = configured_store(config)
        return command(Target(url, names, config), *args, **kwargs)

    return store_options(with_target)
