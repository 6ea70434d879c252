"""Progressions: reads at equal distances, forwards and backwards, and what must not be taken for one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.blocks import BLOCK_BYTES, BlockRange
from spoke.prefetch.planner import Fetch, FileFacts, Planner, ReadSeen
from spoke.prefetch.scorecard import Reason
from spoke.prefetch.strides import StrideTable

KIB, MIB = 1024, 1 << 20
BUDGET = 1 << 40


class Reader:
    """Reads one file; what was fetched counts as there at once."""

    def __init__(self, size_bytes: int) -> None:
        self.planner = Planner()
        self.facts = FileFacts(b"d/f", b"f" * 16, size_bytes)
        self.planner.opened(0.0, 1, self.facts, 1)
        self.now_s = 0.0
        self.present: set[int] = set()
        self.asked: set[int] = set()
        self.fetches: list[Fetch] = []

    def read(self, offset_bytes: int, length_bytes: int, task: int = 1) -> bool:
        """True for a hit."""
        self.now_s += 0.06
        blocks = set(range(offset_bytes // BLOCK_BYTES, -(-(offset_bytes + length_bytes) // BLOCK_BYTES)))
        hit = blocks <= self.present
        self.asked |= blocks
        self.present |= blocks
        seen = ReadSeen(1, task, self.facts.version, offset_bytes, length_bytes, "hit" if hit else "miss")
        self.planner.read(self.now_s, seen)
        for fetch in self.planner.plan(self.now_s, BUDGET):
            assert 0 <= fetch.blocks.first_block < fetch.blocks.end_block <= -(-self.facts.size_bytes // BLOCK_BYTES)
            self.fetches.append(fetch)
            self.present |= set(range(fetch.blocks.first_block, fetch.blocks.end_block))
            self.planner.arrived(self.now_s, self.facts.version, fetch.blocks)
        return hit

    def hits(self, offsets: Sequence[int], length_bytes: int) -> int:
        return sum(self.read(offset, length_bytes) for offset in offsets)

    @property
    def amplification(self) -> float:
        return len(self.present) / len(self.asked)


@pytest.mark.parametrize(
    ("step", "length", "start"),
    [
        (MIB, 64 * KIB, 5 * MIB),
        (384 * KIB, 128 * KIB, 0),
        (-MIB, 64 * KIB, 900 * MIB),
        (MIB + 20 * KIB, 128 * KIB, 4 * KIB),
    ],
)
def test_a_stride_is_followed_and_nothing_else_is_fetched(step: int, length: int, start: int) -> None:
    reader = Reader(1 << 30)
    offsets = [start + number * step for number in range(200)]
    assert reader.hits(offsets, length) >= 180
    assert reader.amplification <= 1.2
    assert {fetch.reason for fetch in reader.fetches} >= {Reason.STRIDED}


def test_a_file_read_from_its_end_is_fetched_backwards() -> None:
    reader = Reader(512 * MIB + 3)
    offsets = list(range(512 * MIB, 448 * MIB, -128 * KIB))
    reader.read(512 * MIB, 3)
    assert reader.hits(offsets[1:], 128 * KIB) >= len(offsets) - 8
    assert reader.amplification <= 1.05 + 32 / len(offsets)


def test_backward_from_the_middle_fetches_nothing_ahead_of_where_it_began() -> None:
    reader = Reader(1 << 30)
    reader.hits(range(256 * MIB, 224 * MIB, -128 * KIB), 128 * KIB)
    assert max(fetch.blocks.end_block for fetch in reader.fetches) <= (256 * MIB + 128 * KIB) // BLOCK_BYTES


def test_a_stride_is_no_business_of_orders() -> None:
    reader = Reader(1 << 30)
    reader.hits(range(16 * MIB, -1, -128 * KIB), 128 * KIB)
    assert reader.fetches
    assert all(fetch.stream_id >= 0 for fetch in reader.fetches), "below are orders"


def test_what_fails_is_left_alone_and_what_was_closed_is_not_fetched() -> None:
    for event in ("failed", "closed"):
        reader = Reader(1 << 30)
        reader.hits([number * MIB for number in range(20)], 64 * KIB)
        reader.fetches.clear()
        for number in range(20, 30):  # nothing may be asked for meanwhile
            reader.planner.read(9.0, ReadSeen(1, 1, reader.facts.version, number * MIB, 64 * KIB, "late"))
        assert reader.planner.has_plans
        if event == "failed":
            reader.planner.failed(9.0, reader.facts.version, BlockRange(0, 1))
        else:
            reader.planner.closed(9.0, 1)
        assert reader.planner.plan(9.0, BUDGET) == []
        assert not reader.planner.has_plans


def test_what_orders_waste_is_not_held_against_guesses() -> None:
    for reason, goes_on in ((Reason.PLAN, True), (Reason.STRIDED, False)):
        reader = Reader(1 << 30)
        version = reader.facts.version
        reader.hits([number * MIB for number in range(20)], 64 * KIB)
        ledger = reader.planner._ledger
        far = BlockRange(512 << 8, 64 << 8)
        ledger.plan(reader.now_s, version, far, reason)
        ledger.arrived(reader.now_s, version, far)
        reader.planner.evicted(version, far)
        reader.fetches.clear()
        reader.hits([number * MIB for number in range(20, 60)], 64 * KIB)
        assert bool(reader.fetches) is goes_on


def test_backward_stops_at_the_first_block() -> None:
    reader = Reader(1 << 30)
    reader.hits(range(16 * MIB, -1, -128 * KIB), 128 * KIB)
    assert min(fetch.blocks.first_block for fetch in reader.fetches) == 0


def test_several_strides_take_turns_in_one_file() -> None:
    reader, hits = Reader(4 << 30), 0
    for number in range(100):
        for lane in range(4):
            hits += reader.read((lane << 30) + lane * 36 * KIB + number * (MIB + lane * 64 * KIB), 64 * KIB, task=lane)
    assert hits >= 360


def test_a_stride_shared_by_workers_out_of_order_is_followed() -> None:
    reader, hits = Reader(1 << 30), 0
    for first in range(0, 400, 2):
        for number in (first + 1, first):
            hits += reader.read(number * MIB, 64 * KIB, task=number % 2)
    assert hits >= 360


def test_lanes_far_apart_are_not_a_stride() -> None:
    table = StrideTable((64 << 18) + 5000)
    assert all(table.observe(lane << 18, (lane << 18) + 32, 0.0) is None for lane in range(64))


@pytest.mark.parametrize("block_count", [24576, 64 << 18, (64 << 18) + 63, 100_000])
@pytest.mark.parametrize("parts", [3, 4, 16, 64])
@pytest.mark.parametrize("lead_blocks", [0, 16])
def test_where_equal_parts_of_a_file_begin_is_known_after_three(block_count: int, parts: int, lead_blocks: int) -> None:
    """By page faults all but the first begin half a READ earlier."""
    step, table, seen = block_count // parts, StrideTable(block_count), []
    starts = [number * step - lead_blocks for number in range(1 if lead_blocks else 0, parts)]
    for start in starts:
        stride = table.observe(start, start + 32, 0.0)
        if stride is not None:
            seen.append(start)
            ahead = table.ahead(stride, 0.0, late=True, latency_s=0.06, cap_bytes=64 * MIB)
            assert all(
                blocks.first_block in starts
                for blocks in ahead
                if blocks.end_block < block_count - max(parts, lead_blocks)
            )
    assert seen == starts[2:]


def test_what_places_are_worth_is_fetched_at_each() -> None:
    table = StrideTable(24576)
    for start in (0, 1536, 3072):
        stride = table.observe(start, start + 32, 0.0)
    assert stride is not None
    ahead = table.ahead(stride, 0.0, late=True, latency_s=0.06, cap_bytes=64 * MIB, least_blocks=96)
    assert ahead[0] == (4608, 96)
    assert len(ahead) == 8


@pytest.mark.parametrize(
    ("block_count", "starts"),
    [
        (24576, (0, 1536, 3000)),  # not equal
        (24576, (0, 1500, 3000)),  # equal, and no part of the file
        (1280, (0, 320, 640)),  # so few places that chance would do
        (24576, (0, 96, 192)),  # 256 parts: a column
    ],
)
def test_three_reads_that_are_no_equal_parts_make_nothing(block_count: int, starts: tuple[int, ...]) -> None:
    table = StrideTable(block_count)
    assert all(table.observe(start, start + 32, 0.0) is None for start in starts)


def test_shuffles_inside_a_small_window_make_none() -> None:
    dice, table, found = random.Random(1), StrideTable(1 << 20), 0
    for window in range(60):
        for place in dice.sample(range(16), 16):
            start = (window * 16 + place) * 4
            found += table.observe(start, start + 4, 0.0) is not None
    assert found <= 40


def test_waste_is_told_when_a_stride_is_forgotten() -> None:
    table = StrideTable(1 << 20)
    for number in range(20):
        stride = table.observe(number * 256, number * 256 + 16, 0.0)
        if stride is not None:
            ahead = table.ahead(stride, 0.0, late=True, latency_s=0.06, cap_bytes=64 * MIB)
            assert all(blocks.block_count == 16 for blocks in ahead)
    assert len(table) == 1
    table.forget()
    assert table.wasted_bytes > 0
    assert len(table) == 0


def test_the_last_step_is_cut_at_the_end_of_the_file() -> None:
    table, ahead = StrideTable(256 * 30 + 4), []
    for number in range(30):
        stride = table.observe(number * 256, number * 256 + 16, 0.0)
        if stride is not None:
            ahead += table.ahead(stride, 0.0, late=True, latency_s=0.06, cap_bytes=64 * MIB)
    assert ahead[-1] == BlockRange(256 * 30, 4)
    assert len(ahead) == len(set(ahead)), "no step twice"


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from((64 * MIB, 256 * MIB, 4 << 30)),
    st.sampled_from((16 * KIB, 32 * KIB, 128 * KIB)),
    st.booleans(),
)
def test_random_reads_make_hardly_any(seed: int, size_bytes: int, length_bytes: int, aligned: bool) -> None:
    dice, reader = random.Random(seed), Reader(size_bytes)
    unit = length_bytes if aligned else 4 * KIB
    rows = dice.sample(range((size_bytes - length_bytes) // unit), 400)
    reader.hits([row * unit for row in rows], length_bytes)
    strided = sum(fetch.blocks.block_count for fetch in reader.fetches if fetch.reason is Reason.STRIDED)
    assert strided <= 0.05 * len(reader.asked)
