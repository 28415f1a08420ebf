"""Archive in files: whole, on disk, and before anything is deleted."""

from __future__ import annotations

import gzip
import json
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import FailedOutcome, Selection, Settlement
from pillarbox.errors import ArchiveError, StoreUnavailable
from pillarbox.message import Message, State, Waits
from pillarbox.relay.archive import JsonLinesArchive, read_archive
from pillarbox.relay.janitor import Janitor
from pillarbox.relay.settings import Retention
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry
from pillarbox.testing.samples import sample
from tests.support.lanes.destination_bench import build_state, grant, put


def closed(number: int, *, day: int = 17, payload: bytes = b"{}") -> Message:
    at = datetime(2026, 11, day, 23, 59, tzinfo=UTC)
    return msgspec.structs.replace(sample(), id=number, payload=payload, status_at=at, state=State.DELIVERED)


def list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


async def test_each_day_has_its_files_with_a_line_for_each_message(tmp_path: Path) -> None:
    messages = [closed(1), closed(2), closed(3, day=18, payload=b"\xff\x00")]
    await JsonLinesArchive(tmp_path / "archive")(messages)
    files = list_files(tmp_path)
    assert [path.parent.name for path in files] == ["2026-11-17", "2026-11-18"]
    lines = gzip.decompress(files[0].read_bytes()).splitlines()
    assert [json.loads(line)["id"] for line in lines] == [1, 2]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert list(read_archive(tmp_path / "archive")) == messages


async def test_nobody_else_reads_the_folders_of_an_archive(tmp_path: Path) -> None:
    await JsonLinesArchive(tmp_path / "tenants" / "archive")([closed(1)])
    folders = [path for path in (tmp_path / "tenants" / "archive").rglob("*") if path.is_dir()]
    assert [path.stat().st_mode & 0o777 for path in folders] == [0o700]


async def test_a_message_of_two_destinations_is_read_from_the_archive_of_both(tmp_path: Path) -> None:
    """What was archived twice, after a crash, is read once."""
    message = closed(1)
    both = [message, msgspec.structs.replace(message, id=2, destination="billing")]
    for _ in range(2):
        await JsonLinesArchive(tmp_path)(both)
    assert list(read_archive(tmp_path)) == both


async def test_a_file_is_flushed_to_disk_before_it_has_its_name_and_its_folder_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the archive took is deleted next: a crash of the machine must not lose it."""
    flushed: list[tuple[str, bool]] = []
    flush = os.fsync

    def note(descriptor: int) -> None:
        flush(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        flushed.append(("folder" if os.path.isdir(path) else Path(path).suffix, bool(list(tmp_path.rglob("*.gz")))))

    monkeypatch.setattr(os, "fsync", note)
    await JsonLinesArchive(tmp_path / "archive")([closed(1)])
    assert flushed == [(".partial", False), ("folder", True), ("folder", True)]


@contextmanager
def small_disk(room: int) -> Iterator[None]:
    """No file can become larger, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Shop:
    """A store with three delivered messages, and a janitor that keeps none."""

    def __init__(self, folder: Path, store: MemoryStore) -> None:
        self.store = store
        retention = Retention(delivered=timedelta(0), archive=str(folder))
        self.janitor = Janitor(store, retention=retention, telemetry=Telemetry())

    @classmethod
    async def open(cls, folder: Path, store: MemoryStore, clock: FrozenClock) -> Shop:
        put(store, "a", "b", "c")
        state = build_state(store, clock)
        await grant(state, 0)
        await store.settle(state.fence([0]), Settlement(delivered=[1, 2, 3]))
        clock.advance(timedelta(seconds=1))
        return cls(folder, store)

    async def find(self) -> Sequence[Message]:
        return await self.store.find(Selection(states=[State.DELIVERED]), limit=10)


async def test_what_is_deleted_is_in_the_archive(tmp_path: Path) -> None:
    clock = FrozenClock()
    shop = await Shop.open(tmp_path, MemoryStore(clock=clock), clock)
    before = await shop.find()
    assert await shop.janitor.run_once() == 3
    assert list(read_archive(tmp_path)) == before
    assert await shop.find() == []


@pytest.mark.parametrize("trouble", ["full disk", "no folder"])
async def test_nothing_is_deleted_that_the_archive_did_not_take(tmp_path: Path, trouble: str) -> None:
    clock, folder = FrozenClock(), tmp_path / "archive"
    shop = await Shop.open(folder, MemoryStore(clock=clock), clock)
    if trouble == "no folder":
        folder.write_text("a file")
        with pytest.raises(ArchiveError, match="cannot be written"):
            await shop.janitor.run_once()
        folder.unlink()
    else:
        with small_disk(10), pytest.raises(ArchiveError, match="cannot be written"):
            await shop.janitor.run_once()
        assert list_files(tmp_path) == [], "half a file is none"
    assert len(await shop.find()) == 3
    assert await shop.janitor.run_once() == 3, "when the trouble is over it goes on"
    assert len(list(read_archive(folder))) == 3


