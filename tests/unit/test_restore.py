"""Restore of an archive: line by line, harmless to repeat, and nothing of a damaged file stops its neighbours."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Selection
from pillarbox.errors import ArchiveError, StoreRefused
from pillarbox.message import Message, State
from pillarbox.operations import JsonLinesArchive, restore_archive, scan_archive
from pillarbox.relay.archive import read_archive, read_lines
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample

AT = datetime(2026, 11, 17, 12, tzinfo=UTC)


def closed(number: int, *, state: State = State.DELIVERED, **more: Any) -> Message:
    return replace(sample(**more), id=number, created_at=AT, status_at=AT, state=state)


def encode(*messages: Message) -> bytes:
    return b"".join(msgspec.json.encode(message) + b"\n" for message in messages)


async def list_ids(store: MemoryStore) -> list[Any]:
    return [message.message_id for message in await store.find(Selection(), limit=10_000)]


async def test_an_archive_comes_back_once_compressed_or_not_from_files_and_folders(tmp_path: Path) -> None:
    store, messages = MemoryStore(clock=FrozenClock(AT)), [closed(1), closed(2, state=State.FAILED), closed(3)]
    await JsonLinesArchive(tmp_path / "archive")(messages[:2])
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(encode(messages[1], messages[2]).rstrip(b"\n"))
    dry = await restore_archive(store, [tmp_path / "archive", plain], by="ann", dry_run=True)
    assert (dry.restored, dry.known, await list_ids(store)) == (3, 1, [])
    result = await restore_archive(store, [tmp_path / "archive", plain], by="ann")
    assert (result.files, result.matched) == (2, {State.DELIVERED: 2, State.FAILED: 2})
    assert (result.restored, result.known, result.problems) == (3, 1, [])
    assert await list_ids(store) == [message.message_id for message in messages]
    again = await restore_archive(store, [tmp_path], by="ann")
    assert (again.restored, again.known) == (0, 4)
    notes = [line.detail for line in await store.journal() if line.destination == "*"]
    assert notes == ["3 messages of 2 files"], "once for all, and none where nothing was restored"


def spoil(message: Message, **fields: Any) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(message), **fields}) + b"\n"


SPOILED = {
    b"{\n": "no JSON",
    b"\xff\xfe\n": "no",
    b"[" * 100_000 + b"\n": "no",
    b"{}\n": "missing required field id",
    spoil(closed(1), state="pending"): "the message is pending",
    spoil(closed(1), state="lost"): "no message",
    spoil(closed(1), id=0): "0 is no id",
    spoil(closed(1), id=2**63): "no",
    spoil(closed(1), status_at=None): "a time is missing",
    spoil(closed(1), event_time="2026-11-17T12:00:00"): "no time zone",
    spoil(closed(1), partition=63): "partition",
    spoil(closed(1), destination="a b"): "destination",
    spoil(closed(1), topic=""): "topic",
    spoil(closed(1), last_error="a\0b"): "last error",
    spoil(closed(1), headers={"bad name": "x"}): "header",
    spoil(closed(1), attempts=-1): "count",
    spoil(closed(1), unreadable="unreadable row: headers"): "could not be read when it was archived",
}


@pytest.mark.parametrize(("line", "reason"), SPOILED.items(), ids=SPOILED.values())
async def test_a_bad_line_is_named_and_its_neighbours_are_restored(tmp_path: Path, line: bytes, reason: str) -> None:
    file, store = tmp_path / "a.jsonl", MemoryStore()
    before, after = closed(1), closed(2)
    file.write_bytes(encode(before) + b"\n" + line + encode(after))
    result = await restore_archive(store, [file], by="ann")
    (problem,) = result.problems
    assert (problem.file, problem.line, result.problem_count) == (str(file), 3, 1)
    assert reason in problem.reason
    assert set(await list_ids(store)) == {before.message_id, after.message_id}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "compressed"])
async def test_a_file_that_was_cut_off_is_restored_up_to_there(tmp_path: Path, pack: Any) -> None:
    messages = [closed(number, payload=b"%d" % number) for number in range(1, 200)]
    whole = pack(encode(*messages))
    file, store = tmp_path / "a.jsonl.gz", MemoryStore()
    file.write_bytes(whole[: len(whole) // 2])
    result = await restore_archive(store, [file], by="ann")
    restored = await list_ids(store)
    assert 0 < len(restored) < 199
    assert restored == [message.message_id for message in messages[: len(restored)]]
    (problem,) = result.problems
    assert (problem.line, "cut off" in problem.reason) == (len(restored) + 1, True)


async def test_a_damaged_file_is_restored_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(encode(closed(1), closed(2))))
    packed[-6] ^= 0xFF  # its checksum
    (tmp_path / "a.jsonl.gz").write_bytes(packed)
    (tmp_path / "b.jsonl").write_bytes(encode(closed(3)))
    (tmp_path / "c.jsonl").mkdir()
    store = MemoryStore()
    result = await restore_archive(store, [tmp_path], by="ann")
    assert (result.restored, result.problem_count) == (3, 2)
    assert ["cannot be read" in problem.reason for problem in result.problems] == [True, True]


def test_a_line_without_end_is_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.relay.archive._LONGEST_LINE", 2_000)
    (tmp_path / "a").write_bytes(b"x" * 9_000 + b"\n" + encode(closed(1)))
    long, good = read_lines(tmp_path / "a")
    assert "too long" in (long.problem or "")
    assert (long.number, good.number, good.problem) == (1, 2, None)


def pack_bomb(path: Path, *, size: int, line: bytes) -> None:
    """Write a small file that unpacks to so many bytes."""
    with gzip.open(path, "wb") as packed:
        for _ in range(size // len(line)):
            packed.write(line)


@pytest.mark.parametrize(
    "line", [b"0" * 1_000_000, b"0" * 999_999 + b"\n", b"\n" * 1_000_000], ids=["one", "long", "empty"]
)
def test_a_file_that_unpacks_to_a_thousand_times_its_size_is_not_read_to_its_end(
    tmp_path: Path, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.relay.archive._MOST_LINES", 100_000)  # traced, ten million take a minute
    path = tmp_path / "bomb.jsonl.gz"
    pack_bomb(path, size=80_000_000, line=line)
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    *_, last = read_lines(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "more than 100 times its size" in (last.problem or "") or "lines" in (last.problem or "")
    assert most < 3 * 64 * 1024 * 1024


async def test_a_bomb_beside_archives_is_reported_and_they_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.relay.archive._SMALL", 100_000)
    pack_bomb(tmp_path / "a.jsonl.gz", size=3_000_000, line=b"0" * 1_000)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(encode(*(closed(number) for number in range(1, 500)))))
    result = await restore_archive(MemoryStore(), [tmp_path], by="ann")
    assert (result.restored, result.problem_count) == (499, 1)
    (tmp_path / "2026-11-17").mkdir()
    (tmp_path / "a.jsonl.gz").rename(tmp_path / "2026-11-17" / "a.jsonl.gz")
    with pytest.raises(ArchiveError, match="times its size"):
        list(read_archive(tmp_path))


def test_a_file_of_too_many_lines_is_read_up_to_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.relay.archive._MOST_LINES", 3)
    (tmp_path / "a").write_bytes(encode(*(closed(number) for number in range(1, 6))))
    *good, last = read_lines(tmp_path / "a")
    assert [line.problem for line in good] == [None] * 3
    assert "more than 3 lines" in (last.problem or "")


async def test_a_batch_is_bounded_by_all_that_is_in_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.operations.restore._BATCH_BYTES", 20_000)
    messages = [replace(closed(number), last_error="x" * 15_000) for number in range(1, 7)]
    (tmp_path / "a.jsonl").write_bytes(encode(*messages))
    done: list[int] = []
    await restore_archive(MemoryStore(), [tmp_path], by="ann", on_progress=done.append)
    assert done == [2, 4, 6]


class Picky(MemoryStore):
    """Refuses a batch with certain payloads, as a database does."""

    async def restore(self, messages: Sequence[Message], *, by: str) -> int:
        if any(message.payload == b"bad" for message in messages):
            raise StoreRefused("too bad")
        return await super().restore(messages, by=by)


async def test_what_the_store_refuses_is_found_among_its_batch(tmp_path: Path) -> None:
    messages = [closed(number, payload=b"bad" if number in (3, 7) else b"{}") for number in range(1, 11)]
    (tmp_path / "a.jsonl").write_bytes(encode(*messages))
    result = await restore_archive(Picky(), [tmp_path], by="ann")
    assert (result.restored, [problem.line for problem in result.problems]) == (8, [3, 7])


async def test_filters_choose_and_more_than_a_batch_comes_back(tmp_path: Path) -> None:
    messages = [closed(number) for number in range(1, 2_002)]
    old = replace(closed(5_000), created_at=AT - timedelta(days=1))
    billing = closed(5_001, destination="billing", state=State.DISCARDED)
    (tmp_path / "a.jsonl").write_bytes(encode(*messages, old, billing))
    since, done = Selection(since=AT, destination="orders"), list[int]()
    assert scan_archive([tmp_path], selection=since).matched == {State.DELIVERED: 2_001}
    store = MemoryStore()
    for selection, count in (
        (Selection(message_ids=[old.message_id]), 1),
        (Selection(until=AT), 0),  # that is the same message
        (Selection(states=[State.DISCARDED]), 1),
        (since, 2_001),
    ):
        result = await restore_archive(store, [tmp_path], by="ann", selection=selection, on_progress=done.append)
        assert result.restored == count
    assert done[-3:] == [1_000, 2_000, 2_001]
