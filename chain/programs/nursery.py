"""Where the programs of the chain come from: `python -m chain.programs.nursery`."""

from __future__ import annotations

import msgspec

import pillarbox.receivers.nats
import pillarbox.receivers.rabbitmq
import pillarbox.transports.http
import pillarbox.transports.nats
import pillarbox.transports.rabbitmq  # noqa: F401 - so that no child has to import it
from chain.orders import ConsumerOrder, Order, RelayOrder
from chain.programs import consumer, relay
from crash.programs.births import nurse

__all__: list[str] = []


def _carry_out(line: bytes) -> None:
    match msgspec.json.decode(line, type=Order):
        case RelayOrder() as order:
            relay.main(order)
        case ConsumerOrder() as order:
            consumer.main(order)


if __name__ == "__main__":
    nurse(_carry_out)