class Interrupted(MemoryStore):
    """Ends after the archive has taken the messages and before they are deleted, once."""

    is_interrupted = False

    async def purge_archived(self, messages: Sequence[Message]) -> int:
        if not self.is_interrupted:
            self.is_interrupted = True
            raise StoreUnavailable("the process died")
        return await super().purge_archived(messages)


async def test_what_is_archived_twice_is_read_once(tmp_path: Path) -> None:
    clock = FrozenClock()
    shop = await Shop.open(tmp_path, Interrupted(clock=clock), clock)
    with pytest.raises(StoreUnavailable):
        await shop.janitor.run_once()
    assert len(await shop.find()) == 3
    await shop.janitor.run_once()
    assert len(list_files(tmp_path)) == 2
    assert sorted(message.id for message in read_archive(tmp_path)) == [1, 2, 3]


async def test_a_callable_comes_before_the_folder(tmp_path: Path) -> None:
    clock = FrozenClock()
    taken: list[int] = []

    async def take(messages: Sequence[Message]) -> None:
        taken.extend(message.id for message in messages)

    shop = await Shop.open(tmp_path, MemoryStore(clock=clock), clock)
    retention = Retention(delivered=timedelta(0), archive=str(tmp_path))
    await Janitor(shop.store, retention=retention, telemetry=Telemetry(), archive=take).run_once()
    assert (sorted(taken), list_files(tmp_path)) == ([1, 2, 3], [])


class Searched(MemoryStore):
    """Notes after which id each search begins."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.begins: list[int] = []

    async def find(self, selection: Selection, **options: Any) -> Sequence[Message]:
        self.begins.append(selection.after)
        return await super().find(selection, **options)


async def test_a_batch_begins_where_the_last_one_ended_and_the_last_of_all_at_the_front() -> None:
    clock = FrozenClock()
    store = Searched(clock)
    put(store, "a", "b", "c")
    state = build_state(store, clock)
    await grant(state, 0)
    await store.settle(state.fence([0]), Settlement(delivered=[2, 3]))
    clock.advance(timedelta(minutes=1, seconds=1))
    await store.settle(state.fence([0]), Settlement(delivered=[1]))
    taken: list[int] = []

    async def take(messages: Sequence[Message]) -> None:
        taken.extend(message.id for message in messages)
        if taken == [2, 3]:
            clock.advance(timedelta(minutes=1, seconds=1))

    retention = Retention(delivered=timedelta(minutes=1), batch=1)
    assert await Janitor(store, retention=retention, telemetry=Telemetry(), archive=take).run_once() == 3
    assert taken == [2, 3, 1]
    assert [begin for begin in store.begins if begin] == [2, 3, 1]


async def test_a_held_message_is_open_and_neither_archived_nor_in_the_way(tmp_path: Path) -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, "a", "b", "c")
    state = build_state(store, clock)
    await grant(state, 0)
    failures = [
        FailedOutcome(message_id=1, state=State.PENDING, waits=Waits.HELD),
        FailedOutcome(message_id=2, state=State.PENDING, waits=Waits.HELD),
        FailedOutcome(message_id=3, state=State.FAILED),
    ]
    await store.settle(state.fence([0]), Settlement(failures=failures))
    clock.advance(timedelta(seconds=1))
    retention = Retention(failed=timedelta(0), archive=str(tmp_path), batch=1)
    assert await Janitor(store, retention=retention, telemetry=Telemetry()).run_once() == 1
    assert [message.id for message in read_archive(tmp_path)] == [3]
    assert len(await store.find(Selection(states=[State.FAILED]), limit=10)) == 2


async def test_a_message_that_failed_again_while_the_archive_was_written_is_kept(tmp_path: Path) -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, "a", "b", "c")
    state = build_state(store, clock)
    await grant(state, 0)
    failed = [FailedOutcome(message_id=number, state=State.FAILED) for number in (1, 2, 3)]
    await store.settle(state.fence([0]), Settlement(failures=failed))
    clock.advance(timedelta(minutes=1))
    batches: list[list[int]] = []

    async def take(messages: Sequence[Message]) -> None:
        batches.append([message.id for message in messages])
        if len(batches) == 1:
            await store.redrive(Selection(ids=[1, 2]), by="ann", limit=10)
            await store.settle(state.fence([0]), Settlement(failures=failed[:1]))

    retention = Retention(failed=timedelta(seconds=1), batch=2)
    janitor = Janitor(store, retention=retention, telemetry=Telemetry(), archive=take)
    assert await janitor.run_once() == 1, "a batch of which nothing was deleted does not end the run"
    assert batches == [[1, 2], [3]]
    states = {message.id: message.state for message in await store.find(Selection(), limit=10)}
    assert states == {1: State.FAILED, 2: State.PENDING}
