"""Sends what is ready, and weighs the answers."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Sequence

from pillarbox.errors import MessageRejected, TransportError, TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Claim, Outcome, Transport
from pillarbox.relay.judging import Verdict
from pillarbox.relay.lane import LONE_STRIKES
from pillarbox.relay.rate import Rate
from pillarbox.relay.work import Work

__all__ = ["Dispatch"]


class Dispatch:
    """Gives batches to the transport, as many at once as the window allows, and each lone message by itself."""

    def __init__(self, work: Work, *, transport: Transport, open_lone: Callable[[], Transport], lone_cap: int) -> None:
        self._work = work
        self._transport = transport
        self._open_lone = open_lone
        self._lone_cap = lone_cap
        self._batch = min(work.settings.batch, transport.features.batch)
        self._rate = Rate(work.settings.rate)
        self._sends: set[asyncio.Task[None]] = set()
        self._lone: asyncio.Task[None] | None = None

    @property
    def is_sending(self) -> bool:
        """Something is under way."""
        return bool(self._sends) or (self._lone is not None and not self._lone.done())

    def send_ready(self) -> float:
        """Start sending all that is ready. Answers after how many seconds the rate limit allows more."""
        work = self._work
        if not work.may_act():
            return 0.0
        if seconds := work.standing.hold(work.clock.monotonic()):
            return seconds
        if work.core.has_lone and (self._lone is None or self._lone.done()):
            self._lone = asyncio.create_task(self._send_lone())
        while work.core.has_ready:
            allowed = self._rate.allowed(work.clock.monotonic(), self._batch)
            if not allowed:
                return self._rate.wait()
            batch = work.core.batch(allowed)
            self._rate.spend(len(batch))
            if batch:
                task = asyncio.create_task(self._send(batch))
                self._sends.add(task)
                task.add_done_callback(self._sends.discard)
        return 0.0

    async def finish(self, *, within: float) -> None:
        """Wait for what is under way; then stop waiting."""
        tasks = [*self._sends, *([self._lone] if self._lone is not None else [])]
        if tasks:
            await asyncio.wait(tasks, timeout=within)

    def abandon(self) -> None:
        """Ignore every answer that is still to come."""
        for task in (*self._sends, *([self._lone] if self._lone is not None else [])):
            task.cancel()

    async def _send(self, messages: Sequence[Message]) -> None:
        began = self._work.judge.acknowledged
        try:
            outcomes = await self._answers(self._transport, messages)
        except TransportUnavailable as error:
            self._return(messages, error, struck=error.mid_send, began=began)
            self._open_breaker(str(error), error)
        else:
            self._weigh(messages, outcomes, began=began)
            self._return_lost(messages, outcomes, began=began)

    async def _answers(self, transport: Transport, messages: Sequence[Message]) -> Sequence[Outcome]:
        """One answer per message. No answer in time, or an error that is no answer, is not delivered.

        An error of a whole batch says nothing about any one of them: it counts as a broken connection, and sent alone
        the one that causes it is found.
        """
        seconds = self._work.settings.send_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                outcomes = await transport.send(messages)
        except TransportUnavailable:
            raise
        except TimeoutError:
            return [Outcome(False, f"no answer within {seconds:g} s")] * len(messages)
        except Exception as error:
            if len(messages) > 1:
                raise TransportUnavailable(_told(error), mid_send=True) from error
            return [_outcome_of(error)]
        if len(outcomes) == len(messages):
            if messages and all(outcome.lost for outcome in outcomes):
                raise TransportUnavailable(outcomes[0].error or "the connection broke", mid_send=True)
            return outcomes
        told = f"the transport answered for {len(outcomes)} of {len(messages)} messages"
        if len(messages) > 1:
            raise TransportUnavailable(told, mid_send=True)
        return [Outcome(False, told)]

    def _return(self, messages: Sequence[Message], error: TransportUnavailable, *, struck: bool, began: int) -> None:
        work = self._work
        work.judge.interrupted(messages, began=began, sent=struck or error.mid_send)
        if struck:
            work.core.struck(messages)
        work.core.returned(messages)
        work.telemetry.returned(work.name, messages, reason=str(error))
        work.outcomes.set()

    def _return_lost(self, messages: Sequence[Message], outcomes: Sequence[Outcome], *, began: int) -> None:
        """The connection broke under these after others were answered: the next send finds out whether it is back."""
        lost = [message for message, outcome in zip(messages, outcomes, strict=True) if outcome.lost]
        if lost:
            reason = next(outcome.error for outcome in outcomes if outcome.lost) or "the connection broke"
            self._return(lost, TransportUnavailable(reason), struck=True, began=began)

    def _open_breaker(self, reason: str, error: TransportUnavailable | Verdict) -> None:
        work = self._work
        if work.breaker.is_closed or work.core.window == 1:
            seconds = work.breaker.open(
                work.clock.monotonic(), reason=reason, dice=work.dice.random(), at_least=error.retry_after
            )
            work.telemetry.breaker_opened(work.name, reason=reason, seconds=seconds)
        work.shut()

    def _weigh(self, messages: Sequence[Message], outcomes: Sequence[Outcome], *, began: int) -> None:
        work = self._work
        verdict = work.judge.judge(messages, outcomes, began=began, dice=work.dice.random())
        if verdict.delivered:
            work.core.delivered(verdict.delivered)
            work.telemetry.delivered(work.name, verdict.delivered)
        for message, trouble in verdict.troubles:
            work.core.troubled(message, trouble)
            work.telemetry.troubled(work.name, message, trouble)
        if verdict.returned:
            work.core.returned(verdict.returned)
            work.telemetry.returned(work.name, verdict.returned, reason=verdict.outage or "too many rejections")
        self._conclude(verdict)
        work.outcomes.set()
        if work.core.has_ready:
            work.ready.set()

    def _conclude(self, verdict: Verdict) -> None:
        work = self._work
        answered = bool(verdict.delivered or verdict.troubles)
        if answered and work.breaker.close():
            work.telemetry.breaker_closed(work.name)
            work.open_up()
        if verdict.flood:
            work.flooded = True
            work.shut()
        elif verdict.outage is not None and not verdict.delivered:
            self._open_breaker(verdict.outage, verdict)

    # --- alone ---

    async def _send_lone(self) -> None:
        """A relay or a connection died with this message in hand, twice or more: alone, it hurts nobody."""
        work = self._work
        while work.may_act() and (message := work.core.lone()) is not None:
            strikes = work.core.strikes(message.id)
            if strikes >= LONE_STRIKES + self._lone_cap:
                self._give_up(message, strikes)
            elif await self._claim_alone(message, strikes):
                await self._send_by_itself(message)
            work.outcomes.set()

    def _give_up(self, message: Message, strikes: int) -> None:
        work = self._work
        error = f"a relay or its connection died {strikes} times with this message in hand"
        trouble = work.judge.failed(message, error=error)
        work.core.troubled(message, trouble)
        work.telemetry.troubled(work.name, message, trouble)

    async def _claim_alone(self, message: Message, strikes: int) -> bool:
        """A claim of its own, so that a death counts against it and nobody else."""
        work = self._work
        number, fence = work.standing.next_claim(), work.fence([message.partition])
        alone = Claim(number, [message.id], strikes)
        if not await work.carried_through("claiming", lambda: work.store.claim(fence, alone)):
            return False
        if not work.core.is_in_hand(message):
            return False
        left = work.core.claimed_alone(message, number)
        return await work.carried_through("claiming", lambda: work.store.settle(fence, left))

    async def _send_by_itself(self, message: Message) -> None:
        """A broken connection counts against it only if the destination works: an outage breaks connections too."""
        work = self._work
        began = work.judge.acknowledged
        try:
            outcomes = await self._answers_alone(message)
        except TransportUnavailable as error:
            struck = error.mid_send and work.judge.is_witnessed(message, began=began)
            self._return([message], error, struck=struck, began=began)
            if not struck:
                self._open_breaker(str(error), error)
        else:
            if outcomes is None:
                work.core.returned([message])
            else:
                self._weigh([message], outcomes, began=began)

    async def _answers_alone(self, message: Message) -> Sequence[Outcome] | None:
        """None when the lease ended before the connection was there: then nothing is sent."""
        seconds = self._work.settings.send_timeout.total_seconds()
        try:
            transport = self._open_lone()
            async with asyncio.timeout(seconds):
                await transport.open()
        except TimeoutError:
            raise TransportUnavailable(f"no connection within {seconds:g} s") from None
        except TransportUnavailable:
            raise
        except Exception as error:
            return [_outcome_of(error)]
        try:
            return await self._answers(transport, [message]) if self._work.may_act() else None
        finally:
            with contextlib.suppress(Exception):
                await transport.close()


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, TransportError) else f"{type(error).__name__}: {error}"


def _outcome_of(error: Exception) -> Outcome:
    """For one message alone. What is no transport's error is a bug, and needs its stack trace."""
    if isinstance(error, TransportError):
        return Outcome(False, str(error), rejected=isinstance(error, MessageRejected))
    return Outcome(False, _told(error), detail="".join(traceback.format_exception(error)))
