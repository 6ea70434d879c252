"""Eviction when the order of coming reads is known: nearly Belady's hits, and nothing about to be read goes."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from heapq import heappop, heappush
from itertools import pairwise
from random import Random

import pytest

from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from spoke.cache.eviction import EvictionPolicy, FileExtents
from spoke.cache.foreseen import NEVER
from spoke.prefetch.next_use import Use

CAPACITY = 200
EXTENTS_PER_FILE = 64


def belady_hits(trace: list[int], capacity: int) -> int:
    """The most hits any policy can have that keeps whatever it fetched last."""
    uses: dict[int, list[int]] = defaultdict(list)
    for at, number in enumerate(trace):
        uses[number].append(at)
    following = [NEVER] * len(trace)
    for places in uses.values():
        for one, other in pairwise(places):
            following[one] = other
    cached: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    hits = 0
    for at, number in enumerate(trace):
        hits += number in cached
        if number not in cached and len(cached) == capacity:
            while True:
                far, victim = heappop(heap)
                if cached.get(victim) == -far:
                    del cached[victim]
                    break
        cached[number] = following[at]
        heappush(heap, (-following[at], number))
    return hits


class Cache:
    """Extents read one by one through a policy that is told the trace from number ``known_from`` on. ``tells``: also what was just read."""

    def __init__(self, trace: list[int], capacity: int = CAPACITY, known_from: int = 0, *, tells: bool = False) -> None:
        self.tells = tells
        self.policy = EvictionPolicy(Random(1), capacity * EXTENT_BYTES)
        self.capacity = capacity
        self.trace = trace
        self.at = -1
        self.cached: set[int] = set()
        self.files: dict[int, FileExtents] = {}
        self.places_of: dict[int, list[int]] = defaultdict(list)
        self.known_from = known_from
        for at, number in enumerate(trace):
            self.places_of[number].append(at)
        self.policy.foresight = self
        self.just_read: list[tuple[bytes, BlockRange]] = []

    def knows(self, version: bytes) -> bool:
        return int.from_bytes(version, "big") * EXTENTS_PER_FILE >= self.known_from

    def uses(self, version: bytes, extent: int) -> list[Use] | None:
        blocks = BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS)
        steps = self.next_use(version, blocks)
        return None if steps is None else [Use(steps, blocks)]

    @property
    def steps_taken(self) -> int:
        return self.at

    def take_used(self) -> tuple[bytes, BlockRange] | None:
        return self.just_read.pop(0) if self.just_read else None

    def next_use(self, version: bytes, blocks: BlockRange) -> int | None:
        extent = blocks.first_block // EXTENT_BLOCKS
        number = int.from_bytes(version, "big") * EXTENTS_PER_FILE + extent
        if number < self.known_from:
            return None
        uses = self.places_of[number]
        place = bisect_left(uses, self.at + 1)
        return uses[place] - self.at if place < len(uses) else NEVER

    def place(self, number: int) -> tuple[FileExtents, int]:
        file, extent = divmod(number, EXTENTS_PER_FILE)
        if file not in self.files:
            self.files[file] = FileExtents(file.to_bytes(16, "big"), EXTENTS_PER_FILE)
        return self.files[file], extent

    def make_room(self) -> None:
        while len(self.cached) >= self.capacity:
            victim = self.policy.choose()
            assert victim is not None
            self.policy.gone(victim.file, victim.extent)
            self.cached.remove(int.from_bytes(victim.file.version, "big") * EXTENTS_PER_FILE + victim.extent)

    def fetch(self, number: int) -> None:
        if number not in self.cached:
            self.make_room()
            self.cached.add(number)
            self.policy.wrote(*self.place(number), EXTENT_BYTES)

    def read(self, number: int) -> bool:
        file, extent = self.place(number)
        hit = number in self.cached
        if not hit:
            self.policy.want(file.version, BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS))
            self.fetch(number)
        self.policy.touch(file, extent, extent + 1, EXTENT_BYTES)
        if self.tells:
            self.just_read.append((file.version, BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS)))
        return hit

    def run(self) -> int:
        hits = 0
        for number in self.trace:
            self.at += 1
            hits += self.read(number)
        return hits


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("ratio", [1.2, 4])
@pytest.mark.parametrize("kind", ["cyclic", "shuffled anew", "shuffled once"])
def test_within_two_percent_of_belady(ratio: float, kind: str, tells: bool) -> None:
    dice = Random(5)
    numbers = list(range(int(CAPACITY * ratio)))
    trace: list[int] = []
    for epoch in range(5):
        if kind == "shuffled anew" or (kind == "shuffled once" and not epoch):
            dice.shuffle(numbers)
        trace += numbers
    best = belady_hits(trace, CAPACITY)
    assert best > 0
    assert Cache(trace, tells=tells).run() >= 0.98 * best


def test_what_will_not_be_used_again_goes_first() -> None:
    trace = [*range(CAPACITY // 2), *range(1000, 1000 + CAPACITY)]
    cache = Cache([*trace, *range(1000, 1000 + CAPACITY)])
    cache.run()
    assert not cache.cached & set(range(CAPACITY // 2))
    assert cache.cached == set(range(1000, 1000 + CAPACITY))


def test_what_is_about_to_be_read_stays_when_more_is_fetched_ahead() -> None:
    cache = Cache(list(range(4 * CAPACITY)))
    for number in range(CAPACITY):
        cache.fetch(number)
    for number in range(CAPACITY, 3 * CAPACITY):
        cache.fetch(number)
    soon = set(range(CAPACITY // 2))
    assert len(cache.cached & soon) >= 0.98 * len(soon)


def test_files_in_no_order_give_way_by_their_share_and_by_their_own_rule() -> None:
    dice = Random(2)
    order = list(range(6400, 6400 + 4 * CAPACITY))
    dice.shuffle(order)
    cache = Cache(order * 2, known_from=6400)
    for number in range(CAPACITY):
        cache.read(number)
    cache.policy.foresight = None
    for number in range(CAPACITY):
        assert cache.read(number)
    cache.policy.foresight = cache
    for number in order[:CAPACITY]:
        cache.at += 1
        cache.read(number)
    others = sum(number < 6400 for number in cache.cached)
    assert 0.15 * CAPACITY < others < 0.75 * CAPACITY


def test_pinned_and_busy_extents_stay_whatever_is_foreseen() -> None:
    cache = Cache(list(range(10)), capacity=16)
    pinned, _ = cache.place(100 * EXTENTS_PER_FILE)
    pinned.pins = 1
    cache.fetch(100 * EXTENTS_PER_FILE)
    busy, extent = cache.place(200 * EXTENTS_PER_FILE)
    cache.fetch(200 * EXTENTS_PER_FILE)
    busy.hold(extent)
    cache.fetch(9)
    victim = cache.policy.choose()
    assert victim is not None
    assert (victim.file, victim.extent) == cache.place(9)


def test_without_orders_the_choice_is_the_same_as_ever() -> None:
    def run(oracle: bool) -> set[int]:
        cache = Cache([], known_from=NEVER)
        cache.policy.foresight = cache if oracle else None
        for number in list(range(3 * CAPACITY)) * 2:
            cache.read(number)
        return cache.cached

    kept = run(oracle=False)
    assert len(kept) == CAPACITY
    assert kept == run(oracle=False)


def test_what_is_used_sooner_makes_no_room_for_what_is_used_later() -> None:
    cache = Cache(list(range(4 * CAPACITY)))
    for number in range(CAPACITY):
        cache.fetch(number)
    assert cache.policy.choose(nearer_stay=2 * CAPACITY) is None
    victim = cache.policy.choose(nearer_stay=CAPACITY // 2)
    assert victim is not None
    assert victim.extent + int.from_bytes(victim.file.version, "big") * EXTENTS_PER_FILE > CAPACITY // 2
