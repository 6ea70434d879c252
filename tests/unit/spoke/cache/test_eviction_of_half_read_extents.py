"""Extents of which a part was read: what was fetched ahead in them stays, what was read of them goes as other extents do."""

from __future__ import annotations

from random import Random

import pytest

from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from common.extent_bits import blocks_of, mask_in, masks_of
from spoke.cache.eviction import EvictionPolicy, FileExtents

CAPACITY = 64  # extents
PIECE = 32  # blocks
PIECES = EXTENT_BLOCKS // PIECE
FILE_EXTENTS = 8


class Cache:
    """Blocks, in files of 8 MiB, evicted as the policy says."""

    def __init__(self, seed: int = 1) -> None:
        self.policy = EvictionPolicy(Random(seed), CAPACITY * EXTENT_BYTES)
        self.files: dict[int, FileExtents] = {}
        self.present: dict[tuple[int, int], int] = {}
        self.unread: dict[tuple[int, int], int] = {}
        self.lost_unread = 0
        self.policy.present = lambda file, blocks: blocks_of(
            extent := blocks.first_block // EXTENT_BLOCKS,
            self.present.get((int.from_bytes(file.version, "big"), extent), 0) & mask_in(blocks, extent),
        )

    @property
    def used_blocks(self) -> int:
        return sum(mask.bit_count() for mask in self.present.values())

    def file(self, number: int) -> FileExtents:
        return self.files.setdefault(number, FileExtents(number.to_bytes(16, "big"), FILE_EXTENTS))

    def arrive(self, number: int, extent: int, mask: int, *, ahead: bool) -> None:
        while self.used_blocks + mask.bit_count() > CAPACITY * EXTENT_BLOCKS:
            victim = self.policy.choose()
            assert victim is not None
            key = int.from_bytes(victim.file.version, "big"), victim.extent
            gone = self.present[key]
            if victim.blocks is not None:
                gone = sum(mask_in(blocks, victim.extent) for blocks in victim.blocks)
                assert gone & self.present[key], "nothing would be freed"
            self.lost_unread += (self.unread.get(key, 0) & gone).bit_count()
            self.unread[key] = self.unread.get(key, 0) & ~gone
            self.present[key] &= ~gone
            if self.present[key]:
                self.policy.parted(victim.file, victim.extent, gone)
            else:
                del self.present[key]
                self.policy.gone(victim.file, victim.extent)
        key = number, extent
        self.present[key] = self.present.get(key, 0) | mask
        if ahead:
            self.unread[key] = self.unread.get(key, 0) | mask
        self.policy.wrote(self.file(number), extent, mask.bit_count() * 4096, mask)

    def read(self, number: int, extent: int, piece: int) -> bool:
        blocks = BlockRange(extent * EXTENT_BLOCKS + piece * PIECE, PIECE)
        mask = mask_in(blocks, extent)
        hit = not mask & ~self.present.get((number, extent), 0)
        if not hit:
            self.policy.want(self.file(number).version, blocks)
            self.arrive(number, extent, mask, ahead=False)
        self.policy.touch(self.file(number), extent, extent + 1, PIECE * 4096, blocks)
        self.unread[number, extent] = self.unread.get((number, extent), 0) & ~mask
        return hit


def test_files_fetched_whole_and_read_in_random_order_are_read_before_anything_of_them_goes() -> None:
    cache, dice = Cache(), Random(3)
    rates = []
    for batch in range(30):  # three files of 8 MiB at once, in a cache of 64 MiB
        files = [100 + 3 * batch + turn for turn in range(3)]
        for number in files:
            for extent in range(FILE_EXTENTS):
                cache.arrive(number, extent, (1 << EXTENT_BLOCKS) - 1, ahead=True)
        places = [(n, e, p) for n in files for e in range(FILE_EXTENTS) for p in range(PIECES)]
        dice.shuffle(places)
        rates.append(sum(cache.read(*place) for place in places) / len(places))
    assert cache.lost_unread == 0
    assert min(rates) == 1.0


def test_what_was_read_of_an_extent_goes_and_the_rest_stays() -> None:
    policy = EvictionPolicy(Random(0), 256 * EXTENT_BYTES)
    half, young = FileExtents(b"h" * 16, 4), FileExtents(b"y" * 16, 4)
    policy.wrote(half, 0, EXTENT_BYTES)
    policy.touch(half, 0, 1, 8192, BlockRange(10, 2))
    policy.touch(half, 0, 1, 8192, BlockRange(200, 2))
    policy.wrote(young, 0, EXTENT_BYTES)
    policy.touch(young, 0, 1, 64 * EXTENT_BYTES)  # time passes
    policy.wrote(young, 1, EXTENT_BYTES)
    found = policy.choose()
    assert found is not None
    assert found.file is half
    assert found.blocks == [BlockRange(10, 2), BlockRange(200, 2)]
    policy.parted(half, 0, sum(mask_in(blocks, 0) for blocks in found.blocks))
    again = policy.choose()
    assert again is None or again.file is not half
    policy.touch(half, 0, 1, EXTENT_BYTES, BlockRange(0, EXTENT_BLOCKS))
    assert list(half.unread) == [0, 0, 0, 0]
    assert not half.halves


