"""The one place that speaks to AWS. Tells errors apart, and repeats nothing by itself."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, Literal, NoReturn

from pillarbox.errors import MissingExtra, PillarboxError, TransportError, TransportUnavailable
from pillarbox.transports.aws.settings import AwsSettings
from pillarbox.transports.aws.verdicts import Refusal, refusal
from pillarbox.transports.redaction import one_line
from pillarbox.transports.secret import hidden

try:
    import aiohttp
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession
    from botocore import exceptions as errors
    from botocore.loaders import create_loader
except ModuleNotFoundError as error:
    raise MissingExtra("aiobotocore", extra="aws", needed_for="The sqs or sns transport") from error

__all__ = ["AwsClient", "NoAnswer", "Refused"]

_NO_LOGIN: Final = (
    errors.NoCredentialsError,
    errors.PartialCredentialsError,
    errors.CredentialRetrievalError,
    errors.ProfileNotFound,
    errors.TokenRetrievalError,
    errors.SSOError,
)
_UNREACHABLE: Final = (errors.ConnectTimeoutError, errors.ProxyConnectionError)
_BROKEN: Final = (errors.ConnectionClosedError, errors.HTTPClientError, errors.IncompleteReadError)


_LOADER: Final = create_loader()
"""Remembers AWS's descriptions of itself: to read them takes longer than all the rest of making a client."""


class NoAnswer(TransportError):
    """The call may have been carried out or not: there was no answer to it in time, or none that can be read."""


class Refused(TransportError):
    """AWS answered, and the answer is no."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(f"{why.code}: {why.said}")
        self.why = why


class AwsClient:
    """Calls one service in one region."""

    def __init__(
        self, service: Literal["sqs", "sns"], settings: AwsSettings, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.where = settings.shown
        self._service = service
        self._settings = settings
        self._login = settings.login(settings.place, environ=environ)
        token = settings.session_token
        self._token = None if token is None else token.read(option="session_token", environ=environ)
        self._seconds = settings.timeout.total_seconds()
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._stack = AsyncExitStack()
        self._client: Any = None

    def __repr__(self) -> str:
        return f"AwsClient({self.where!r})"

    async def open(self) -> None:
        """Make the client. Connects to nothing yet."""
        if self._client is None:
            with self._told("connecting"):
                async with asyncio.timeout(self._seconds):
                    self._client = await self._stack.enter_async_context(self._made())

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """For as long as the block runs, if it is not open anyway."""
        was_open = self._client is not None
        await self.open()
        try:
            yield
        finally:
            if not was_open:
                await self.close()

    async def close(self) -> None:
        self._client = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def call(self, operation: str, **parameters: object) -> Mapping[str, Any]:
        """One request and its answer. Waiting for a turn does not count as time.

        `TransportUnavailable` when there is no connection or it breaks, `NoAnswer`, or `Refused`.
        """
        async with self._slots:
            if self._client is None:
                raise TransportUnavailable(f"The {self._service} transport is not open; call open() first.")
            with self._told(operation):
                async with asyncio.timeout(self._seconds):
                    answer: Mapping[str, Any] = await getattr(self._client, operation)(**parameters)
                    return answer

    def hide(self, text: str) -> str:
        """The text without our secrets, should AWS have echoed them."""
        return hidden(text, [one for one in (self._login.password, self._token) if one])

    def _made(self) -> Any:
        settings = self._settings
        certificate, key = settings.client_certificate, settings.client_key
        config = AioConfig(
            # The outbox sends again; a client that does so too multiplies messages, and hides that AWS throttles.
            retries={"total_max_attempts": 1},
            connect_timeout=self._seconds / 2,
            read_timeout=self._seconds,
            max_pool_connections=settings.concurrency,
            client_cert=(certificate, key) if certificate and key else certificate,
            user_agent_extra="pillarbox",
            # What we send is what we built; to look at it once more takes four times as long as the rest of a call.
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
    def _told(self, operation: str) -> Iterator[None]:
        """Turn the driver's errors into ours, once, with the cause kept."""
        try:
            yield
        except PillarboxError:
            raise
        except errors.ClientError as error:
            raise Refused(self._refusal(error)) from error
        except (TimeoutError, errors.ReadTimeoutError) as error:
            raise NoAnswer(f"no answer within {self._seconds:g} s from {self.where}") from error
        except errors.BotoCoreError as error:
            self._unavailable(error)
        except (KeyError, ValueError, TypeError) as error:  # an answer that is none of AWS's
            raise NoAnswer(
                f"{self.where} answered {operation} with something that cannot be read ({type(error).__name__})."
            ) from error

    def _refusal(self, error: errors.ClientError) -> Refusal:
        said = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return refusal(str(said.get("Code", "")), self.hide(str(said.get("Message", ""))), status=status)

    def _unavailable(self, error: errors.BotoCoreError) -> NoReturn:
        reason = one_line(type(error).__name__)
        if isinstance(error, _NO_LOGIN):
            raise TransportUnavailable(
                f"There is no login for {self.where} ({reason}): give user and password, or a profile, or one of the "
                "other ways in which AWS finds credentials."
            ) from error
        if isinstance(error, errors.SSLError):
            raise TransportUnavailable(
                f"{self.where} cannot be trusted or spoken to by TLS: check its certificate and the options ca and "
                "client_certificate."
            ) from error
        if isinstance(error, _UNREACHABLE) or (isinstance(error, errors.EndpointConnectionError) and _is_new(error)):
            raise TransportUnavailable(
                f"{self.where} cannot be reached ({_cause(error)}): check the region, the endpoint and the network."
            ) from error
        if isinstance(error, (errors.EndpointConnectionError, *_BROKEN)):
            raise TransportUnavailable(
                f"The connection to {self.where} broke before the answer ({_cause(error)}).", mid_send=True
            ) from error
        raise NoAnswer(f"The call to {self.where} failed ({reason}).") from error


def _is_new(error: errors.BotoCoreError) -> bool:
    """Whether there was no connection yet: the driver has one error for that and for one that broke."""
    return isinstance(error.kwargs.get("error"), (aiohttp.ClientConnectorError, socket.gaierror))


def _cause(error: errors.BotoCoreError) -> str:
    """Never the driver's own text: it repeats the URL."""
    cause = error.kwargs.get("error")
    number = getattr(cause, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else type(cause or error).__name__
