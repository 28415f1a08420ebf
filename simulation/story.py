"""A call to the store in few words, for the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pillarbox.message import Message
from pillarbox.protocols import (
    BlockedKey,
    Claim,
    Cursor,
    Fence,
    Inherited,
    Lane,
    Reading,
    Registry,
    RelayInfo,
    Settlement,
)

__all__ = ["story"]


def story(name: str, args: Sequence[Any], options: Mapping[str, Any], answer: object) -> str:
    """Who reads it wants ids, lanes and epochs, and nothing that differs from run to run."""
    told = [_short(arg) for arg in args] + [
        f"{key}={_short(value)}" for key, value in options.items() if key != "lease"
    ]
    return f"{name} {' '.join(told)} -> {_short(answer)}"


def _short(value: object) -> str:  # noqa: PLR0911 - one kind of value after the other
    match value:
        case Message():
            waits = "" if value.waits is None else f" {value.waits.value}"
            return f"{value.id}:{value.key}{waits}"
        case Reading():
            return f"{_short(value.messages)} {_short(value.cursor)}"
        case Cursor():
            return f"low {dict(value.low)}"
        case Fence():
            return f"{value.destination} {dict(value.epochs)}"
        case Claim():
            return f"#{value.number} {list(value.message_ids)} struck {value.strikes}"
        case Inherited():
            return _short(value.claim)
        case Lane():
            return f"lane {value.partition} epoch {value.epoch}"
        case BlockedKey():
            return f"{value.key} {value.front.value}"
        case Settlement():
            return _settlement(value)
        case Registry():
            return f"{len(value.relays)} relays"
        case RelayInfo():
            return str(value.relay_id)[:8]
        case list() | tuple():
            return f"[{', '.join(_short(one) for one in value)}]"
    return str(value)


def _settlement(settlement: Settlement) -> str:
    troubles = [f"{t.message_id} {t.waits or t.state} {t.attempts}" for t in settlement.troubles]
    parts = {"delivered": settlement.delivered, "troubled": troubles, "returned": settlement.returned}
    return " ".join(f"{name} {list(ids)}" for name, ids in parts.items() if ids)
