"""Sending of messages to queues or topics, with up to ten messages per call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from pillarbox.brokers.aws.connection import CallRefused, NoResponse
from pillarbox.brokers.aws.encoding import EncodedMessage, Encoder, split_calls, split_rounds
from pillarbox.brokers.aws.errors import (
    Refusal,
    RefusalKind,
    ServiceDescription,
    classify_entry_error,
    describe_refusal,
)
from pillarbox.brokers.send_batch import DELIVERED
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import MessageRejected, TransportUnavailable
from pillarbox.message import Message

__all__ = ["BatchSender", "Targets"]

_OUTAGES: Final = frozenset({RefusalKind.LOGIN, RefusalKind.DENIED, RefusalKind.MISSING})
_BEHIND: Final = Outcome(delivered=False, error="An earlier message of its key in the same send was not delivered.")


class Targets(Protocol):
    """The queues or topics of a service, by name. Raises the errors of `AwsClient.call`."""

    async def find(self, name: str) -> str:
        """Return the URL or ARN."""

    def forget(self, name: str) -> None:
        """Look the name up again next time."""

    async def send_batch(self, address: str, entries: Sequence[Mapping[str, object]]) -> Mapping[str, Any]:
        """Send up to ten entries to a URL or ARN."""


class BatchSender:
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
            except MessageRejected as error:
                outcomes.set(index, Outcome(delivered=False, error=str(error), rejected=True))

    async def _call(self, call: Sequence[EncodedMessage], outcomes: _Outcomes) -> None:
        try:
            address = await self._targets.find(call[0].target)
            entries = [{**one.entry, "Id": str(number)} for number, one in enumerate(call)]
            answer = await self._targets.send_batch(address, entries)
        except TransportUnavailable as error:
            outcomes.set_unavailable(call, error, lost=True)
        except NoResponse as error:
            for one in call:
                outcomes.set(one.index, Outcome(delivered=False, error=str(error)))
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
        if refusal.kind in _OUTAGES:
            # An outage of this target alone: other targets of the send may be available.
            outcomes.set_unavailable(call, TransportUnavailable(text), lost=False)
        else:
            for one in call:
                outcomes.set(one.index, Outcome(False, text, rejected=refusal.kind is RefusalKind.REJECTED))

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
                outcomes.set(one.index, Outcome(delivered=False, error=text))


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
            self._outcomes[message.index] = Outcome(delivered=False, error=str(error), lost=lost)

    def is_delivered(self, message: EncodedMessage) -> bool:
        return self._outcomes[message.index].delivered

    def collect(self) -> Sequence[Outcome]:
        """Return the outcomes in order; raise `TransportUnavailable` if it is the only answer to what was sent."""
        sent = [outcome for outcome in self._outcomes if not outcome.rejected and outcome is not _BEHIND]
        if sent and len(self._unavailable) == len(sent):
            errors = list(self._unavailable.values())
            raise TransportUnavailable(str(errors[0]), mid_send=any(one.mid_send for one in errors)) from errors[0]
        return self._outcomes
