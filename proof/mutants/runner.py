"""Tries each break in a copy of the project: its tests must pass without it, and one of them must fail with it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec

from proof.mutants.breaks import Break, Unfit

__all__ = ["ProjectCopy", "Result", "Verdict", "judge", "judge_untested", "run_breaks"]

_LEFT_OUT: Final = (
    ".git", ".venv*", ".servers", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache",
    "__pycache__", "dist", "build",
)  # fmt: skip
_TEST_SECONDS: Final = 60
"""A test that takes longer fails: a break may make it wait for ever."""
_SECONDS: Final = 400.0
"""The tests of one break are ended after this time."""
_OPTIONS: Final = (
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "--tb=short",
    "--hypothesis-seed=0",
    f"--timeout={_TEST_SECONDS}",
)


class Verdict(StrEnum):
    """What came of one break."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    """It survived, and nobody could notice it."""
    INVALID = "invalid"
    """It says nothing: the break does not fit, its tests could not be run, or they fail without it."""
    HUNG = "hung"
    """The tests came to no end, and did not notice that themselves."""


class Result(msgspec.Struct, frozen=True):
    """Verdict about one break, and what the tests said."""

    mutant: Break
    verdict: Verdict
    detail: str = ""
    """The test that noticed it, or why it is invalid."""
    seconds: float = 0.0
    timed_out: bool = False
    """It was noticed only because a test took too long."""
    output: str = ""


class _TestRun(msgspec.Struct, frozen=True):
    """One call of pytest. The code is None if it had to be ended."""

    code: int | None
    output: str

    @property
    def has_passed(self) -> bool:
        """All tests passed, and some ran."""
        return self.code == 0 and re.search(r"\b[1-9]\d* passed", self.output) is not None

    @property
    def failed_test(self) -> str:
        """The first test that failed, with its error."""
        # The output has log lines too, and they may begin with ERROR.
        found = re.search(r"^(?:FAILED|ERROR) (\S+\.py\b.*)$", self.output, re.MULTILINE)
        return found[1] if found else ""


class ProjectCopy:
    """Copy of the project with an environment of its own, in which `import pillarbox` and every script use the copy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._changes = 0

    @classmethod
    def create(cls, root: Path, folder: Path) -> ProjectCopy:
        """Copy the project at `root` into a new folder."""
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        _create_environment(folder)
        return cls(folder)

    @contextmanager
    def change(self, file: str, text: str) -> Iterator[None]:
        """Give a file another content for the length of the block."""
        path = self.folder / file
        before, stat = path.read_bytes(), path.stat()
        path.write_text(text, encoding="utf-8")
        # Python trusts a compiled file by size and time in seconds: no two contents may have the same time.
        self._changes += 1
        os.utime(path, (stat.st_atime, stat.st_mtime + self._changes))
        try:
            yield
        finally:
            path.write_bytes(before)
            os.utime(path, (stat.st_atime, stat.st_mtime))

    def run_tests(self, arguments: Sequence[str], *, seconds: float = _SECONDS) -> _TestRun:
        """Run tests until the first that fails."""
        # Compiled files are kept, whatever the caller has set: most of a short run is compiling.
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        command = [str(self.folder / ".venv" / "bin" / "python"), "-m", "pytest", *_OPTIONS, *arguments]
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True, env=environ,
            )  # fmt: skip
            try:
                code: int | None = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # it leads a group, with all that the tests started
                    process.wait()
            output.seek(0)
            return _TestRun(code, output.read())


def run_breaks(
    breaks: Sequence[Break],
    root: Path,
    *,
    jobs: int,
    on_result: Callable[[Result], None] = lambda _: None,
    seconds: float = _SECONDS,
) -> list[Result]:
    """Try every break, several at a time; return the results in the order of the breaks."""
    if not breaks:
        return []
    with tempfile.TemporaryDirectory(prefix="pillarbox-mutants-") as place, ExitStack() as stack:
        copies: SimpleQueue[ProjectCopy] = SimpleQueue()
        for number in range(min(jobs, len(breaks))):
            copies.put(ProjectCopy.create(root, Path(place) / f"copy{number}"))
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=max(1, min(jobs, len(breaks)))))
        baselines = _Baselines(seconds=seconds)

        def run(one: Break) -> Result:
            copy = copies.get()
            try:
                result = _run_break(one, copy, baselines, seconds=seconds)
            finally:
                copies.put(copy)
            on_result(result)
            return result

        # Breaks with the same tests are far apart, so that they do not wait for the same run without a break.
        return list(pool.map(run, breaks))


