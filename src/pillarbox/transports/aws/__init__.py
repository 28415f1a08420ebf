"""Amazon SQS and SNS as destinations. Need the extra `aws`."""

from __future__ import annotations

from pillarbox.transports.aws.parts import from_parts
from pillarbox.transports.aws.settings import SnsSettings, SqsSettings, sns_settings, sqs_settings
from pillarbox.transports.aws.sns import SnsTransport, sns_transport
from pillarbox.transports.aws.sqs import SqsTransport, sqs_transport

__all__ = [
    "SnsSettings",
    "SnsTransport",
    "SqsSettings",
    "SqsTransport",
    "from_parts",
    "sns_settings",
    "sns_transport",
    "sqs_settings",
    "sqs_transport",
]
