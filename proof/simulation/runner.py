"""Many seeds, and every broken variant, spread over the cores."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from proof.simulation.checker import Breach
from proof.simulation.variants import VARIANTS
from proof.simulation.world import simulate

__all__ = ["Catch", "Total", "caught", "run_seeds", "run_variants"]

_CHUNK: Final = 20
T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class Total:
    """What a range of seeds came to."""

    seeds: int = 0
    messages: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    """Of processor time, over all cores."""
    elapsed: float = 0.0
    """Seconds on the clock."""
    simulated: float = 0.0
    """Seconds of virtual time."""
    breaches: Counter[str] = field(default_factory=Counter)
    faulty: list[tuple[int, str]] = field(default_factory=list)
    """Seed, and the first promise that it broke."""

    def add(self, other: Total) -> None:
        self.seeds += other.seeds
        self.messages += other.messages
        self.duplicates += other.duplicates
        self.seconds += other.seconds
        self.simulated += other.simulated
        self.breaches += other.breaches
        self.faulty += other.faulty

    def count(self, breach: Breach) -> int:
        return self.breaches[breach.value]


@dataclass(frozen=True, slots=True)
class Catch:
    """How a broken variant was found out."""

    variant: str
    wrong: str
    seed: int | None
    """None: it was not."""
    fault: str = ""


def run_seeds(seeds: Sequence[int], *, progress: Callable[[int], None], workers: int | None = None) -> Total:
    """Run them all; `progress` is told how many are done."""
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    total, began = Total(), time.monotonic()
    for part in _spread(_run_chunk, chunks, workers=workers):
        total.add(part)
        progress(total.seeds)
    total.elapsed = time.monotonic() - began
    return total


def run_variants(names: Sequence[str], *, limit: int, workers: int | None = None) -> Iterator[Catch]:
    """Try each broken variant on seed after seed, until one catches it or the limit is reached."""
    yield from _spread(_catch, [(name, limit) for name in names], workers=workers)


def caught(name: str, seeds: Iterable[int]) -> Catch:
    """The first of these seeds that catches a variant."""
    variant = VARIANTS[name]
    with variant.switched_in():
        for seed in seeds:
            if faults := simulate(seed).faults:
                return Catch(name, variant.wrong, seed, str(faults[0]))
    return Catch(name, variant.wrong, None)


def _catch(task: tuple[str, int]) -> Catch:
    name, limit = task
    return caught(name, range(limit))


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
            total.breaches.update(fault.breach.value for fault in result.faults)
            if result.faults:
                total.faulty.append((seed, str(result.faults[0])))
    finally:
        gc.enable()
    total.seconds = time.process_time() - began
    return total


def _spread(work: Callable[[T], R], tasks: Iterable[T], *, workers: int | None) -> Iterator[R]:
    count = workers or os.cpu_count() or 1
    if count == 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(count) as pool:
        yield from pool.map(work, tasks)
