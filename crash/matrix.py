"""All points on all stores, one after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from crash.backends import BACKENDS, MakePlace, Place
from crash.plays import Result, play
from crash.points import Point
from crash.processes import Consumer, Nursery
from crash.scene import Scene
from crash.stories import STORIES, Story

__all__ = ["Run", "Setting", "run_all", "runs", "setting"]


class Run(msgspec.Struct, frozen=True):
    """One point, on one store, at one occurrence; if none is named, at the first one of its story."""

    point: Point
    store: str
    occurrence: int = 0

    @property
    def nth(self) -> int:
        return self.occurrence or STORIES[self.point].nths[0]

    @property
    def name(self) -> str:
        return f"{self.store}-{self.point.title}-{self.nth}"


class Setting(msgspec.Struct, frozen=True):
    """What all runs share: the consumer, and where the programs come from."""

    folder: Path
    consumer: Consumer
    nursery: Nursery

    def scene(self, point: Point, story: Story, *, backend: str, place: Place, name: str) -> Scene:
        """For one run of a story. No two share a name."""
        folder = self.folder / name
        folder.mkdir()
        return Scene(
            point, story, backend=backend, place=place, folder=folder, consumer=self.consumer, nursery=self.nursery
        )

    def played(self, run: Run, make: MakePlace) -> Result:
        """One run, in a place of its own."""
        folder = self.folder / f"{run.name}.store"
        folder.mkdir()
        story = STORIES[run.point]
        with make(folder) as place, self.scene(
            run.point, story, backend=run.store, place=place, name=run.name
        ) as scene:  # fmt: skip
            return play(scene, nth=run.nth)


def runs(points: Sequence[Point], store: str) -> list[Run]:
    """Every occurrence at which these points are tried."""
    return [Run(point, store, nth) for point in points for nth in STORIES[point].nths]


@contextmanager
def setting(folder: Path) -> Iterator[Setting]:
    """Consumer and nursery, ended afterwards."""
    with Consumer(folder) as consumer, Nursery(folder) as nursery:
        yield Setting(folder, consumer, nursery)


def run_all(points: Sequence[Point], stores: Sequence[str], *, told: Callable[[Result], None]) -> list[Result]:
    """The matrix. Tells of each result as it comes. `Unserved` before the first, if a store cannot be had."""
    results = []
    with ExitStack() as stack:
        makes = {store: stack.enter_context(BACKENDS[store].served()) for store in stores}
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pillarbox-crash-"))
        shared = stack.enter_context(setting(Path(folder)))
        for run in (run for store in stores for run in runs(points, store)):
            results.append(shared.played(run, makes[run.store]))
            told(results[-1])
    return results
