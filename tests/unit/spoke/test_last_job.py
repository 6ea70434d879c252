"""What the last job read: noted by parts, kept over restarts, bounded, and not pushed out by a look at one file."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import limits
from common.blocks import BlockRange
from common.errors import UsageError
from spoke.last_job import PART_BYTES, LastJob, TouchedFile

MIB = 1 << 20
A, B = b"a" * 16, b"b" * 16


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def rest(self) -> None:
        self.now_s += limits.LEARN_CLOSED_REST_S


@pytest.fixture
def clock() -> Clock:
    return Clock()


def job(tmp_path: Path, clock: Clock, memory_bytes: int = 8 * MIB) -> LastJob:
    return LastJob(tmp_path / "orders" / "last-job-data.json", memory_bytes, clock)


def runs(found: LastJob) -> dict[bytes, list[BlockRange]]:
    return {path: list(file.runs()) for path, file in found.files().items()}


async def test_parts_that_were_read_and_files_that_the_kernel_reads(tmp_path: Path, clock: Clock) -> None:
    seen = job(tmp_path, clock)
    with pytest.raises(UsageError, match="no job has read anything"):
        seen.files()
    seen.read(b"f", A, 10 * MIB, 5000, 100)
    seen.read(b"f", A, 10 * MIB, PART_BYTES - 1, 2)
    seen.read(b"f", A, 10 * MIB, 10 * MIB - 1, 4096)
    seen.lent(b"g", B, 100_000)
    assert runs(seen) == {b"f": [BlockRange(0, 32), BlockRange(2544, 16)], b"g": [BlockRange(0, 32)]}
    assert seen.facts()["bytes"] == 3 * PART_BYTES + 100_000


@given(st.integers(1, 40 * PART_BYTES))
def test_a_lent_file_is_as_one_that_was_read_whole(size_bytes: int) -> None:
    read, lent = (LastJob(Path("unused"), 8 * MIB, Clock()) for _ in range(2))
    read.read(b"f", A, size_bytes, 0, size_bytes)
    lent.lent(b"f", A, size_bytes)
    assert runs(lent) == runs(read)
    assert lent.facts() == read.facts()


async def test_it_is_the_same_after_a_restart_and_gone_after_a_reset(tmp_path: Path, clock: Clock) -> None:
    seen = job(tmp_path, clock)
    seen.read("dü/\udcff".encode("utf-8", "surrogateescape"), A, 10 * MIB, 3 * MIB, 300_000)
    await seen.save()
    again = job(tmp_path, clock)
    await again.load()
    assert runs(again) == runs(seen)
    assert again.is_complete
    again.read(b"other", B, 100, 0, 100)
    assert len(runs(again)) == 2, "the one that goes on is beside it"
    await again.forget()
    fresh = job(tmp_path, clock)
    await fresh.load()
    with pytest.raises(UsageError):
        fresh.files()


async def test_a_look_at_one_file_is_not_the_last_job_and_a_job_is(tmp_path: Path, clock: Clock) -> None:
    seen = job(tmp_path, clock)
    seen.lent(b"train", A, 1 << 30)
    await seen.tend(open_handles=1)
    clock.rest()
    await seen.tend(open_handles=1)
    assert seen.facts()["goes_on"], "a file is open, the kernel may be reading it"
    await seen.tend(open_handles=0)
    seen.read(b"README", B, 100, 0, 100)
    clock.rest()
    await seen.tend(open_handles=0)
    assert list(seen.files()) == [b"train"]
    seen.lent(b"other", B, 200 * MIB)
    clock.rest()
    await seen.tend(open_handles=0)
    assert list(seen.files()) == [b"other"]


async def test_a_file_that_the_job_under_way_reads_again_counts_once(tmp_path: Path, clock: Clock) -> None:
    seen = job(tmp_path, clock)
    seen.read(b"f", A, 10 * MIB, 0, 2 * PART_BYTES)
    clock.rest()
    await seen.tend(0)
    seen.read(b"f", A, 10 * MIB, PART_BYTES, 2 * PART_BYTES)
    seen.lent(b"g", B, PART_BYTES)
    assert seen.facts() == {"files": 2, "bytes": 4 * PART_BYTES, "complete": True, "goes_on": True}


async def test_memory_is_bounded_by_the_setting_and_it_says_so(tmp_path: Path, clock: Clock) -> None:
    seen = job(tmp_path, clock, memory_bytes=1 << 20)
    for number in range(5_000):
        seen.read(b"%06d" % number, number.to_bytes(16, "big"), 4096, 0, 4096)
    assert len(seen.files()) * 500 <= (1 << 20) // 8
    assert not seen.is_complete
    tracemalloc.start()
    seen.read(b"huge", A, 1 << 50, 0, 4096)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20, "nor is room made for what is not kept"
    tracemalloc.stop()
    assert b"huge" not in seen.files()
    await seen.save()
    again = job(tmp_path, clock)
    await again.load()
    assert not again.is_complete


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 2}', '{"format": 1, "complete": true, "files": [["a", "00", 100, "AAAA"]]}',
     '{"format": 1, "complete": true, "files": [["a", "zz", 100, ""]]}', '{"format": 1, "complete": true, "files": [7]}'],
)  # fmt: skip
async def test_a_file_that_cannot_be_read_is_nothing_known(tmp_path: Path, clock: Clock, text: str) -> None:
    seen = job(tmp_path, clock)
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "last-job-data.json").write_text(text)
    await seen.load()
    with pytest.raises(UsageError):
        seen.files()
    seen.read(b"f", A, 100, 0, 100)
    await seen.save()
    assert json.loads((tmp_path / "orders" / "last-job-data.json").read_text())["format"] == 1


@given(st.lists(st.tuples(st.integers(0, 40 * PART_BYTES), st.integers(1, 3 * PART_BYTES)), max_size=30))
def test_runs_hold_what_was_read_and_no_more_than_its_parts(reads: list[tuple[int, int]]) -> None:
    size_bytes = 41 * PART_BYTES - 17
    seen = LastJob(Path("/nowhere"), 8 * MIB, lambda: 0.0)
    wanted: set[int] = set()
    for offset, length in reads:
        seen.read(b"f", A, size_bytes, offset, length)
        wanted |= {at >> 16 for at in range(offset, min(offset + length, size_bytes), 4096)}
        wanted |= {min(offset + length, size_bytes) - 1 >> 16}
    if reads:
        found = [run for file in seen.files().values() for run in file.runs()]
        assert {block >> 4 for run in found for block in range(run.first_block, run.end_block)} == wanted
        assert all(one.end_block < two.first_block for one, two in pairwise(found))


def test_an_empty_file_has_no_parts() -> None:
    assert list(TouchedFile(A, 0).runs()) == []
