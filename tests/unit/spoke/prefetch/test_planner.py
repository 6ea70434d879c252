"""The planner: what is fetched ahead of which reads."""

from __future__ import annotations

import random
from collections import deque
from itertools import pairwise
from typing import Literal

import pytest

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange, count_blocks
from spoke.prefetch.planner import Fetch, FileFacts, Planner, ReadSeen
from spoke.prefetch.scorecard import Reason

KIB, MIB = 1024, 1024 * 1024
READ = 128 * KIB
BUDGET = 1 << 40
Result = Literal["hit", "late", "miss"]


def facts(number: int, size_bytes: int) -> FileFacts:
    return FileFacts(b"dir/%05d" % number, number.to_bytes(16, "big"), size_bytes)


class Bench:
    """A planner with files open, and what it has planned of each."""

    def __init__(self, *files: FileFacts, planner: Planner | None = None) -> None:
        self.planner = planner if planner is not None else Planner()
        self.now_s = 0.0
        self.files = files
        for handle_id, file in enumerate(files):
            self.planner.opened(0.0, handle_id, file, 1)

    def read(
        self, offset_bytes: int, length_bytes: int = READ, result: Result = "late", handle: int = 0, task: int = 1
    ) -> list[Fetch]:
        self.now_s += 0.001
        version = self.files[handle].version
        self.planner.read(self.now_s, ReadSeen(handle, task, version, offset_bytes, length_bytes, result))
        return self.planner.plan(self.now_s, BUDGET)

    def arrive(self, fetches: list[Fetch]) -> None:
        for fetch in fetches:
            self.planner.arrived(self.now_s, fetch.version, fetch.blocks)


def planned(fetches: list[Fetch]) -> int:
    return sum(fetch.blocks.block_count for fetch in fetches) * BLOCK_BYTES


def end_bytes(fetches: list[Fetch]) -> int:
    return max(fetch.blocks.end_block for fetch in fetches) * BLOCK_BYTES


def test_a_file_read_from_its_start_is_a_stream_at_once() -> None:
    fetches = Bench(facts(1, 1 << 30)).read(0)
    assert fetches[0].blocks.first_block == READ // BLOCK_BYTES
    assert 3 * MIB <= planned(fetches) <= limits.PREFETCH_FIRST_BYTES
    assert {fetch.reason for fetch in fetches} == {Reason.SEQUENTIAL}
    assert {fetch.size_bytes for fetch in fetches} == {1 << 30}


@pytest.mark.parametrize(("rtt_s", "most_blocks", "pieces"), [(0.06, 11, 93), (0.001, 256, 4)])
def test_it_begins_in_small_pieces_where_a_round_trip_is_long(rtt_s: float, most_blocks: int, pieces: int) -> None:
    bench = Bench(facts(1, 1 << 30))
    bench.planner.link(rtt_s, 0.0)
    fetches = bench.read(0)
    assert max(fetch.blocks.block_count for fetch in fetches) == most_blocks
    assert len(fetches) == pieces


def test_elsewhere_the_second_contiguous_read_makes_a_stream() -> None:
    bench = Bench(facts(1, 1 << 30))
    assert bench.read(64 * MIB) == []
    fetches = bench.read(64 * MIB + READ)
    assert fetches[0].blocks.first_block * BLOCK_BYTES == 64 * MIB + 2 * READ
    assert planned(fetches) >= MIB


