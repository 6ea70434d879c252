from __future__ import annotations

import random

import pytest

from common.blocks import BLOCK_BYTES, EXTENT_BYTES
from spoke.prefetch.planner import Fetch, FileFacts, Planner, ReadSeen

KIB, MIB = 1024, 1024 * 1024
READ = 128 * KIB


class Reader:
    """One file; what was fetched is there at once."""

    def __init__(self, size_bytes: int) -> None:
        self.file = FileFacts(b"f", b"f" * 16, size_bytes)
        self.planner = Planner()
        self.planner.opened(0.0, 1, self.file, 1)
        self.now_s = 0.0
        self.there: set[int] = set()
        self.asked: set[int] = set()

    def read(self, offset_bytes: int, length_bytes: int = READ) -> tuple[bool, list[Fetch]]:
        """Whether it was there, and what is fetched for it."""
        self.now_s += 0.01
        blocks = set(range(offset_bytes // BLOCK_BYTES, -(-(offset_bytes + length_bytes) // BLOCK_BYTES)))
        is_hit = blocks <= self.there
        self.there |= blocks
        self.asked |= blocks
        seen = ReadSeen(1, 1, self.file.version, offset_bytes, length_bytes, "hit" if is_hit else "miss")
        self.planner.read(self.now_s, seen)
        fetches = self.planner.plan(self.now_s, 1 << 30)
        for fetch in fetches:
            self.there |= set(range(fetch.blocks.first_block, fetch.blocks.end_block))
            self.planner.arrived(self.now_s, fetch.version, fetch.blocks)
        return is_hit, fetches

    @property
    def amplification(self) -> float:
        return len(self.there) / len(self.asked)


def places(count: int, size_bytes: int, seed: int = 1) -> list[int]:
    """So far apart that none runs into the next."""
    dice = random.Random(seed)
    room = size_bytes // count
    found = [number * room + dice.randrange(1, room // 2 // BLOCK_BYTES) * BLOCK_BYTES for number in range(count)]
    dice.shuffle(found)
    return found


@pytest.mark.parametrize(("lanes", "size_bytes"), [(16, 96 * MIB), (64, 384 * MIB), (16, 64 << 30), (100, 4 << 30)])
def test_readers_by_turns_wait_for_a_few_and_then_for_none(lanes: int, size_bytes: int) -> None:
    reader, starts = Reader(size_bytes), places(lanes, size_bytes)
    assert not any(reader.read(start)[0] for start in starts)
    second = [reader.read(start + READ)[0] for start in starts]
    assert second.count(False) <= 4
    assert all(second[4:])
    assert all(reader.read(start + 2 * READ)[0] for start in starts)


def test_whose_turn_it_is_gets_two_reads_and_not_an_extent() -> None:
    reader, starts = Reader(1 << 30), places(16, 1 << 30)
    for start in starts:
        reader.read(start)
    for start in starts[:2]:
        reader.read(start + READ)
    _, fetches = reader.read(starts[2] + READ)
    for start in starts[4:12]:
        near = [f for f in fetches if start <= f.blocks.first_block * BLOCK_BYTES < start + EXTENT_BYTES]
        assert sum(fetch.blocks.block_count for fetch in near) * BLOCK_BYTES == 2 * READ


def test_turns_in_another_order_prove_nothing() -> None:
    reader, starts = Reader(4 << 30), places(64, 4 << 30)
    for start in starts:
        reader.read(start)
    fetched = [fetch for start in reversed(starts[:8]) for fetch in reader.read(start + READ)[1]]
    others = starts[8:]
    assert not [f for f in fetched if any(s <= f.blocks.first_block * BLOCK_BYTES < s + EXTENT_BYTES for s in others)]


def test_turns_that_end_cost_no_more_than_two_reads_in_a_row_do() -> None:
    """Two READs each and never a third, hundreds of times: 79.5 MiB without turns too, all that is held against a file."""
    reader, dice = Reader(64 << 30), random.Random(3)
    for _ in range(150):
        starts = [dice.randrange((64 << 30) // MIB) * MIB for _ in range(16)]
        for start in starts:
            reader.read(start)
        for start in starts:
            reader.read(start + READ)
    assert (len(reader.there) - len(reader.asked)) * BLOCK_BYTES <= 80 * MIB


def test_places_that_are_read_on_at_once_are_fetched_as_far_as_the_others_went() -> None:
    reader, hits = Reader(64 << 30), []
    for start in places(40, 64 << 30):
        hits.append([reader.read(start + step * READ, READ)[0] for step in range(3)])
    assert hits[0] == [False, False, True]
    assert all(found == [False, True, True] for found in hits[3:24])


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.9])
def test_records_of_one_or_more_reads_cost_little(share: float) -> None:
    """Some are of two READs: their like in a row is chance."""
    reader, dice = Reader(64 << 30), random.Random(4)
    plain = 0
    for _ in range(3000):
        start = dice.randrange((64 << 30) // BLOCK_BYTES) * BLOCK_BYTES
        _, fetches = reader.read(start)
        plain += sum(fetch.blocks.block_count for fetch in fetches)
        if dice.random() < share:
            reader.read(start + READ)
    assert plain <= 0.02 * len(reader.asked)
