"""A `send` as calls of up to ten messages, each message answered for on its own. The same for queues and for topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from pillarbox.errors import MessageRejected, TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Outcome
from pillarbox.transports.aws.answers import DELIVERED, Answers
from pillarbox.transports.aws.batches import Parcel, calls, rounds
from pillarbox.transports.aws.client import NoAnswer, Refused
from pillarbox.transports.aws.verdicts import Refusal, Verdict, Words, entry_refusal, told

__all__ = ["Places", "Sender"]

_OUTAGES: Final = frozenset({Verdict.LOGIN, Verdict.DENIED, Verdict.MISSING})


class Places(Protocol):
    """Queues or topics, by name. Raises as `AwsClient.call`."""

    async def find(self, name: str) -> str:
        """The URL or ARN."""

    def forget(self, name: str) -> None:
        """Look it up anew next time."""

    async def post(self, target: str, entries: Sequence[Mapping[str, object]]) -> Mapping[str, Any]:
        """Send up to ten entries there."""


class Sender:
    """Sends and answers."""

    def __init__(self, places: Places, *, pack: Callable[[int, Message], Parcel], most: int, words: Words) -> None:
        self._places = places
        self._pack = pack
        self._most = most
        self._words = words

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """One answer per message, in order; `TransportUnavailable` when none that was sent could be answered for.

        Of one key, a message goes only when the one before it was delivered.
        """
        answers = Answers(len(messages))
        stopped: set[tuple[str, str | None]] = set()
        for group in rounds(list(self._packed(messages, answers))):
            free = [one for one in group if (one.place, one.key) not in stopped]
            await asyncio.gather(*(self._deliver(call, answers) for call in calls(free, most=self._most)))
            stopped |= {(one.place, one.key) for one in free if one.key is not None and not answers.is_delivered(one)}
        return answers.collected()

    def _packed(self, messages: Sequence[Message], answers: Answers) -> Iterator[Parcel]:
        for index, message in enumerate(messages):
            try:
                yield self._pack(index, message)
            except MessageRejected as error:
                answers.give(index, Outcome(delivered=False, error=str(error), rejected=True))

    async def _deliver(self, call: Sequence[Parcel], answers: Answers) -> None:
        try:
            target = await self._places.find(call[0].place)
            said = await self._places.post(target, [{**one.entry, "Id": str(n)} for n, one in enumerate(call)])
        except TransportUnavailable as error:
            answers.away(call, error, lost=True)
        except NoAnswer as error:
            for one in call:
                answers.give(one.index, Outcome(delivered=False, error=str(error)))
        except Refused as error:
            if error.why.verdict is Verdict.REJECTED and len(call) > 1:
                # One of them is to blame: alone, each is answered for.
                await asyncio.gather(*(self._deliver([one], answers) for one in call))
            else:
                self._refused(call, error.why, answers)
        else:
            self._read(call, said, answers)

    def _refused(self, call: Sequence[Parcel], why: Refusal, answers: Answers) -> None:
        """No login, no permission and no such place are outages of that place; others may be well."""
        text = told(why, call[0].place, self._words)
        if why.verdict is Verdict.MISSING:
            self._places.forget(call[0].place)
        if why.verdict in _OUTAGES:
            answers.away(call, TransportUnavailable(text), lost=False)
        else:
            for one in call:
                answers.give(one.index, Outcome(False, text, rejected=why.verdict is Verdict.REJECTED))

    def _read(self, call: Sequence[Parcel], said: Mapping[str, Any], answers: Answers) -> None:
        """What is neither among the successful nor among the failed ones was not answered for."""
        taken = {entry.get("Id") for entry in said.get("Successful", ())}
        failed = {entry.get("Id"): entry for entry in said.get("Failed", ())}
        for number, one in enumerate(call):
            if (entry := failed.get(str(number))) is not None:
                self._refused([one], entry_refusal(entry), answers)
            elif str(number) in taken:
                answers.give(one.index, DELIVERED)
            else:
                text = f"{self._words.where} did not answer for this message."
                answers.give(one.index, Outcome(delivered=False, error=text))
