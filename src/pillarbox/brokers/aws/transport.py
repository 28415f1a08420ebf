"""SQS and SNS transports: messages to queues and to topics, with up to ten messages per call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from pillarbox.brokers.aws.checks import TargetChecks, check_queue, check_topic
from pillarbox.brokers.aws.connection import AwsClient, CallRefused, NoResponse, SnsTopics, SqsQueues, Targets
from pillarbox.brokers.aws.encoding import (
    EncodedMessage,
    Encoder,
    compile_target,
    find_fixed_target,
    split_calls,
    split_rounds,
)
from pillarbox.brokers.aws.errors import (
    Refusal,
    RefusalKind,
    ServiceDescription,
    classify_entry_error,
    describe_refusal,
)
from pillarbox.brokers.aws.settings import (
    MAX_QUEUE_NAME,
    MAX_TOPIC_NAME,
    SnsSettings,
    SqsSettings,
    sns_settings,
    sqs_settings,
)
from pillarbox.brokers.send_batch import DELIVERED, ENCODE_ERRORS, describe_encode_error
from pillarbox.brokers.settings import TransportUrl
from pillarbox.brokers.templates import describe_address
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message

__all__ = ["SnsTransport", "SqsTransport", "sns_transport", "sqs_transport"]

_BATCH: Final = 100
_MISSING: Final = frozenset({RefusalKind.DENIED, RefusalKind.MISSING})
_BEHIND: Final = Outcome(
    delivered=False, error="An earlier message of its key in the same send was not delivered.", not_now=True
)

S = TypeVar("S", SqsSettings, SnsSettings)
T = TypeVar("T", bound=Targets)


class _Service(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Differences between SQS and SNS."""

    name: Literal["sqs", "sns"]
    target: Literal["queue", "topic"]
    action: str
    """Permissions that a login needs."""
    text_field: Literal["MessageBody", "Message"]
    """Field of an entry that has the message's text."""
    max_name: int
    max_bytes: int
    max_payload: int
    """Fits in a message also as base64, with headers and attributes."""
    targets: type[T]
    check: Callable[[T, str], Awaitable[Sequence[Finding]]]
    """Returns the findings of one target."""


_SQS: Final = _Service[SqsQueues](
    name="sqs",
    target="queue",
    action="sqs:SendMessage and sqs:GetQueueUrl",
    text_field="MessageBody",
    max_name=MAX_QUEUE_NAME,
    max_bytes=1_048_576,
    max_payload=770_000,
    targets=SqsQueues,
    check=check_queue,
)
_SNS: Final = _Service[SnsTopics](
    name="sns",
    target="topic",
    action="sns:Publish and sns:ListTopics",
    text_field="Message",
    max_name=MAX_TOPIC_NAME,
    max_bytes=262_144,
    max_payload=185_000,
    targets=SnsTopics,
    check=check_topic,
)


class _AwsTransport(Generic[S]):
    """Sends messages as CloudEvents to the targets of one service."""

    def __init__(self, service: _Service[T], settings: S, *, environ: Mapping[str, str]) -> None:
        option, template = settings.template
        self.features = TransportFeatures(
            name=service.name, batch=_BATCH, max_payload=service.max_payload, addresses="{" in template,
            ping_is_witness=True,
        )  # fmt: skip
        self.settings: S = settings
        self._client = AwsClient(service.name, settings, environ=environ)
        targets = service.targets(self._client, declare=settings.declare)
        self._targets: Targets = targets
        self._check_target = partial(service.check, targets)
        self._max_name = service.max_name
        self._service = ServiceDescription(
            where=settings.display_url, target=service.target, action=service.action, hide=self._client.hide
        )
        self._fixed_target = find_fixed_target(template, max_length=service.max_name)
        self._target = compile_target(template, option=option, transport=service.name, max_length=service.max_name)
        self._sender = _BatchSender(
            targets,
            encoder=Encoder(
                target=self._target,
                text_field=service.text_field,
                mode=settings.mode,
                max_bytes=service.max_bytes,
            ),
            service=self._service,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings!r})"

    async def open(self) -> None:
        await self._client.open()
        try:
            await self.ping()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._client.close()

    async def ping(self) -> None:
        """Ask for the queue or topic if there is only one; else list them, and accept that this is denied."""
        fixed = self._fixed_target
        try:
            await self._targets.ping(fixed)
        except NoResponse as error:
            raise TransportUnavailable(str(error)) from error
        except CallRefused as error:
            # A login that may not list targets can still send to them, and the refusal shows that AWS is there.
            if fixed is not None or error.refusal.kind is not RefusalKind.DENIED:
                raise TransportUnavailable(describe_refusal(error.refusal, fixed or "any", self._service)) from error

    def get_address(self, message: Message) -> str | None:
        return describe_address(message, **{self._service.target: self._target})

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return await self._sender.send(messages)

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        _, template = self.settings.template
        checks = TargetChecks(self.features.name, self._service, template, self._max_name, topics)
        async with self._client.keep_open():
            return await checks.run(self._check_target)


