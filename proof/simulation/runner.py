"""Runs many seeds, and every broken variant, on all cores."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from proof.simulation.checker import Promise
from proof.simulation.variants import VARIANTS
from proof.simulation.world import simulate

__all__ = ["Catch", "Total", "catch_variant", "run_seeds", "run_variants"]

_CHUNK: Final = 20
T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class Total:
    """The results of a range of seeds."""

    seeds: int = 0
    messages: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    """Processor seconds, over all cores."""
    elapsed: float = 0.0
    """Seconds on the clock."""
    simulated: float = 0.0
    """Seconds of virtual time."""
    violations: Counter[str] = field(default_factory=Counter)
    broken_seeds: list[tuple[int, str]] = field(default_factory=list)
    """Each broken seed, and the first promise that it broke."""

    def add(self, other: Total) -> None:
        self.seeds += other.seeds
        self.messages += other.messages
        self.duplicates += other.duplicates
        self.seconds += other.seconds
        self.simulated += other.simulated
        self.violations += other.violations
        self.broken_seeds += other.broken_seeds

    def count(self, promise: Promise) -> int:
        return self.violations[promise.value]


@dataclass(frozen=True, slots=True)
class Catch:
    """The seed that caught a broken variant."""

    variant: str
    description: str
    seed: int | None
    """None: no seed did."""
    violation: str = ""


def run_seeds(seeds: Sequence[int], *, progress: Callable[[int], None], workers: int | None = None) -> Total:
    """Run all seeds; `progress` is called with how many are done."""
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    total, began = Total(), time.monotonic()
    for part in _run_parallel(_run_chunk, chunks, workers=workers):
        total.add(part)
        progress(total.seeds)
    total.elapsed = time.monotonic() - began
    return total


def run_variants(names: Sequence[str], *, limit: int, workers: int | None = None) -> Iterator[Catch]:
    """Try each broken variant on seed after seed, until one catches it or the limit is reached."""
    yield from _run_parallel(_catch, [(name, limit) for name in names], workers=workers)


def catch_variant(name: str, seeds: Iterable[int]) -> Catch:
    """Find the first of these seeds that catches a variant: it shows a breach which the variant must show."""
    variant = VARIANTS[name]
    with variant.apply():
        for seed in seeds:
            if (breach := variant.find_breach(simulate(seed).violations)) is not None:
                return Catch(name, variant.description, seed, str(breach))
    return Catch(name, variant.description, None)


def _catch(task: tuple[str, int]) -> Catch:
    name, limit = task
    return catch_variant(name, range(limit))


def _run_chunk(seeds: Sequence[int]) -> Total:
    total, began = Total(), time.process_time()
    gc.disable()
    try:
        for seed in seeds:
            result = simulate(seed)
            total.seeds += 1
            total.messages += result.messages
            total.duplicates += result.duplicates
            total.simulated += result.seconds
            total.violations.update(violation.promise.value for violation in result.violations)
            if result.violations:
                total.broken_seeds.append((seed, str(result.violations[0])))
    finally:
        gc.enable()
    total.seconds = time.process_time() - began
    return total


def _run_parallel(work: Callable[[T], R], tasks: Iterable[T], *, workers: int | None) -> Iterator[R]:
    count = workers or os.cpu_count() or 1
    if count == 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(count) as pool:
        yield from pool.map(work, tasks)
