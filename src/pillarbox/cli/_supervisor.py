"""The supervisor of `pillarbox relay --processes N`: starts the processes, starts again what dies, and stops all.

It opens no database and talks to no broker. Each process is a whole relay; they share the lanes as relays on several
machines do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count as count_from
from typing import Final

import msgspec

from pillarbox import telemetry as names
from pillarbox.cli._http import serve_health
from pillarbox.cli._logs import program_log
from pillarbox.cli._process import Answer, Question, Started, Stop, read_report, to_frame
from pillarbox.cli._signals import stop_on_signals
from pillarbox.operations.health import HealthApp, ProbeResult, Response

__all__ = ["Supervisor", "merge_metrics", "merge_probes", "supervise", "to_exit_code", "to_restart_delay"]

_FIRST_DELAY: Final = 0.5
_LONGEST_DELAY: Final = 30.0
_HEALTHY_AFTER: Final = 60.0
"""Seconds after which the earlier deaths of a process are forgotten."""
_ANSWER_TIMEOUT: Final = 4.0
"""Seconds in which a process must answer: longer than its store may take, shorter than the patience of a platform."""
_UNMENDED: Final = (2, 4)
"""Exit codes of a wrong configuration and of tables that do not fit: another start would end the same way."""


def supervise(arguments: Sequence[str], *, count: int, address: tuple[str, int] | None) -> int:
    """Run so many processes with these arguments until stopped; return the exit code.

    `address` is where the probes and metrics of all are served.
    """
    with asyncio.Runner() as runner:
        supervisor = Supervisor(arguments, count=count)
        probes = _ProcessProbes(supervisor, runner.get_loop())
        with (
            stop_on_signals(supervisor.stop, loop=runner.get_loop(), before_exit=supervisor.kill),
            serve_health(address, lambda: HealthApp(probes, metrics=probes.render_metrics)),
        ):
            return runner.run(supervisor.run())


# --- what it decides: pure ---


def to_restart_delay(deaths: int) -> float:
    """Return the seconds to wait before a start after so many deaths one soon after the other."""
    return min(_FIRST_DELAY * 2.0 ** (min(deaths, 16) - 1), _LONGEST_DELAY)


def to_exit_code(code: int) -> int:
    """Return an exit code as a shell shows it: 128 more than the signal that killed the process."""
    return code if code >= 0 else 128 - code


def merge_probes(results: Mapping[str, ProbeResult]) -> ProbeResult:
    """Merge the results of all processes: one that failed fails all. Each reason names its process."""
    return ProbeResult(
        all(one.ok for one in results.values()),
        [f"process {name}: {reason}" for name, one in results.items() for reason in one.reasons],
        [f"process {name}: {note}" for name, one in results.items() for note in one.notes],
    )


def merge_metrics(pages: Sequence[str]) -> str:
    """Merge pages for Prometheus, which wants all samples of a family together, under one heading."""
    families: dict[str, list[str]] = {}
    for page in pages:
        heading: list[str] = []
        samples: list[str] = []
        for line in page.splitlines():
            if line.startswith("# HELP "):
                heading = [line]
            elif line.startswith("# TYPE "):
                samples = families.setdefault(line.split(" ", 3)[2], [*heading, line])
            elif line:
                samples.append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


# --- processes ---


class _Process:
    """One process, which may be started any number of times."""

    def __init__(self, arguments: Sequence[str], *, number: int, count: int) -> None:
        self._arguments = arguments
        self.number = number
        self.name = f"{number}/{count}"
        self.starts = 0
        self.has_started = asyncio.Event()
        """Set while its relay is or was in the registry."""
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._stop_reason: str | None = None
        self._questions: dict[int, asyncio.Future[Answer | None]] = {}
        self._numbers = count_from()

    @property
    def pid(self) -> int | None:
        """Its id while it runs."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def run(self) -> int:
        """Start the process; return its exit code once it has ended, negative for a signal.

        Raises `OSError` if the system has no room for another process.
        """
        self.has_started.clear()
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as on_failure:
            on_failure.callback(ours.close)
            # In a session of its own: Ctrl-C reaches the supervisor alone, and it decides what the processes do.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "pillarbox.cli._process", str(theirs.fileno()), self.name, *self._arguments,
                stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
            on_failure.pop_all()
        self.starts += 1
        reader, self._writer = await asyncio.open_connection(sock=ours)
        if self._stop_reason is not None:
            self.stop(self._stop_reason)
        reading = asyncio.create_task(self._read_reports(reader))
        try:
            return await self._process.wait()
        finally:
            self._writer.close()
            reading.cancel()
            for question in self._questions.values():
                if not question.done():
                    question.set_result(None)

    def stop(self, reason: str) -> None:
        """Have it stop gracefully, also if it is only about to start."""
        self._stop_reason = reason
        # Over the channel and not by a signal: where a platform signals the whole group, this is no second signal.
        if self._writer is not None and self.pid is not None:
            self._writer.write(to_frame(Stop(reason)))

    def kill(self) -> None:
        """Kill it, whatever it does."""
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def ask(self, page: str) -> Answer | None:
        """Return its answer; None if it does not run, or does not answer in time."""
        if self._writer is None or self.pid is None:
            return None
        number = next(self._numbers)
        answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._writer.write(to_frame(Question(number, page)))
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._questions[number]

    async def _read_reports(self, reader: asyncio.StreamReader) -> None:
        while (report := await read_report(reader)) is not None:
            if isinstance(report, Started):
                self.has_started.set()
            elif (question := self._questions.get(report.number)) is not None and not question.done():
                question.set_result(report)


