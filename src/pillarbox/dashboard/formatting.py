"""Text on pages: numbers with their bounds, times, states, payloads. Everything from outside passes `clean`. Pure."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pillarbox.cloudevents import HTTP, to_binary
from pillarbox.contracts.store import RelayInfo
from pillarbox.durations import format_age, format_duration, format_latency
from pillarbox.events import is_json
from pillarbox.message import Message, State, Waits
from pillarbox.operations.monitor import DestinationStatus
from pillarbox.redaction import escape_controls, redact
from pillarbox.retry import RetryPolicy

__all__ = [
    "FILTERS",
    "MOST_SHOWN",
    "clean",
    "describe_destination",
    "describe_failed",
    "describe_retry",
    "describe_wait",
    "format_bytes",
    "format_count",
    "format_exact",
    "format_payload",
    "format_rate",
    "hide_headers",
    "hide_texts",
    "list_wire_headers",
    "name_relay",
    "name_relays",
    "name_state",
]

MOST_SHOWN: Final = 256 * 1024
"""Bytes of a payload on a page. The download has the whole payload."""
_PAYLOADS: Final = ("payload", "payload_base64", "raw_base64")
_SECRET_WORDS: Final = (
    "authorization", "cookie", "credential", "passphrase", "passwd", "password", "secret", "signature", "token",
    "api-key", "apikey", "api_key", "private",
)  # fmt: skip


def clean(text: str) -> str:
    """Make text from outside fit to show: secrets hidden, control characters and hidden ones escaped."""
    return escape_controls(redact(text))


def format_count(count: int, *, more: bool = False) -> str:
    """Format a number with its bound: `100,000+`."""
    return f"{count:,}{'+' if more else ''}"


def format_short(count: int, *, more: bool = False) -> str:
    """Format a number for a small cell: `1k+`."""
    return f"{count if count < 1_000 else f'{count // 1_000}k'}{'+' if more else ''}"


def format_exact(at: datetime | None) -> str:
    """Format a time in UTC, to the millisecond; nothing for None."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def format_rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def format_bytes(size: int | None) -> str:
    """Format a size in the unit that leaves few digits; a dash if nobody knows it."""
    if size is None:
        return "–"
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def format_length(length: timedelta | None) -> str:
    return "" if length is None else format_latency(length)


# --- messages ---


def name_state(message: Message) -> str:
    """Return the state of a message as people call it: a held one is `held`, one that waits behind another `parked`."""
    if message.waits is Waits.HELD:
        return "held"
    if message.state is State.PENDING and message.waits is Waits.PARKED:
        return "parked"
    return message.state.value


def describe_wait(message: Message, now: datetime) -> str:
    """Say what an open message waits for; nothing for a closed one."""
    if message.state is not State.PENDING:
        return "needs attention; its key waits" if message.waits is Waits.HELD else ""
    is_later = message.available_at is not None and message.available_at > now
    match message.waits:
        case Waits.PARKED:
            return "waits behind an earlier message of its key"
        case Waits.HELD:
            return "needs attention; its key waits"
        case Waits.RETRY if is_later:
            return f"next try in {format_age(now, message.available_at or now)}"
        case Waits.DEFERRED if is_later:
            return f"due in {format_age(now, message.available_at or now)}"
    return "due"


def hide_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Hide the values of headers whose names say that they are secret, and what looks like a secret in the others."""
    return {
        name: "***"
        if any(word in name.lower() for word in _SECRET_WORDS)
        else redact(f"{name}: {value}")[len(name) + 2 :]
        for name, value in headers.items()
    }


def hide_texts(value: Any) -> Any:
    """Hide what looks like a secret in every text of a document, except in a payload: somebody asked for that."""
    match value:
        case str():
            return redact(value)
        case dict():
            return {name: one if name in _PAYLOADS else _hide_field(name, one) for name, one in value.items()}
        case list() | tuple():
            return [hide_texts(one) for one in value]
    return value


def _hide_field(name: str, value: Any) -> Any:
    return hide_headers(value) if name == "headers" and isinstance(value, dict) else hide_texts(value)


def list_wire_headers(message: Message) -> dict[str, str]:
    """Return the headers of a message in CloudEvents' binary mode, as HTTP has them; without secrets."""
    try:
        headers, _ = to_binary(message, binding=HTTP)
    except Exception:  # a row that cannot be read has nothing to send
        return {}
    return hide_headers({str(name): str(value) for name, value in headers.items()})


