"""What the SQS and SNS transports can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pillarbox.errors import ConfigError, MessageRejected
from pillarbox.transports.aws.names import fixed
from pillarbox.transports.endpoints import BrokerSettings, Endpoint, endpoint_of
from pillarbox.transports.secret import Secret
from pillarbox.transports.settings import settings_from
from pillarbox.transports.templates import address
from pillarbox.transports.urls import TransportUrl

__all__ = [
    "LONGEST_QUEUE",
    "LONGEST_TOPIC",
    "AwsSettings",
    "SnsSettings",
    "SqsSettings",
    "sns_settings",
    "sqs_settings",
]

LONGEST_QUEUE: Final = 80
LONGEST_TOPIC: Final = 256
"""Characters of a name."""
_REGION: Final = re.compile(r"[a-z]{2,}(?:-[a-z0-9]+){1,4}")
_ENDPOINT: Final = re.compile(r"https?://[!-~]+")
_QUEUE_URL: Final = re.compile(r"https?://[^/\s]+/[^\s]+")
_ARN: Final = re.compile(r"arn:[a-z-]+:sns:[^\s]+")


class AwsSettings(BrokerSettings, frozen=True, kw_only=True):
    """One region of AWS, and as whom we come there. Wrong settings are a `ConfigError` when they are made.

    `user` and `password` are an access key and its secret; without them AWS's usual ways are tried: environment,
    profile, container, instance.
    """

    mode: Literal["binary", "structured"] = "structured"
    """CloudEvents: all in one JSON document, or the payload as the body. Ten attributes do not hold all of an event."""
    session_token: Secret | None = None
    """Belongs to a temporary access key."""
    profile: str | None = None
    """A profile of the AWS configuration files."""
    endpoint: str | None = None
    """Another place than AWS's own, such as http://localhost:4566."""
    concurrency: int = 16
    """Calls, and so connections, at once. Each takes up to ten messages."""
    declare: bool = False
    """Make what is missing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        place = self.place
        if len(place.hosts) != 1 or not _REGION.fullmatch(self.region) or place.path:
            raise ConfigError(
                f"The {self.scheme} transport's URL names a region, such as {self.scheme}://eu-central-1."
            )
        if (self.user or place.user) and not (self.password or place.password):
            raise ConfigError(f"The {self.scheme} transport has an access key as user, but no password, its secret.")
        if self.endpoint is not None:
            _check_endpoint(self.endpoint, insecure=self.insecure)
        if not 1 <= self.concurrency <= 1_000:
            raise ConfigError(f"The option concurrency of the {self.scheme} transport must be between 1 and 1000.")

    @property
    def scheme(self) -> str:
        """`sqs` or `sns`."""
        return self.url.partition(":")[0]

    @property
    def place(self) -> Endpoint:
        """The region, and the login if it is in the URL."""
        return endpoint_of(self.url, port=443, transport=self.scheme)

    @property
    def region(self) -> str:
        return self.place.hosts[0][0]

    def check_template(self, option: str, template: str | None, *, form: re.Pattern[str] | None = None) -> Self:
        """`ConfigError` for a template that no message can fill in, or that cannot become what it should be."""
        if template is not None:
            address(template, option=option, transport=self.scheme)
            if form is not None and not form.fullmatch(template):
                raise ConfigError(f"The option {option} of the {self.scheme} transport cannot be read; give all of it.")
        return self

    def check_fixed(self, option: str, template: str, *, most: int) -> None:
        """`ConfigError` for a name that AWS would not take."""
        try:
            fixed(template, most=most)
        except MessageRejected as error:
            raise ConfigError(f"The option {option} of the {self.scheme} transport cannot be used: {error}") from None


class SqsSettings(AwsSettings, frozen=True, kw_only=True):
    """Which queue of SQS a message goes to."""

    queue: str = "{topic}"
    """The queue's name. What a name cannot have becomes `-`; `.fifo` at the end is kept, and makes it a FIFO queue."""
    queue_url: str | None = None
    """The queue's whole URL instead: no look-up is needed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_template("queue", self.queue).check_template("queue_url", self.queue_url, form=_QUEUE_URL)
        self.check_fixed(*self.template, most=LONGEST_QUEUE)
        if self.queue_url is not None and self.declare:
            raise ConfigError("The option declare of the sqs transport needs queue, a name, and not queue_url.")

    @property
    def template(self) -> tuple[str, str]:
        """Where messages go, and the option that says so."""
        return ("queue", self.queue) if self.queue_url is None else ("queue_url", self.queue_url)


class SnsSettings(AwsSettings, frozen=True, kw_only=True):
    """Which topic of SNS a message goes to."""

    topic: str = "{topic}"
    """The topic's name. What a name cannot have becomes `-`; `.fifo` at the end is kept, and makes it a FIFO topic."""
    topic_arn: str | None = None
    """The topic's whole ARN instead: no look-up is needed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_template("topic", self.topic).check_template("topic_arn", self.topic_arn, form=_ARN)
        self.check_fixed(*self.template, most=LONGEST_TOPIC)
        if self.topic_arn is not None and self.declare:
            raise ConfigError("The option declare of the sns transport needs topic, a name, and not topic_arn.")

    @property
    def template(self) -> tuple[str, str]:
        """Where messages go, and the option that says so."""
        return ("topic", self.topic) if self.topic_arn is None else ("topic_arn", self.topic_arn)


def sqs_settings(url: TransportUrl) -> SqsSettings:
    """The settings in a URL and the options beside it."""
    return settings_from(SqsSettings, _options(url, "sqs"), transport="sqs")


def sns_settings(url: TransportUrl) -> SnsSettings:
    """The settings in a URL and the options beside it."""
    return settings_from(SnsSettings, _options(url, "sns"), transport="sns")


def _options(url: TransportUrl, transport: str) -> dict[str, object]:
    if "url" in url.options:
        raise ConfigError(f"The {transport} transport's URL is given twice: leave out the option url.")
    return {**url.options, "url": url.address}


def _check_endpoint(url: str, *, insecure: bool) -> None:
    host = urlsplit(url).hostname if _ENDPOINT.fullmatch(url) else None
    if not host or "@" in url:
        raise ConfigError("The option endpoint is a URL such as http://localhost:4566, without a login.")
    if url.startswith("http:") and not insecure and not _is_loopback(host):
        raise ConfigError("Messages would go over http:// unencrypted; use https://, or add insecure=true.")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
