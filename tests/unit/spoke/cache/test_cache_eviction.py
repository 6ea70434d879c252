"""The policy alone, on simulated epochs: hit rates as a share of capacity / data, shifts of the working set, protection."""

from __future__ import annotations

from random import Random

import pytest

from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from spoke.cache.eviction import EvictionPolicy, FileExtents, extent_rank
from spoke.cache.foreseen import Victim
from spoke.cache.reuse import ReuseDistances

CAPACITY = 320  # extents
FILE_EXTENTS = 64
PIECES = 4  # an extent is read piece by piece, as the kernel does


class Simulated:
    """A cache of whole extents driven by the policy; fetches happen on a miss."""

    def __init__(self, capacity: int = CAPACITY, seed: int = 1) -> None:
        self.capacity = capacity
        self.policy = EvictionPolicy(Random(seed), capacity * EXTENT_BYTES)
        self.files: dict[int, FileExtents] = {}
        self.cached: set[int] = set()

    def place(self, number: int) -> tuple[FileExtents, int]:
        name = number // FILE_EXTENTS
        if name not in self.files:
            self.files[name] = FileExtents(name.to_bytes(16, "little"), FILE_EXTENTS)
        return self.files[name], number % FILE_EXTENTS

    def number(self, file: FileExtents, extent: int) -> int:
        return int.from_bytes(file.version, "little") * FILE_EXTENTS + extent

    def fetch(self, number: int) -> None:
        while len(self.cached) >= self.capacity:
            victim = self.policy.choose()
            assert victim is not None
            self.cached.remove(self.number(victim.file, victim.extent))
            self.policy.gone(victim.file, victim.extent)
        file, extent = self.place(number)
        self.policy.wrote(file, extent, EXTENT_BYTES)
        self.cached.add(number)

    def read(self, number: int) -> bool:
        file, extent = self.place(number)
        hit = number in self.cached
        for _ in range(PIECES):
            if number not in self.cached:
                self.policy.want(file.version, BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS))
                self.fetch(number)
            self.policy.touch(file, extent, extent + 1, EXTENT_BYTES // PIECES)
        return hit

    def epoch(self, numbers: list[int]) -> float:
        return sum(map(self.read, numbers)) / len(numbers)


@pytest.mark.parametrize("ratio", [1.2, 2, 4])
@pytest.mark.parametrize("shuffled", [False, True])
def test_an_epoch_larger_than_the_cache_keeps_its_share(ratio: float, shuffled: bool) -> None:
    cache = Simulated()
    numbers = list(range(int(CAPACITY * ratio)))
    order = Random(7)
    rates = []
    for _ in range(6):
        if shuffled:
            order.shuffle(numbers)
        rates.append(cache.epoch(numbers))
    settled = sum(rates[3:]) / 3 * ratio
    assert settled >= 0.93, (settled, rates)


@pytest.mark.parametrize("first_ratio", [0.8, 2.0, 4.0])
def test_an_abandoned_working_set_is_replaced(first_ratio: float) -> None:
    cache = Simulated()
    old = list(range(int(CAPACITY * first_ratio)))
    new = list(range(100_000, 100_000 + int(CAPACITY * 0.9)))
    for _ in range(4):
        cache.epoch(old)
    traffic = 0
    while cache.epoch(new) < 0.99:
        traffic += len(new)
        assert traffic <= 3.5 * CAPACITY, len(cache.cached.intersection(new)) / len(new)
    assert len(cache.cached.intersection(new)) >= 0.99 * len(new)


def test_a_sweep_through_other_data_does_not_flush_the_working_set() -> None:
    cache = Simulated()
    hot = list(range(int(CAPACITY * 0.6)))
    for _ in range(4):
        cache.epoch(hot)
    cache.epoch(list(range(100_000, 100_000 + CAPACITY)))
    assert cache.epoch(hot) >= 0.55  # least-recently-used would keep none of it


def test_fetched_ahead_and_not_yet_read_is_kept_from_other_fetches() -> None:
    cache = Simulated()
    cache.epoch(list(range(CAPACITY)))
    ahead = list(range(50_000, 50_000 + CAPACITY // 2))
    for number in ahead:
        cache.fetch(number)
    for number in range(60_000, 60_000 + CAPACITY // 2):
        cache.fetch(number)  # beyond the bound: not protected, they replace the rest and each other
    assert cache.cached.issuperset(ahead)
    assert all(cache.read(number) for number in ahead)


def test_protection_ends_when_nobody_comes() -> None:
    cache = Simulated()
    ahead = list(range(50_000, 50_000 + CAPACITY // 2))
    for number in ahead:
        cache.fetch(number)
    data = list(range(CAPACITY))
    for _ in range(5):
        rate = cache.epoch(data)
    assert len(cache.cached.intersection(ahead)) <= 0.02 * CAPACITY
    assert rate >= 0.98


def test_a_wanted_extent_is_not_protected_when_it_arrives() -> None:
    policy = EvictionPolicy(Random(0), 16 * EXTENT_BYTES)
    file = FileExtents(b"v" * 16, 2)
    policy.want(file.version, BlockRange(0, EXTENT_BLOCKS))
    policy.wrote(file, 0, EXTENT_BYTES)
    policy.wrote(file, 1, EXTENT_BYTES)
    assert list(file.unread) == [0, 1]
    assert policy.choose() == Victim(file, 0)


def test_pinned_and_busy_extents_are_never_chosen() -> None:
    policy = EvictionPolicy(Random(0), 16 * EXTENT_BYTES)
    pinned, busy = FileExtents(b"p" * 16, 40), FileExtents(b"b" * 16, 40)
    pinned.pins = 1
    for extent in range(40):
        policy.restored(pinned, extent)
        policy.restored(busy, extent)
        if extent:
            busy.hold(extent)
    assert policy.choose() == Victim(busy, 0)
    assert policy.choose(whole_files=True) is None
    busy.hold(0)
    assert policy.choose() is None
    busy.let_go(0)
    assert policy.choose() is None  # everything was searched just now
    policy.freed()
    assert policy.choose() == Victim(busy, 0)


def test_the_same_dice_choose_the_same_victims() -> None:
    def run() -> list[int]:
        cache = Simulated(64, seed=5)
        cache.epoch(list(range(300)))
        return sorted(cache.cached)

    assert run() == run()
    assert len(run()) == 64


def test_the_pool_follows_removals() -> None:
    policy = EvictionPolicy(Random(0), 16 * EXTENT_BYTES)
    file = FileExtents(b"v" * 16, 10)
    for extent in range(10):
        policy.restored(file, extent)
    for extent in (3, 9, 0, 3):
        policy.gone(file, extent)
    assert len(policy) == 7
    left = set()
    while (victim := policy.choose()) is not None:
        left.add(victim.extent)
        policy.gone(victim.file, victim.extent)
    assert left == {1, 2, 4, 5, 6, 7, 8}


def test_ranks_are_fixed_and_spread() -> None:
    ranks = [extent_rank(12345, extent) for extent in range(4096)]
    assert ranks[:1] == [extent_rank(12345, 0)]
    assert len(set(ranks)) == 4096
    low_half = sum(rank < 1 << 63 for rank in ranks)
    assert 1900 < low_half < 2200


def test_reuse_distances_forget_and_ignore_the_rare() -> None:
    reuse = ReuseDistances()
    assert reuse.longest_ticks() == 0
    for _ in range(100):
        reuse.seen(1000)
    reuse.seen(1_000_000)
    assert 1000 < reuse.longest_ticks() < 2000
    for tick in range(0, 4000, 250):
        reuse.fade(tick, 1000)
        for _ in range(50):
            reuse.seen(None)
    assert reuse.longest_ticks() == 0
