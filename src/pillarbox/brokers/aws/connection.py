"""Client for SQS or SNS. Maps the driver's errors, and repeats no call by itself."""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, ClassVar, Final, Literal

from pillarbox.brokers.aws.encoding import is_fifo
from pillarbox.brokers.aws.errors import Refusal, RefusalKind, classify_call_error
from pillarbox.brokers.aws.settings import AwsSettings
from pillarbox.brokers.errors import not_open_error, unreachable_error
from pillarbox.errors import MissingExtra, PillarboxError, TransportError, TransportUnavailable
from pillarbox.progress import Slots, note_progress
from pillarbox.redaction import hide_secrets, redact_line

try:
    import aiohttp
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession
    from botocore import exceptions as botocore_errors
    from botocore.loaders import create_loader
except ModuleNotFoundError as error:
    raise MissingExtra("aiobotocore", extra="aws", needed_for="The sqs or sns transport") from error

__all__ = ["AwsClient", "CallRefused", "NoResponse", "SnsTopics", "SqsQueues", "Targets"]

_LOGIN_ERRORS: Final = (
    botocore_errors.NoCredentialsError,
    botocore_errors.PartialCredentialsError,
    botocore_errors.CredentialRetrievalError,
    botocore_errors.ProfileNotFound,
    botocore_errors.TokenRetrievalError,
    botocore_errors.SSOError,
)
_UNREACHABLE_ERRORS: Final = (botocore_errors.ConnectTimeoutError, botocore_errors.ProxyConnectionError)
_BROKEN_ERRORS: Final = (
    botocore_errors.ConnectionClosedError,
    botocore_errors.HTTPClientError,
    botocore_errors.IncompleteReadError,
)
_LOADER: Final = create_loader()
"""Caches AWS's service descriptions, because reading them takes longer than the rest of creating a client."""
_QUEUE_ATTRIBUTES: Final = {"MessageRetentionPeriod": "1209600", "SqsManagedSseEnabled": "true"}
"""Attributes of a queue that we create: encrypted, and messages are kept for 14 days, the longest time possible."""


class NoResponse(TransportError):
    """There was no response to a call in time, or none that can be read. AWS may have carried it out."""


