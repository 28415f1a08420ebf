"""RabbitMQ as a destination. Needs the extra `rabbitmq`."""

from __future__ import annotations

from pillarbox.transports.rabbitmq.settings import RabbitmqSettings, rabbitmq_settings
from pillarbox.transports.rabbitmq.transport import RabbitmqTransport, rabbitmq_transport

__all__ = ["RabbitmqSettings", "RabbitmqTransport", "rabbitmq_settings", "rabbitmq_transport"]
