"""Messages as entries of SQS and SNS: a text and at most ten attributes. Pure.

There is no CloudEvents binding for SQS and SNS, so this one is ours.

- `structured`: the text is the event as one JSON document. Attributes are copies, for filters: `content-type`, `ce_id`,
  `ce_source`, `ce_type`, `ce_topic`, `ce_kind`, `ce_partitionkey`, `ce_correlationid`, `ce_causationid`,
  `ce_traceparent`.
- `binary`: the text is the payload, as it is or in base64. Attributes: `content-type`, `ce_id`, `ce_source`, `ce_type`,
  `ce_time`, `ce_partitionkey`, `ce_correlationid`, `ce_traceparent`; `pillarbox`, a JSON document with the rest; and
  `content-encoding`, if it is `base64` or `empty`.

SQS and SNS take only characters of XML 1.0, and neither an empty text nor an empty attribute. An attribute that would
break this rule is only in the JSON document.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from pillarbox.brokers.templates import ANY_ADDRESS, AddressRules, AddressTemplate, compile_template
from pillarbox.cloudevents import KAFKA, STRUCTURED, CloudEvent, from_binary, from_structured, to_binary, to_structured
from pillarbox.errors import DecodeError, MessageRejected
from pillarbox.message import Message

__all__ = [
    "EncodedMessage",
    "Encoder",
    "MessageContent",
    "build_group_id",
    "compile_target",
    "decode",
    "encode_content",
    "find_fixed_target",
    "find_target_of_topic",
    "is_fifo",
    "split_calls",
    "split_rounds",
    "to_name",
]

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COPIED_ATTRIBUTES: Final = (
    "id",
    "source",
    "type",
    "topic",
    "kind",
    "partitionkey",
    "correlationid",
    "causationid",
    "traceparent",
)
_BINARY_ATTRIBUTES: Final = frozenset({"id", "source", "type", "time", "partitionkey", "correlationid", "traceparent"})
_PREFIX: Final = KAFKA.prefix
_CONTENT_TYPE: Final = "content-type"
_CONTENT_ENCODING: Final = "content-encoding"
_REST: Final = "pillarbox"
_EMPTY_TEXT: Final = "-"
"""Stands for an empty payload, because a text must not be empty."""
_FIFO: Final = ".fifo"
_CALL_ENTRIES: Final = 10
"""Limit of entries in one call."""


# --- content ---


class MessageContent(msgspec.Struct, frozen=True):
    """Text and attributes of one message."""

    text: str
    attributes: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes as AWS counts them: the text, and each attribute's name, type and value."""
        attributes = sum(len(name) + len("String") + _count_bytes(value) for name, value in self.attributes.items())
        return _count_bytes(self.text) + attributes


def encode_content(message: Message, *, mode: Literal["binary", "structured"]) -> MessageContent:
    """Encode a message as text and attributes."""
    headers, payload = to_binary(message, binding=KAFKA)
    if mode == "structured":
        copies = {name: headers.get(name, "") for name in (_PREFIX + name for name in _COPIED_ATTRIBUTES)}
        return MessageContent(_encode_document(message), {_CONTENT_TYPE: STRUCTURED} | _select_valid(copies))
    attributes = _select_valid(
        {
            name: value
            for name, value in headers.items()
            if name == _CONTENT_TYPE or name[len(_PREFIX) :] in _BINARY_ATTRIBUTES
        }
    )
    rest = {name: value for name, value in headers.items() if name not in attributes}
    text, encoding = _encode_payload(payload)
    return MessageContent(
        text, attributes | {_REST: json.dumps(rest)} | ({_CONTENT_ENCODING: encoding} if encoding else {})
    )


def decode(text: str, attributes: Mapping[str, str]) -> CloudEvent:
    """Return the event in a text and its attributes, in either mode; raise `DecodeError` if there is none.

    For SNS, pass what raw message delivery brings.
    """
    if attributes.get(_CONTENT_TYPE) == STRUCTURED:
        return from_structured(text)
    try:
        rest = msgspec.json.decode(attributes.get(_REST, "{}"), type=dict[str, str])
        payload = _decode_payload(text, attributes.get(_CONTENT_ENCODING))
    except (ValueError, binascii.Error) as error:
        raise DecodeError(f"A received message is not a CloudEvent: {error}.") from None
    headers = {name: value for name, value in attributes.items() if name not in (_REST, _CONTENT_ENCODING)}
    return from_binary(rest | headers, payload, binding=KAFKA)


def _encode_document(message: Message) -> str:
    """Return the event as JSON of XML's characters alone."""
    document = to_structured(message)
    text = document.decode()
    if not _NOT_XML.search(text):
        return text
    # Escaping would change the payload's bytes, so the payload goes as base64. The rest can be escaped.
    members = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    if members.pop("data", None) is not None:
        members["data_base64"] = msgspec.Raw(msgspec.json.encode(base64.b64encode(message.payload).decode()))
    return _NOT_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", msgspec.json.encode(members).decode())


def _select_valid(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value and not _NOT_XML.search(value)}


def _encode_payload(payload: bytes) -> tuple[str, str | None]:
    """Return the payload as a text, and the encoding if it is not the payload itself."""
    if not payload:
        return _EMPTY_TEXT, "empty"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or _NOT_XML.search(text):
        return base64.b64encode(payload).decode(), "base64"
    return text, None


def _decode_payload(text: str, encoding: str | None) -> bytes:
    if encoding == "empty":
        return b""
    return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


# --- targets: the queue or topic of a message, by name, URL or ARN ---

