"""Messages as entries of a call. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from pillarbox.errors import MessageRejected
from pillarbox.message import Message
from pillarbox.transports.aws.batches import Parcel
from pillarbox.transports.aws.names import group_of, is_fifo
from pillarbox.transports.aws.parts import to_parts
from pillarbox.transports.templates import Address

__all__ = ["Packer"]


class Packer(msgspec.Struct, frozen=True, kw_only=True):
    """How messages of one destination become entries."""

    place: Address
    text: Literal["MessageBody", "Message"]
    """What the service calls the text."""
    mode: Literal["binary", "structured"]
    most: int
    """Bytes of a message at most."""

    def __call__(self, index: int, message: Message) -> Parcel:
        """`MessageRejected` when it lacks what its place needs, or is too large."""
        place = self.place(message)
        parts = to_parts(message, mode=self.mode)
        if (size := parts.size) > self.most:
            raise MessageRejected(
                f"The message takes {size} bytes with its attributes, and at most {self.most} are allowed; put the "
                "payload elsewhere and send a reference."
            )
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in parts.attributes.items()}
        entry: dict[str, object] = {self.text: parts.text, "MessageAttributes": attributes}
        if is_fifo(place):
            entry |= {"MessageGroupId": group_of(message), "MessageDeduplicationId": str(message.message_id)}
        return Parcel(index, place, message.key, entry, size)
