"""Where the programs of the matrix come from: `python -m crash.programs.nursery`."""

from __future__ import annotations

import msgspec

import pillarbox.transports.http  # noqa: F401 - so that no child has to import it
from crash.programs import operator, relay, writer
from crash.programs.births import nurse
from crash.programs.orders import OperatorOrder, Order, RelayOrder, WriterOrder

__all__: list[str] = []


def _carry_out(line: bytes) -> None:
    match msgspec.json.decode(line, type=Order):
        case RelayOrder() as order:
            relay.main(order)
        case WriterOrder() as order:
            writer.main(order)
        case OperatorOrder() as order:
            operator.main(order)


if __name__ == "__main__":
    nurse(_carry_out)
