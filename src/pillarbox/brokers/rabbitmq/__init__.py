"""RabbitMQ as a destination and as a source. Needs the extra `rabbitmq`."""

from __future__ import annotations

from pillarbox.brokers.rabbitmq.receiver import RabbitmqReceiver, rabbitmq_receiver
from pillarbox.brokers.rabbitmq.settings import RabbitmqReceiverSettings, RabbitmqSettings
from pillarbox.brokers.rabbitmq.transport import RabbitmqTransport, rabbitmq_transport

__all__ = [
    "RabbitmqReceiver",
    "RabbitmqReceiverSettings",
    "RabbitmqSettings",
    "RabbitmqTransport",
    "rabbitmq_receiver",
    "rabbitmq_transport",
]
