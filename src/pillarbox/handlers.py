"""Which functions want which messages. Pure."""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from inspect import Parameter
from typing import Any, Final, Protocol, TypeVar

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.events import DEFAULT_TYPES, Types

__all__ = ["Described", "Handler", "Handlers"]

F = TypeVar("F", bound=Callable[..., object])
_ANYTHING: Final = re.compile("")
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Described(Protocol):
    """A `Message` or a received `CloudEvent`."""

    @property
    def type(self) -> str: ...
    @property
    def topic(self) -> str: ...


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A function, and what it wants."""

    function: Callable[..., Awaitable[object] | object]
    type: re.Pattern[str]
    topic: re.Pattern[str]
    takes: int
    """How many of its arguments it wants: the event, then what the caller offers beside it."""
    is_async: bool

    @property
    def name(self) -> str:
        """For people: where the function is."""
        named: Any = inspect.unwrap(getattr(self.function, "func", self.function))
        return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__qualname__)}"

    def wants(self, message: Described) -> bool:
        return bool(self.type.match(message.type) and self.topic.match(message.topic))


class Handlers:
    """A list of functions by the messages they handle. One list serves one destination or consumer.

    `offers` are the arguments that a function can have, in order: all of them, or only the first ones.
    """

    def __init__(self, *, types: Types = DEFAULT_TYPES, offers: Sequence[str] = ("event", "message")) -> None:
        self.types = types
        self._offers = offers
        self._handlers: list[Handler] = []

    def on(self, what: type | str | None = None, *, topic: str | None = None) -> Callable[[F], F]:
        """Register a function for a class, for a pattern of type names, for a pattern of topics, or for both.

        Patterns are shell-style and mind letter case: `*` is any text, `?` one character, `[ab]` one of some. A
        function with one parameter gets the event, decoded; one with more gets what else is offered. It may be async;
        if it is not, it runs in a thread.
        """
        if what is None and topic is None:
            raise ConfigError(
                'A handler needs to know what it is for: write @handlers.on(OrderPlaced) or on("orders.*").'
            )
        type_ = re.compile(re.escape(self.types.of(what).name) + r"\Z") if isinstance(what, type) else _pattern(what)

        def register(function: F) -> F:
            self._handlers.append(
                Handler(
                    function=function,
                    type=type_,
                    topic=_pattern(topic),
                    takes=_takes(function, self._offers),
                    is_async=_is_async(function),
                )
            )
            return function

        return register

    @property
    def all(self) -> list[Handler]:
        """Every handler, in the order of registration."""
        return list(self._handlers)

    def of(self, message: Described) -> list[Handler]:
        """Every handler that wants the message, in the order of registration."""
        return [handler for handler in self._handlers if handler.wants(message)]


def _pattern(glob: str | None) -> re.Pattern[str]:
    return _ANYTHING if glob is None else re.compile(fnmatch.translate(glob))


def _is_async(function: Callable[..., object]) -> bool:
    called: Any = type(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called.__call__)


def _takes(function: Callable[..., object], offers: Sequence[str]) -> int:
    """How many parameters it has. Those with defaults are its own."""
    required = [one for one in inspect.signature(function).parameters.values() if one.default is Parameter.empty]
    counted = [one for one in required if one.kind in _POSITIONAL]
    by_name = [one for one in required if one.kind is Parameter.KEYWORD_ONLY]
    if not 1 <= len(counted) <= len(offers) or by_name:
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigError(
            f"The handler {name} must take the {offers[0]}, and if it wants more, in this order: "
            f"{', '.join(offers[1:])}; nothing else."
        )
    return len(counted)