def test_what_a_reader_wanted_is_not_protected_beside_what_came_ahead_of_it() -> None:
    policy = EvictionPolicy(Random(0), 256 * EXTENT_BYTES)
    file = FileExtents(b"v" * 16, 2)
    policy.want(file.version, BlockRange(0, 32))
    policy.wrote(file, 0, 64 * 4096, (1 << 64) - 1)
    assert file.halves[0] == (((1 << 64) - 1) ^ ((1 << 32) - 1), (1 << 32) - 1)
    policy.touch(file, 0, 1, 32 * 4096, BlockRange(32, 32))
    assert not file.unread[0]


def test_a_half_read_extent_that_nobody_reads_on_goes_at_last() -> None:
    cache = Cache()
    for number in range(3):
        for extent in range(FILE_EXTENTS):
            cache.arrive(number, extent, (1 << EXTENT_BLOCKS) - 1, ahead=True)
            cache.read(number, extent, 0)
    for number in range(10, 60):
        for extent in range(FILE_EXTENTS):
            for piece in range(PIECES):
                cache.read(number, extent, piece)
    assert not [key for key in cache.present if key[0] < 3]


@pytest.mark.parametrize("seed", range(4))
def test_pieces_that_nobody_reads_make_room_for_each_other(seed: int) -> None:
    cache, dice = Cache(seed), Random(seed)
    for _ in range(
        3000
    ):  # of 64 MiB, in pieces of half a MiB at most, so that nearly every extent holds some of each kind
        number, extent, first = dice.randrange(10), dice.randrange(FILE_EXTENTS), dice.randrange(EXTENT_BLOCKS)
        mask = mask_in(BlockRange(extent * EXTENT_BLOCKS + first, dice.randrange(1, 128)), extent)
        cache.arrive(number, extent, mask, ahead=dice.random() < 0.9)  # which asserts that something may go


def test_when_the_capacity_shrinks_what_was_kept_unread_goes_too() -> None:
    policy = EvictionPolicy(Random(0), CAPACITY * EXTENT_BYTES)
    file = FileExtents(b"v" * 16, 1)
    policy.wrote(file, 0, EXTENT_BYTES)
    assert policy.choose() is None
    policy.set_capacity(EXTENT_BYTES)
    policy.freed()
    found = policy.choose()
    assert found is not None
    assert found.file is file


@pytest.mark.parametrize("seed", range(5))
def test_the_accounts_come_out_even(seed: int) -> None:
    dice, policy = Random(seed), EvictionPolicy(Random(seed), 1024 * EXTENT_BYTES)
    file = FileExtents(b"v" * 16, 8)
    for _ in range(2000):
        first = dice.randrange(8 * EXTENT_BLOCKS - 300)
        blocks = BlockRange(first, dice.randrange(1, 300))
        for extent, mask in masks_of(blocks):
            what = dice.randrange(5)
            if what == 0:
                policy.want(file.version, BlockRange(extent * EXTENT_BLOCKS, 1 + dice.randrange(256)))
            elif what < 3:
                policy.wrote(file, extent, mask.bit_count() * 4096, mask)
            elif file.places[extent] != (1 << 32) - 1:
                (
                    policy.touch(file, extent, extent + 1, 4096, blocks)
                    if what == 3
                    else policy.parted(file, extent, mask)
                )
        unread = sum(
            file.halves[extent][0].bit_count() if extent in file.halves else EXTENT_BLOCKS
            for extent in range(8)
            if file.unread[extent]
        )
        assert policy.protected_blocks == unread
        assert all(not unread_mask & read_mask for unread_mask, read_mask in file.halves.values())
    for extent in range(8):
        policy.gone(file, extent)
    assert policy.protected_blocks == 0


def test_masks_and_blocks_are_the_same_thing() -> None:
    blocks = BlockRange(250, 520)
    assert [blocks_of(extent, mask) for extent, mask in masks_of(blocks)] == [
        [BlockRange(250, 6)],
        [BlockRange(256, 256)],
        [BlockRange(512, 256)],
        [BlockRange(768, 2)],
    ]
