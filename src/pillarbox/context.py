"""Context of the running code, by context variables: correlation, causation and trace of its request or message."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

import msgspec

from pillarbox.message import MAX_TEXT, check_text

__all__ = ["Context", "HandledMessage", "correlation", "current", "handling", "trace", "trace_headers"]


class HandledMessage(Protocol):
    """A message that is being handled: a `Message`, or a received `CloudEvent`."""

    @property
    def message_id(self) -> object: ...
    @property
    def correlation_id(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Values that a message published now inherits."""

    correlation_id: str | None = None
    """None: the message starts a chain, and its own id is the correlation id."""
    causation_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None


_EMPTY: Final = Context()
_current: Final[ContextVar[Context]] = ContextVar("pillarbox_context", default=_EMPTY)


def current() -> Context:
    """Return the context of the running code. Tasks inherit it when they are created; threads start with none."""
    return _current.get()


@contextmanager
def correlation(correlation_id: str) -> Iterator[None]:
    """Give messages published inside this correlation id, for example a request's id."""
    correlation_id = check_text(correlation_id, what="correlation id", limit=MAX_TEXT)
    with _enter(msgspec.structs.replace(_current.get(), correlation_id=correlation_id)):
        yield


@contextmanager
def handling(message: HandledMessage) -> Iterator[None]:
    """Record this message as the cause of messages published inside; they share its correlation and its trace."""
    traceparent, tracestate = _parse_trace(message.headers.get("traceparent"), message.headers.get("tracestate"))
    token = _current.set(
        Context(
            correlation_id=message.correlation_id,
            causation_id=str(message.message_id),
            traceparent=traceparent,
            tracestate=tracestate,
        )
    )
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def trace(traceparent: str | None, tracestate: str | None = None) -> Iterator[None]:
    """Give messages published inside this W3C trace context. A missing or malformed one is ignored."""
    parent, state = _parse_trace(traceparent, tracestate)
    here = _current.get()
    with _enter(here if parent is None else msgspec.structs.replace(here, traceparent=parent, tracestate=state)):
        yield


@contextmanager
def _enter(context: Context) -> Iterator[None]:
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def trace_headers(context: Context) -> dict[str, str]:
    """Return the trace headers for a message: of the current OpenTelemetry span, or else of the context."""
    parent, state = _read_current_span() or (context.traceparent, context.tracestate)
    headers = {} if parent is None else {"traceparent": parent}
    if parent is not None and state:
        headers["tracestate"] = state
    return headers


def _read_current_span() -> tuple[str | None, str | None] | None:
    # A span can only be current where OpenTelemetry was imported, so it is never imported here.
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    span = api.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    traceparent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    return _parse_trace(traceparent, span.trace_state.to_header())


_TRACEPARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-[!-~]{0,200})?"
)
_KEY: Final = r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_MEMBER: Final = rf"[ \t]*(?:{_KEY}=[ -+\--<>-~]{{0,255}}[!-+\--<>-~][ \t]*)?"
_TRACESTATE: Final = re.compile(rf"{_MEMBER}(?:,{_MEMBER}){{0,31}}")
_LONGEST_STATE: Final = 2048


def _parse_trace(traceparent: object, tracestate: object) -> tuple[str | None, str | None]:
    """Return both, or only the parent, or neither, by the rules of the W3C recommendation."""
    match = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if match is None or (match["version"] == "00" and match["more"]):
        return None, None
    if not isinstance(tracestate, str) or len(tracestate) > _LONGEST_STATE or not _TRACESTATE.fullmatch(tracestate):
        return match[0], None
    return match[0], tracestate.strip() or None