class CallRefused(TransportError):
    """AWS refused a call."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.code}: {refusal.text}")
        self.refusal = refusal


class AwsClient:
    """Calls one service in one region."""

    def __init__(
        self, service: Literal["sqs", "sns"], settings: AwsSettings, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._where = settings.display_url
        self._service = service
        self._settings = settings
        self._login = settings.login(settings.location, environ=environ)
        token = settings.session_token
        self._token = None if token is None else token.read(option="session_token", environ=environ)
        self._seconds = settings.timeout.total_seconds()
        self._slots = Slots(settings.concurrency)
        self._stack = AsyncExitStack()
        self._client: Any = None

    def __repr__(self) -> str:
        return f"AwsClient({self._where!r})"

    async def open(self) -> None:
        """Create the driver's client. Connects to nothing yet."""
        if self._client is None:
            with self._map_errors("connecting"):
                async with asyncio.timeout(self._seconds):
                    self._client = await self._stack.enter_async_context(self._create_client())

    async def close(self) -> None:
        self._client = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    @asynccontextmanager
    async def keep_open(self) -> AsyncIterator[None]:
        """Open the client for the block, unless it is open anyway."""
        was_open = self._client is not None
        await self.open()
        try:
            yield
        finally:
            if not was_open:
                await self.close()

    async def call(self, operation: str, **parameters: object) -> Mapping[str, Any]:
        """Call an operation and return its response. The wait for a slot is not part of the timeout.

        Raises `TransportUnavailable` if there is no connection or it breaks, `NoResponse`, or `CallRefused`.
        """
        async with self._slots.hold():
            if self._client is None:
                raise not_open_error(f"{self._service} transport")
            with self._map_errors(operation):
                async with asyncio.timeout(self._seconds):
                    response: Mapping[str, Any] = await getattr(self._client, operation)(**parameters)
                    note_progress()
                    return response

    def hide(self, text: str) -> str:
        """Return the text without our secrets, which AWS may have echoed."""
        return hide_secrets(text, [one for one in (self._login.password, self._token) if one])

    def _create_client(self) -> Any:
        settings = self._settings
        certificate, key = settings.client_certificate, settings.client_key
        config = AioConfig(
            # The outbox sends again. Retries of the client would multiply messages, and hide that AWS throttles.
            retries={"total_max_attempts": 1},
            connect_timeout=self._seconds / 2,
            read_timeout=self._seconds,
            max_pool_connections=settings.concurrency,
            client_cert=(certificate, key) if certificate and key else certificate,
            user_agent_extra="pillarbox",
            # Validation takes four times as long as the rest of a call, and the parameters are built by us.
            parameter_validation=False,
        )
        session = AioSession(profile=settings.profile)
        session.register_component("data_loader", _LOADER)
        return session.create_client(
            self._service,
            region_name=settings.region,
            endpoint_url=settings.endpoint,
            aws_access_key_id=self._login.user,
            aws_secret_access_key=self._login.password,
            aws_session_token=self._token,
            verify=(settings.ca or True) if settings.verify else False,
            config=config,
        )

    @contextmanager
    def _map_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except PillarboxError:
            raise
        except botocore_errors.ClientError as error:
            details = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code, text = str(details.get("Code", "")), self.hide(str(details.get("Message", "")))
            raise CallRefused(classify_call_error(code, text, status=status)) from error
        except (TimeoutError, botocore_errors.ReadTimeoutError) as error:
            raise NoResponse(f"no answer within {self._seconds:g} s from {self._where}") from error
        except botocore_errors.BotoCoreError as error:
            raise self._map_driver_error(error) from error
        except (KeyError, ValueError, TypeError) as error:  # a response that does not come from AWS
            raise NoResponse(
                f"{self._where} answered {operation} with something that cannot be read ({type(error).__name__})."
            ) from error

    def _map_driver_error(self, error: botocore_errors.BotoCoreError) -> TransportError:
        name = redact_line(type(error).__name__)
        if isinstance(error, _LOGIN_ERRORS):
            return TransportUnavailable(
                f"There is no login for {self._where} ({name}): give user and password, or a profile, or one of the "
                "other ways in which AWS finds credentials."
            )
        if isinstance(error, botocore_errors.SSLError):
            # Without a reason: the driver's text repeats the URL.
            return TransportUnavailable(
                f"{self._where} cannot be trusted or spoken to by TLS: check its certificate and the options ca and "
                "client_certificate."
            )
        is_endpoint_error = isinstance(error, botocore_errors.EndpointConnectionError)
        if isinstance(error, _UNREACHABLE_ERRORS) or (is_endpoint_error and _failed_to_connect(error)):
            return unreachable_error(
                self._where, _describe_cause(error), check="the region, the endpoint and the network"
            )
        if is_endpoint_error or isinstance(error, _BROKEN_ERRORS):
            return TransportUnavailable(
                f"The connection to {self._where} broke before the answer ({_describe_cause(error)}).", mid_send=True
            )
        return NoResponse(f"The call to {self._where} failed ({name}).")


def _failed_to_connect(error: botocore_errors.BotoCoreError) -> bool:
    """Return True if there was no connection yet. The driver has one error for that and for a broken connection."""
    return isinstance(error.kwargs.get("error"), (aiohttp.ClientConnectorError, socket.gaierror))


