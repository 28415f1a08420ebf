"""Settings of the SQS and SNS transports."""

from __future__ import annotations

import re
from typing import Final, Literal
from urllib.parse import urlsplit

from pillarbox.brokers.aws.encoding import find_fixed_target
from pillarbox.brokers.settings import BrokerSettings, Endpoint, TransportUrl, parse_endpoint, parse_settings
from pillarbox.brokers.templates import compile_template
from pillarbox.errors import ConfigError, MessageRejected
from pillarbox.hosts import is_local_host
from pillarbox.redaction import Secret

__all__ = [
    "MAX_QUEUE_NAME",
    "MAX_TOPIC_NAME",
    "AwsSettings",
    "SnsSettings",
    "SqsSettings",
    "sns_settings",
    "sqs_settings",
]

MAX_QUEUE_NAME: Final = 80
"""Limit of characters, as for topics."""
MAX_TOPIC_NAME: Final = 256
_REGION: Final = re.compile(r"[a-z]{2,}(?:-[a-z0-9]+){1,4}")
_ENDPOINT: Final = re.compile(r"https?://[!-~]+")
_QUEUE_URL: Final = re.compile(r"https?://[^/\s]+/[^\s]+")
_ARN: Final = re.compile(r"arn:[a-z-]+:sns:[^\s]+")


class AwsSettings(BrokerSettings, frozen=True, kw_only=True):
    """One region of AWS, and the login. Raises `ConfigError` for wrong settings.

    `user` and `password` are an access key and its secret. Without them the driver looks for a login in AWS's usual
    places: environment, profile, container, instance.
    """

    mode: Literal["binary", "structured"] = "structured"
    """CloudEvents as one JSON document, or with the payload as the body. Ten attributes cannot hold a whole event."""
    session_token: Secret | None = None
    """Token of a temporary access key."""
    profile: str | None = None
    """Profile in the AWS configuration files."""
    endpoint: str | None = None
    """URL in place of AWS's own, such as http://localhost:4566."""
    concurrency: int = 16
    """Limit of calls, and so of connections, at once. Each call takes up to ten messages."""
    declare: bool = False
    """Create missing queues or topics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        location = self.location
        if len(location.hosts) != 1 or not _REGION.fullmatch(self.region) or location.path:
            raise ConfigError(
                f"The {self.scheme} transport's URL names a region, such as {self.scheme}://eu-central-1."
            )
        if (self.user or location.user) and not (self.password or location.password):
            raise ConfigError(f"The {self.scheme} transport has an access key as user, but no password, its secret.")
        if self.endpoint is not None:
            _check_endpoint(self.endpoint, insecure=self.insecure)
        if not 1 <= self.concurrency <= 1_000:
            raise ConfigError(f"The option concurrency of the {self.scheme} transport must be between 1 and 1000.")

    def describe_clear_login(self) -> str | None:
        if self.endpoint is None or self.endpoint.startswith("https:"):
            return None
        return None if is_local_host(urlsplit(self.endpoint).hostname or "") else "an endpoint with https://"

    @property
    def scheme(self) -> str:
        """`sqs` or `sns`."""
        return self.url.partition(":")[0]

    @property
    def location(self) -> Endpoint:
        """The region as a host, and the login in the URL."""
        return parse_endpoint(self.url, port=443, transport=self.scheme)

    @property
    def region(self) -> str:
        return self.location.hosts[0][0]


class SqsSettings(AwsSettings, frozen=True, kw_only=True):
    """The queue of a message. Raises `ConfigError` for wrong settings."""

    queue: str = "{topic}"
    """Name of the queue. Characters that a name cannot have become `-`; `.fifo` at the end stays, for a FIFO queue."""
    queue_url: str | None = None
    """Whole URL of the queue in place of its name, which saves the lookup."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_templates(self, queue=self.queue, queue_url=self.queue_url)
        if self.queue_url is not None and not _QUEUE_URL.fullmatch(self.queue_url):
            raise ConfigError("The option queue_url of the sqs transport cannot be read; give all of it.")
        _check_fixed_name(self, *self.template, max_length=MAX_QUEUE_NAME)
        if self.queue_url is not None and self.declare:
            raise ConfigError("The option declare of the sqs transport needs queue, a name, and not queue_url.")

    @property
    def template(self) -> tuple[str, str]:
        """The option that is used for the target, and its template."""
        return ("queue", self.queue) if self.queue_url is None else ("queue_url", self.queue_url)


class SnsSettings(AwsSettings, frozen=True, kw_only=True):
    """The topic of a message. Raises `ConfigError` for wrong settings."""

    topic: str = "{topic}"
    """Name of the topic. Characters that a name cannot have become `-`; `.fifo` at the end stays, for a FIFO topic."""
    topic_arn: str | None = None
    """Whole ARN of the topic in place of its name, which saves the lookup."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_templates(self, topic=self.topic, topic_arn=self.topic_arn)
        if self.topic_arn is not None and not _ARN.fullmatch(self.topic_arn):
            raise ConfigError("The option topic_arn of the sns transport cannot be read; give all of it.")
        _check_fixed_name(self, *self.template, max_length=MAX_TOPIC_NAME)
        if self.topic_arn is not None and self.declare:
            raise ConfigError("The option declare of the sns transport needs topic, a name, and not topic_arn.")

    @property
    def template(self) -> tuple[str, str]:
        """The option that is used for the target, and its template."""
        return ("topic", self.topic) if self.topic_arn is None else ("topic_arn", self.topic_arn)


def sqs_settings(url: TransportUrl) -> SqsSettings:
    """Build the settings from a URL and the options beside it."""
    return parse_settings(SqsSettings, url, broker="sqs")


def sns_settings(url: TransportUrl) -> SnsSettings:
    """Build the settings from a URL and the options beside it."""
    return parse_settings(SnsSettings, url, broker="sns")


def _check_templates(settings: AwsSettings, **templates: str | None) -> None:
    for option, template in templates.items():
        if template is not None:
            compile_template(template, option=option, transport=settings.scheme)


def _check_fixed_name(settings: AwsSettings, option: str, template: str, *, max_length: int) -> None:
    try:
        find_fixed_target(template, max_length=max_length)
    except MessageRejected as error:
        raise ConfigError(f"The option {option} of the {settings.scheme} transport cannot be used: {error}") from None


def _check_endpoint(url: str, *, insecure: bool) -> None:
    host = urlsplit(url).hostname if _ENDPOINT.fullmatch(url) else None
    if not host or "@" in url:
        raise ConfigError("The option endpoint is a URL such as http://localhost:4566, without a login.")
    if url.startswith("http:") and not insecure and not is_local_host(host):
        raise ConfigError("Messages would go over http:// unencrypted; use https://, or add insecure=true.")
