"""A message as it goes over the wire to NATS: subject, headers, body. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from pillarbox.cloudevents import STRUCTURED, to_structured
from pillarbox.errors import MessageRejected
from pillarbox.message import Kind, Message
from pillarbox.transports.nats.subjects import is_subject
from pillarbox.transports.templates import Address

__all__ = ["Form", "Publication"]

_TRACE: Final = ("traceparent", "tracestate")
_PLAIN: Final = re.compile(r"[!#$&-~]*")
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_NAME: Final = re.compile(r"[!-9;-~]+")
_VALUE: Final = re.compile(r"[^\r\n\x00]*")
_FRAMING: Final = ("nats-", "ce-", "content-type")
_text: Final = msgspec.to_builtins


class Publication(NamedTuple):
    """What one publish sends."""

    subject: str
    headers: bytes
    """The header block, to the empty line at its end."""
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes: what the server's limit is about."""
        return len(self.headers) + len(self.payload)

    def frame(self, reply: str) -> bytes:
        """The command that publishes it and asks for the acknowledgement at `reply`."""
        head, body = self.headers, self.payload
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
            self.subject.encode(), reply.encode(), len(head), len(head) + len(body), head, body,
        )  # fmt: skip


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How the messages of one destination are published."""

    subject: Address
    stream: str | None = None
    mode: Literal["binary", "structured"] = "binary"

    def publication(self, message: Message, *, limit: int) -> Publication:
        """The message on the wire; `MessageRejected` when NATS would not take it."""
        subject = self.subject(message)
        if not is_subject(subject):
            raise MessageRejected(
                f"its subject {subject[:100]!r} is none that NATS takes: words between dots, no spaces, * or >"
            )
        expected = "" if self.stream is None else f"Nats-Expected-Stream: {self.stream}\r\n"
        binary = self.mode == "binary"
        attributes = _binary(message) if binary else _structured(message)
        block = f"NATS/1.0\r\nNats-Msg-Id: {_text(message.message_id)}\r\n{expected}{attributes}\r\n"
        made = Publication(subject, block.encode(), message.payload if binary else to_structured(message))
        if made.size > limit:
            raise MessageRejected(f"with its headers it has {made.size} bytes, and the server takes at most {limit}")
        return made


def _structured(message: Message) -> str:
    trace = {name: message.headers[name] for name in _TRACE if name in message.headers} if message.headers else {}
    return f"content-type: {STRUCTURED}\r\n{_others(trace)}"


def _binary(message: Message) -> str:
    """As `cloudevents.to_binary` says, and as text at once: this is the largest part of what a message costs."""
    lines = [
        _shared(message.source, message.type, message.topic, message.kind, message.content_type),
        f"ce-id: {_text(message.message_id)}\r\nce-time: {_text(message.event_time)}\r\n"
        f"ce-correlationid: {_encoded(message.correlation_id)}\r\n",
    ]
    if message.key is not None:
        lines.append(f"ce-partitionkey: {_encoded(message.key)}\r\n")
    if message.subject is not None:
        lines.append(f"ce-subject: {_encoded(message.subject)}\r\n")
    if message.causation_id is not None:
        lines.append(f"ce-causationid: {_encoded(message.causation_id)}\r\n")
    if message.headers:
        for name in _TRACE:
            if name in message.headers:
                lines.append(f"ce-{name}: {_encoded(message.headers[name])}\r\n")
        lines.append(_others(message.headers))
    return "".join(lines)


@lru_cache(maxsize=4_096)
def _shared(source: str, type_: str, topic: str, kind: Kind, content_type: str) -> str:
    """What many messages have in common.

    The content type stands twice: as the binding has it, and as consumers that know nothing of CloudEvents look for it.
    """
    attributes = {"source": source, "type": type_, "topic": topic, "kind": kind.value, "datacontenttype": content_type}
    lines = [f"ce-{name}: {_encoded(value)}\r\n" for name, value in attributes.items()]
    return "".join(["ce-specversion: 1.0\r\n", *lines, f"content-type: {_on_one_line(content_type)}\r\n"])


def _encoded(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else quote(value, safe=_SAFE)


def _others(headers: Mapping[str, str]) -> str:
    """Headers as they are. Publishing refuses those that would do harm; a row may have been written by other means."""
    for name in headers:
        if name.lower().startswith(_FRAMING) or not _NAME.fullmatch(name):
            raise MessageRejected(f"its header {name[:100]!r} would change what the publish is")
    return "".join([f"{name}: {_on_one_line(value)}\r\n" for name, value in headers.items()])


def _on_one_line(value: str) -> str:
    if not _VALUE.fullmatch(value):
        raise MessageRejected("a header of it holds a line break")
    return value
