"""Files read throughout in scattered places: the rest of one is fetched once the ones before it were read whole, and not else."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from common.blocks import BLOCK_BYTES, BlockRange, count_blocks
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.planner import Fetch, Planner, ReadSeen
from spoke.prefetch.scorecard import Reason
from spoke.prefetch.throughout import Throughout

KIB, MIB = 1024, 1024 * 1024
READ = 128 * KIB
CHUNK = 16 * MIB
ROOM = 256 * MIB


def chunk(number: int, directory: bytes = b"chunks", size_bytes: int = CHUNK) -> FileFacts:
    return FileFacts(b"%s/%05d.bin" % (directory, number), b"%s%05d" % (directory[:8].ljust(11), number), size_bytes)


class Reader:
    """READs of 128 KiB through a planner with a cache that keeps everything."""

    def __init__(self, room_bytes: int = ROOM) -> None:
        self.planner = Planner(throughout_max_bytes=room_bytes)
        self.now_s = 0.0
        self.read_bytes = 0
        self.hits = self.reads = 0
        self.sent: dict[bytes, set[int]] = {}
        self.asked: dict[bytes, set[int]] = {}
        self.rest: list[Fetch] = []

    def read(self, file: FileFacts, place: int, task: int = 1) -> None:
        self.now_s += 0.01
        self.planner.opened(self.now_s, 1, file, task)
        first = place * READ // BLOCK_BYTES
        blocks = set(range(first, min(first + READ // BLOCK_BYTES, count_blocks(file.size_bytes))))
        sent = self.sent.setdefault(file.version, set())
        self.asked.setdefault(file.version, set()).update(blocks)
        hit = blocks <= sent
        self.reads += 1
        self.hits += hit
        sent |= blocks
        length_bytes = min(READ, file.size_bytes - place * READ)
        self.planner.read(
            self.now_s, ReadSeen(1, task, file.version, place * READ, length_bytes, "hit" if hit else "miss")
        )
        for fetch in self.planner.plan(self.now_s, 1 << 30):
            self.sent.setdefault(fetch.version, set()).update(range(fetch.blocks.first_block, fetch.blocks.end_block))
            self.planner.arrived(self.now_s, fetch.version, fetch.blocks)
            if fetch.reason is Reason.THROUGHOUT:
                self.rest.append(fetch)
        self.planner.closed(self.now_s, 1)

    def visit(self, file: FileFacts, places: Sequence[int]) -> float:
        """Hits, as a share."""
        hits, reads = self.hits, self.reads
        for place in places:
            self.read(file, place)
        return (self.hits - hits) / (self.reads - reads)

    @property
    def amplification(self) -> float:
        return sum(map(len, self.sent.values())) / sum(map(len, self.asked.values()))


def shuffled(seed: int, count: int = CHUNK // READ) -> list[int]:
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return places


def test_the_rest_of_a_chunk_is_fetched_once_two_before_it_were_read_whole() -> None:
    reader = Reader()
    assert reader.visit(chunk(0), shuffled(0)) < 0.2
    assert reader.visit(chunk(1), shuffled(1)) < 0.2
    assert not reader.rest
    for number in range(2, 6):
        assert reader.visit(chunk(number), shuffled(number)) > 0.85
    assert reader.amplification == 1.0


def test_chunks_of_another_directory_are_another_matter() -> None:
    reader = Reader()
    for number in range(3):
        reader.visit(chunk(number), shuffled(number))
    reader.rest.clear()
    reader.visit(chunk(0, b"others"), shuffled(9))
    assert not reader.rest


def test_a_look_at_its_header_fetches_nothing_of_a_file() -> None:
    reader = Reader()
    for number in range(3):
        reader.visit(chunk(number), shuffled(number))
    reader.rest.clear()
    for number in range(10, 40):
        reader.read(chunk(number), 0)
    assert not reader.rest


def test_files_of_which_a_part_is_read_end_it_for_their_kind() -> None:
    reader = Reader()
    for number in range(3):
        reader.visit(chunk(number), shuffled(number))
    dice = random.Random(5)
    for number in range(10, 30):  # the same quarter of it, again and again
        reader.visit(chunk(number), [dice.randrange(32) * 4 for _ in range(128)])
    reader.rest.clear()
    reader.visit(chunk(40), shuffled(40))
    assert not reader.rest


@pytest.mark.parametrize("seed", range(4))
def test_chance_reads_no_file_whole(seed: int) -> None:
    reader, dice = Reader(), random.Random(seed)
    for _ in range(6000):
        reader.read(chunk(dice.randrange(20)), dice.randrange(CHUNK // READ))
    assert not [fetch for fetch in reader.rest if fetch.reason is Reason.THROUGHOUT]


def test_what_lies_ahead_is_bounded_and_given_back_as_it_is_read_or_evicted() -> None:
    planner = Throughout(4 * CHUNK)
    read_bytes = 0
    for number in range(2):
        for place in shuffled(number):
            read_bytes += READ
            planner.read(chunk(number), place * 32, place * 32 + 32, read_bytes, may_fetch=True)
    ahead: dict[int, set[int]] = {}
    places = {number: shuffled(number) for number in range(2, 12)}
    for turn in range(20):
        for number, order in places.items():
            read_bytes += READ
            place = order[turn]
            found = planner.read(chunk(number), place * 32, place * 32 + 32, read_bytes, may_fetch=True)
            left = ahead.setdefault(number, set())
            for blocks in found:
                left.update(range(blocks.first_block, blocks.end_block))
            left -= set(range(place * 32, place * 32 + 32))
            assert sum(map(len, ahead.values())) * BLOCK_BYTES <= 4 * CHUNK
    assert sum(map(len, ahead.values())) * BLOCK_BYTES > 3 * CHUNK
    for number in places:
        planner.evicted(chunk(number).version, BlockRange(0, CHUNK // BLOCK_BYTES))
    assert planner.ahead_bytes == 0


def test_too_large_a_file_is_none_of_its_business() -> None:
    assert Throughout(ROOM).file_max_bytes < 200 * MIB
    assert Throughout(16 * MIB).file_max_bytes < CHUNK
