"""Sender of one destination: sends what is ready, and acts on the answers."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from pillarbox.contracts.store import Claim, Settlement
from pillarbox.contracts.transport import Outcome, Transport
from pillarbox.errors import MessageRejected, StoreRefused, TransportError, TransportUnavailable
from pillarbox.message import Message
from pillarbox.redaction import redact_line
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.ordering import LONE_STRIKES

__all__ = ["RateLimit", "Sender"]

_ROUNDING: Final = 1e-6
"""A token that lacks so little is there: waiting for the rest takes no time that a clock could show."""


class Sender:
    """Sends batches through the transport, as many at once as the window allows, and suspect messages alone.

    It starts a send only while the lease surely holds.
    """

    def __init__(
        self,
        state: DestinationState,
        *,
        transport: Transport,
        open_transport: Callable[[], Transport],
        lone_cap: int,
    ) -> None:
        self._state = state
        self._transport = transport
        self._open_transport = open_transport
        self._lone_cap = lone_cap
        self._batch = min(state.settings.batch, transport.features.batch)
        self._rate = RateLimit(state.settings.rate)
        self._sends: set[asyncio.Task[None]] = set()
        self._lone_send: asyncio.Task[None] | None = None
        self._lone_at: float | None = None
        """From when on messages are sent alone though the destination has acknowledged nothing yet."""

    def send_ready(self) -> float:
        """Start sending all that is ready; return after how many seconds more may be sent."""
        state = self._state
        if not state.may_act():
            return 0.0
        if seconds := state.lease.pause_left(state.clock.monotonic()):
            return seconds
        if state.ordering.has_lone and (self._lone_send is None or self._lone_send.done()) and self._may_send_lone():
            self._lone_send = asyncio.create_task(self._send_lone())
        while state.ordering.has_ready:
            allowed = self._rate.allow(state.clock.monotonic(), self._batch)
            if not allowed:
                return self._rate.wait()
            batch = self._close_unreadable(state.ordering.next_batch(allowed))
            self._rate.spend(len(batch))
            if batch:
                task = asyncio.create_task(self._send(batch))
                self._sends.add(task)
                task.add_done_callback(self._sends.discard)
        return 0.0

    def _close_unreadable(self, messages: list[Message]) -> list[Message]:
        """Fail the messages whose row cannot be read, without sending them; return the others."""
        state = self._state
        unreadable = [message for message in messages if message.unreadable is not None]
        if not unreadable:
            return messages
        for message in unreadable:
            self._give_up(message, error=message.unreadable or "")
        state.settle_event.set()
        return [message for message in messages if message.unreadable is None]

    def _give_up(self, message: Message, *, error: str) -> None:
        """Fail a message for a reason which is not an answer."""
        failure = self._state.policy.build_failure(message, error=error)
        self._state.ordering.mark_failed(message, failure)
        self._state.telemetry.on_failed(self._state.name, message, failure)

    async def finish(self, *, within: float) -> None:
        """Wait for the answers to what is being sent, at most `within` seconds."""
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=within)

    def abandon(self) -> None:
        """Cancel every send that is not answered yet."""
        for task in self._tasks():
            task.cancel()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._sends, *([self._lone_send] if self._lone_send is not None else [])]

    # --- a batch ---

    async def _send(self, messages: Sequence[Message]) -> None:
        began = self._state.policy.acknowledged
        try:
            outcomes = await self._call_transport(self._transport, messages)
        except TransportUnavailable as error:
            self._return(messages, error, struck=error.mid_send, began=began)
            self._note_outage(str(error), error.retry_after)
        else:
            self._apply_outcomes(messages, outcomes, began=began)
            self._return_lost(messages, outcomes, began=began)

    async def _call_transport(self, transport: Transport, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Send, and return one outcome per message. No answer in time, or an error instead of one, is not delivered.

        An error of a whole batch does not tell which message caused it. It counts as a broken connection, and that
        message is found when each is sent alone.
        """
        seconds = self._state.settings.send_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                outcomes = await transport.send(messages)
        except TransportUnavailable:
            raise
        except TimeoutError:
            return [Outcome(False, f"no answer within {seconds:g} s")] * len(messages)
        except Exception as error:
            if len(messages) > 1:
                raise TransportUnavailable(_describe(error), mid_send=True) from error
            return [_build_outcome(error)]
        if len(outcomes) == len(messages):
            if messages and all(outcome.lost for outcome in outcomes):
                raise TransportUnavailable(outcomes[0].error or "the connection broke", mid_send=True)
            return outcomes
        reason = f"the transport answered for {len(outcomes)} of {len(messages)} messages"
        if len(messages) > 1:
            raise TransportUnavailable(reason, mid_send=True)
        return [Outcome(False, reason)]

    def _apply_outcomes(self, messages: Sequence[Message], outcomes: Sequence[Outcome], *, began: int) -> None:
        state = self._state
        result = state.policy.evaluate(messages, outcomes, began=began, dice=state.dice.random())
        if result.delivered:
            state.ordering.mark_delivered(result.delivered)
            state.telemetry.on_delivered(state.name, result.delivered)
        for message, failure in result.failures:
            state.ordering.mark_failed(message, failure)
            state.telemetry.on_failed(state.name, message, failure)
        if result.returned:
            state.ordering.mark_returned(result.returned)
            state.telemetry.on_returned(state.name, result.returned, reason=result.outage or "too many rejections")
        # A failure that has a witness, or a rejection, is an answer too: the destination works.
        if (result.delivered or result.failures) and state.close_breaker():
            state.reopen()
        if result.is_flood:
            state.is_flooded = True
            state.close()
        elif result.outage is not None and not result.delivered:
            self._note_outage(result.outage, result.retry_after)
        state.settle_event.set()
        if state.ordering.has_ready:
            state.send_event.set()

    def _return(self, messages: Sequence[Message], error: TransportUnavailable, *, struck: bool, began: int) -> None:
        state = self._state
        state.policy.note_interrupted(messages, began=began, sent=struck or error.mid_send)
        if struck:
            state.ordering.add_strikes(messages)
        state.ordering.mark_returned(messages)
        state.telemetry.on_returned(state.name, messages, reason=redact_line(str(error)))
        state.settle_event.set()

    def _return_lost(self, messages: Sequence[Message], outcomes: Sequence[Outcome], *, began: int) -> None:
        """Return messages under which the connection broke after others were answered.

        The breaker stays closed: the next send finds out whether the connection is back.
        """
        lost = [message for message, outcome in zip(messages, outcomes, strict=True) if outcome.lost]
        if lost:
            reason = next(outcome.error for outcome in outcomes if outcome.lost) or "the connection broke"
            self._return(lost, TransportUnavailable(reason), struck=True, began=began)

    def _note_outage(self, reason: str, retry_after: timedelta | None) -> None:
        # Sends that were under way when the breaker opened must not open it again; a probe, the only one, must.
        if self._state.breaker.is_closed or self._state.ordering.window == 1:
            self._state.open_breaker(reason, at_least=retry_after)
        self._state.close()

    # --- a lone message ---

    def _may_send_lone(self) -> bool:
        """Return whether a message may be sent alone now: the destination works, or this relay waited for a lease.

        A message that kills relays is given up only after deaths with a witness. So others go first, and are its
        witnesses. If there are none, it kills each relay no earlier than after a lease of work for other destinations.
        """
        state = self._state
        if state.policy.acknowledged:
            return True
        now = state.clock.monotonic()
        if self._lone_at is None:
            self._lone_at = now + state.lease.duration
        if now < self._lone_at:
            return False
        # Each owner of the lanes begins with another one: the same one must not kill every relay before the others go.
        state.ordering.rotate_lone(max(state.epochs.values(), default=0))
        return True

    async def _send_lone(self) -> None:
        """Send messages alone that were being sent twice or more when a relay or a connection died."""
        state = self._state
        while state.may_act() and (message := state.ordering.next_lone()) is not None:
            strikes = state.ordering.count_strikes(message.id)
            if message.unreadable is not None:
                self._give_up(message, error=message.unreadable)
            elif strikes >= LONE_STRIKES + self._lone_cap:
                error = f"a relay or its connection died {strikes} times with this message in hand"
                self._give_up(message, error=error)
            else:
                try:
                    is_claimed = await self._claim_alone(message, strikes)
                except StoreRefused as error:
                    state.set_aside(message, Settlement(), reason=error)
                    continue
                if is_claimed:
                    await self._send_alone(message)
            state.settle_event.set()

    async def _claim_alone(self, message: Message, strikes: int) -> bool:
        """Give a message its own claim, so that a death counts against it and no other.

        The new claim is committed before the message leaves the old one: at no moment is it in none.
        """
        state = self._state
        number, fence = state.lease.next_claim_number(), state.fence([message.partition])
        # A takeover adds one strike to what is recorded, also where a death would be no evidence against the message.
        recorded = strikes if state.policy.has_lone_witness(message) else strikes - 1
        claim = Claim(number, [message.id], recorded)
        if not await state.retry_write("claiming", lambda: state.store.claim(fence, claim)):
            return False
        if not state.ordering.is_in_flight(message):
            return False  # its lane was lost meanwhile
        settlement = state.ordering.confirm_lone_claim(message, number)
        return await state.retry_write("claiming", lambda: state.store.settle(fence, settlement))

    async def _send_alone(self, message: Message) -> None:
        """Send on a connection of its own. Its breaking counts as a strike only if the destination works otherwise."""
        state = self._state
        began = state.policy.acknowledged
        try:
            outcomes = await self._call_own_transport(message)
        except TransportUnavailable as error:
            struck = error.mid_send and state.policy.has_witness(message, began=began)
            self._return([message], error, struck=struck, began=began)
            if not struck:
                self._note_outage(str(error), error.retry_after)
        else:
            if outcomes is None:
                state.ordering.mark_returned([message])
            else:
                self._apply_outcomes([message], outcomes, began=began)

    async def _call_own_transport(self, message: Message) -> Sequence[Outcome] | None:
        """Send through a new transport; return None, unsent, if the lease ended while it was being opened."""
        seconds = self._state.settings.send_timeout.total_seconds()
        try:
            transport = self._open_transport()
            async with asyncio.timeout(seconds):
                await transport.open()
        except TimeoutError:
            raise TransportUnavailable(f"no connection within {seconds:g} s") from None
        except TransportUnavailable:
            raise
        except Exception as error:
            return [_build_outcome(error)]
        try:
            return await self._call_transport(transport, [message]) if self._state.may_act() else None
        finally:
            with contextlib.suppress(Exception):
                await transport.close()


