"""The contract is tested: a transport that breaks a promise is caught by the test of that promise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message, new_message_id
from pillarbox.testing.samples import sample
from pillarbox.testing.transport_contract import MemoryTransportHarness, TransportContract

replace = msgspec.structs.replace


class _Optimist(MemoryTransport):
    """Says delivered without waiting for the answer."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        await super().send(messages)
        return [Outcome(delivered=True)] * len(messages)


class _Pessimist(MemoryTransport):
    """Fails a whole batch for one of it."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await super().send(messages)
        bad = next((outcome for outcome in outcomes if not outcome.delivered), None)
        return outcomes if bad is None else [bad] * len(messages)


class _Backward(MemoryTransport):
    """Answers in another order."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return list(reversed(await super().send(messages)))


class _Forgetful(MemoryTransport):
    """Answers for what was delivered, and says nothing of the rest."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [outcome for outcome in await super().send(messages) if outcome.delivered]


class _Shuffling(MemoryTransport):
    """Delivers in another order."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return list(reversed(await super().send(list(reversed(messages)))))


class _Renaming(MemoryTransport):
    """A new id for every attempt."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return await super().send([replace(message, message_id=new_message_id()) for message in messages])


class _Tidy(MemoryTransport):
    """Strips payloads."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return await super().send([replace(message, payload=message.payload.strip()) for message in messages])


class _Ascii(MemoryTransport):
    """Loses what is not ASCII."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return await super().send([replace(one, key=one.key and ascii(one.key)[1:-1]) for one in messages])


class _Bare(MemoryTransport):
    """Loses headers."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return await super().send([replace(message, headers={}) for message in messages])


class _Silent(MemoryTransport):
    """Calls an outage a refusal, so that it spends attempts."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        try:
            return await super().send(messages)
        except TransportUnavailable as error:
            return [Outcome(delivered=False, error=str(error))] * len(messages)


class _Blaming(MemoryTransport):
    """Blames the message for a far side that was never reached."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        try:
            return await super().send(messages)
        except TransportUnavailable as error:
            raise TransportUnavailable(str(error), mid_send=True) from error


class _Excusing(MemoryTransport):
    """Does not say that the connection broke under way."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        try:
            return await super().send(messages)
        except TransportUnavailable as error:
            raise TransportUnavailable(str(error)) from error


class _Soft(MemoryTransport):
    """Hides that a message was rejected."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [replace(outcome, rejected=False) for outcome in await super().send(messages)]


class _Lost(MemoryTransport):
    """Does not come back after an outage."""

    def __init__(self) -> None:
        super().__init__()
        self._gone = False

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if self._gone:
            raise OSError("connection is closed")
        try:
            return await super().send(messages)
        except TransportUnavailable:
            self._gone = True
            raise


class _Deaf(MemoryTransport):
    """Swallows a cancellation."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        try:
            return await super().send(messages)
        except asyncio.CancelledError:
            return [Outcome(delivered=False, error="cancelled")] * len(messages)


class _Hasty(MemoryTransport):
    """Cannot be closed twice."""

    async def close(self) -> None:
        if not self._is_open:
            raise RuntimeError("already closed")
        await super().close()


class _Blind(MemoryTransport):
    """Its ping asks nobody."""

    async def ping(self) -> None:
        pass


class _Noisy(MemoryTransport):
    """Its ping is a message."""

    async def ping(self) -> None:
        await self.send([sample()])


class _Undead(MemoryTransport):
    """Sends after it was closed."""

    async def close(self) -> None:
        pass


class _Shared(MemoryTransport):
    """Keeps the messages of a send where the next send finds them."""

    def __init__(self) -> None:
        super().__init__()
        self._batch: Sequence[Message] = ()

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._batch = messages
        await asyncio.sleep(0)
        return await super().send(self._batch)


class _Overtaking(MemoryTransport):
    """Goes on with a run behind a message that was not taken, and says so."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [outcome for message in messages for outcome in await super(_Overtaking, self).send([message])]


