"""Readers abreast: who is one, and what they stand before."""

from __future__ import annotations

import random

import pytest

from common.blocks import BLOCK_BYTES, BlockRange
from spoke.prefetch.abreast import Abreast
from spoke.prefetch.planner import FileFacts, Planner, ReadSeen

BATCH = 128
FILE = 64 * BATCH


def begun(starts: list[int]) -> Abreast:
    abreast = Abreast(1 << 20)
    for task, start in enumerate(starts):
        abreast.begun(start, start + 8, task, FILE)
    return abreast


def taken(abreast: Abreast) -> list[BlockRange]:
    found, abreast.waited = abreast.waited, []
    return found


@pytest.mark.parametrize("seed", range(5))
def test_one_that_reads_on_shows_what_all_stand_before_however_they_came(seed: int) -> None:
    starts = [worker * BATCH for worker in range(16)]
    random.Random(seed).shuffle(starts)
    abreast = begun(starts)
    assert not taken(abreast)
    abreast.read_on(0, BATCH // 8, FILE)
    assert not taken(abreast)  # so far he may only have looked
    abreast.read_on(0, BATCH // 4, FILE)
    assert taken(abreast) == [BlockRange(BATCH // 4, 16 * BATCH - BATCH // 4)]


@pytest.mark.parametrize("seed", range(5))
def test_who_begins_a_file_at_equal_distances_has_what_is_fetched_anyway_hurried_once(seed: int) -> None:
    starts = [worker * BATCH for worker in range(16)]
    random.Random(seed).shuffle(starts)
    abreast = Abreast(1 << 20)
    for task, start in enumerate(starts):
        abreast.begun(start, start + 8, task, FILE)
        abreast.began(2 * BATCH)
    assert taken(abreast) == [BlockRange(8, 2 * BATCH - 8)]


@pytest.mark.parametrize(
    ("starts", "tasks", "first_block"),
    [
        ([0, 1, 2, 3], 1, 2 * BATCH),  # one reader, who looks at equal places
        ([1, 2, 3, 4, 5], 8, 2 * BATCH),  # not from the beginning on
        ([0, 1, 2, 4, 7], 8, 2 * BATCH),
        ([0, 1, 2, 3, 4], 8, BATCH // 2),  # what is fetched is not all of the first's
        ([0, 0, 1, 2, 3], 8, 2 * BATCH),  # somebody came twice
    ],
)
def test_nothing_is_hurried_for_who_may_not_read_on(starts: list[int], tasks: int, first_block: int) -> None:
    abreast = Abreast(1 << 20)
    for number, start in enumerate(starts):
        abreast.begun(start * BATCH, start * BATCH + 8, number % tasks, FILE)
        abreast.began(first_block)
    assert not taken(abreast)


def test_who_begins_behind_the_last_is_one_of_them_up_to_the_files_end() -> None:
    abreast = begun([worker * BATCH for worker in range(4)])
    abreast.read_on(0, BATCH // 2, FILE)
    taken(abreast)
    abreast.begun(5 * BATCH, 5 * BATCH + 8, 1, FILE)  # the next but one came first
    assert taken(abreast) == [BlockRange(4 * BATCH, 2 * BATCH)]
    abreast.begun(4 * BATCH, 4 * BATCH + 8, 1, FILE)
    assert not taken(abreast)
    abreast.begun(6 * BATCH, 6 * BATCH + 5, 1, 6 * BATCH + 5)
    assert taken(abreast) == [BlockRange(6 * BATCH, 5)]


def test_the_second_batch_of_the_first_tells_how_many_they_will_be() -> None:
    abreast = begun([worker * BATCH for worker in range(4)])
    abreast.read_on(0, BATCH // 2, FILE)
    taken(abreast)
    abreast.begun(16 * BATCH, 16 * BATCH + 8, 0, FILE, 1 << 20)
    assert taken(abreast) == [BlockRange(4 * BATCH, 13 * BATCH)]
    abreast.begun(7 * BATCH, 7 * BATCH + 8, 7, FILE, 1 << 20)  # a worker who starts late
    assert not taken(abreast)
    abreast.begun(20 * BATCH, 20 * BATCH + 8, 2, FILE, 1 << 20)
    assert taken(abreast) == [BlockRange(17 * BATCH, 4 * BATCH)]


@pytest.mark.parametrize(
    ("start", "task", "most_blocks"),
    [(16 * BATCH, 9, 1 << 20), (16 * BATCH, 0, 8 * BATCH), (16 * BATCH + BATCH // 2, 0, 1 << 20)],
    ids=["a stranger", "too far for the cache", "beside their steps"],
)
def test_a_place_far_ahead_that_shows_no_second_batch_ends_it(start: int, task: int, most_blocks: int) -> None:
    abreast = begun([worker * BATCH for worker in range(4)])
    abreast.read_on(0, BATCH // 2, FILE)
    taken(abreast)
    abreast.begun(start, start + 8, task, FILE, most_blocks)
    abreast.begun(4 * BATCH, 4 * BATCH + 8, 1, FILE, most_blocks)
    assert not taken(abreast)


def test_a_place_that_does_not_fit_ends_it_until_it_shows_again() -> None:
    abreast = begun([worker * BATCH for worker in range(4)])
    abreast.read_on(0, BATCH // 2, FILE)
    taken(abreast)
    for place in (40 * BATCH, 4 * BATCH):  # too far, then in its place
        abreast.begun(place, place + 8, 1, FILE)
        assert not taken(abreast)


def test_one_who_looks_at_equal_places_and_then_reads_on_is_alone() -> None:
    abreast = Abreast(1 << 20)
    for place in range(16):
        abreast.begun(place * BATCH, place * BATCH + 4, 1, FILE)
    for next_block in range(4, BATCH, 4):
        abreast.read_on(0, next_block, FILE)
    assert not taken(abreast)


def test_lanes_by_turns_are_none() -> None:
    starts = [lane * BATCH for lane in range(16)]
    abreast = begun(starts)
    for done in range(16, BATCH, 8):
        for start in starts:
            abreast.read_on(start, start + done, FILE)
    assert not taken(abreast)


def test_records_that_do_not_end_with_a_page_are_as_good() -> None:
    starts = [worker * 100_000 // BLOCK_BYTES for worker in range(12)]
    abreast = begun(starts)
    abreast.read_on(0, 24, FILE)
    assert abreast.filled_block >= starts[-1]


@pytest.mark.parametrize(
    "starts",
    [
        [0, BATCH],
        [0, BATCH, 3 * BATCH, 4 * BATCH],
        [0, 20_000, 40_000],
    ],
    ids=["two", "unequal", "lanes"],
)
def test_others_are_none(starts: list[int]) -> None:
    abreast = begun(starts)
    for next_block in range(16, 10_000, 16):
        abreast.read_on(0, next_block, 1 << 20)
    assert not taken(abreast)


def test_equal_parts_of_a_file_are_none() -> None:
    """16 readers of 12 MiB each: the first had all of its part before the last had any."""
    abreast = Abreast(16 * 3072)
    for part in range(16):
        abreast.begun(part * 3072, part * 3072 + 32, part, 16 * 3072)
    for next_block in range(32, 3072, 32):
        abreast.read_on(0, next_block, 16 * 3072)
    assert not taken(abreast)


def test_random_reads_are_none() -> None:
    planner, dice = Planner(), random.Random(3)
    file = FileFacts(b"f", b"f" * 16, 1 << 30)
    planner.opened(0.0, 1, file, 1)
    for number in range(20_000):
        offset = dice.randrange(1 << 13) * 131072
        planner.read(number * 0.01, ReadSeen(1, 1, file.version, offset, 131072, "miss"))
        assert not planner.has_waited
        planner.plan(number * 0.01, 1 << 24)


def test_what_they_stand_before_is_bounded_by_what_windows_may_hold() -> None:
    planner = Planner(windows_max_bytes=4 << 20)
    file = FileFacts(b"f", b"f" * 16, 1 << 30)
    planner.opened(0.0, 1, file, 1)
    for worker in range(64):
        planner.read(0.0, ReadSeen(1, worker, file.version, worker << 19, 65536, "miss"))
    assert [fetch.blocks for fetch in planner.plan_waited(0.0, 1 << 30)] == [
        BlockRange(16, (4 << 20) // BLOCK_BYTES - 16)
    ]
    planner.read(0.1, ReadSeen(1, 0, file.version, 65536, 131072, "late"))
    fetches = planner.plan_waited(0.1, 1 << 30)
    assert [fetch.blocks for fetch in fetches] == [BlockRange(48, (4 << 20) // BLOCK_BYTES - 48)]
    assert not planner.has_waited


def test_a_budget_takes_the_first_places_and_leaves_the_rest() -> None:
    planner = Planner()
    file = FileFacts(b"f", b"f" * 16, 1 << 30)
    planner.opened(0.0, 1, file, 1)
    for worker in range(4):
        planner.read(0.0, ReadSeen(1, worker, file.version, worker << 19, 65536, "miss"))
    assert [fetch.blocks for fetch in planner.plan_waited(0.0, 1 << 30)] == [
        BlockRange(16, (4 << 20) // BLOCK_BYTES - 16)
    ]
    planner.read(0.1, ReadSeen(1, 0, file.version, 65536, 131072, "late"))
    places = []
    while planner.has_waited:
        (fetch,) = planner.plan_waited(0.1, 1 << 20)
        places.append(fetch.blocks)
    assert places == [BlockRange(48, 256), BlockRange(304, 208)]
