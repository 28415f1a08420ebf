"""SQS and SNS transports. Need the extra `aws`."""

from __future__ import annotations

from pillarbox.brokers.aws.encoding import decode
from pillarbox.brokers.aws.settings import SnsSettings, SqsSettings, sns_settings, sqs_settings
from pillarbox.brokers.aws.transport import SnsTransport, SqsTransport, sns_transport, sqs_transport

__all__ = [
    "SnsSettings",
    "SnsTransport",
    "SqsSettings",
    "SqsTransport",
    "decode",
    "sns_settings",
    "sns_transport",
    "sqs_settings",
    "sqs_transport",
]