def _describe_cause(error: botocore_errors.BotoCoreError) -> str:
    """Describe an error without the driver's own text: it repeats the URL."""
    cause = error.kwargs.get("error")
    number = getattr(cause, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else type(cause or error).__name__


class Targets(ABC):
    """The queues or topics of a service, by name. Methods raise the errors of `AwsClient.call`."""

    address_prefix: ClassVar[str]
    """Begins a whole address, which needs no lookup."""

    def __init__(self, client: AwsClient, *, declare: bool) -> None:
        self._client = client
        self._declare = declare
        self._addresses: dict[str, str] = {}

    async def find(self, name: str) -> str:
        """Return the URL or ARN of a target, which is created if that is wanted."""
        if name.startswith(self.address_prefix):
            return name
        if name not in self._addresses:
            self._addresses[name] = await self._look_up(name)
        return self._addresses[name]

    def forget(self, name: str) -> None:
        """Look the name up again next time."""
        self._addresses.pop(name, None)

    @abstractmethod
    async def send_batch(self, address: str, entries: Sequence[Mapping[str, object]]) -> Mapping[str, Any]:
        """Send up to ten entries to a URL or ARN."""

    @abstractmethod
    async def ping(self, name: str | None) -> None:
        """Ask for a target; without a name, for any."""

    @abstractmethod
    async def _look_up(self, name: str) -> str: ...


class SqsQueues(Targets):
    """Queues by name or URL."""

    address_prefix = "http"

    async def send_batch(self, address: str, entries: Sequence[Mapping[str, object]]) -> Mapping[str, Any]:
        return await self._client.call("send_message_batch", QueueUrl=address, Entries=entries)

    async def ping(self, name: str | None) -> None:
        if name is None:
            await self._client.call("list_queues", MaxResults=1)
        else:
            self.forget(name)
            url = await self.find(name)
            if url == name:
                await self._client.call("get_queue_attributes", QueueUrl=url, AttributeNames=["QueueArn"])

    async def read_attributes(self, name: str) -> Mapping[str, str]:
        """Return a queue's settings."""
        url = await self.find(name)
        response = await self._client.call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        return dict(response.get("Attributes", {}))

    async def _look_up(self, name: str) -> str:
        try:
            response = await self._client.call("get_queue_url", QueueName=name)
        except CallRefused as error:
            if error.refusal.kind is not RefusalKind.MISSING or not self._declare:
                raise
            fifo = {"FifoQueue": "true"} if is_fifo(name) else {}
            response = await self._client.call("create_queue", QueueName=name, Attributes=_QUEUE_ATTRIBUTES | fifo)
        return str(response["QueueUrl"])


class SnsTopics(Targets):
    """Topics by name or ARN."""

    address_prefix = "arn:"

    async def send_batch(self, address: str, entries: Sequence[Mapping[str, object]]) -> Mapping[str, Any]:
        return await self._client.call("publish_batch", TopicArn=address, PublishBatchRequestEntries=entries)

    async def ping(self, name: str | None) -> None:
        if name is None:
            await self._client.call("list_topics")
        else:
            self.forget(name)
            await self._client.call("get_topic_attributes", TopicArn=await self.find(name))

    async def read_attributes(self, name: str) -> Mapping[str, str]:
        """Return a topic's settings."""
        response = await self._client.call("get_topic_attributes", TopicArn=await self.find(name))
        return dict(response.get("Attributes", {}))

    async def read_subscriptions(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return the settings of a topic's first hundred subscriptions."""
        response = await self._client.call("list_subscriptions_by_topic", TopicArn=await self.find(name))
        arns = [one["SubscriptionArn"] for one in response.get("Subscriptions", ())]
        # A subscription that is not confirmed has the text "PendingConfirmation" in the place of an ARN.
        return [await self._read_subscription(arn) for arn in arns if arn.startswith("arn:")]

    async def _read_subscription(self, arn: str) -> Mapping[str, str]:
        response = await self._client.call("get_subscription_attributes", SubscriptionArn=arn)
        return dict(response.get("Attributes", {}))

    async def _look_up(self, name: str) -> str:
        # SNS has no lookup by name. Creating a topic that exists returns its ARN; else all topics are listed.
        if self._declare:
            attributes = {"FifoTopic": "true"} if is_fifo(name) else {}
            response = await self._client.call("create_topic", Name=name, Attributes=attributes)
            return str(response["TopicArn"])
        token: dict[str, object] = {}
        while True:
            page = await self._client.call("list_topics", **token)
            for topic in page.get("Topics", ()):
                if topic["TopicArn"].rpartition(":")[2] == name:
                    return str(topic["TopicArn"])
            if not page.get("NextToken"):
                raise CallRefused(Refusal(RefusalKind.MISSING, "NotFound", ""))
            token = {"NextToken": page["NextToken"]}
