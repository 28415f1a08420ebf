"""The trace of one run, line by line. It costs nothing when no one reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pillarbox.contracts.store import (
    BlockedKey,
    Claim,
    Cursor,
    Fence,
    IdleLanes,
    Lane,
    QuietLanes,
    ReadResult,
    RecoveredClaim,
    Registry,
    RelayInfo,
    Settlement,
)
from pillarbox.message import Message
from proof.simulation.virtual_time import Timeline

__all__ = ["PrintLine", "Trace", "fingerprint", "format_call"]

PrintLine = Callable[[str], None]


class Trace:
    """Prints what happens, if there is a `print_line`."""

    def __init__(self, timeline: Timeline, print_line: PrintLine | None = None) -> None:
        self._timeline = timeline
        self._print_line = print_line
        self.is_on = print_line is not None

    def __call__(self, who: str, what: str) -> None:
        if self._print_line is not None:
            self._print_line(f"{self._timeline.now:9.4f} {who:8} {what}")


def fingerprint(lines: list[str]) -> str:
    """Return a hash of the trace. Two runs with the same one went the same way."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def format_call(name: str, args: Sequence[Any], options: Mapping[str, Any], answer: object) -> str:
    """Format a call of the store with ids, lanes and epochs, and nothing that differs from run to run."""
    arguments = [_format_value(arg) for arg in args] + [
        f"{key}={_format_value(list(value) if key == 'park' else value)}"
        for key, value in options.items()
        if key != "lease"
    ]
    return f"{name} {' '.join(arguments)} -> {_format_value(answer)}"


def _format_value(value: object) -> str:  # noqa: PLR0911, PLR0912 - one kind of value after the other
    match value:
        case Message():
            waits = "" if value.waits is None else f" {value.waits.value}"
            return f"{value.id}:{value.key}{waits}"
        case ReadResult():
            return f"{_format_value(value.messages)} {_format_value(value.cursor)}"
        case Cursor():
            return f"low {dict(value.low)}"
        case IdleLanes():
            return f"{list(value.partitions)} {_format_value(value.cursor)}"
        case QuietLanes():
            return f"quiet {_format_value(value.cursor)}"
        case Fence():
            return f"{value.destination} {dict(value.epochs)}"
        case Claim():
            return f"#{value.number} {list(value.message_ids)} struck {value.strikes}"
        case RecoveredClaim():
            return _format_value(value.claim)
        case Lane():
            return f"lane {value.partition} epoch {value.epoch}"
        case BlockedKey():
            return f"{value.key} {value.front.value}"
        case Settlement():
            return _format_settlement(value)
        case Registry():
            return f"{len(value.relays)} relays"
        case RelayInfo():
            return str(value.relay_id)[:8]
        case dict():
            return f"{{{', '.join(f'{key}: {_format_value(one)}' for key, one in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(_format_value(one) for one in value)}]"
    return str(value)


def _format_settlement(settlement: Settlement) -> str:
    failures = [f"{t.message_id} {t.waits or t.state} {t.attempts}" for t in settlement.failures]
    parts = {"delivered": settlement.delivered, "troubled": failures, "returned": settlement.returned}
    return " ".join(f"{name} {list(ids)}" for name, ids in parts.items() if ids)