class _Baselines:
    """Runs of tests without a break, one for each set of tests."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, ...], Future[_TestRun]] = {}

    def get(self, arguments: tuple[str, ...], copy: ProjectCopy) -> _TestRun:
        """Return the run of these tests; run them in that copy if nobody did yet."""
        with self._lock:
            is_mine = arguments not in self._runs
            run = self._runs.setdefault(arguments, Future())
        if is_mine:
            try:
                run.set_result(copy.run_tests(arguments, seconds=self._seconds))
            except BaseException as error:
                run.set_exception(error)
        return run.result()


def _run_break(one: Break, copy: ProjectCopy, baselines: _Baselines, *, seconds: float) -> Result:
    try:
        text = one.apply((copy.folder / one.file).read_text(encoding="utf-8"))
    except (OSError, Unfit) as fault:
        return Result(one, Verdict.INVALID, str(fault))
    if not one.drawn and (unfit := _find_fault(one, baselines.get(one.arguments, copy))):
        return unfit
    started = time.monotonic()
    with copy.change(one.file, text):
        run = copy.run_tests(one.arguments, seconds=seconds)
    result = judge(one, run.code, run.output, seconds=time.monotonic() - started)
    if one.drawn and result.verdict is Verdict.CAUGHT:
        # Each draw has tests that no other has: only the one that failed is run without the break.
        failed = result.detail.partition(" - ")[0]
        again = copy.run_tests([failed], seconds=seconds)
        return _find_fault(one, again) or result
    return result


def _find_fault(one: Break, baseline: _TestRun) -> Result | None:
    """Return a result that says nothing, if the tests do not pass without the break."""
    if baseline.has_passed:
        return None
    detail = f"its tests do not pass without it: {_summarize(baseline)}"
    return Result(one, Verdict.INVALID, detail, output=baseline.output)


def judge(one: Break, code: int | None, output: str, *, seconds: float) -> Result:
    """Judge a break by what pytest returned and printed. The code is None if it had to be ended."""
    run = _TestRun(code, output)
    verdict, detail = Verdict.INVALID, _summarize(run)
    if run.code is None:
        verdict, detail = Verdict.HUNG, "the tests came to no end"
    elif run.code == 1 and run.failed_test:
        verdict, detail = Verdict.CAUGHT, run.failed_test
    elif run.has_passed:
        verdict, detail = (Verdict.EQUIVALENT, one.equivalent) if one.equivalent else (Verdict.SURVIVED, one.survives)
    timed_out = verdict is Verdict.CAUGHT and "Timeout" in run.output
    return Result(one, verdict, detail, seconds=seconds, timed_out=timed_out, output=run.output)


def judge_untested(one: Break) -> Result:
    """Judge a break whose line no test runs."""
    if one.equivalent:
        return Result(one, Verdict.EQUIVALENT, one.equivalent)
    return Result(one, Verdict.SURVIVED, one.survives or "no test runs this line")


def _summarize(run: _TestRun) -> str:
    """Return why a run says nothing: it could not be collected, or what failed."""
    lines = [line for line in run.output.splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith(("E  ", "ERROR"))]
    return run.failed_test or (reasons or lines or ["no output"])[-1].strip()


def _create_environment(folder: Path) -> None:
    """Make an environment that uses the packages of this one, and the code of the copy before all others.

    A variable would not do: programs that tests start get an environment of their own.
    """
    home = Path(sys.prefix)
    packages = Path(sysconfig.get_path("purelib"))
    environment = folder / ".venv"
    own = environment / packages.relative_to(home)
    own.mkdir(parents=True)
    (own / "copy.pth").write_text(
        f"{folder / 'src'}\nimport site; site.addsitedir({str(packages)!r})\n", encoding="utf-8"
    )
    shutil.copy(home / "pyvenv.cfg", environment)
    bin_folder = environment / "bin"
    bin_folder.mkdir()
    first_line = f"#!{home / 'bin' / 'python'}".encode()
    for script in (home / "bin").iterdir():
        if not script.is_file():
            continue
        head = script.read_bytes()[:400]
        if script.name.startswith("python"):
            (bin_folder / script.name).symlink_to(script.readlink() if script.is_symlink() else script)
        elif head.startswith(first_line):
            text = script.read_bytes().replace(str(home).encode(), str(environment).encode(), 1)
            (bin_folder / script.name).write_bytes(text)
            (bin_folder / script.name).chmod(0o755)
        else:
            (bin_folder / script.name).symlink_to(script)