def test_the_kernels_opening_ladder_is_one_stream() -> None:
    bench, offset_bytes, fetched = Bench(facts(1, 1 << 30)), 10 * MIB, []
    for length_bytes in (16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 128 * KIB):
        fetched += bench.read(offset_bytes, length_bytes)
        offset_bytes += length_bytes
    assert len({fetch.stream_id for fetch in fetched}) == 1
    assert end_bytes(fetched) >= offset_bytes + 2 * MIB


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (2, 0, 1, 3), (0, 2, 1, 4, 3), (2, 1, 0, 3)])
def test_reads_reordered_by_two_windows_are_one_stream(order: tuple[int, ...]) -> None:
    bench, fetched = Bench(facts(1, 1 << 30)), []
    for number in order:
        fetched += bench.read(64 * MIB + number * READ)
    assert fetched
    assert len({fetch.stream_id for fetch in fetched}) == 1
    last = bench.read(64 * MIB + (max(order) + 1) * READ)
    assert {fetch.stream_id for fetch in last} <= {fetched[0].stream_id}
    assert bench.planner.active_streams == 1


def test_page_rounded_reads_that_overlap_by_a_page_are_one_stream() -> None:
    bench, fetched = Bench(facts(1, 1 << 30)), []
    for number in range(8):
        fetched += bench.read(10 * MIB + number * 60 * KIB, 64 * KIB)
    assert fetched
    assert bench.planner.active_streams == 1


def test_the_window_doubles_while_reads_are_late() -> None:
    bench, ahead = Bench(facts(1, 4 << 30)), []
    far = 0
    for number in range(400):
        fetches = bench.read(number * READ)
        far = max(far, end_bytes(fetches)) if fetches else far
        ahead.append(far - (number + 1) * READ)
    assert ahead[8] >= 8 * MIB, "within a few reads"
    assert ahead[40] >= 36 * MIB, "300 MB/s over 60 ms, before 6 MiB are read"
    assert max(ahead) <= limits.PREFETCH_STREAM_MAX_BYTES


def test_a_reader_that_stops_early_wastes_little() -> None:
    bench, fetched = Bench(facts(1, 4 << 30)), []
    for number in range(8):
        fetched += bench.read(number * READ)
    assert planned(fetched) <= (1 + limits.PREFETCH_EVIDENCE_FACTOR) * 8 * READ


def test_a_window_follows_a_slow_reader_down() -> None:
    bench = Bench(facts(1, 4 << 30))
    bench.planner.link(0.06, 125e6)
    for number in range(100):
        bench.arrive(bench.read(number * READ))
    far = 0
    for number in range(100, 3000):
        bench.now_s += 0.012  # about 10 MB/s
        fetches = bench.read(number * READ, result="hit")
        bench.arrive(fetches)
        far = max(far, end_bytes(fetches)) if fetches else far
    assert far - 3000 * READ <= 4 * MIB


def test_nothing_is_planned_beyond_the_end() -> None:
    size_bytes = 5 * MIB + 3
    bench, fetched = Bench(facts(1, size_bytes)), []
    for number in range(40):
        fetched += bench.read(number * READ)
    assert max(fetch.blocks.end_block for fetch in fetched) == count_blocks(size_bytes)


def test_sixty_four_streams_on_one_descriptor_are_all_recognised() -> None:
    bench, streams = Bench(facts(1, 64 << 30)), {}
    for step in range(6):
        for lane in range(64):
            for fetch in bench.read((lane << 30) + step * READ + 4 * KIB * lane, task=lane % 3):
                if fetch.reason is Reason.STRIDED:
                    continue  # where they begin
                streams.setdefault(fetch.stream_id, fetch.blocks.first_block * BLOCK_BYTES >> 30)
    assert sorted(streams.values()) == list(range(64))
    assert bench.planner.active_streams == 64


def test_readers_at_each_others_heels_share_a_stream() -> None:
    bench, fetched = Bench(facts(1, 1 << 30)), []
    for number in range(20):
        for task in range(16):
            fetched += bench.read(number * READ, task=task, result="late")
    assert bench.planner.active_streams == 1
    seen = [block for fetch in fetched for block in range(fetch.blocks.first_block, fetch.blocks.end_block)]
    assert len(seen) == len(set(seen))


