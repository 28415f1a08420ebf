"""Addresses made from a message: `{topic}`, `orders.{key}`, `shop-{type}`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pillarbox.errors import ConfigError, MessageRejected
from pillarbox.message import Message

__all__ = ["Address", "address"]

Address = Callable[[Message], str]
"""Where one message goes. `MessageRejected` when it lacks what its address needs."""

_FIELDS: Final = ("topic", "type", "key", "kind", "destination", "source", "subject")
_PART: Final = re.compile(r"\{(\w*)\}")


def address(template: str, *, option: str, transport: str) -> Address:
    """A function that fills the template in; `ConfigError` when it names what a message does not have."""
    for name in _PART.findall(template):
        if name not in _FIELDS:
            raise ConfigError(
                f"The option {option} of the {transport} transport has {{{name}}}, and a message has no such field; "
                f"it may have {', '.join(f'{{{field}}}' for field in _FIELDS)}."
            )
    if re.search(r"[{}]", _PART.sub("", template)):
        raise ConfigError(f"The option {option} of the {transport} transport has a brace that stands alone.")
    if template == "{topic}":
        return lambda message: message.topic
    if not _PART.search(template):
        return lambda _: template
    return lambda message: _PART.sub(lambda part: _value(message, part[1], option), template)


def _value(message: Message, name: str, option: str) -> str:
    value = message.kind.value if name == "kind" else getattr(message, name)
    if not value:
        raise MessageRejected(f"the message has no {name}, which its {option} is made of")
    return str(value)
