"""Handlers: functions registered for message types and topics. Pure."""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from inspect import Parameter
from typing import Any, Final, Protocol, TypeVar

import msgspec

from pillarbox.arguments import check_argument
from pillarbox.errors import ConfigError
from pillarbox.events import DEFAULT_TYPES, Types

__all__ = ["Handler", "Handlers"]

F = TypeVar("F", bound=Callable[..., object])
_ANYTHING: Final = re.compile("")
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class TypedMessage(Protocol):
    """A `Message` or a received `CloudEvent`."""

    @property
    def type(self) -> str: ...
    @property
    def topic(self) -> str: ...


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A function, and the messages that it handles."""

    function: Callable[..., Awaitable[object] | object]
    type: re.Pattern[str]
    topic: re.Pattern[str]
    argument_count: int
    """Number of arguments: the event, then what the caller passes beside it."""
    is_async: bool

    @property
    def name(self) -> str:
        """Module and name of the function, for people."""
        function: Any = inspect.unwrap(getattr(self.function, "func", self.function))
        return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"

    def matches(self, message: TypedMessage) -> bool:
        """Return True if the function handles this message."""
        return bool(self.type.match(message.type) and self.topic.match(message.topic))


class Handlers:
    """List of functions by the messages they handle. One list serves one destination or consumer.

    `arguments` names the arguments of a function, in order. A function takes all of them or only the first ones.
    """

    def __init__(self, *, types: Types = DEFAULT_TYPES, arguments: Sequence[str] = ("event", "message")) -> None:
        self.types = types
        self._arguments = arguments
        self._handlers: list[Handler] = []

    def on(self, what: type | str | None = None, *, topic: str | None = None) -> Callable[[F], F]:
        """Register a function for a class, for a pattern of type names, for a pattern of topics, or for both.

        Patterns are shell-style and mind letter case: `*` is any text, `?` one character, `[ab]` one of some. A
        function with one parameter gets the decoded event; one with more gets the other arguments too. It may be async;
        if it is not, it runs in a thread.
        """
        if what is None and topic is None:
            raise ConfigError(
                'A handler needs to know what it is for: write @handlers.on(OrderPlaced) or on("orders.*").'
            )
        if not isinstance(what, type):
            check_argument(what, "what", str | None)
        check_argument(topic, "topic", str | None)
        if isinstance(what, type):
            type_pattern = re.compile(re.escape(self.types.get_by_class(what).name) + r"\Z")
        else:
            type_pattern = _compile_glob(what)

        def register(function: F) -> F:
            self._handlers.append(
                Handler(
                    function=function,
                    type=type_pattern,
                    topic=_compile_glob(topic),
                    argument_count=_count_arguments(function, self._arguments),
                    is_async=_is_async(function),
                )
            )
            return function

        return register

    @property
    def all(self) -> list[Handler]:
        """Every handler, in the order of registration."""
        return list(self._handlers)

    def find(self, message: TypedMessage) -> list[Handler]:
        """Return the handlers of a message, in the order of registration."""
        return [handler for handler in self._handlers if handler.matches(message)]


def _compile_glob(glob: str | None) -> re.Pattern[str]:
    return _ANYTHING if glob is None else re.compile(fnmatch.translate(glob))


def _is_async(function: Callable[..., object]) -> bool:
    # Also for an object whose class has an async `__call__`.
    cls: Any = type(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(cls.__call__)


def _count_arguments(function: Callable[..., object], arguments: Sequence[str]) -> int:
    # Parameters with a default are the function's own business: they get no argument.
    required = [one for one in inspect.signature(function).parameters.values() if one.default is Parameter.empty]
    positional = [one for one in required if one.kind in _POSITIONAL]
    has_keyword_only = any(one.kind is Parameter.KEYWORD_ONLY for one in required)
    if not 1 <= len(positional) <= len(arguments) or has_keyword_only:
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigError(
            f"The handler {name} must take the {arguments[0]}, and if it wants more, in this order: "
            f"{', '.join(arguments[1:])}; nothing else."
        )
    return len(positional)