class _Leaking(_Overtaking):
    """Goes on with a run behind a message that was not taken, and calls what follows unsent."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await super().send(messages)
        failed = [outcome for outcome in outcomes if not outcome.delivered]
        if not failed or len({message.key for message in messages}) > 1:
            return outcomes
        place = outcomes.index(failed[0])
        unsent = Outcome(delivered=False, unsent=True)
        return [*outcomes[: place + 1], *[unsent] * (len(messages) - place - 1)]


class _Blunt(MemoryTransport):
    """Stops a run as it must, and says that the rest has failed too."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [replace(outcome, unsent=False) for outcome in await super().send(messages)]


class _Selfish(MemoryTransport):
    """Ends all runs of a send with the first that fails."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if len(messages) == 1:
            return await super().send(messages)
        outcomes: list[Outcome] = []
        for message in messages:
            if outcomes and not outcomes[-1].delivered:
                outcomes.append(Outcome(delivered=False, unsent=True))
            else:
                outcomes += await super().send([message])
        return outcomes


class _Twisting(MemoryTransport):
    """Sends each run backwards."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return await super().send(list(reversed(messages)))


class _Torn(MemoryTransport):
    """The connection breaks, and the far side has the end of a run."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        try:
            return await super().send(messages)
        except TransportUnavailable:
            self.received.extend(messages[-1:])
            raise


_CAUGHT = [
    (_Overtaking, "test_a_run_stops_at_a_rejected_message"),
    (_Overtaking, "test_a_run_stops_at_a_refused_message"),
    (_Leaking, "test_a_run_stops_at_a_rejected_message"),
    (_Leaking, "test_what_a_run_left_unsent_can_be_sent_later"),
    (_Blunt, "test_a_run_stops_at_a_rejected_message"),
    (_Selfish, "test_a_run_that_stops_hurts_no_other_key"),
    (_Twisting, "test_a_run_arrives_in_order"),
    (_Torn, "test_a_connection_that_breaks_under_a_run_leaves_its_beginning"),
    (_Optimist, "test_a_refused_message_is_not_delivered"),
    (_Optimist, "test_a_refused_message_hurts_only_itself"),
    (_Optimist, "test_a_rejected_message_says_so"),
    (_Pessimist, "test_a_refused_message_hurts_only_itself"),
    (_Pessimist, "test_a_rejected_message_hurts_only_itself"),
    (_Backward, "test_a_refused_message_hurts_only_itself"),
    (_Forgetful, "test_a_rejected_message_hurts_only_itself"),
    (_Shuffling, "test_a_batch_arrives_in_order"),
    (_Renaming, "test_a_message_keeps_its_id_on_every_attempt"),
    (_Renaming, "test_a_refused_message_can_be_delivered_later"),
    (_Tidy, "test_the_payload_is_untouched"),
    (_Ascii, "test_unicode_attributes_arrive"),
    (_Bare, "test_every_attribute_arrives"),
    (_Silent, "test_a_far_side_that_is_away_is_unavailable"),
    (_Blaming, "test_what_could_not_be_sent_is_not_blamed"),
    (_Excusing, "test_a_connection_that_breaks_under_way_is_said_to"),
    (_Soft, "test_a_rejected_message_says_so"),
    (_Lost, "test_it_finds_its_way_back"),
    (_Deaf, "test_cancelling_a_send_is_clean"),
    (_Hasty, "test_closing_twice_is_harmless"),
    (_Blind, "test_ping_finds_nobody"),
    (_Noisy, "test_ping_reaches_the_far_side"),
    (_Undead, "test_what_is_closed_is_unavailable"),
    (_Shared, "test_sends_at_once_are_each_answered_for"),
]
_ARGUMENTS = {"test_the_payload_is_untouched": ("json-with-spaces",)}


@pytest.mark.parametrize(("broken", "name"), _CAUGHT, ids=[f"{cls.__name__[1:]}-{name}" for cls, name in _CAUGHT])
async def test_a_broken_transport_is_caught(broken: Callable[[], MemoryTransport], name: str) -> None:
    test: Callable[..., Awaitable[None]] = getattr(TransportContract(), name)
    await _run(test, name, MemoryTransport)
    with pytest.raises((AssertionError, OSError, RuntimeError, pytest.fail.Exception)):
        await _run(test, name, broken)


async def _run(test: Callable[..., Awaitable[None]], name: str, make: Callable[[], MemoryTransport]) -> None:
    harness = MemoryTransportHarness(make)
    await harness.transport.open()
    await test(harness, *_ARGUMENTS.get(name, ()))
