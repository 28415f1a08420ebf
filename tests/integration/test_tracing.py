"""One trace from publishing over delivery to handling, across two processes' worth of parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pillarbox import Outbox
from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver, MemoryTransport
from pillarbox.consumer import Consumer
from pillarbox.contracts.store import FailedOutcome, Selection
from pillarbox.events import Types
from pillarbox.message import Message, State
from pillarbox.operations.opentelemetry import OpenTelemetry, TracingConsumerTelemetry, publishing_span
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.memory import MemoryStore, MemoryTransaction
from pillarbox.testing.samples import sample
from tests.support.consumer.scene import QUICK, until

TYPES = Types()


@TYPES.event("orders.placed", key="order_id")
@dataclass
class OrderPlaced:
    order_id: str


@TYPES.event("orders.billed", key="order_id")
@dataclass
class OrderBilled:
    order_id: str


class Tracing:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def outbox(self) -> Outbox:
        return Outbox(
            routes="billing",
            source="/shop",
            types=TYPES,
            spans=lambda what: publishing_span(what, provider=self.provider),
        )


async def delivered(store: MemoryStore, telemetry: OpenTelemetry) -> Sequence[Message]:
    transport = MemoryTransport()
    destination = Destination(lambda: transport, DestinationSettings(name="billing"))
    await Relay(store, [destination], telemetry=telemetry).run(once=True)
    return transport.received


async def test_a_chain_is_one_trace_and_each_step_knows_its_parent() -> None:
    shop, billing, tracing = MemoryStore(), MemoryStore(), Tracing()
    outbox = tracing.outbox()
    with shop.transaction() as tx:
        outbox.publish(tx, OrderPlaced("1"))
    (message,) = await delivered(shop, OpenTelemetry(provider=tracing.provider))
    queue = MemoryQueue()
    queue.put(message)
    consumer = Consumer(
        "billing", receiver=MemoryReceiver(queue), database=billing, settings=QUICK, types=TYPES,
        telemetry=TracingConsumerTelemetry(provider=tracing.provider),
    )  # fmt: skip

    @consumer.on(OrderPlaced)
    def bill(event: OrderPlaced, tx: MemoryTransaction) -> None:
        outbox.publish(tx, OrderBilled(event.order_id))

    async with consumer:
        await until(lambda: len(queue.acknowledged) == 1)
    spans = tracing.spans()
    published, sent = spans["publish OrderPlaced"], spans["deliver billing"]
    handled, emitted = spans["process orders.placed"], spans["publish OrderBilled"]
    assert {span.context.trace_id for span in (published, sent, handled, emitted)} == {published.context.trace_id}
    assert [span.kind for span in (published, sent, handled)] == [SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER]
    for step, parent in ((sent, published), (handled, published), (emitted, handled)):
        assert step.parent is not None
        assert step.parent.span_id == parent.context.span_id
    assert [link.context.span_id for link in sent.links] == [published.context.span_id]
    (again,) = await billing.find(Selection(), limit=10)
    assert again.headers["traceparent"].split("-")[1] == f"{published.context.trace_id:032x}"
    assert again.causation_id == str(message.message_id)


def test_a_failed_attempt_is_an_error() -> None:
    tracing = Tracing()
    trouble = FailedOutcome(message_id=1, state=State.FAILED, attempts=3, error="422 Unprocessable")
    OpenTelemetry(provider=tracing.provider).on_failed("billing", sample(), trouble)
    span = tracing.spans()["deliver billing"]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "422 Unprocessable")
    assert span.attributes is not None
    assert span.attributes["pillarbox.attempt"] == 3
