"""A simulated relay process: the real relay, started, frozen, stopped, killed and started again."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

from pillarbox.contracts.store import FailedOutcome
from pillarbox.contracts.transport import Outcome, Transport, TransportFeatures
from pillarbox.errors import StoreUnavailable, TransportUnavailable
from pillarbox.message import SKIPPED_DESTINATION, Message
from pillarbox.relay.breaker import Breaker
from pillarbox.relay.lease import Lease
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.telemetry import Telemetry
from proof.simulation.checker import FailureChecker, Promise
from proof.simulation.destination import Broker, BrokerMode, Send, find_address, list_firsts
from proof.simulation.environment import Environment
from proof.simulation.network import StoreConnection
from proof.simulation.quiet import LONGEST_BREAKER, has_quiet_phase
from proof.simulation.scenario import CLOCK_MARGIN, LANES, Scenario
from proof.simulation.virtual_time import ProcessClock, ProcessLoop, Timeline

__all__ = ["Process", "RelayTelemetry", "patch_relay"]

_NEVER: Final = 1e9
_SHORTEST_NAP: Final = 0.02
_SWEEP: Final = 1.0
_FIRST: Final = timedelta(seconds=0.2)
_LONGEST: Final = timedelta(seconds=1)
"""Leases are short here, and so are all pauses: more happens during the faults, and the end comes sooner."""


@contextmanager
def patch_relay(scenario: Scenario) -> Iterator[None]:
    """Patch the relay: ids from the seed, few lanes, and no periodic full read, as nothing may depend on it."""
    rng = Random(scenario.seed)
    longest = LONGEST_BREAKER if has_quiet_phase(scenario.seed) else _LONGEST

    def draw_id() -> UUID:
        return UUID(int=rng.getrandbits(128), version=4)

    changes: dict[str, object] = {
        "pillarbox.relay.lease.uuid4": draw_id,
        "pillarbox.relay.membership.PARTITIONS": LANES,
        "pillarbox.relay.reader._REREAD_INTERVAL": _NEVER,
        "pillarbox.relay.reader._BLOCKED_INTERVAL": _SWEEP,
        "pillarbox.relay.polling._SHORTEST": _SHORTEST_NAP,
        "pillarbox.relay.destination.ASIDE_INTERVAL": _SWEEP,
        "pillarbox.relay.destination.Breaker": partial(Breaker, first=_FIRST, longest=longest),
        "pillarbox.relay.relay.version": lambda _: "simulated",
    }
    with ExitStack() as patches:
        for name, new in changes.items():
            patches.enter_context(patch(name, new))
        if not scenario.skips:
            patches.enter_context(patch.object(Relay, "_build_pipelines", _without_skipping))
        try:
            yield
        finally:
            asyncio._set_running_loop(None)


_build_pipelines: Final = Relay._build_pipelines


def _without_skipping(relay: Relay, lease: Lease) -> dict[str, Pipeline]:
    """Build no pipeline for skipped messages where there are none: it is half of the work of an idle relay."""
    pipelines = _build_pipelines(relay, lease)
    pipelines.pop(SKIPPED_DESTINATION)
    return pipelines


class SimulatedTransport:
    """One connection of one relay to a destination: the shared one, or one for suspects."""

    def __init__(
        self,
        broker: Broker,
        *,
        relay_id: str,
        for_suspects: bool,
        batch: int,
        has_addresses: bool,
        runs: bool,
        one_key: bool,
        loop: ProcessLoop,
        timeline: Timeline,
        failures: FailureChecker,
        on_send: Callable[[Sequence[Message]], None],
        on_step: Callable[[], None],
        die: Callable[[], None],
    ) -> None:
        self.features = TransportFeatures(
            name="simulated", batch=batch, addresses=has_addresses, runs=runs, one_key=one_key
        )
        self._broker = broker
        self._relay_id = relay_id
        self._for_suspects = for_suspects
        self._loop = loop
        self._timeline = timeline
        self._failures = failures
        self._on_send = on_send
        self._on_step = on_step
        self._die = die
        self._began_at: float | None = timeline.now if for_suspects else None
        """When the first group on a connection for suspects began: before it was opened. Then None."""
        self._under_way = 0
        """How many messages are not answered yet."""

    async def open(self) -> None:
        await self._check_reachable()

    async def close(self) -> None: ...

    async def ping(self) -> None:
        await self._check_reachable()

    async def _check_reachable(self) -> None:
        reply = self._loop.create_future()
        self._timeline.after(self._broker.delay(), self._arrive, reply)
        await reply

    def _arrive(self, reply: asyncio.Future[None]) -> None:
        if reply.done() or self._broker.mode is BrokerMode.HANGS:
            return
        try:
            self._broker.check()
        except TransportUnavailable as error:
            reply.set_exception(error)
        else:
            reply.set_result(None)

    def get_address(self, message: Message) -> str | None:
        return find_address(message)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._on_send(messages)
        began = self._timeline.now if self._began_at is None else self._began_at
        self._failures.record_send(self._relay_id, self._broker.name, messages, began)
        answer: asyncio.Future[Sequence[Outcome]] = self._loop.create_future()
        self._broker.send(Send(messages, answer, die=self._die))
        self._on_step()
        self._under_way += len(messages)
        try:
            outcomes = await answer
        except BaseException as error:
            self._record_no_answer(messages, error)
            raise
        finally:
            self._under_way -= len(messages)
            if not self._under_way:
                self._began_at = None
        self._record_answers(messages, outcomes)
        self._on_step()
        return outcomes

    def _record_no_answer(self, messages: Sequence[Message], error: BaseException) -> None:
        if self._loop.is_dead:
            return
        is_alone = self._for_suspects and self._under_way == 1
        firsts = list_firsts(messages)
        for message in messages:
            if message not in firsts:
                self._failures.forget_send(self._relay_id, self._broker.name, message.id)
                continue
            is_broken = isinstance(error, TransportUnavailable)
            self._failures.record_refusal(self._relay_id, self._broker.name, message.id, is_free=is_broken)
            if is_alone and isinstance(error, TransportUnavailable) and error.mid_send:
                self._failures.record_lone_death(self._relay_id, self._broker.name, message.id)

    def _record_answers(self, messages: Sequence[Message], outcomes: Sequence[Outcome]) -> None:
        name, now = self._broker.name, self._timeline.now
        answers = list(zip(messages, outcomes, strict=True))
        for message, outcome in answers:
            if outcome.delivered:
                self._failures.record_ack(self._relay_id, name, message.id, now)
        ended: set[str] = set()
        for message, outcome in answers:
            if message.key is not None and message.key in ended:
                if not outcome.delivered:
                    self._failures.forget_send(self._relay_id, name, message.id)
            elif outcome.unsent:
                self._failures.forget_send(self._relay_id, name, message.id)
            elif not outcome.delivered:
                if message.key is not None:
                    ended.add(message.key)
                self._failures.record_refusal(
                    self._relay_id, name, message.id, rejected=outcome.rejected, is_free=outcome.not_now or outcome.lost
                )


class Process:
    """A process that runs a relay. When the relay ends, however it ends, another one is started."""

    def __init__(
        self,
        name: str,
        env: Environment,
        *,
        serves: Sequence[DestinationSettings],
        once: bool = False,
        on_end: Callable[[Process], None],
        on_step: Callable[[Process], None],
    ) -> None:
        self.name = name
        self._env = env
        self._on_end = on_end
        self._on_process_step = on_step
        spread = env.scenario.rate_spread
        rate = 1 + env.rng.uniform(-spread, spread)
        self._clock = ProcessClock(env.timeline, rate=rate, offset=env.rng.uniform(0, 1e4))
        self._serves = serves
        self._once = once
        self.is_running = False
        self._connections: dict[tuple[str, str], int] = {}

    # --- run ---

    def start(self) -> None:
        """Start a new process; nothing is left of the one before."""
        env = self._env
        self.is_running = True
        self.loop = ProcessLoop(env.timeline, self._clock, on_error=self._report_bug)  # type: ignore[abstract]
        self.connection = StoreConnection(
            env.connect(), env.network, name=self.name, loop=self.loop, notifies=env.scenario.notifies,
            on_step=self._on_step,
        )  # fmt: skip
        self.relay = Relay(
            self.connection.store,
            [Destination(self._make_opener(settings.name), settings) for settings in self._serves],
            settings=env.scenario.settings,
            clock=self._clock,
            telemetry=RelayTelemetry(self.name, env),
            seed=env.rng.getrandbits(32),
        )
        env.trace(self.name, "starts")
        self._task = self.loop.create_task(self._run(self.relay, self.loop))

    async def _run(self, relay: Relay, loop: ProcessLoop) -> None:
        try:
            await relay.run(once=self._once)
        except Exception as error:
            # At the start, and with `once` at any time, a store that stays away ends the program; it is started again.
            is_expected = isinstance(error, StoreUnavailable) and (relay.relay_id is None or self._once)
            if not is_expected:
                loop.call_exception_handler({"message": "the relay ended", "exception": error})
        if not loop.is_dead:
            self._env.trace(self.name, "ends")
            self._env.timeline.after(0.0, self.kill)

    def _report_bug(self, context: dict[str, Any]) -> None:
        text = f"{self.name}: {context.get('message')}: {_format_error(context.get('exception'))}"
        self._env.deliveries.report(Promise.CRASHED, self._env.timeline.now, text)

    # --- faults ---

    def kill(self) -> None:
        """Kill it at once, in the middle of whatever it does."""
        if self.is_running:
            self.is_running = False
            self._env.trace(self.name, "is dead")
            self.loop.kill()
            self._on_end(self)

    def end(self) -> None:
        """End it with the simulation."""
        if self.is_running:
            self.is_running = False
            self.loop.kill()

    def stop(self) -> None:
        """Ask it to stop, as the first signal does."""
        if self.is_running:
            self._env.trace(self.name, "is asked to stop")
            self.relay.stop()

    def freeze(self) -> None:
        """Freeze it: it makes no step, and does not notice."""
        self.loop.is_frozen = True

    def thaw(self) -> None:
        """Let it go on as if nothing had happened."""
        if self.loop.is_frozen:
            self._env.trace(self.name, "goes on")
            self.loop.thaw()

    # --- send ---

    def _make_opener(self, destination: str) -> Callable[[], Transport]:
        loop = self.loop
        return lambda: self._open_transport(destination, loop)

    def _open_transport(self, destination: str, loop: ProcessLoop) -> Transport:
        env, relay_id = self._env, str(self.relay.relay_id)
        number = self._connections[relay_id, destination] = self._connections.get((relay_id, destination), 0) + 1
        return SimulatedTransport(
            env.brokers[destination], relay_id=relay_id, for_suspects=number > 1, batch=env.scenario.send_batch,
            has_addresses=env.scenario.has_addresses, runs=env.scenario.runs, one_key=env.scenario.one_key,
            loop=loop, timeline=env.timeline, failures=env.failures,
            on_send=lambda messages: self._on_send(relay_id, messages), die=lambda: self._die(loop),
            on_step=self._on_step,
        )  # fmt: skip

    def _on_step(self) -> None:
        """Report a step at which a fault would be hardest to survive."""
        if self._env.faults_ended_at is None:
            self._on_process_step(self)

    def _die(self, loop: ProcessLoop) -> None:
        """Kill it because of a message, unless another process has been started since."""
        if loop is self.loop:
            self.kill()

    def _on_send(self, relay_id: str, messages: Sequence[Message]) -> None:
        env, now = self._env, self._env.timeline.now
        if env.trace.is_on:
            env.trace(self.name, f"sends {[message.id for message in messages]} to {messages[0].destination}")
        row = env.data.relays.get(UUID(relay_id))
        expired = row is None or row.expires_at is None or row.expires_at <= env.clock.now()
        is_checked = not env.clock.was_set and env.scenario.rate_spread < CLOCK_MARGIN
        if expired and is_checked:
            text = f"{self.name} sends {[message.id for message in messages]} without a lease"
            env.deliveries.report(Promise.OVERRUN, now, text)


def _format_error(error: BaseException | None) -> str:
    """Format the innermost error, and the line that raised it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None or error.__traceback__ is None:
        return "no error"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


