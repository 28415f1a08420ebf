"""AMQP's methods as values: packed and unpacked by pamqp, the layer below aio-pika. Nothing else here imports it."""

from __future__ import annotations

import struct
from typing import Final, TypeVar

from pillarbox.errors import MissingExtra
from pillarbox.transports.rabbitmq.frames import NotAmqp

try:
    from pamqp import commands
    from pamqp.base import Frame
    from pamqp.common import FieldTable
    from pamqp.exceptions import PAMQPException
    from pamqp.frame import marshal
    from pamqp.header import ContentHeader
except ModuleNotFoundError as error:
    raise MissingExtra("aio-pika", extra="rabbitmq", needed_for="The rabbitmq transport") from error

__all__ = ["FieldTable", "Frame", "commands", "expected", "packed", "returned_id", "unpacked"]

F = TypeVar("F", bound=Frame)
_UNREADABLE: Final = (PAMQPException, ValueError, LookupError, ArithmeticError, struct.error)
"""What its versions raise over bytes that make no sense."""


def packed(channel: int, frame: Frame) -> bytes:
    """The method's frame on the wire."""
    return marshal(frame, channel)


def unpacked(payload: bytes) -> Frame:
    """The method in a frame's payload; `NotAmqp` when it is none."""
    found = commands.INDEX_MAPPING.get(int.from_bytes(payload[:4]))
    if found is None:
        raise NotAmqp("it sent a method that AMQP 0-9-1 does not have")
    frame: Frame = found()
    try:
        frame.unmarshal(payload[4:])
    except _UNREADABLE as error:
        raise NotAmqp("it sent a method that cannot be read") from error
    return frame


def expected(frame: Frame, kind: type[F]) -> F:
    """The method, if it is of this kind; else `NotAmqp`."""
    if not isinstance(frame, kind):
        raise NotAmqp(f"it answered with {frame.name} instead of {kind.name}")
    return frame


def returned_id(payload: bytes) -> str | None:
    """The message id in the properties of a message that came back."""
    header = ContentHeader()
    try:
        header.unmarshal(payload)
    except _UNREADABLE as error:
        raise NotAmqp("it sent a message's properties that cannot be read") from error
    return header.properties.message_id
