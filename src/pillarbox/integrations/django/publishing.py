"""Publishing in `transaction.atomic()`: the write path of every other handle, on Django's connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.signals import setting_changed
from django.db import connections, transaction
from django.utils.module_loading import import_string

from pillarbox.errors import ConfigError
from pillarbox.integrations.django import conf
from pillarbox.outbox import Outbox

if TYPE_CHECKING:
    from typing import Unpack

    from pillarbox.options import GivenOptions

__all__ = ["in_atomic", "outbox", "publish", "send"]

P = ParamSpec("P")
T = TypeVar("T")


@cache
def outbox() -> Outbox:
    """The one that PILLARBOX in the settings describes. It is made once, and anew when a test changes the settings."""
    given = dict(conf.given())
    if "outbox" in given:
        found = import_string(given["outbox"])
        if not isinstance(found, Outbox):
            raise ConfigError(f"{given['outbox']} is a {type(found).__name__} and no Outbox: name one in PILLARBOX.")
        return found
    if not given.get("source") or not given.get("routes"):
        raise ConfigError(
            'PILLARBOX in the Django settings needs a source and routes, such as {"source": "/shop", "routes": '
            '"broker"}, or {"outbox": "shop.messages.outbox"} for one of your own.'
        )
    return Outbox(**{name: value for name, value in given.items() if name not in conf.ABOUT_DATABASES})


def publish(event: object, *, using: str | None = None, **options: Unpack[GivenOptions]) -> Any:
    """Publish an event, or a list of them, inside the current `transaction.atomic()`; answers its id, or theirs.

    `NotInTransaction` outside of one. `using` is the database, as everywhere in Django.
    """
    return outbox().publish(_connection(using), event, **options)


def send(command: object, *, using: str | None = None, **options: Unpack[GivenOptions]) -> Any:
    """As `publish`, for commands: each must have exactly one destination."""
    return outbox().send(_connection(using), command, **options)


async def in_atomic(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a plain function inside `transaction.atomic()`, from an async view: Django has no async atomic.

    It is run in Django's own thread for such work, with the context of the request.
    """

    def atomically() -> T:
        with transaction.atomic(using=conf.alias()):
            return work(*args, **kwargs)

    return await sync_to_async(atomically, thread_sensitive=True)()


def _connection(using: str | None) -> Any:
    return connections[using or conf.alias()]


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "PILLARBOX":
        outbox.cache_clear()


setting_changed.connect(_forget, dispatch_uid="pillarbox.outbox")