class Supervisor:
    """Keeps the processes running until it is stopped."""

    def __init__(self, arguments: Sequence[str], *, count: int) -> None:
        self.processes: Final = [_Process(arguments, number=number, count=count) for number in range(1, count + 1)]
        self._stop = asyncio.Event()
        self._code = 0
        self._was_up = False

    async def run(self) -> int:
        """Run until stopped, or until a process ends with what another start would not fix; return the exit code.

        The first process goes ahead: whatever a person must fix is said once, and not by each.
        """
        first, *others = self.processes
        tasks = [asyncio.create_task(self._keep(first))]
        await self._wait_for(first.has_started)
        if not self._stop.is_set():
            self._was_up = True
            program_log.info("process %s has started; starting %d more", first.name, len(others))
            tasks += [asyncio.create_task(self._keep(one)) for one in others]
        await asyncio.gather(*tasks)
        if self._was_up:
            program_log.info("stopped")
        return self._code

    def stop(self, signal_name: str) -> None:
        """Stop all gracefully."""
        program_log.info("%s: all processes finish what is under way; a second signal ends them at once", signal_name)
        self._stop_all(signal_name)

    def kill(self) -> None:
        """Kill all."""
        for one in self.processes:
            one.kill()

    async def _keep(self, one: _Process) -> None:
        """Run one process, and again when it has died."""
        deaths = 0
        while not self._stop.is_set():
            began = time.monotonic()
            code = await self._run(one)
            if self._stop.is_set():
                self._note_end(one, code)
                return
            if self._must_end(one, code):
                return
            deaths = 1 if time.monotonic() - began > _HEALTHY_AFTER else deaths + 1
            delay = to_restart_delay(deaths)
            fields = {"code": code, "seconds": delay, "deaths": deaths}
            text = "process %s %s, and nobody had asked it to; it is started again in %gs"
            program_log.error(text, one.name, _describe_end(code), delay, extra=fields)
            await self._wait_for(self._stop, timeout=delay)

    async def _run(self, one: _Process) -> int:
        """Run a process to its end. One that the system refuses to start counts as failed."""
        try:
            return await one.run()
        except OSError as error:
            program_log.error("process %s cannot be started: %s", one.name, error)
            return 1

    def _must_end(self, one: _Process, code: int) -> bool:
        """End the whole program if another start of this process would not help."""
        if one.has_started.is_set() or (self._was_up and code not in _UNMENDED):
            return False
        self._code = to_exit_code(code) or 1
        # The line before is its own sentence, which says what to fix. One that was killed has said nothing.
        if self._was_up:
            program_log.error("process %s %s: all others are stopped", one.name, _describe_end(code))
        elif code <= 0:
            program_log.error("process %s %s before it had started", one.name, _describe_end(code))
        self._stop_all(f"process {one.name} cannot be started")
        return True

    def _note_end(self, one: _Process, code: int) -> None:
        """Remember the exit code of a process that was told to stop."""
        is_early = not one.has_started.is_set() and code in (-signal.SIGTERM, -signal.SIGINT)
        if code and not is_early:
            program_log.error("process %s %s", one.name, _describe_end(code))
            self._code = self._code or to_exit_code(code)

    def _stop_all(self, reason: str) -> None:
        self._stop.set()
        for one in self.processes:
            one.stop(reason)

    async def _wait_for(self, event: asyncio.Event, *, timeout: float | None = None) -> None:
        """Wait until the event or a stop has come, and no longer than that."""
        waits = [asyncio.create_task(one.wait()) for one in {event, self._stop}]
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


