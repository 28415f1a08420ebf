"""Sender of one destination: sends what is ready, and acts on the answers."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.contracts.store import Claim, FailedOutcome, Settlement
from pillarbox.contracts.transport import Outcome, Transport, find_addressing
from pillarbox.errors import MessageRejected, StoreError, StoreRefused, TransportError, TransportUnavailable
from pillarbox.message import Message
from pillarbox.progress import StallTimeout
from pillarbox.redaction import redact_line
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.ordering import LONE_STRIKES
from pillarbox.relay.outcome_policy import BatchResult, build_hold

__all__ = ["RateLimit", "Sender"]

_NO_WITNESS: Final = "the destination acknowledges nothing else"
_NOT_NOW: Final = "its address takes nothing at present"
_LEFT_UNSENT: Final = "the transport left it unsent, though no earlier message of its key was in the send"

_MOST_COUNTED: Final = 100
"""Messages of one send whose earlier tries are looked up for the log."""
_MANY_KEYS: Final = 100
"""With so many keys ready for a send, the next messages of each follow soon enough: a run costs more than it wins."""
_LONG_QUEUE: Final = 16
"""A key with so many messages behind its next one is sent in runs all the same, where runs are slow."""
_FAR: Final = 0.05
"""Seconds that a send takes on average from which on runs are made of any number of keys."""
_SHARE: Final = 0.1
"""Share of the last send in that average."""
_ROUNDING: Final = 1e-6
"""A token that lacks so little is there: waiting for the rest takes no time that a clock could show."""


class Sender:
    """Sends batches through the transport, as many at once as the window allows, and suspects apart from them.

    It starts a send only while the lease surely holds. Where the transport takes runs, and few keys are ready or the
    broker is far away, a batch has as many messages of a key as fit. A transport that acknowledges a message of a run
    behind one that it did not acknowledge has broken its promise: what it says of that message does not count, the
    message is sent again in its order, and no more runs are made for this destination.
    """

    def __init__(
        self,
        state: DestinationState,
        *,
        transport: Transport,
        open_transport: Callable[[], Transport],
        lone_cap: int,
        rate: RateLimit | None = None,
    ) -> None:
        self._state = state
        self._transport = transport
        self._open_transport = open_transport
        self._lone_cap = lone_cap
        self._addressing = find_addressing(transport)
        self._batch = min(state.settings.batch, transport.features.batch)
        self._most_keys = 1 if transport.features.one_key else self._batch
        # A run goes to one address. Without a way to ask for it, as through a wrapper, there is none.
        self._makes_runs = transport.features.runs and transport.features.addresses == (self._addressing is not None)
        """False too after the transport has broken its promise for runs."""
        self._send_seconds = 0.0
        self._rate = RateLimit(state.settings.rate) if rate is None else rate
        self._sends: set[asyncio.Task[None]] = set()
        self._sending = 0
        """How many messages these have."""
        self._lone_send: asyncio.Task[None] | None = None
        """The last one that went alone, because nothing shows that the destination works."""
        self._lone_retry: asyncio.Task[None] | None = None
        """The last one of those that was tried before: new messages do not wait for it, for it may take long."""
        self._suspect_send: asyncio.Task[None] | None = None
        self._suspects_at: float | None = None
        """From when on suspects are sent though the destination has acknowledged nothing yet."""

    def send_ready(self) -> float:
        """Start sending all that is ready; return after how many seconds more may be sent."""
        state = self._state
        if not state.may_act():
            return 0.0
        if seconds := state.lease.pause_left(state.clock.monotonic()):
            return seconds
        if self._may_start_suspects() and self._may_send_suspects():
            self._suspect_send = asyncio.create_task(self._send_suspects())
            self._note_lone_send(self._suspect_send)
        while state.ordering.has_ready and self._may_start_send():
            allowed = self._rate.allow(state.clock.monotonic(), self._batch)
            if not allowed:
                return self._rate.wait()
            is_lone = self._sends_one_at_a_time
            batch = self._next_lone() if is_lone else self._next_batch(allowed)
            if is_lone and not batch:
                break
            batch = self._hold_blocked(self._close_unreadable(batch))
            self._rate.spend(len(batch))
            if batch:
                task = asyncio.create_task(self._send(batch))
                self._sends.add(task)
                self._sending += len(batch)
                task.add_done_callback(partial(self._forget_send, size=len(batch)))
                self._note_lone_send(task, is_retry=batch[0].last_error is not None)
        return 0.0

    @property
    def _sends_one_at_a_time(self) -> bool:
        return self._state.is_probing or self._state.is_doubtful

    def _may_start_send(self) -> bool:
        """Return whether a send may be started now: where nothing shows that the destination works, one at a time.

        As a probe it waits for all that are under way. Else only for the last one that went alone: those that were
        begun before may hang.
        """
        if self._state.is_probing:
            return self._state.may_probe and not self._is_sending
        return not self._state.is_doubtful or self._lone_send is None or self._lone_send.done()

    def _next_lone(self) -> list[Message]:
        """Return one message, or none: while the destination answers, one that was never tried before the others.

        Of those that were tried one goes at a time too, beside a new one.
        """
        state = self._state
        is_retrying = self._lone_retry is not None and not self._lone_retry.done()
        return state.ordering.next_probe(
            state.dice.random(), new_first=state.is_doubtful, only_new=state.is_doubtful and is_retrying
        )

    def _note_lone_send(self, task: asyncio.Task[None], *, is_retry: bool = False) -> None:
        if self._sends_one_at_a_time:
            if is_retry and self._state.is_doubtful:
                self._lone_retry = task
            else:
                self._lone_send = task
            task.add_done_callback(lambda _: self._state.send_event.set())

    def _forget_send(self, task: asyncio.Task[None], *, size: int) -> None:
        self._sends.discard(task)
        self._sending -= size

    def _next_batch(self, limit: int) -> list[Message]:
        batch = self._state.ordering.next_batch(min(limit, self._most_keys))
        if not self._makes_runs:
            return batch
        is_slow = self._transport.features.slow_runs
        on_their_way = len(batch) + (self._sending if is_slow else 0)
        least = 1
        if on_their_way >= _MANY_KEYS and self._send_seconds < _FAR:
            if not is_slow:
                return batch
            least = _LONG_QUEUE
        get_address = None if self._addressing is None else self._get_run_address
        return self._state.ordering.extend_runs(batch, limit, least=least, get_address=get_address)

    def _get_run_address(self, message: Message) -> str | None:
        """Return the address of a message that may be in a run. To a blocked one at most a single message goes."""
        address = self._find_address(message)
        return None if address is None or self._state.addresses.is_blocked(address) else address

    @property
    def _is_sending(self) -> bool:
        return bool(self._sends) or not (self._suspect_send is None or self._suspect_send.done())

    def _may_start_suspects(self) -> bool:
        """Return whether suspects may go. As a probe one of them takes turns with the other messages."""
        state = self._state
        if not state.ordering.has_suspects or not (self._suspect_send is None or self._suspect_send.done()):
            return False
        if not self._sends_one_at_a_time:
            return True
        return self._may_start_send() and (not state.ordering.has_ready or state.dice.random() < 0.5)

    def _hold_blocked(self, messages: list[Message]) -> list[Message]:
        """Let the messages of blocked addresses wait in the table, where they take no room; return the others."""
        addresses = self._state.addresses
        if not addresses.has_blocked:
            return messages
        return [message for message in messages if not self._hold(message)]

    def _hold(self, message: Message) -> bool:
        """Let a message wait if its address is blocked; return whether it does."""
        state, address = self._state, self._find_address(message)
        now = state.clock.monotonic()
        if address is None or state.addresses.may_send(address, now):
            return False
        pause, reason = state.addresses.hold(address, now, dice=state.dice.random())
        state.ordering.mark_failed(message, build_hold(message, reason=reason, pause=pause))
        state.settle_event.set()
        return True

    def _find_address(self, message: Message) -> str | None:
        return None if self._addressing is None else self._addressing.get_address(message)

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
        return [*self._sends, *([self._suspect_send] if self._suspect_send is not None else [])]

    # --- a batch ---

    async def _send(self, messages: Sequence[Message]) -> None:
        began, began_at = self._state.policy.acknowledged, self._state.clock.monotonic()
        try:
            outcomes = await self._call_transport(self._transport, messages)
        except TransportUnavailable as error:
            self._return(messages, error, struck=error.mid_send, began=began)
            self._note_outage(str(error), error.retry_after)
        else:
            self._send_seconds += _SHARE * (self._state.clock.monotonic() - began_at - self._send_seconds)
            if self._transport.features.runs:
                messages, outcomes = self._end_runs(messages, outcomes)
            await self._take_outcomes(messages, outcomes, began=began)
            self._return_lost(messages, outcomes, began=began)

    def _end_runs(
        self, messages: Sequence[Message], outcomes: Sequence[Outcome]
    ) -> tuple[Sequence[Message], Sequence[Outcome]]:
        """End each run at its first message that is not acknowledged; return what was answered, with the outcomes.

        What follows goes back behind it. If that one is lost, the lost ones behind it stay: each of them may be the one
        under which the connection broke.
        """
        if all(outcome.delivered for outcome in outcomes):
            return messages, outcomes
        answered: list[tuple[Message, Outcome]] = []
        begun: set[str] = set()
        ended: dict[str, Outcome] = {}
        broken: list[Message] = []
        for message, outcome in zip(messages, outcomes, strict=True):
            key = message.key
            if key is not None and key in ended:
                if outcome.delivered:
                    broken.append(message)
                elif outcome.lost and ended[key].lost:
                    answered.append((message, outcome))
                continue
            if not outcome.unsent:
                answered.append((message, outcome))
            elif key is not None and key in begun:
                self._state.ordering.mark_unsent(message)
            else:
                answered.append((message, Outcome(False, _LEFT_UNSENT)))
            if key is not None:
                begun.add(key)
                if not outcome.delivered:
                    ended[key] = outcome
        if broken:
            self._makes_runs = False
            self._state.telemetry.on_run_broken(self._state.name, broken)
        return [message for message, _ in answered], [outcome for _, outcome in answered]

    async def _call_transport(self, transport: Transport, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Send, and return one outcome per message. No answer in time, or an error instead of one, is not delivered.

        An error of a whole batch does not tell which message caused it. It counts as a broken connection, and that
        message is found when the suspects are sent in smaller and smaller groups.
        """
        seconds = self._state.settings.send_timeout.total_seconds()
        try:
            async with StallTimeout(seconds):
                outcomes = await transport.send(messages)
        except TransportUnavailable:
            raise
        except TimeoutError:
            return [Outcome(False, f"no answer within {seconds:g} s", unanswered=True)] * len(messages)
        except Exception as error:
            if len(messages) > 1:
                raise TransportUnavailable(_describe(error), mid_send=True) from error
            return [_build_outcome(error)]
        if len(outcomes) == len(messages):
            if messages and all(outcome.lost or outcome.unsent for outcome in outcomes) and outcomes[0].lost:
                raise TransportUnavailable(outcomes[0].error or "the connection broke", mid_send=True)
            return outcomes
        reason = f"the transport answered for {len(outcomes)} of {len(messages)} messages"
        if len(messages) > 1:
            raise TransportUnavailable(reason, mid_send=True)
        return [Outcome(False, reason)]

    async def _recall_tries(self, messages: Sequence[Message], outcomes: Sequence[Outcome]) -> None:
        """Ask the journal how often and since when other relays tried what failed now: a takeover begins nothing again.

        After the send, never before it: between the look at the lease and the send there must be no wait.
        """
        state = self._state
        if uncounted := state.policy.list_uncounted(messages, outcomes)[:_MOST_COUNTED]:
            with contextlib.suppress(StoreError):  # the log lacks the earlier ones
                found = await state.store.count_tries(uncounted)
                for one in uncounted:
                    if (tries := found.get(one.id)) is not None:
                        age = (state.clock.now() - tries.first_at).total_seconds()
                        state.policy.recall_count(one, count=tries.count, age=age, now=state.clock.monotonic())
        forgotten = state.policy.list_forgotten(messages, outcomes)
        if not forgotten:
            return
        try:
            tried_for = await state.store.tried_for(state.name, message_ids=[one.message_id for one in forgotten])
        except StoreError:
            state.policy.recall(forgotten, None, now=state.clock.monotonic())  # asked again at the next try
        else:
            state.policy.recall(forgotten, tried_for, now=state.clock.monotonic())

    async def _take_outcomes(self, messages: Sequence[Message], outcomes: Sequence[Outcome], *, began: int) -> None:
        """Act on answers. Acknowledgements count from when they came, not from when the journal has been asked.

        So those that come meanwhile are no witnesses against these messages, nor these against what is sent meanwhile.
        """
        heard = self._state.policy.count_acknowledged(outcomes)
        await self._recall_tries(messages, outcomes)
        self._apply_outcomes(messages, outcomes, began=began, heard=heard)

    def _apply_outcomes(
        self, messages: Sequence[Message], outcomes: Sequence[Outcome], *, began: int, heard: int | None = None
    ) -> None:
        state = self._state
        now = state.clock.monotonic()
        if state.addresses.has_blocked:
            outcomes = [self._expect_silence(*one) for one in zip(messages, outcomes, strict=True)]
        result = state.policy.evaluate(messages, outcomes, began=began, dice=state.dice.random(), now=now, heard=heard)
        if result.delivered:
            state.ordering.mark_delivered(result.delivered)
            state.telemetry.on_delivered(state.name, result.delivered)
            if state.addresses.has_refusals:
                self._note_acknowledged(result.delivered)
        for message, failure in result.failures:
            state.ordering.mark_failed(message, failure)
            state.telemetry.on_failed(state.name, message, state.policy.add_tries(message, failure, now=now))
        if result.not_now:
            self._apply_not_now(result, now)
        if result.tried:
            for message, failure in result.tried:
                state.ordering.mark_failed(message, failure)
            self._report_tries(result.tried, now, why=_NO_WITNESS)
        # A failure that has a witness, and an address that takes nothing, are answers too: the destination works.
        is_proven = bool(result.delivered or (result.failures and result.outage is None))
        # The answer to a probe is a failure. It may be the probe's own: others go, until a few in a row have failed.
        is_answered = bool(result.tried) and result.outage is None and state.is_probing
        if (is_proven or result.not_now or is_answered) and state.close_breaker(is_proven=is_proven):
            state.reopen()
        if result.outage is not None and not result.delivered:
            refused = {message.message_id for message, _ in result.tried} | state.policy.row.message_ids
            self._note_outage(result.outage, result.retry_after, refused=refused)
        state.settle_event.set()
        if state.ordering.has_ready:
            state.send_event.set()

    def _expect_silence(self, message: Message, outcome: Outcome) -> Outcome:
        """Return the outcome of a message. That a blocked address gives no answer is no sign of an outage of all."""
        if not (outcome.unanswered and outcome.not_now):
            return outcome
        address = self._find_address(message)
        is_known = address is not None and self._state.addresses.is_blocked(address)
        return msgspec.structs.replace(outcome, unanswered=False) if is_known else outcome

    def _note_acknowledged(self, messages: Sequence[Message]) -> None:
        state = self._state
        for message in messages:
            address = self._find_address(message)
            if address is not None and state.addresses.acknowledge(address):
                state.telemetry.on_address_unblocked(state.name, address)

    def _apply_not_now(self, result: BatchResult, now: float) -> None:
        """Let messages wait at the pace of their address, and block addresses that take nothing."""
        state = self._state
        tried: list[tuple[Message, FailedOutcome]] = []
        for message, own, outcome in result.not_now:
            failure = own
            address, reason = self._find_address(message), failure.error or "it took nothing"
            if address is not None:
                news = state.addresses.refuse(
                    address, now, message_id=message.message_id, reason=reason, dice=state.dice.random(),
                    is_missing=outcome.missing, at_least=outcome.retry_after,
                )  # fmt: skip
                if news is not None:
                    state.telemetry.on_address_blocked(state.name, address, reason=reason, is_missing=outcome.missing)
                if state.addresses.is_blocked(address):
                    # Not at its own pace: an address that takes a few now and then would be offered ever fewer.
                    pause, _ = state.addresses.hold(address, now, dice=state.dice.random())
                    failure = msgspec.structs.replace(failure, delay=max(pause, outcome.retry_after or pause))
            state.ordering.mark_failed(message, failure)
            tried.append((message, failure))
        self._report_tries(tried, now, why=_NOT_NOW)

    def _report_tries(self, tried: Sequence[tuple[Message, FailedOutcome]], now: float, *, why: str) -> None:
        state = self._state
        counted = [(message, state.policy.add_tries(message, failure, now=now)) for message, failure in tried]
        state.telemetry.on_tried(state.name, counted, why=why)

    def _return(self, messages: Sequence[Message], error: TransportUnavailable, *, struck: bool, began: int) -> None:
        state = self._state
        # What follows in a run may not have been tried. It may be to blame all the same, so it is struck.
        firsts = _list_firsts(messages) if self._transport.features.runs else messages
        state.policy.note_interrupted(firsts, began=began, sent=struck or error.mid_send)
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
            # A broker may close the connection over a missing address. Then the others are not suspect.
            struck = not any(outcome.missing for outcome in outcomes)
            self._return(lost, TransportUnavailable(reason), struck=struck, began=began)

    def _note_outage(
        self, reason: str, retry_after: timedelta | None, *, refused: Iterable[UUID] | None = None
    ) -> None:
        # Sends that were under way when the breaker opened must not open it again; a probe, the only one, must.
        if self._state.breaker.is_closed or self._state.is_probing:
            self._state.open_breaker(reason, at_least=retry_after, refused=refused)
        self._state.close()

    # --- suspects ---

    def _may_send_suspects(self) -> bool:
        """Return whether suspects may be sent now: the destination works, or this relay waited for a lease.

        A message that kills relays is given up only after deaths with a witness. So others go first, and are its
        witnesses. If there are none, it kills each relay no earlier than after a lease of work for other destinations.
        """
        state = self._state
        if state.policy.acknowledged:
            return True
        now = state.clock.monotonic()
        if self._suspects_at is None:
            self._suspects_at = now + state.lease.duration
        if now < self._suspects_at:
            return False
        # Each owner of the lanes begins with another one: the same one must not kill every relay before the others go.
        state.ordering.rotate_suspects(max(state.epochs.values(), default=0))
        return True

    async def _send_suspects(self) -> None:
        """Send messages that were being sent twice or more when a relay or a connection died, group by group."""
        state = self._state
        is_lone = self._sends_one_at_a_time
        connection = SuspectConnection(self._open_transport, timeout=state.settings.send_timeout)
        try:
            while state.may_act():
                allowed = self._rate.allow(state.clock.monotonic(), 1 if is_lone else state.settings.batch)
                if not allowed:
                    await asyncio.sleep(self._rate.wait())
                    continue
                group = state.ordering.next_suspects(allowed)
                if not group:
                    return
                self._rate.spend(len(group))
                group = self._hold_blocked(self._close_hopeless(group))
                await self._send_group(connection, group)
                state.settle_event.set()
                if is_lone and group:
                    return
        finally:
            await connection.close()

    def _close_hopeless(self, group: list[Message]) -> list[Message]:
        """Fail what cannot be read, or killed too often; return the others."""
        group = self._close_unreadable(group)
        deaths = self._state.ordering.count_strikes(group[0].id) - LONE_STRIKES if group else 0
        if deaths < self._lone_cap:
            return group
        error = f"a relay or its connection died {deaths} times while it sent this message alone"
        for message in group:
            self._give_up(message, error=error)
        return []

    async def _send_group(self, connection: SuspectConnection, group: list[Message]) -> None:
        """Claim and send a group. What the store refuses to claim is split down to the message that is the cause."""
        if not group:
            return
        state = self._state
        try:
            is_claimed = await self._claim_group(group)
        except StoreRefused as error:
            if len(group) == 1:
                state.set_aside(group[0], Settlement(), reason=error)
                return
            middle = len(group) // 2
            await self._send_group(connection, group[:middle])
            await self._send_group(connection, group[middle:])
            return
        if not is_claimed:
            state.ordering.mark_returned(group)  # a lane was lost: the messages of the others are read again
            return
        began = state.policy.acknowledged
        try:
            transport = await connection.get()
        except TransportUnavailable as error:
            self._return(group, error, struck=False, began=began)
            self._note_outage(str(error), error.retry_after)
        except Exception as error:
            outcomes = [_build_outcome(error)] * len(group)
            await self._take_outcomes(group, outcomes, began=began)
        else:
            if not state.may_act():
                state.ordering.mark_returned(group)
            elif not await self._send_parts(transport, group, began=began):
                await connection.close()

    async def _claim_group(self, group: Sequence[Message]) -> bool:
        """Give a group its own claim, so that a death counts against it and no other.

        The new claim is committed before the messages leave the old ones: at no moment are they in none.
        """
        state = self._state
        number, fence = state.lease.next_claim_number(), state.fence({message.partition for message in group})
        strikes = state.ordering.count_strikes(group[0].id)
        # A takeover adds one strike to what is recorded. That splits a group whatever it died of; alone it is evidence
        # against the message, and needs a witness.
        is_unproven = len(group) == 1 and not state.policy.has_lone_witness(group[0])
        claim = Claim(number, [message.id for message in group], strikes - 1 if is_unproven else strikes)
        if len(fence.epochs) < len({message.partition for message in group}):
            return False  # a lane is being released
        if not all(state.ordering.is_being_sent(message) for message in group):
            return False  # a lane was lost while another part of the group was claimed, and may be served again
        if not await state.write_in(fence, "claiming", lambda: state.store.claim(fence, claim)):
            return False
        # A lane may have been lost meanwhile. The messages of the others are in the new claim, and leave it unsent.
        left = [m for m in group if state.ordering.is_being_sent(m) and state.may_write(m.partition)]
        if not left:
            return False
        fence, settlement = state.fence({m.partition for m in left}), state.ordering.confirm_group_claim(left, number)
        is_recorded = await state.write_in(fence, "claiming", lambda: state.store.settle(fence, settlement))
        return is_recorded and len(left) == len(group)

    async def _send_parts(self, transport: Transport, group: Sequence[Message], *, began: int) -> bool:
        """Send a group, by as many calls at once as it needs; return whether all of it was acknowledged."""
        size = min(self._batch, self._most_keys)
        parts = [group[at : at + size] for at in range(0, len(group), size)]
        results = await asyncio.gather(*(self._send_part(transport, part, began=began) for part in parts))
        # After the answers: an acknowledgement in one part is a witness for the others.
        for part, result in zip(parts, results, strict=True):
            if isinstance(result, TransportUnavailable):
                self._return_suspects(part, result, began=began)
        return all(result is True for result in results)

    async def _send_part(
        self, transport: Transport, messages: Sequence[Message], *, began: int
    ) -> bool | TransportUnavailable:
        """Send what one call takes; return whether all of it was acknowledged, or why none was answered."""
        try:
            outcomes = await self._call_transport(transport, messages)
        except TransportUnavailable as error:
            return error
        await self._take_outcomes(messages, outcomes, began=began)
        self._return_lost(messages, outcomes, began=began)
        return all(outcome.delivered for outcome in outcomes)

    def _return_suspects(self, messages: Sequence[Message], error: TransportUnavailable, *, began: int) -> None:
        """Return suspects whose connection broke: a strike against those for which the destination works otherwise."""
        has_witness = self._state.policy.has_witness
        struck: list[Message] = []
        innocent: list[Message] = []
        for message in messages:
            (struck if error.mid_send and has_witness(message, began=began) else innocent).append(message)
        if struck:
            self._return(struck, error, struck=True, began=began)
        if innocent:
            self._return(innocent, error, struck=False, began=began)
        if not struck:
            self._note_outage(str(error), error.retry_after)


