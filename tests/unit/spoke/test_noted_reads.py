"""READs of a stream that are only noted: whoever counts or learns is told of all of them, in fewer calls and as if of each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange
from spoke.ahead import Ahead
from spoke.last_job import LastJob
from spoke.metrics import Counts
from spoke.prefetch.planner import FileFacts, Planner
from spoke.prefetch.source import ReadSeen
from spoke.prefetch.succession import OrderRecorder
from spoke.reads import Handle, ReadResult

MIB = 1 << 20
READ = 128 * 1024
SIZE = 1 << 30
VERSION = b"v" * 16


class Stub:
    """What stands around an Ahead: a link, a fetcher whose fetches are there at once, a clock that READs move at 1 GB/s."""

    rate_bytes_per_s, rtt_s, up, is_short = 1.25e9, 0.06, (True,), False
    is_behind = False
    prefetch_bytes, write_backlog_bytes, held_bytes, prefetch_outstanding_bytes = 256 * MIB, 0, 0, 0

    def __init__(self, tmp_path: Path) -> None:
        self.now_s = 0.0
        self.memory = self.links = self
        self.planner = Planner(recorder=OrderRecorder(16 * MIB))
        self.counts = Counts()
        self.ahead = Ahead(self.planner, self.counts, lambda: self.now_s, None)
        self.ahead.attach(self, self)  # type: ignore[arg-type]
        self.last_job = self.ahead.last_job = LastJob(tmp_path / "job.json", 16 * MIB, lambda: self.now_s)
        self.there = 0
        self.clock_looks = 0

    def prefetch_room_bytes(self, _held_bytes: int) -> int:
        return self.prefetch_bytes

    def prefetch(self, version: bytes, _size: int, blocks: BlockRange, _why: int, *, to_keep: bool) -> int:
        assert blocks.first_block * BLOCK_BYTES <= max(READ, self.there), "a stream is planned in its order"
        self.there = max(self.there, blocks.end_block * BLOCK_BYTES)
        self.planner.arrived(self.now_s, version, blocks)
        return blocks.block_count * BLOCK_BYTES

    def step(self) -> None:
        """The steps of the loop until nothing is left to ask for."""
        self.ahead._pump()
        while self.ahead._planned:
            self.ahead._ask_more()

    def read(self, handle: Handle, offset_bytes: int) -> bool:
        """Returns whether it was a hit."""
        self.now_s += READ / 1e9
        is_hit = offset_bytes + READ <= self.there
        self.ahead.read(handle, 1, offset_bytes, READ, "hit" if is_hit else "late")
        return is_hit


def stepping(run: Any, *arguments: Any) -> Any:
    """With an event loop, whose steps are taken as they come up: it plans a little at a time."""

    async def main() -> Any:
        return run(*arguments)

    return asyncio.run(main())


@pytest.mark.parametrize("handles", [1, 3])
def test_all_that_was_read_is_counted_recorded_and_noted(tmp_path: Path, handles: int) -> None:
    def run() -> None:
        stub, heard, hits = Stub(tmp_path), [0], 0
        opened = [Handle(number, b"f", VERSION, SIZE) for number in range(handles)]
        for handle in opened:
            stub.ahead.opened(handle, 1)
        learn = stub.planner._learn

        def counted(*arguments: Any) -> None:
            heard[0] += 1
            learn(*arguments)

        stub.planner._learn = counted  # type: ignore[method-assign]
        reads = 512 * MIB // READ
        for number in range(reads):
            handle = opened[number * READ // (4 * MIB) % handles]
            hits += stub.read(handle, number * READ)
            stub.step()
            assert stub.counts.hits == hits, "whenever somebody asks"
            assert stub.counts.cache_read_bytes == hits * READ
        assert stub.there > 512 * MIB, "its window is ahead of it all the time"
        assert stub.counts.served == reads
        assert heard[0] < reads // 16, "most of them before its rate is known"
        stub.ahead.settle()
        assert stub.planner.scorecard.read_bytes == 512 * MIB
        assert stub.planner.scorecard.hits == hits
        assert stub.last_job.touched_bytes(b"f", VERSION) == 512 * MIB
        recorder = stub.planner._recorder
        assert recorder is not None
        steps = recorder.recording.steps
        assert sum(steps.lengths) >= 511 * MIB, "one place in some hundreds is left out"
        assert max(steps.lengths) <= EXTENT_BYTES
        assert list(steps.offsets) == sorted(steps.offsets)
        seen = stub.ahead.read_ahead.facts()
        assert seen["wished_kib"] == 1024, "the kernel's readahead is chosen by noted READs too"

    stepping(run)


def test_a_file_that_changed_and_is_lent_is_noted_after_the_reads_before(tmp_path: Path) -> None:
    """The last job is told of 16 READs together, and of files that the kernel reads by itself at once."""

    def run() -> None:
        stub, before = Stub(tmp_path), Handle(1, b"f", VERSION, SIZE)
        stub.ahead.opened(before, 1)
        stub.ahead.read(before, 1, 700 * MIB, READ, "miss")
        stub.ahead.lent(Handle(2, b"f", b"w" * 16, MIB))
        assert stub.last_job.touched_bytes(b"f", b"w" * 16) == MIB

    stepping(run)


def test_a_reader_who_leaves_his_stream_is_heard_there(tmp_path: Path) -> None:
    def run() -> None:
        stub, handle = Stub(tmp_path), Handle(1, b"f", VERSION, SIZE)
        stub.ahead.opened(handle, 1)
        for number in range(128 * MIB // READ):
            stub.read(handle, number * READ)
            stub.step()
        before = stub.planner.scorecard.read_bytes
        stub.ahead.read(handle, 1, 700 * MIB, READ, "miss")
        assert stub.planner.scorecard.read_bytes == 128 * MIB + READ > before
        stub.ahead.closed(handle)
        assert stub.counts.hits + stub.counts.late + stub.counts.misses == 128 * MIB // READ + 1

    stepping(run)


@pytest.mark.parametrize("handles", [1, 3])
def test_reads_that_the_link_is_late_for_are_noted_too_once_the_window_is_full(tmp_path: Path, handles: int) -> None:
    """A reader faster than the link: each of his READs waits for what was asked for long ago, and no window helps."""

    def run() -> None:
        stub, heard = Stub(tmp_path), list[str]()
        opened = [Handle(number, b"f", VERSION, SIZE) for number in range(handles)]
        for handle in opened:
            stub.ahead.opened(handle, 1)
        learn = stub.planner._learn

        def counted(now_s: float, seen: ReadSeen) -> None:
            heard.append(seen.result)
            learn(now_s, seen)

        stub.planner._learn = counted  # type: ignore[method-assign]
        reads, late, missed_bytes = 768 * MIB // READ, 0, 0
        for number in range(reads):
            handle, offset_bytes = opened[number * READ // (4 * MIB) % handles], number * READ
            if offset_bytes + READ > stub.there:
                missed_bytes += READ
            else:
                late += number % 8 != 7
            result: ReadResult = "miss" if offset_bytes + READ > stub.there else "hit" if number % 8 == 7 else "late"
            stub.now_s += READ / 1e8
            stub.ahead.read(handle, 1, offset_bytes, READ, result)
            stub.step()
            assert stub.counts.late == late, "whenever somebody asks"
            assert stub.counts.wan_read_bytes == missed_bytes + late * READ
            assert stub.counts.cache_read_bytes == stub.counts.hits * READ
        assert stub.counts.served == reads
        assert len(heard) < reads // 4, "most of them before its window was full"
        assert heard[-64:].count("late") > 48, "what is learnt from is late if a part of it was"
        stub.ahead.settle()
        score = stub.planner.scorecard
        assert (score.hits, score.late, score.misses) == (stub.counts.hits, late, missed_bytes // READ)
        assert score.read_bytes == 768 * MIB
        assert stub.last_job.touched_bytes(b"f", VERSION) == 768 * MIB
        assert sum(reason.wasted_bytes for reason in score.reasons.values()) == 0
        seen = stub.ahead.read_ahead.facts()
        assert seen["wished_kib"] == 1024

    stepping(run)


@pytest.mark.parametrize("streams", [1, 2])
def test_late_reads_of_several_are_heard_for_their_share_of_the_windows_changes(streams: int) -> None:
    planner = Planner(windows_max_bytes=64 * MIB, stream_max_bytes=64 * MIB)
    versions = [bytes([number]) * 16 for number in range(streams)]
    for handle, version in enumerate(versions):
        planner.opened(0.0, handle, FileFacts(b"f%d" % handle, version, SIZE), handle)
    heard = 0
    for number in range(reads := 128 * MIB // READ):
        for handle, version in enumerate(versions):
            if planner.is_quiet(version, number * READ, READ, late=True):
                continue
            heard += 1
            planner.read(number / 1000, ReadSeen(handle, handle, version, number * READ, READ, "late"))
        while fetches := planner.plan(number / 1000, 16 * MIB):
            for fetch in fetches:
                planner.arrived(number / 1000, fetch.version, fetch.blocks)
    assert heard == reads * streams if streams > 1 else heard < reads // 4


def test_who_only_learns_is_told_of_reads_together_and_of_all_before_anybody_asks(tmp_path: Path) -> None:
    """Fewer READs than are told of at once, in no order: they are known to whoever looks, and only then."""

    def run() -> None:
        stub, handle = Stub(tmp_path), Handle(1, b"f", VERSION, SIZE)
        stub.ahead.opened(handle, 1)
        recorder = stub.planner._recorder
        assert recorder is not None
        for number in range(10):
            stub.ahead.read(handle, 1, (7919 * number % 1000) * MIB + MIB // 2, READ, "miss")
        assert len(recorder.recording.steps) == 0
        assert stub.last_job.touched_bytes(b"f", VERSION) == 10 * READ
        assert recorder.steps == 10
        for number in range(10, 15):
            stub.ahead.read(handle, 1, (7919 * number % 1000) * MIB + MIB // 2, READ, "miss")
        recorder.stop()
        finished = recorder.take()
        assert finished is None, "too short to be kept"
        assert stub.last_job.facts()["bytes"] == 15 * READ
        assert stub.ahead.read_ahead.facts()["seen"]["other"] == 15.0

    stepping(run)