def _describe_end(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    known = {one.value: one.name for one in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"


# --- probes and metrics of all ---


class _ProbeBody(msgspec.Struct):
    status: str
    reasons: Sequence[str] = ()
    notes: Sequence[str] = ()


class _ProcessProbes:
    """Probes and metrics of all processes, for a server that runs in another loop than the supervisor."""

    def __init__(self, supervisor: Supervisor, loop: asyncio.AbstractEventLoop) -> None:
        self._processes = supervisor.processes
        self._loop = loop

    async def close(self) -> None:
        """Do nothing: the processes close what is theirs."""

    async def status(self) -> None:
        """Return nothing: a process reads the tables."""

    async def check_liveness(self) -> ProbeResult:
        """Fail if a process fails that has started. One that has died is started again without help."""
        return await self._check("livez", while_starting=lambda state: ProbeResult(True, notes=[state]))

    async def check_readiness(self) -> ProbeResult:
        """Succeed when every process is ready."""
        return await self._check("readyz", while_starting=lambda state: ProbeResult(False, [state]))

    async def render_metrics(self) -> Response:
        """Write one page: the figures of the tables from one process, the counters from each, and which ones run."""
        running = [one.pid is not None and one.has_started.is_set() for one in self._processes]
        reader = running.index(True) if any(running) else 0
        pages = ["metrics" if place == reader else "counters" for place in range(len(running))]
        answers = [answer for answer in (await self._ask(pages)).values() if answer is not None]
        if not answers:
            return 503, "text/plain; charset=utf-8", b"No process answers."
        for answer in answers:
            if answer.status != 200:  # without the client library there is no page
                return answer.status, answer.content_type, answer.body
        text = merge_metrics([*(answer.body.decode() for answer in answers), self._render_own()])
        return 200, answers[0].content_type, text.encode()

    def _render_own(self) -> str:
        up, restarts = names.PROCESS_UP, f"{names.PROCESS_RESTARTS}_total"
        return "\n".join(
            [
                f"# HELP {up} 1 while this process of the relay runs.",
                f"# TYPE {up} gauge",
                *(f'{up}{{process="{one.number}"}} {int(one.pid is not None)}' for one in self._processes),
                f"# HELP {restarts} Times that this process of the relay was started again.",
                f"# TYPE {restarts} counter",
                *(f'{restarts}{{process="{one.number}"}} {max(one.starts - 1, 0)}' for one in self._processes),
            ]
        )

    async def _check(self, page: str, *, while_starting: Callable[[str], ProbeResult]) -> ProbeResult:
        """Ask all processes for their probe. `while_starting` is the result of one that cannot answer yet."""
        results = {}
        for one, answer in (await self._ask([page] * len(self._processes))).items():
            if answer is not None:
                body = msgspec.json.decode(answer.body, type=_ProbeBody)
                results[one.name] = ProbeResult(body.status == "ok", body.reasons, body.notes)
            elif one.pid is None:
                results[one.name] = while_starting("it has ended and is started again")
            elif not one.has_started.is_set():
                results[one.name] = while_starting("it is starting")
            else:
                results[one.name] = ProbeResult(False, [f"it did not answer within {_ANSWER_TIMEOUT:g} s"])
        return merge_probes(results)

    async def _ask(self, pages: Sequence[str]) -> dict[_Process, Answer | None]:
        """Ask each process for its page, all at once, in the loop of the supervisor."""

        async def ask() -> list[Answer | None]:
            return await asyncio.gather(*(one.ask(page) for one, page in zip(self._processes, pages, strict=True)))

        answers = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(), self._loop))
        return dict(zip(self._processes, answers, strict=True))
