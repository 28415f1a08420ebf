"""RabbitMQ for a consumer: one queue, acknowledged message by message. Needs the extra `rabbitmq`."""

from __future__ import annotations

from pillarbox.receivers.rabbitmq.receiver import RabbitmqReceiver, rabbitmq_receiver
from pillarbox.receivers.rabbitmq.settings import RabbitmqReceiverSettings

__all__ = ["RabbitmqReceiver", "RabbitmqReceiverSettings", "rabbitmq_receiver"]
