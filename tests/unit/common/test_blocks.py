import itertools

from hypothesis import given
from hypothesis import strategies as st

from common.blocks import (
    BLOCK_BYTES,
    EXTENT_BLOCKS,
    BlockRange,
    byte_length,
    coalesce,
    count_blocks,
    covering,
    intersection,
    split,
    split_at_extents,
    subtract,
)

RANGES = st.builds(BlockRange, st.integers(0, 2000), st.integers(0, 700))


def blocks_of(*ranges: BlockRange) -> set[int]:
    return {block for found in ranges for block in range(found.first_block, found.end_block)}


def test_covering_at_the_edges() -> None:
    assert covering(0, 1, 1) == BlockRange(0, 1)
    assert covering(4095, 2, 10**6) == BlockRange(0, 2)
    assert covering(4096, 4096, 10**6) == BlockRange(1, 1)
    assert covering(0, 10**9, 4097) == BlockRange(0, 2)
    assert covering(4097, 10, 4097).block_count == 0
    assert covering(0, 10, 0).block_count == 0
    assert covering(5, 0, 100).block_count == 0


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**7))
def test_covering_holds_just_the_bytes(offset_bytes: int, length_bytes: int, size_bytes: int) -> None:
    wanted = range(offset_bytes, min(offset_bytes + length_bytes, size_bytes))
    blocks = covering(offset_bytes, length_bytes, size_bytes)
    if not wanted:
        assert blocks.block_count == 0
        return
    assert blocks.first_block == wanted[0] // BLOCK_BYTES
    assert blocks.end_block == wanted[-1] // BLOCK_BYTES + 1
    assert byte_length(blocks, size_bytes) >= len(wanted)


@given(st.integers(0, 10**8))
def test_the_parts_of_a_file_sum_to_its_size(size_bytes: int) -> None:
    parts = split_at_extents(BlockRange(0, count_blocks(size_bytes)))
    assert sum(byte_length(part, size_bytes) for part in parts) == size_bytes


@given(RANGES)
def test_splitting_keeps_the_blocks_and_no_part_crosses_an_extent(blocks: BlockRange) -> None:
    parts = list(split_at_extents(blocks))
    assert blocks_of(*parts) == blocks_of(blocks)
    assert all(part.first_block // EXTENT_BLOCKS == (part.end_block - 1) // EXTENT_BLOCKS for part in parts)


@given(st.lists(RANGES, max_size=8))
def test_coalesce_gives_the_same_blocks_sorted_and_apart(ranges: list[BlockRange]) -> None:
    merged = coalesce(ranges)
    assert blocks_of(*merged) == blocks_of(*ranges)
    assert all(one.end_block < other.first_block for one, other in itertools.pairwise(merged))


@given(st.lists(RANGES, max_size=5), RANGES)
def test_set_arithmetic(ranges: list[BlockRange], taken: BlockRange) -> None:
    assert blocks_of(*subtract(ranges, taken)) == blocks_of(*ranges) - blocks_of(taken)
    for blocks in ranges:
        assert blocks_of(intersection(blocks, taken)) == blocks_of(blocks) & blocks_of(taken)


def test_split_covers_in_order_and_ends_with_the_rest() -> None:
    assert split(BlockRange(3, 10), 4) == [BlockRange(3, 4), BlockRange(7, 4), BlockRange(11, 2)]
    assert split(BlockRange(3, 4), 4) == [BlockRange(3, 4)]
    assert split(BlockRange(3, 0), 4) == []