def test_a_second_reader_far_behind_takes_up_where_the_first_has_planned() -> None:
    bench, first = Bench(facts(1, 1 << 30)), []
    for number in range(64):
        first += bench.read(number * READ)
    bench.arrive(first)
    second = []
    for number in range(16):
        second += bench.read(number * READ, task=2, result="hit")
    assert not second


def test_what_was_planned_and_is_gone_is_planned_again() -> None:
    bench, first = Bench(facts(1, 1 << 30)), []
    for number in range(16):
        first += bench.read(number * READ)
    bench.arrive(first)
    again = bench.read(16 * READ, result="miss")
    assert again[0].blocks.first_block == 17 * READ // BLOCK_BYTES


def test_random_page_faults_do_not_trigger() -> None:
    bench, dice, fetched = Bench(facts(1, 1 << 30)), random.Random(1), []
    for _ in range(2000):
        fetched += bench.read(dice.randrange(0, (1 << 18) - 32) * 4096, result="miss")
    assert planned(fetched) <= 0.05 * 2000 * READ


@pytest.mark.parametrize("seed", range(6))
def test_random_rows_of_a_small_file_touch_by_chance_and_cost_little(seed: int) -> None:
    bench, dice = Bench(facts(1, 64 * MIB)), random.Random(seed)
    rows = dice.sample(range(512), 256)
    sent = {row * 32 + block for row in rows for block in range(32)}
    asked = len(sent)
    for row in rows:
        for fetch in bench.read(row * READ, result="miss"):
            sent |= set(range(fetch.blocks.first_block, fetch.blocks.end_block))
    assert len(sent) <= 1.2 * asked


def test_a_random_fault_and_its_follower_are_not_yet_a_stream() -> None:
    bench = Bench(facts(1, 1 << 30))
    start = 64 * MIB + 4 * KIB
    assert bench.read(start, result="miss") == []
    assert bench.read(start + READ, result="miss") == []
    assert bench.read(start + 2 * READ, result="miss") != []


def test_a_small_file_is_fetched_whole_at_its_first_read() -> None:
    bench = Bench(facts(1, 3 * MIB))
    assert bench.planner.plan(0.0, BUDGET) == []
    fetches = bench.read(2 * MIB, 4 * KIB, result="miss")
    assert planned(fetches) == 3 * MIB
    assert {fetch.reason for fetch in fetches} == {Reason.SMALL_FILE}
    assert bench.read(0, result="late") == []
    bench.arrive(fetches)
    assert planned(bench.read(0, result="miss")) == 3 * MIB, "evicted since"


def test_small_files_of_which_little_is_read_are_soon_left_alone() -> None:
    bench = Bench(*(facts(number, 2 * MIB) for number in range(100)))
    fetched = []
    for handle in range(100):
        fetched += bench.read(1 * MIB, 4 * KIB, result="miss", handle=handle)
        bench.planner.closed(bench.now_s, handle)
    assert planned(fetched) <= limits.PREFETCH_WASTE_ALLOWANCE_BYTES + 4 * MIB


def test_header_reads_are_soon_left_alone_and_tried_again_later() -> None:
    many = [facts(number, 100 * MIB) for number in range(300)]
    bench, wasted = Bench(*many), []
    for handle in range(200):
        wasted += bench.read(0, handle=handle, result="miss")
        bench.planner.closed(bench.now_s, handle)
    assert planned(wasted) <= limits.PREFETCH_WASTE_ALLOWANCE_BYTES + 4 * MIB
    assert bench.read(0, handle=200, result="miss") == []
    for number in range(800):  # a long honest stream earns it back
        bench.arrive(bench.read(number * READ, handle=201))
    assert bench.read(0, handle=202, result="miss") != []


def test_a_stream_resumed_after_close_is_no_waste() -> None:
    bench = Bench(facts(1, 1 << 30))
    for number in range(200):
        bench.planner.opened(bench.now_s, 7, bench.files[0], 1)
        bench.arrive(bench.read(number * READ, handle=0))
        bench.planner.closed(bench.now_s, 7)
        bench.planner.closed(bench.now_s, 0)
        bench.planner.opened(bench.now_s, 0, bench.files[0], 1)
    bench.read(200 * READ, result="hit")
    assert bench.read(1 << 29, result="miss") == []
    assert bench.read((1 << 29) + READ, result="miss") != []


