"""Results of earlier runs: a break is not tried again while its file and its tests are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from proof.mutants.breaks import Break, list_test_files
from proof.mutants.runner import Result, Verdict

__all__ = ["KnownResults"]

_KEPT: Final = (Verdict.CAUGHT, Verdict.SURVIVED, Verdict.EQUIVALENT)
"""A hang, or tests that could not be run, may be the machine's fault."""


class _Line(msgspec.Struct, frozen=True):
    fingerprint: str
    verdict: Verdict
    detail: str
    seconds: float
    timed_out: bool


class KnownResults:
    """Results in a file, a line each. Only a run without them is a proof: all else may have changed since."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file = file
        self._root = root
        lines = file.read_bytes().splitlines() if file.exists() else []
        decode = msgspec.json.Decoder(_Line).decode
        self._lines = {line.fingerprint: line for line in map(decode, lines)}

    def find(self, one: Break) -> Result | None:
        """Return the result of a break that was tried with this very file and these very tests."""
        line = self._lines.get(self._compute_fingerprint(one))
        if line is None:
            return None
        return Result(one, line.verdict, line.detail, seconds=line.seconds, timed_out=line.timed_out)

    def add(self, result: Result) -> None:
        """Keep a result."""
        if result.verdict in _KEPT:
            key = self._compute_fingerprint(result.mutant)
            line = _Line(key, result.verdict, result.detail, result.seconds, result.timed_out)
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")

    def _compute_fingerprint(self, one: Break) -> str:
        digest = hashlib.sha256(msgspec.json.encode(one))
        for path in self._list_files(one):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def _list_files(self, one: Break) -> Iterator[Path]:
        files: Iterable[Path] = [self._root / one.file, *list_test_files(self._root, one)]
        return (path for path in files if path.exists())
