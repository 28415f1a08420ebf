"""A survey: relays, a writer and operators do everything once, and record which kill points they reach.

It takes seconds where the matrix takes minutes, and notices a point that the code no longer passes.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from proof.crash.environment import Environment
from proof.crash.points import KillPoint
from proof.crash.programs import OperatorSpec, WriterSpec
from proof.crash.scenarios import Action, Scenario, Transactions
from proof.crash.steps import SURVEY
from proof.kill_points import Kill
from proof.messages import WRITER_KEY, NumberedEvent, build_event
from proof.processes import Program, TimedOut, wait_until

__all__ = ["SURVEYED", "survey"]

_TIMEOUT: Final = 15.0
_TEN: Final[Transactions] = [[build_event(f"k{key}", 1) for key in range(10)]]
SURVEYED: Final = Scenario(load=_TEN, batch=10)
"""Ten messages for the first relay, of which it sends six."""


def survey(environment: Environment) -> set[KillPoint]:
    """Return the points that were reached, on the store of this environment."""
    return _Survey(environment).run()


class _Survey:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._file = environment.folder / "reached"

    def run(self) -> set[KillPoint]:
        for work in (self._die_twice, self._deliver, self._lose_the_consumer, self._share, self._operate):
            try:
                work()
            except TimedOut:
                break  # the caller sees which points are missing
        return self._read()

    def _die_twice(self) -> None:
        """One relay records six of its ten messages and dies, the next one dies with the other four."""
        environment = self._environment
        environment.load()
        first = self._start_relay(send_limit=6)
        self._wait(KillPoint.SOME_SETTLED)
        first.kill()
        second = self._start_relay(send_limit=0)
        self._wait(KillPoint.INHERITED)
        wait_until(lambda: environment.owns_all(second), within=_TIMEOUT, what="all lanes are taken over")
        wait_until(self._has_struck_claim, within=_TIMEOUT, what="the four are claimed again")
        second.kill()

    def _has_struck_claim(self) -> bool:
        return self._environment.count("pillarbox_claim where strikes >= 1") > 0

    def _deliver(self) -> None:
        """The third relay is to get every kind of answer. It forwards what fails, and purges."""
        self._relay = self._start_relay(forwards=True, purges=True)
        self._write(
            [build_event(f"k{key}", number) for key in range(5) for number in (2, 3)],
            [
                build_event("refused", 1, refuse=1),
                *(build_event("refused", number) for number in range(2, 9)),
                build_event("rejected", 1, reject=9),
                build_event("unrouted", 1, routed=0),
                build_event("silent", 1, silent=1),
            ],
        )
        self._wait(
            KillPoint.LONE_CLAIMED, KillPoint.RETRY_ANSWERED, KillPoint.FREED, KillPoint.FORWARDED, KillPoint.SKIPPED,
            KillPoint.UNANSWERED, KillPoint.PURGED,
        )  # fmt: skip
        self._write([build_event("late", 1, refuse=2)])
        wait_until(lambda: self._waits("late"), within=_TIMEOUT, what="a message waits for its retry")
        self._write([build_event("late", 2)])
        self._wait(KillPoint.PARKED)

    def _waits(self, key: str) -> bool:
        return self._environment.count("pillarbox_outbox where key = ? and waits = 'retry'", key) > 0

    def _lose_the_consumer(self) -> None:
        """The consumer is down. Meanwhile a relay dies that owns no lane, and is forgotten."""
        self._environment.start_relay(kill=self._environment.plan_kill(KillPoint.JOINED, 1))
        self._environment.arrivals.down_file.touch()
        self._write([build_event(f"down{key}", 1) for key in range(10)])
        try:
            self._wait(KillPoint.GIVEN_BACK, KillPoint.PROBED)
        finally:
            self._environment.arrivals.down_file.unlink()

    def _share(self) -> None:
        """A relay joins, and the other one hands lanes over, then stops. The new one archives and fails messages."""
        joined = self._start_relay(purges=True, archives=True)
        self._wait(KillPoint.RELEASED)
        self._relay.terminate()
        self._wait(KillPoint.LEFT, KillPoint.FORGET_UNCOMMITTED)
        self._write([build_event(f"wrong{key}", 1, reject=9) for key in range(6)])
        self._wait(KillPoint.FAILED, KillPoint.ARCHIVED)
        failed = "pillarbox_history where status = 'failed'"
        wait_until(lambda: self._environment.count(failed) == 6, within=_TIMEOUT, what="six messages are failed")
        joined.terminate()

    def _operate(self) -> None:
        """An operator redrives the failed messages, a relay holds them, and the operator discards those."""
        environment = self._environment
        self._start_operator("redrive")
        environment.start(
            WriterSpec(
                backend=environment.backend,
                store=environment.database.url(),
                schema=environment.database.names.schema,
                kill=self._record(),
                key=WRITER_KEY,
                transactions=1,
                messages=2,
            )
        )
        self._wait(KillPoint.REDRIVEN, KillPoint.WRITTEN)
        self._start_relay(after_failure="hold")
        self._wait(KillPoint.HELD)
        self._start_operator("discard")
        self._wait(KillPoint.DISCARD_UNCOMMITTED)

    # --- tools ---

    def _start_operator(self, action: Action) -> None:
        environment = self._environment
        environment.start(
            OperatorSpec(
                backend=environment.backend,
                store=environment.database.url(),
                schema=environment.database.names.schema,
                kill=self._record(),
                action=action,
                batch=2,
            )
        )

    def _start_relay(self, **options: object) -> Program:
        self._environment.scenario = replace(SURVEYED, **{"batch": 5, **options})
        return self._environment.start_relay(kill=self._record())

    def _record(self) -> Kill:
        return Kill(SURVEY, 1, str(self._file))

    def _write(self, *transactions: list[NumberedEvent]) -> None:
        self._environment.write(transactions)

    def _wait(self, *points: KillPoint) -> None:
        wait_until(lambda: self._read().issuperset(points), within=_TIMEOUT, what=f"{points} are reached")

    def _read(self) -> set[KillPoint]:
        return {KillPoint.find(name) for name in self._file.read_text().split()} if self._file.exists() else set()