class SqsTransport(_AwsTransport[SqsSettings]):
    """Sends messages as CloudEvents to queues.

    Delivered means that SQS has confirmed this very message: it is stored on several servers. A login in the options
    is read by the constructor.
    """

    def __init__(self, settings: SqsSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(_SQS, settings, environ=environ)


class SnsTransport(_AwsTransport[SnsSettings]):
    """Sends messages as CloudEvents to topics.

    Delivered means that SNS has confirmed this very message. SNS then tries for a time to pass it on to every
    subscription, and drops what it cannot pass on unless the subscription has a dead-letter queue. A login in the
    options is read by the constructor.
    """

    def __init__(self, settings: SnsSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(_SNS, settings, environ=environ)


def sqs_transport(url: TransportUrl) -> SqsTransport:
    """Build the transport for an `sqs:` URL."""
    return SqsTransport(sqs_settings(url))


def sns_transport(url: TransportUrl) -> SnsTransport:
    """Build the transport for an `sns:` URL."""
    return SnsTransport(sns_settings(url))


class _BatchSender:
    """Sends messages and returns their outcomes."""

    def __init__(self, targets: Targets, *, encoder: Encoder, service: ServiceDescription) -> None:
        self._targets = targets
        self._encoder = encoder
        self._service = service

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Return one outcome per message; raise `TransportUnavailable` if AWS answered for none that was sent.

        Of one key, a message is sent only after the one before it was delivered.
        """
        outcomes = _Outcomes(len(messages))
        stopped: set[tuple[str, str | None]] = set()
        for group in split_rounds(list(self._encode(messages, outcomes))):
            free = [one for one in group if (one.target, one.key) not in stopped]
            calls = split_calls(free, max_bytes=self._encoder.max_bytes)
            await asyncio.gather(*(self._call(call, outcomes) for call in calls))
            stopped |= {(one.target, one.key) for one in free if one.key is not None and not outcomes.is_delivered(one)}
        return outcomes.collect()

    def _encode(self, messages: Sequence[Message], outcomes: _Outcomes) -> Iterator[EncodedMessage]:
        for index, message in enumerate(messages):
            try:
                yield self._encoder.encode(index, message)
            except ENCODE_ERRORS as error:
                outcomes.set(index, Outcome(delivered=False, error=describe_encode_error(error), rejected=True))

    async def _call(self, call: Sequence[EncodedMessage], outcomes: _Outcomes) -> None:
        try:
            address = await self._targets.find(call[0].target)
            entries = [{**one.entry, "Id": str(number)} for number, one in enumerate(call)]
            answer = await self._targets.send_batch(address, entries)
        except TransportUnavailable as error:
            outcomes.set_unavailable(call, error, lost=True)
        except NoResponse as error:
            for one in call:
                outcomes.set(one.index, Outcome(delivered=False, error=str(error), unanswered=True, not_now=True))
        except CallRefused as error:
            if error.refusal.kind is RefusalKind.REJECTED and len(call) > 1:
                # One message is the reason. Sent alone, each gets an answer of its own.
                await asyncio.gather(*(self._call([one], outcomes) for one in call))
            else:
                self._refuse(call, error.refusal, outcomes)
        else:
            self._read_answer(call, answer, outcomes)

    def _refuse(self, call: Sequence[EncodedMessage], refusal: Refusal, outcomes: _Outcomes) -> None:
        text = describe_refusal(refusal, call[0].target, self._service)
        if refusal.kind is RefusalKind.MISSING:
            self._targets.forget(call[0].target)
        if refusal.kind is RefusalKind.LOGIN:
            outcomes.set_unavailable(call, TransportUnavailable(text), lost=False)
            return
        is_rejected, is_missing = refusal.kind is RefusalKind.REJECTED, refusal.kind in _MISSING
        for one in call:
            outcomes.set(
                one.index, Outcome(False, text, rejected=is_rejected, not_now=not is_rejected, missing=is_missing)
            )

    def _read_answer(self, call: Sequence[EncodedMessage], answer: Mapping[str, Any], outcomes: _Outcomes) -> None:
        """Read the outcomes of a call. An entry that is neither successful nor failed was not answered for."""
        successful = {entry.get("Id") for entry in answer.get("Successful", ())}
        failed = {entry.get("Id"): entry for entry in answer.get("Failed", ())}
        for number, one in enumerate(call):
            if (entry := failed.get(str(number))) is not None:
                self._refuse([one], classify_entry_error(entry), outcomes)
            elif str(number) in successful:
                outcomes.set(one.index, DELIVERED)
            else:
                text = f"{self._service.where} did not answer for this message."
                outcomes.set(one.index, Outcome(delivered=False, error=text, unanswered=True, not_now=True))


class _Outcomes:
    """Outcomes of one send, by index. A message without one was not sent, because of an earlier one of its key."""

    def __init__(self, count: int) -> None:
        self._outcomes: list[Outcome] = [_BEHIND] * count
        self._unavailable: dict[int, TransportUnavailable] = {}

    def set(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome

    def set_unavailable(self, messages: Iterable[EncodedMessage], error: TransportUnavailable, *, lost: bool) -> None:
        """Set the outcome of messages whose target is unavailable. `lost`: the connection broke before an answer."""
        for message in messages:
            self._unavailable[message.index] = error
            self._outcomes[message.index] = Outcome(delivered=False, error=str(error), lost=lost, not_now=not lost)

    def is_delivered(self, message: EncodedMessage) -> bool:
        return self._outcomes[message.index].delivered

    def collect(self) -> Sequence[Outcome]:
        """Return the outcomes in order; raise `TransportUnavailable` if it is the only answer to what was sent."""
        sent = [outcome for outcome in self._outcomes if not outcome.rejected and outcome is not _BEHIND]
        if sent and len(self._unavailable) == len(sent):
            errors = list(self._unavailable.values())
            raise TransportUnavailable(str(errors[0]), mid_send=any(one.mid_send for one in errors)) from errors[0]
        return self._outcomes