_PATH_RULES: Final = AddressRules(
    forbidden=r"[/\\:?#@%\s]|\.\.|^\.$", forbidden_words="a character that means something in a URL or an ARN"
)
"""In a URL or an ARN a value must not lead to another host, account or queue."""
_PATH: Final = re.compile(r"(?:.*[/:])?", re.DOTALL)
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_GROUP_ID: Final = re.compile(r"[!-~]{1,128}")


def compile_target(template: str, *, option: str, transport: str, max_length: int) -> AddressTemplate:
    """Return a function from a message to its target: a name, or a URL or ARN that ends in one."""
    has_path = _has_path(template)
    rules = _PATH_RULES if has_path else ANY_ADDRESS
    fill = compile_template(template, option=option, transport=transport, rules=rules)
    return lambda message: to_name(fill(message), max_length=max_length, has_path=has_path)


@lru_cache(maxsize=1_024)
def to_name(text: str, *, max_length: int, has_path: bool = False) -> str:
    """Return a name that AWS takes: letters, digits, `-` and `_`, perhaps with `.fifo`. Anything else becomes `-`.

    With `has_path` the text is a URL or an ARN, of which only the last part is a name.
    """
    match = _PATH.match(text) if has_path else None
    path = "" if match is None else match[0]
    stem = text[len(path) :].removesuffix(_FIFO)
    name = _NOT_IN_NAME.sub("-", stem) + (_FIFO if text.endswith(_FIFO) else "")
    if not stem or len(name) > max_length:
        raise MessageRejected(
            f"The name {name[:100]!r} would have {len(name)} characters; 1 to {max_length} are allowed."
        )
    return path + name


def find_fixed_target(template: str, *, max_length: int) -> str | None:
    """Return the target of all messages if the template has no fields; raise `MessageRejected` for a bad name."""
    return None if "{" in template else to_name(template, max_length=max_length, has_path=_has_path(template))


def find_target_of_topic(template: str, topic: str, *, max_length: int) -> str | None:
    """Return the target of a topic's messages; None if the template needs more than the topic."""
    if "{" in template.replace("{topic}", ""):
        return None
    has_path = _has_path(template)
    if has_path and re.search(_PATH_RULES.forbidden, topic):
        raise MessageRejected(f"The topic {topic[:100]!r} holds {_PATH_RULES.forbidden_words}.")
    return to_name(template.replace("{topic}", topic), max_length=max_length, has_path=has_path)


def _has_path(template: str) -> bool:
    return template.startswith(("http:", "https:", "arn:"))


def is_fifo(target: str) -> bool:
    """Return True for the name, URL or ARN of a FIFO queue or topic."""
    return target.endswith(_FIFO)


def build_group_id(message: Message) -> str:
    """Return the message group: the key, hashed if AWS would refuse it. A message without a key has its own group."""
    if message.key is None:
        return str(message.message_id)
    return message.key if _GROUP_ID.fullmatch(message.key) else hashlib.sha256(message.key.encode()).hexdigest()


# --- entries ---


class EncodedMessage(msgspec.Struct, frozen=True):
    """A message as an entry of a call."""

    index: int
    """Position in the `send`."""
    target: str
    key: str | None
    entry: dict[str, object]
    size: int


class Encoder(msgspec.Struct, frozen=True, kw_only=True):
    """Encodes the messages of one destination."""

    target: AddressTemplate
    text_field: Literal["MessageBody", "Message"]
    """The service's name for the text."""
    mode: Literal["binary", "structured"]
    max_bytes: int
    """Limit of a message, and of all messages of a call."""

    def encode(self, index: int, message: Message) -> EncodedMessage:
        """Encode a message; raise `MessageRejected` if its target lacks something or it is too large."""
        target = self.target(message)
        content = encode_content(message, mode=self.mode)
        if (size := content.size) > self.max_bytes:
            raise MessageRejected(
                f"The message takes {size} bytes with its attributes, and at most {self.max_bytes} are allowed; put "
                "the payload elsewhere and send a reference."
            )
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in content.attributes.items()}
        entry: dict[str, object] = {self.text_field: content.text, "MessageAttributes": attributes}
        if is_fifo(target):
            entry |= {"MessageGroupId": build_group_id(message), "MessageDeduplicationId": str(message.message_id)}
        return EncodedMessage(index, target, message.key, entry, size)


def split_rounds(messages: Sequence[EncodedMessage]) -> Iterator[Sequence[EncodedMessage]]:
    """Split messages into rounds without two of one key and target.

    Calls of a round are sent at the same time, rounds one after the other: so a key's messages stay in order.
    """
    start, seen = 0, set[tuple[str, str]]()
    for index, message in enumerate(messages):
        if message.key is None:
            continue
        if (message.target, message.key) in seen:
            yield messages[start:index]
            start, seen = index, set()
        seen.add((message.target, message.key))
    if start < len(messages):
        yield messages[start:]


def split_calls(messages: Sequence[EncodedMessage], *, max_bytes: int) -> Iterator[Sequence[EncodedMessage]]:
    """Split messages into calls: up to ten of one target, and no more than so many bytes together."""
    calls: dict[str, list[EncodedMessage]] = {}
    sizes: dict[str, int] = {}
    for message in messages:
        call = calls.setdefault(message.target, [])
        size = sizes.get(message.target, 0) + message.size
        if call and (len(call) == _CALL_ENTRIES or size > max_bytes):
            yield call
            calls[message.target], size = [], message.size
        calls[message.target].append(message)
        sizes[message.target] = size
    yield from calls.values()