class SuspectConnection:
    """Connection on which only suspects are sent, so that what breaks it hurts no other message.

    It is used again as long as everything sent on it is acknowledged: opening one costs more than sending a message.
    """

    def __init__(self, open_transport: Callable[[], Transport], *, timeout: timedelta) -> None:
        self._open_transport = open_transport
        self._seconds = timeout.total_seconds()
        self._transport: Transport | None = None

    async def get(self) -> Transport:
        """Return the open transport, or open one; raise `TransportUnavailable` where that takes too long."""
        if self._transport is None:
            self._transport = self._open_transport()
            try:
                async with asyncio.timeout(self._seconds):
                    await self._transport.open()
            except BaseException as error:
                await self.close()
                if isinstance(error, TimeoutError):
                    raise TransportUnavailable(f"no connection within {self._seconds:g} s") from None
                raise
        return self._transport

    async def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
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


def _list_firsts(messages: Sequence[Message]) -> list[Message]:
    """List the first message of each key, and all without a key."""
    firsts: list[Message] = []
    keys: set[str] = set()
    for message in messages:
        if message.key is None or message.key not in keys:
            firsts.append(message)
        if message.key is not None:
            keys.add(message.key)
    return firsts


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, TransportError) else f"{type(error).__name__}: {error}"


def _build_outcome(error: Exception) -> Outcome:
    """Build the outcome of one message from an error. Any but a `TransportError` is a bug: keep its stack trace."""
    if isinstance(error, TransportError):
        return Outcome(False, str(error), rejected=isinstance(error, MessageRejected))
    return Outcome(False, _describe(error), detail="".join(traceback.format_exception(error)))