def test_a_failed_fetch_pauses_its_file_and_is_planned_again() -> None:
    bench = Bench(facts(1, 1 << 30))
    first = bench.read(0)
    for fetch in first:
        bench.planner.failed(bench.now_s, fetch.version, fetch.blocks)
    assert bench.read(READ, result="miss") == []
    bench.now_s += limits.PREFETCH_FAILURE_PAUSE_S
    again = bench.read(2 * READ, result="miss")
    assert again[0].blocks.first_block == 3 * READ // BLOCK_BYTES


def test_a_stream_near_its_start_asks_for_small_pieces_however_wide_its_window() -> None:
    """A whole extent is there when a dozen of them are, on as many connections: too late for a reader that is less than that before it."""
    planner = Planner()
    bench = Bench(facts(1, 8 << 30), planner=planner)
    version = bench.files[0].version
    for step in range(40):
        planner.read(0.001 * step, ReadSeen(0, 1, version, step * READ, READ, "late"))
    fetches = planner.plan(1.0, 32 * MIB)
    read_bytes = 40 * READ
    near = [
        fetch for fetch in fetches if fetch.blocks.first_block * BLOCK_BYTES < read_bytes + limits.PREFETCH_START_BYTES
    ]
    assert {fetch.blocks.block_count for fetch in near} == {limits.PREFETCH_BEGUN_PIECE_BLOCKS}
    assert planned(near) == limits.PREFETCH_START_BYTES
    assert min(planned([fetch]) for fetch in fetches[len(near) :]) >= EXTENT_BYTES


