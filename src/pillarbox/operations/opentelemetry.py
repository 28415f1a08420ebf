"""OpenTelemetry spans: publishing, delivery and handling of a message, all in one trace.

Only the API is used: without an SDK nothing is recorded. The trace context travels in the message's own headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Final

from pillarbox import telemetry as names
from pillarbox.clock import Clock, SystemClock
from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.contracts.store import FailedOutcome
from pillarbox.errors import MissingExtra
from pillarbox.message import SKIPPED_DESTINATION, Message
from pillarbox.redaction import format_traceback, redact_line
from pillarbox.telemetry import Telemetry

__all__ = ["OpenTelemetry", "TracingConsumerTelemetry", "is_recording", "publishing_span"]

try:
    from opentelemetry import trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise MissingExtra("opentelemetry", extra="opentelemetry", needed_for="Tracing") from error


_SYSTEM: Final = "pillarbox"
_context = TraceContextTextMapPropagator()


def is_recording() -> bool:
    """Return whether an SDK is set up in this process, for example by `opentelemetry-instrument`."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def _get_tracer(provider: TracerProvider | None) -> Tracer:
    return trace.get_tracer("pillarbox", tracer_provider=provider)


@contextmanager
def publishing_span(what: str, *, provider: TracerProvider | None = None) -> Iterator[None]:
    """Open a producer span around `outbox.publish`. Messages written inside carry it on."""
    attributes = {names.SYSTEM: _SYSTEM, names.OPERATION: "publish", names.OPERATION_TYPE: "create"}
    with (
        _get_tracer(provider).start_as_current_span(
            f"publish {what}", kind=SpanKind.PRODUCER, attributes=attributes, record_exception=False,
            set_status_on_exception=False,
        ) as span,
        _record_errors(span),
    ):  # fmt: skip
        yield


@contextmanager
def _record_errors(span: Span) -> Iterator[None]:
    """Note an error on the span, redacted: by itself OpenTelemetry would send its text and stack trace as they are."""
    try:
        yield
    except Exception as error:
        reason = redact_line(f"{type(error).__name__}: {error}")
        attributes = {
            "exception.type": f"{type(error).__module__}.{type(error).__qualname__}",
            "exception.message": redact_line(str(error)),
            "exception.stacktrace": format_traceback(error),
        }
        span.add_event("exception", attributes)
        span.set_status(Status(StatusCode.ERROR, reason))
        raise


class OpenTelemetry(Telemetry):
    """A client span for each delivery and each failed attempt, in the trace of the message it carried.

    It begins when the message was due, so that the time in the outbox is the length of the span.
    """

    def __init__(self, *, provider: TracerProvider | None = None, clock: Clock | None = None) -> None:
        self._tracer = _get_tracer(provider)
        self._clock = clock or SystemClock()

    def on_delivered(self, destination: str, messages: Sequence[Message]) -> None:
        if destination != SKIPPED_DESTINATION:
            now = self._clock.now()
            for message in messages:
                self._span(destination, message, now, attempt=message.attempts + 1)

    def on_failed(self, destination: str, message: Message, failure: FailedOutcome) -> None:
        if destination != SKIPPED_DESTINATION:
            self._span(
                destination, message, self._clock.now(), attempt=failure.attempts, error=failure.error or "failed"
            )

    def _span(
        self, destination: str, message: Message, now: datetime, *, attempt: int, error: str | None = None
    ) -> None:
        parent = _parent(message.headers)
        span = self._tracer.start_span(
            f"deliver {destination}",
            context=parent,
            kind=SpanKind.CLIENT,
            links=_links(parent),
            start_time=_nanoseconds(_due(message, now)),
            attributes={
                **_attributes(message, topic=message.topic),
                names.OPERATION: "deliver",
                names.OPERATION_TYPE: "send",
                names.DESTINATION: destination,
                names.ATTEMPT: attempt,
            },
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_time=_nanoseconds(now))


class TracingConsumerTelemetry(ConsumerTelemetry):
    """A consumer span around the handling of each message, in the trace of the message."""

    def __init__(self, *, provider: TracerProvider | None = None) -> None:
        self._provider = provider

    def on_handling(self, consumer: str, event: CloudEvent) -> AbstractContextManager[None]:
        return _handling_span(consumer, event, provider=self._provider)


@contextmanager
def _handling_span(consumer: str, event: CloudEvent, *, provider: TracerProvider | None = None) -> Iterator[None]:
    """Open a consumer span in the trace of the message, linked to where it was published."""
    parent = _parent(event.headers)
    attributes = {
        **_attributes(event, topic=event.topic),
        names.OPERATION: "process",
        names.OPERATION_TYPE: "process",
        names.CONSUMER_GROUP: consumer,
    }
    with (
        _get_tracer(provider).start_as_current_span(
            f"process {event.type}", context=parent, kind=SpanKind.CONSUMER, links=_links(parent),
            attributes=attributes, record_exception=False, set_status_on_exception=False,
        ) as span,
        _record_errors(span),
    ):  # fmt: skip
        yield


def _parent(headers: Mapping[str, str]) -> Any:
    return _context.extract({name: headers[name] for name in ("traceparent", "tracestate") if name in headers})


def _links(context: Any) -> list[Link]:
    producer = trace.get_current_span(context).get_span_context()
    return [Link(producer)] if producer.is_valid else []


def _attributes(message: Message | CloudEvent, *, topic: str) -> dict[str, str | int]:
    return {
        names.SYSTEM: _SYSTEM,
        names.MESSAGE_ID: str(message.message_id),
        names.CONVERSATION_ID: message.correlation_id,
        names.BODY_SIZE: len(message.payload),
        names.TOPIC: topic,
        names.TYPE: message.type,
    }


def _due(message: Message, now: datetime) -> datetime:
    due = message.created_at or now
    if message.attempts == 0 and message.available_at is not None:
        due = max(due, message.available_at)
    return min(due, now)


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