_GRACE: Final = 3.0
"""Seconds after the last fault in which its consequences may still show."""


class RelayTelemetry(Telemetry):
    """Writes a relay's events to the trace, and reports those that must not happen without a fault."""

    def __init__(self, name: str, env: Environment) -> None:
        self._name = name
        self._env = env

    def _trace(self, what: str) -> None:
        if self._env.trace.is_on:
            self._env.trace(self._name, what)

    def _report_unexpected(self, what: str) -> None:
        env = self._env
        now, lease = env.timeline.now, env.scenario.settings.lease.total_seconds()
        faults_ended = env.faults_ended_at is not None and now > env.faults_ended_at + 2 * lease + _GRACE
        if faults_ended or env.scenario.keeps_leases:
            env.deliveries.report(Promise.STARVED, now, f"{self._name}: {what}")

    def on_delivered(self, destination: str, messages: Sequence[Message]) -> None:
        self._trace(f"heard that {destination} took {[message.id for message in messages]}")

    def on_failed(self, destination: str, message: Message, failure: FailedOutcome) -> None:
        state = failure.state.value if failure.waits is None else failure.waits.value
        self._env.deliveries.seen[state] += 1
        self._trace(f"{message.id} to {destination} is {state} after {failure.attempts}: {failure.error}")

    def on_returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        self._env.deliveries.seen["returned"] += 1
        self._trace(f"gives back {[message.id for message in messages]} of {destination}: {reason}")

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        self._env.deliveries.seen["breaker"] += 1
        self._trace(f"leaves {destination} alone for {seconds:.3f}: {reason}")

    def on_breaker_closed(self, destination: str) -> None:
        self._trace(f"{destination} answers again")

    def on_paused(self, destination: str, *, reason: str) -> None:
        self._env.deliveries.seen["paused"] += 1
        self._trace(f"{destination} is paused: {reason}")

    def on_resumed(self, destination: str) -> None:
        self._trace(f"{destination} is resumed")

    def on_lanes_taken(self, destination: str, partitions: Iterable[int], *, inherited: int) -> None:
        self._env.deliveries.seen["inherited"] += inherited
        self._trace(f"took lanes {list(partitions)} of {destination}, and {inherited} messages")

    def on_lanes_released(self, destination: str, partitions: Iterable[int]) -> None:
        self._env.deliveries.seen["handed over"] += 1
        self._trace(f"left lanes {list(partitions)} of {destination}")

    def on_fenced(self, destination: str, partitions: Iterable[int]) -> None:
        self._env.deliveries.seen["fenced"] += 1
        self._trace(f"is refused in lanes {list(partitions)} of {destination}")
        self._report_unexpected(f"refused in lanes {list(partitions)} of {destination}")

    def on_lease_lost(self, *, reason: str) -> None:
        self._env.deliveries.seen["lease lost"] += 1
        self._trace(f"starts again: {reason}")
        self._report_unexpected(reason)

    def on_run_broken(self, destination: str, messages: Sequence[Message]) -> None:
        self._env.deliveries.seen["run broken"] += 1
        self._trace(f"heard that {destination} took {[message.id for message in messages]} of a run that had ended")

    def on_set_aside(self, destination: str, message: Message, *, reason: str) -> None:
        self._env.deliveries.seen["set aside"] += 1
        self._trace(f"sets {message.id} to {destination} aside: {reason}")

    def on_store_failed(self, what: str, error: Exception) -> None:
        self._env.deliveries.seen["store failed"] += 1
        self._trace(f"{what} failed: {error}")

    def on_duty_failed(self, what: str, error: Exception) -> None:
        self._trace(f"{what} failed: {error}")
