"""Messages from rows, by the position of their columns. Every read passes here: nothing is looked up by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pillarbox.message import Kind, Message, State, Waits
from pillarbox.stores.unreadable import is_sound, rescue_message

__all__ = ["message_from_row", "message_from_stored_row"]

# A dictionary answers faster than the constructor of an enum.
_KINDS: Final = {kind.value: kind for kind in Kind}
_WAITS: Final = {None: None} | {waits.value: waits for waits in Waits}
_STATES: Final = {state.value: state for state in State}
_NO_HEADERS: Final[dict[str, str]] = {}
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


def message_from_row(row: Sequence[Any]) -> Message:
    """Build a message from a row of the outbox. One that cannot be read says so in `unreadable`."""
    try:
        message = Message(
            row[0], row[1], row[2], row[3], _KINDS[row[4]], row[5], row[6], row[7], row[8], row[9],
            _NO_HEADERS if row[10] is None else _decode_headers(row[10]),
            row[11], row[12], row[13], row[14], row[15], row[16], row[17], _WAITS[row[18]], row[19], row[20], row[21],
        )  # fmt: skip
        if is_sound(message):
            return message
    except Exception:  # noqa: S110 - whatever it is, the reason is found below
        pass
    return rescue_message(row, to_time=_keep)


def message_from_stored_row(row: Sequence[Any]) -> Message:
    """Build a message from the outbox's columns and its state, open or closed. Its payload may not have been kept."""
    try:
        message = Message(
            row[0], row[1], row[2], row[3], _KINDS[row[4]], row[5], row[6], row[7], row[8] or b"", row[9],
            _NO_HEADERS if row[10] is None else _decode_headers(row[10]),
            row[11], row[12], row[13], row[14], row[15], row[16], row[17], _WAITS[row[18]], row[19], row[20], row[21],
            _STATES[row[22]], row[8] is not None,
        )  # fmt: skip
        if is_sound(message):
            return message
    except Exception:  # noqa: S110 - whatever it is, the reason is found below
        pass
    return rescue_message(row, to_time=_keep)


def _keep(value: Any) -> Any:
    """Return a value that the driver has decoded; it decodes a time that is out of range to None."""
    return value