class RateLimit:
    """Token bucket: at most so many messages a second, with a burst of one second's worth (at least one)."""

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._capacity = max(1.0, per_second or 0.0)
        self._tokens = self._capacity
        self._filled_at: float | None = None

    def allow(self, now: float, wanted: int) -> int:
        """Return how many of the wanted messages may go now."""
        if self._per_second is None:
            return wanted
        if self._filled_at is not None:
            self._tokens = min(self._capacity, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        return min(wanted, int(self._tokens + _ROUNDING))

    def spend(self, count: int) -> None:
        """Note that so many messages went."""
        if self._per_second is not None:
            self._tokens -= count

    def wait(self) -> float:
        """Return the seconds until one more may go, counted from the last `allow`."""
        if self._per_second is None or self._tokens + _ROUNDING >= 1:
            return 0.0
        return (1 - self._tokens) / self._per_second


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, TransportError) else f"{type(error).__name__}: {error}"


def _build_outcome(error: Exception) -> Outcome:
    """Build the outcome of one message from an error. Any but a `TransportError` is a bug: keep its stack trace."""
    if isinstance(error, TransportError):
        return Outcome(False, str(error), rejected=isinstance(error, MessageRejected))
    return Outcome(False, _describe(error), detail="".join(traceback.format_exception(error)))
