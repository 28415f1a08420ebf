"""In-process functions as a destination: an outbox for a service without a broker.

handlers = Handlers()

@handlers.on(OrderPlaced)
async def send_mail(event: OrderPlaced) -> None: ...
"""

from __future__ import annotations

from pillarbox.handlers import Handler, Handlers
from pillarbox.transports.handlers.transport import HandlersTransport, handlers_transport

__all__ = ["Handler", "Handlers", "HandlersTransport", "handlers_transport"]
