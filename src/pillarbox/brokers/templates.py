"""Addresses built from a message: `{topic}`, `orders.{key}`, `shop-{type}`.

The operator wrote the template, and it may hold anything. The values come from whoever may write into the outbox, and
the relay's login often reaches more than its own queues: each broker says with `AddressRules` what a value may not do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

from pillarbox.errors import ConfigError, MessageRejected
from pillarbox.message import Message
from pillarbox.redaction import redact_line

__all__ = ["ANY_ADDRESS", "AddressRules", "AddressTemplate", "compile_template", "describe_address"]

AddressTemplate = Callable[[Message], str]
"""Builds the address of one message; raises `MessageRejected` when it lacks a field, or a value breaks the rules."""

_FIELDS: Final = ("topic", "type", "key", "kind", "destination", "source", "subject")
_PLACEHOLDER: Final = re.compile(r"\{(\w*)\}")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LONGEST_SHOWN: Final = 1_000
"""Characters of an address by which it is told from others."""
_SHOWN: Final = 100
"""Characters of a refused address that the reason repeats."""


class AddressRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the values of a message may not bring into an address of one broker. No value may hold control characters.

    Patterns are regular expressions.
    """

    forbidden: str = ""
    """Found nowhere in a value."""
    forbidden_words: str = ""
    """What that is, for people."""
    reserved: str = ""
    """Not at the beginning of an address, unless the template itself has decided on the beginning."""
    reserved_words: str = ""
    separator: str = ""
    """Ends the beginning: a template with it before its first field has decided."""


ANY_ADDRESS: Final = AddressRules()
"""Control characters alone are refused."""


def compile_template(
    template: str, *, option: str, transport: str, rules: AddressRules = ANY_ADDRESS
) -> AddressTemplate:
    """Return a function that fills in the template; raise `ConfigError` when it names a field that messages lack."""
    for name in _PLACEHOLDER.findall(template):
        if name not in _FIELDS:
            raise ConfigError(
                f"The option {option} of the {transport} transport has {{{name}}}, and a message has no such field; "
                f"it may have {', '.join(f'{{{field}}}' for field in _FIELDS)}."
            )
    if re.search(r"[{}]", _PLACEHOLDER.sub("", template)):
        raise ConfigError(f"The option {option} of the {transport} transport has a brace that stands alone.")
    if not _PLACEHOLDER.search(template):
        return lambda _: template
    check_value = _compile_value_check(rules, option)
    check_beginning = _compile_beginning_check(rules, template, option)
    if template == "{topic}":  # the common form needs no substitution for each message
        return lambda message: check_beginning(check_value("topic", message.topic))

    def fill(message: Message) -> str:
        return check_beginning(
            _PLACEHOLDER.sub(lambda found: check_value(found[1], _read_field(message, found[1])), template)
        )

    return fill


def describe_address(message: Message, **templates: AddressTemplate) -> str | None:
    """Describe the address of a message for people, such as "topic 'orders'"; None if it has no valid one."""
    try:
        return ", ".join([_describe_part(name, fill(message)) for name, fill in templates.items()])
    except MessageRejected:
        return None


@lru_cache(maxsize=4_096)
def _describe_part(name: str, text: str) -> str:
    # While one address is blocked, the address of every message is asked for, twice. Redacting is most of the work.
    return f"{name.replace('_', ' ')} {redact_line(text, limit=_LONGEST_SHOWN)!r}"


def _read_field(message: Message, name: str) -> str | None:
    value = message.kind.value if name == "kind" else getattr(message, name)
    return None if value is None else str(value)


def _compile_value_check(rules: AddressRules, option: str) -> Callable[[str, str | None], str]:
    forbidden = re.compile(rules.forbidden) if rules.forbidden else None

    @lru_cache(maxsize=4_096)
    def check(name: str, value: str | None) -> str:
        if not value:
            raise MessageRejected(f"the message has no {name}, which its {option} is made of")
        if _CONTROL.search(value):
            raise MessageRejected(f"its {name} holds a control character, which no address may have")
        if forbidden is not None and forbidden.search(value):
            raise MessageRejected(
                f"its {name} {value[:_SHOWN]!r} holds {rules.forbidden_words}, which no address may have: correct the "
                f"{name}, or the option {option}"
            )
        return value

    return check


def _compile_beginning_check(rules: AddressRules, template: str, option: str) -> Callable[[str], str]:
    fixed = _PLACEHOLDER.split(template, maxsplit=1)[0]
    if not rules.reserved or (rules.separator and rules.separator in fixed):
        return lambda address: address
    reserved = re.compile(rules.reserved)

    @lru_cache(maxsize=4_096)
    def check(address: str) -> str:
        if reserved.match(address):
            raise MessageRejected(
                f"its {option} would be {address[:_SHOWN]!r}, and {rules.reserved_words}: correct the message, or set "
                f"a fixed beginning in the option {option}"
            )
        return address

    return check
