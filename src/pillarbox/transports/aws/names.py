"""Names of queues and topics, made from a message. Pure."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

from pillarbox.errors import MessageRejected
from pillarbox.message import Message
from pillarbox.transports.templates import Address, address

__all__ = ["fixed", "group_of", "is_fifo", "name_of", "named_after", "place"]

_FIFO: Final = ".fifo"
_BEFORE: Final = re.compile(r"(?:.*[/:])?", re.DOTALL)
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_GROUP: Final = re.compile(r"[!-~]{1,128}")


def place(template: str, *, option: str, transport: str, most: int) -> Address:
    """Where messages go: a name, or a URL or ARN that ends in one."""
    filled, whole = address(template, option=option, transport=transport), _is_whole(template)
    return lambda message: name_of(filled(message), most=most, whole=whole)


@lru_cache(maxsize=1_024)
def name_of(text: str, *, most: int, whole: bool = False) -> str:
    """A name that AWS takes: letters, digits, `-` and `_`, and perhaps `.fifo` at its end. Anything else becomes `-`.

    `whole`: of a URL or an ARN only the last part is a name.
    """
    match = _BEFORE.match(text) if whole else None
    before = "" if match is None else match[0]
    stem = text[len(before) :].removesuffix(_FIFO)
    name = _NOT_IN_A_NAME.sub("-", stem) + (_FIFO if text.endswith(_FIFO) else "")
    if not stem or len(name) > most:
        raise MessageRejected(f"The name {name[:100]!r} would have {len(name)} characters; 1 to {most} are allowed.")
    return before + name


def fixed(template: str, *, most: int) -> str | None:
    """The one place that all messages go to, if the template has no fields. `MessageRejected` as for a message."""
    return None if "{" in template else name_of(template, most=most, whole=_is_whole(template))


def named_after(template: str, topic: str, *, most: int) -> str | None:
    """The place of a topic's messages, if the template needs nothing else of them. `MessageRejected` as for one."""
    return fixed(template.replace("{topic}", topic), most=most)


def _is_whole(template: str) -> bool:
    return template.startswith(("http:", "https:", "arn:"))


def is_fifo(place: str) -> bool:
    """Whether a queue's or topic's name, URL or ARN is that of a FIFO one."""
    return place.endswith(_FIFO)


def group_of(message: Message) -> str:
    """The message group: the key, or a hash of one that AWS would not take; without a key, each message is its own."""
    if message.key is None:
        return str(message.message_id)
    return message.key if _GROUP.fullmatch(message.key) else hashlib.sha256(message.key.encode()).hexdigest()