def test_the_budget_is_shared_an_extent_at_a_time() -> None:
    planner = Planner()
    bench = Bench(facts(1, (8 << 30) + 300 * MIB), planner=planner)  # no equal parts
    for step in range(limits.PREFETCH_START_BYTES // READ):  # until then it is smaller pieces
        for lane in range(4):
            version = bench.files[0].version
            planner.read(0.001 * step, ReadSeen(0, 1, version, (lane << 30) + step * READ, READ, "late"))
    fetches = planner.plan(1.0, 8 * EXTENT_BYTES)
    assert planned(fetches) <= 8 * EXTENT_BYTES
    lanes = [fetch.blocks.first_block * BLOCK_BYTES >> 30 for fetch in fetches]
    assert {lane: lanes.count(lane) for lane in range(4)} == dict.fromkeys(range(4), 2)


# --- files in directory order ----------------------------------------------------------------------------------


def ordered(count: int, size_bytes: int) -> tuple[list[FileFacts], Planner]:
    files = [facts(number, size_bytes) for number in range(count)]
    following = {before.path: after for before, after in pairwise(files)}
    return files, Planner(following.get)


def test_small_files_in_order_are_anticipated_from_the_third() -> None:
    files, planner = ordered(200, 512 * KIB)
    bench, fetched = Bench(*files, planner=planner), []
    for handle in range(2):
        fetched += bench.read(0, handle=handle, result="miss")
    assert {fetch.reason for fetch in fetched} == {Reason.SMALL_FILE}
    fetched = bench.read(0, handle=2, result="miss")
    assert {fetch.version for fetch in fetched} >= {files[number].version for number in range(2, 6)}
    for handle in range(3, 30):
        fetched += bench.read(0, handle=handle, result="late")
    ahead = {fetch.version for fetch in fetched}
    assert files[60].version in ahead
    seen = [(fetch.version, fetch.blocks.first_block) for fetch in fetched]
    assert len(seen) == len(set(seen))


def test_small_files_out_of_order_are_not_anticipated() -> None:
    files, planner = ordered(200, 512 * KIB)
    bench, order, fetched = Bench(*files, planner=planner), list(range(200)), []
    random.Random(3).shuffle(order)
    for handle in order:
        fetched += bench.read(0, handle=handle, result="miss")
    assert planned([fetch for fetch in fetched if fetch.reason is Reason.NEXT_FILE]) <= 0.05 * 200 * 512 * KIB


def test_workers_that_take_turns_make_one_chain() -> None:
    files, planner = ordered(100, 512 * KIB)
    bench, fetched = Bench(*files, planner=planner), []
    for first in range(0, 40, 4):
        for handle in (first, first + 1, first + 3, first + 2):
            fetched += bench.read(0, handle=handle, task=handle % 4, result="late")
    assert files[50].version in {fetch.version for fetch in fetched}


def test_a_large_file_that_ends_goes_on_in_the_next() -> None:
    files, planner = ordered(6, 32 * MIB)
    bench, fetched = Bench(*files, planner=planner), []
    for handle in range(3):
        for number in range(32 * MIB // READ):
            fetches = bench.read(number * READ, handle=handle)
            bench.arrive(fetches)
            fetched += fetches
    following = [fetch for fetch in fetched if fetch.version == files[3].version]
    assert planned(following) >= 8 * MIB
    assert following[0].blocks.first_block == 0
    assert following[0].reason is Reason.NEXT_FILE
    before = planner.active_streams
    more = bench.read(0, handle=3, result="hit")
    assert all(fetch.version != files[3].version or fetch.blocks.first_block > 0 for fetch in more)
    assert planner.active_streams <= before + 1


# --- bounds ----------------------------------------------------------------------------------------------------


def test_everything_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PREFETCH_MAX_FILES", 8)
    monkeypatch.setattr(limits, "PREFETCH_LEDGER_MAX_EXTENTS", 64)
    monkeypatch.setattr(limits, "PREFETCH_MAX_HANDLES", 50)
    monkeypatch.setattr(limits, "PREFETCH_ACTIVE_MAX_STREAMS", 16)
    files = [facts(number, 1 << 30) for number in range(60)]
    bench = Bench(*files)
    for handle in range(60):
        for lane in range(4):
            for number in range(4):
                bench.read((lane << 27) + number * READ, handle=handle)
    planner = bench.planner
    assert len(planner._guesses.files) <= 8
    assert len(planner._handles) == 50
    assert len(planner._ledger) <= 64
    assert planner.active_streams <= 16
    assert len(planner._guesses.jobs) <= 16
    for handle in range(60):
        planner.closed(bench.now_s, handle)
    assert not planner._handles
    assert not planner._open_counts


def test_reads_of_unknown_handles_and_beyond_the_end_are_harmless() -> None:
    bench = Bench(facts(1, 10 * MIB))
    bench.planner.read(0.0, ReadSeen(99, 1, b"x" * 16, 0, READ, "miss"))
    assert bench.read(20 * MIB) == []
    assert bench.read(0, 0) == []
    bench.planner.closed(0.0, 99)
    bench.planner.arrived(0.0, b"y" * 16, BlockRange(0, 10))
    bench.planner.failed(0.0, b"y" * 16, BlockRange(0, 10))


def test_what_may_be_outstanding_follows_the_link() -> None:
    planner = Planner()
    assert planner.outstanding_limit_bytes == limits.PREFETCH_OUTSTANDING_MIN_BYTES
    planner.link(0.06, 1.25e9)
    assert planner.outstanding_limit_bytes == 225_000_000


@pytest.mark.parametrize("size_bytes", [40 * MIB + 5, 1 << 30])
@pytest.mark.parametrize("read_bytes", [16 * KIB, 100_000, READ])
def test_reads_that_are_only_noted_delay_no_plan_and_spoil_no_account(size_bytes: int, read_bytes: int) -> None:
    """Two planners see the same reads, one of them all of them: what one fetches, the other does within an extent of reads."""
    attentive, sparing = Bench(facts(1, size_bytes)), Bench(facts(1, size_bytes))
    version, noted = attentive.files[0].version, 0
    ends = {attentive: 0, sparing: 0}
    earlier: deque[int] = deque([0], maxlen=EXTENT_BYTES // read_bytes + 2)
    for number in range(min(size_bytes, 60 * MIB) // read_bytes):
        result: Result = "late" if number < 12 else "hit"
        offset_bytes = number * read_bytes
        for bench in (attentive, sparing):
            if bench is sparing and result == "hit" and sparing.planner.is_quiet(version, offset_bytes, read_bytes):
                noted += 1
                sparing.now_s += 0.001
                continue
            fetches = bench.read(offset_bytes, read_bytes, result)
            bench.arrive(fetches)
            ends[bench] = max([ends[bench], *(fetch.blocks.end_block * BLOCK_BYTES for fetch in fetches)])
        earlier.append(ends[attentive])
        assert ends[sparing] >= earlier[0] - EXTENT_BYTES
    assert noted > 40, "many reads are only noted"
    for bench in (attentive, sparing):
        bench.planner.closed(bench.now_s, 0)
    for name in ("hits", "late", "misses", "read_bytes"):
        assert getattr(sparing.planner.scorecard, name) == getattr(attentive.planner.scorecard, name)
    assert sparing.planner.scorecard.used_bytes == attentive.planner.scorecard.used_bytes


@pytest.mark.parametrize("lanes", [2, 16])
def test_each_reader_of_a_file_is_passed_over_and_no_account_is_spoilt(lanes: int) -> None:
    """Readers in turn, each in his part of one file: what is noted for each of them is made up for, to the byte."""
    attentive, sparing = Bench(facts(1, lanes * 48 * MIB)), Bench(facts(1, lanes * 48 * MIB))
    version, noted, told = attentive.files[0].version, 0, bytearray(lanes * 48 * MIB // READ)

    def note(_file: FileFacts, offset_bytes: int, length_bytes: int) -> None:
        first, end = offset_bytes // READ, (offset_bytes + length_bytes) // READ
        told[first:end] = bytes([1]) * (end - first)

    sparing.planner.on_read = note
    for number in range(24 * MIB // READ):
        result: Result = "late" if number < 12 else "hit"
        for lane in range(lanes):
            offset_bytes = lane * 48 * MIB + number * READ
            attentive.arrive(attentive.read(offset_bytes, READ, result))
            if result == "hit" and sparing.planner.is_quiet(version, offset_bytes, READ):
                noted += 1
                sparing.now_s += 0.001
                continue
            sparing.arrive(sparing.read(offset_bytes, READ, result))
    reads = lanes * 24 * MIB // READ
    assert noted > reads // 2, "most reads are only noted"
    sparing.planner.settle(sparing.now_s)
    assert told.count(1) == reads, "who is told of what was read misses nothing"
    for name in ("hits", "late", "misses", "read_bytes"):
        assert getattr(sparing.planner.scorecard, name) == getattr(attentive.planner.scorecard, name)
    assert sparing.planner.scorecard.used_bytes == pytest.approx(attentive.planner.scorecard.used_bytes, rel=0.01)
    assert sparing.planner.scorecard.wasted_bytes == attentive.planner.scorecard.wasted_bytes == 0


def test_who_comes_to_where_another_began_is_heard_there() -> None:
    """A quiet reader runs into the place of another, who is ahead: from then on they are one stream, planned once."""
    bench = Bench(facts(1, 512 * MIB))
    version, planned_blocks = bench.files[0].version, 0
    second = 6 * MIB
    places = {0: 0, 1: second}
    for number in range(2 * second // READ):
        for lane in (0, 1):
            if lane == 0 and places[0] >= second:
                continue  # where the first comes to, the second was
            offset_bytes, result = places[lane], "late" if number < 8 else "hit"
            places[lane] += READ
            if result == "hit" and bench.planner.is_quiet(version, offset_bytes, READ):
                continue
            fetches = bench.read(offset_bytes, READ, result)  # type: ignore[arg-type]
            bench.arrive(fetches)
            planned_blocks += sum(fetch.blocks.block_count for fetch in fetches)
    assert bench.planner.active_streams == 1
    assert planned_blocks * BLOCK_BYTES < 512 * MIB


def test_extents_that_were_read_go_and_their_reader_stays_quiet() -> None:
    """A sweep through more than the cache: each extent behind the reader is evicted, and that is no news."""
    noted: dict[bool, int] = {}
    for evicts in (False, True):
        bench, noted[evicts] = Bench(facts(1, 1 << 30)), 0
        version = bench.files[0].version
        for number in range(64 * MIB // READ):
            behind = number * READ - 8 * MIB
            if evicts and behind >= 0:
                bench.planner.evicted(version, BlockRange(behind // BLOCK_BYTES, READ // BLOCK_BYTES))
            if number >= 12 and bench.planner.is_quiet(version, number * READ, READ):
                noted[evicts] += 1
            else:
                bench.arrive(bench.read(number * READ, READ, "late" if number < 12 else "hit"))
        assert bench.planner.scorecard.wasted_bytes == 0
    assert noted[True] == noted[False] > 64 * MIB // READ // 2


def test_a_large_window_is_planned_several_extents_at_a_time() -> None:
    bench, planned_at, offset_bytes = Bench(facts(1, 4 << 30)), [], 0
    bench.planner.link(0.1, 1e9)
    while offset_bytes < 1 << 30:
        bench.now_s += READ / 1e9 - 0.001  # at 1 GB/s
        fetches = []
        late = offset_bytes < 64 * MIB
        if late or not bench.planner.is_quiet(bench.files[0].version, offset_bytes, READ):
            fetches = bench.read(offset_bytes, READ, "late" if late else "hit")
            bench.arrive(fetches)
        else:
            bench.now_s += 0.001
        if fetches and offset_bytes > 512 * MIB:
            planned_at.append(offset_bytes)
            assert all(fetch.blocks.first_block * BLOCK_BYTES % EXTENT_BYTES == 0 for fetch in fetches)
        offset_bytes += READ
    steps = [later - earlier for earlier, later in pairwise(planned_at)]
    assert 8 * MIB <= sorted(steps)[len(steps) // 2] <= 17 * MIB


def test_a_stream_alone_is_planned_on_without_being_learnt_from() -> None:
    """At 1 GB/s over a long link: each piece is asked for in time, and most are not learnt from one by one."""
    heard = [0]
    bench, far = Bench(facts(1, 8 << 30)), 0
    bench.planner.link(0.06, 1.25e9)
    learn = bench.planner._learn

    def counted(now_s: float, seen: ReadSeen) -> None:
        heard[0] += 1
        learn(now_s, seen)

    bench.planner._learn = counted  # type: ignore[method-assign]
    pieces, version = 0, bench.files[0].version
    for number in range((2 << 30) // READ):
        bench.now_s += READ / 1e9 - 0.001
        offset_bytes = number * READ
        result: Result = "hit" if offset_bytes + READ <= far else "late"
        if number == (1 << 30) // READ:
            heard[0] = pieces = 0
        if result == "hit" and bench.planner.is_quiet(version, offset_bytes, READ):
            bench.now_s += 0.001
            continue
        fetches = bench.read(offset_bytes, READ, result)
        bench.arrive(fetches)
        pieces += bool(fetches)
        far = max(far, end_bytes(fetches)) if fetches else far
        if number > (1 << 30) // READ:
            assert far - offset_bytes > 32 * MIB, "its window stays filled"
    assert pieces >= 64, "of 8 MiB at most"
    assert heard[0] < pieces // 2