def format_payload(payload: bytes, content_type: str) -> str:
    """Format a payload to read: JSON with line breaks and every number as it was written; other text as it is.

    The payload is cut first, because formatting a large one would hold up every other page. A part of a JSON document
    is shown as it was sent, and so is a document that is nested too deep, or names a field twice.
    """
    is_cut = len(payload) > MOST_SHOWN
    # An incremental decoder leaves out the bytes of a character that was cut in two.
    text = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode(payload[:MOST_SHOWN], final=not is_cut)
    if is_json(content_type) and not is_cut:
        try:
            # Numbers stay texts: 12345678901234567890 and 1.10 must not change on the way to the page.
            document = json.loads(
                text, parse_int=_Number, parse_float=_Number, parse_constant=_Number, object_pairs_hook=_to_object
            )
            text, is_cut = _indent(document)
        except (ValueError, RecursionError):
            pass
    text = escape_controls(text)
    return f"{text}…" if is_cut else text


def _indent(document: object) -> tuple[str, bool]:
    """Write a document with line breaks; return also whether it was cut. Deep documents are mostly indentation."""
    lines, size = [], 0
    for line in _list_lines(document):
        lines.append(line)
        size += len(line)
        if size > MOST_SHOWN:
            return "".join(lines)[:MOST_SHOWN], True
    return "".join(lines), False


def _to_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build an object; ValueError if a name stands twice, because one of its values would be hidden."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def _list_lines(value: object, depth: int = 0) -> Iterator[str]:
    inner, outer = "  " * (depth + 1), "  " * depth
    match value:
        case _Number():
            yield str(value)
        case dict() if value:
            for number, (key, one) in enumerate(value.items()):
                yield f"{',' if number else '{'}\n{inner}{json.dumps(key, ensure_ascii=False)}: "
                yield from _list_lines(one, depth + 1)
            yield f"\n{outer}}}"
        case list() if value:
            for number, one in enumerate(value):
                yield f"{',' if number else '['}\n{inner}"
                yield from _list_lines(one, depth + 1)
            yield f"\n{outer}]"
        case _:
            yield json.dumps(value, ensure_ascii=False)


# --- relays ---

_RELAY_ID: Final = re.compile(r"(?:\brelay )?(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


def name_relay(relay: RelayInfo) -> str:
    """Name a relay as people know it: `shop@web-1:4711`."""
    return f"{relay.service}@{relay.host}:{relay.pid}"


def name_relays(text: str, relays: Iterable[RelayInfo]) -> str:
    """Write the names of relays instead of their ids. One that is gone has only the beginning of its id."""
    names = {str(relay.relay_id): name_relay(relay) for relay in relays}

    def name(found: re.Match[str]) -> str:
        return names.get(found["id"]) or f"relay {found['id'][:8]}…"

    return _RELAY_ID.sub(name, text)


# --- destinations ---


def describe_destination(one: DestinationStatus) -> tuple[str, str]:
    """Return the state of a destination as one word, and the reason in words."""
    if one.pause is not None:
        return "paused", f"by {one.pause.by}"
    if one.handed_off_to is not None and not one.is_served:
        return "handed-off", f"{one.handed_off_to} delivers it"
    if not one.is_served:
        return (
            ("unserved", "no relay serves it")
            if one.due or one.later or one.sending
            else ("idle", "no relay serves it")
        )
    if not one.reachable:
        return "outage", "no relay can reach it"
    if one.failed:
        return "failed", describe_failed(one)
    if one.reachable < one.relays:
        return "partial", f"{one.reachable} of {one.relays} relays reach it"
    return ("waiting", f"{format_count(one.due, more='due' in one.more)} due") if one.due > 0 else ("ok", "")


def describe_failed(one: DestinationStatus) -> str:
    """Say how many failed messages of a destination need attention."""
    need = "needs" if one.failed == 1 else "need"
    return f"{format_count(one.failed, more='failed' in one.more)} {need} attention"


def describe_retry(policy: RetryPolicy) -> str:
    """Say in words how often a message is tried, and when."""
    attempts = policy.attempts
    if attempts is None:
        return f"tried for ever: {_list_waits(policy, 4)}, …"
    if attempts == 1:
        return "tried once"
    waits = _list_waits(policy, min(attempts - 1, 6))
    return f"{attempts} attempts, with waits of {waits}{', …' if attempts > 7 else ''}"


def _list_waits(policy: RetryPolicy, count: int) -> str:
    return ", ".join(format_duration(policy.delay(number, dice=0.5)) for number in range(1, count + 1))


FILTERS: Final = {
    "count": format_count,
    "exact": format_exact,
    "rate": format_rate,
    "bytes": format_bytes,
    "latency": format_length,
    "duration": format_duration,
    "short": format_short,
    "pair": lambda finding: ("", finding),
}
