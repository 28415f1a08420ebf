"""Addresses built from a message: `{topic}`, `orders.{key}`, `shop-{type}`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pillarbox.errors import ConfigError, MessageRejected
from pillarbox.message import Message

__all__ = ["AddressTemplate", "compile_template"]

AddressTemplate = Callable[[Message], str]
"""Builds the address of one message; raises `MessageRejected` when the message lacks a field that the address needs."""

_FIELDS: Final = ("topic", "type", "key", "kind", "destination", "source", "subject")
_PLACEHOLDER: Final = re.compile(r"\{(\w*)\}")


def compile_template(template: str, *, option: str, transport: str) -> AddressTemplate:
    """Return a function that fills in the template; raise `ConfigError` when it names a field that messages lack."""
    for name in _PLACEHOLDER.findall(template):
        if name not in _FIELDS:
            raise ConfigError(
                f"The option {option} of the {transport} transport has {{{name}}}, and a message has no such field; "
                f"it may have {', '.join(f'{{{field}}}' for field in _FIELDS)}."
            )
    if re.search(r"[{}]", _PLACEHOLDER.sub("", template)):
        raise ConfigError(f"The option {option} of the {transport} transport has a brace that stands alone.")
    # The two common forms need no substitution for each message.
    if template == "{topic}":
        return lambda message: message.topic
    if not _PLACEHOLDER.search(template):
        return lambda _: template
    return lambda message: _PLACEHOLDER.sub(lambda found: _read_field(message, found[1], option), template)


def _read_field(message: Message, name: str, option: str) -> str:
    value = message.kind.value if name == "kind" else getattr(message, name)
    if not value:
        raise MessageRejected(f"the message has no {name}, which its {option} is made of")
    return str(value)
