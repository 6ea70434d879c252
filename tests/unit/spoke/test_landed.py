"""What has landed: kept a while for readers, and handed to the disk in runs."""

import random

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from spoke.hub_client.single_flight import Flight, Landed
from spoke.landed_runs import LandedRuns
from spoke.recent import Recent

ONE, OTHER = b"1" * 16, b"2" * 16


def flight(extent: int, version: bytes = ONE) -> Flight:
    return Flight(version, 1 << 40, BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS), prefetched=True)


def extents(run: list[Flight]) -> list[int]:
    return [found.extent_index for found in run]


def test_neighbours_leave_together_in_the_files_order_however_they_came() -> None:
    runs = LandedRuns()
    for extent in (3, 5, 2, 9, 4):
        runs.add(flight(extent))
    run = runs.take(8)
    assert extents(run) == [2, 3, 4, 5]
    runs.done(run)
    assert extents(runs.take(8)) == [9]
    assert len(runs) == 0
    assert runs.next_version is None


def test_a_run_is_bounded_and_each_flight_leaves_once() -> None:
    runs, order, seen = LandedRuns(), list(range(50)), []
    random.Random(1).shuffle(order)
    for extent in order:
        runs.add(flight(extent))
    while runs.next_version is not None:
        run = runs.take(8)
        assert 1 <= len(run) <= 8
        seen += extents(run)
        runs.done(run)
    assert sorted(seen) == list(range(50))


def test_one_run_of_a_version_at_a_time_and_versions_take_turns() -> None:
    runs = LandedRuns()
    for extent in range(4):
        runs.add(flight(extent))
    runs.add(flight(0, OTHER))
    first = runs.take(2)
    second = runs.take(2)
    assert (first[0].version, second[0].version) == (ONE, OTHER)
    assert runs.next_version is None, "what is left is of a version being written"
    runs.done(first)
    assert extents(runs.take(2)) == [2, 3]


def test_recent_bytes_are_found_by_place_and_only_whole() -> None:
    recent = Recent(4 * EXTENT_BYTES)
    data = random.Random(2).randbytes(EXTENT_BYTES)
    recent.add(ONE, Landed(BlockRange(EXTENT_BLOCKS, EXTENT_BLOCKS), data, b""))
    piece = recent.find(ONE, EXTENT_BYTES + 5, 100)
    assert piece is not None
    assert bytes(piece.data[5:105]) == data[5:105]
    assert recent.find(ONE, EXTENT_BYTES - 1, 2) is None
    assert recent.find(ONE, 2 * EXTENT_BYTES - 1, 2) is None
    assert recent.find(OTHER, EXTENT_BYTES, 1) is None


def test_recent_memory_is_bounded_and_given_back() -> None:
    recent = Recent(2 * EXTENT_BYTES)
    for extent in range(4):
        recent.add(ONE, Landed(BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS), bytes(EXTENT_BYTES), b""))
        recent.add(ONE, Landed(BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS), bytes(EXTENT_BYTES), b""))
    kept = [extent for extent in range(4) if recent.find(ONE, extent * EXTENT_BYTES, BLOCK_BYTES)]
    assert kept == [2, 3]
    recent.forget()
    assert recent.find(ONE, 3 * EXTENT_BYTES, BLOCK_BYTES) is None


def test_what_was_read_to_its_end_makes_room_before_what_its_reader_has_not_come_to() -> None:
    recent = Recent(4 * EXTENT_BYTES)
    for extent in range(4):
        recent.add(ONE, Landed(BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS), bytes(EXTENT_BYTES), b""))
    assert recent.find(ONE, EXTENT_BYTES, EXTENT_BYTES - 1)
    assert recent.find(ONE, 2 * EXTENT_BYTES, EXTENT_BYTES)
    for extent in range(4, 6):
        recent.add(ONE, Landed(BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS), bytes(EXTENT_BYTES), b""))
    assert [extent for extent in range(6) if recent.find(ONE, extent * EXTENT_BYTES, 1)] == [1, 3, 4, 5]
