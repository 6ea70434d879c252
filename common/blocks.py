"""Block arithmetic: indices, counts and byte offsets, never mixed.

A block is 4 KiB: the unit of address, presence and checksum. An extent is a run of blocks that does not cross
a 1 MiB boundary: the unit of transfer and of eviction. The last block of a file may be short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

BLOCK_BYTES = 4096
EXTENT_BLOCKS = 256
EXTENT_BYTES = BLOCK_BYTES * EXTENT_BLOCKS


class BlockRange(NamedTuple):
    """``block_count`` blocks from index ``first_block`` on (both counts of blocks, not bytes)."""

    first_block: int
    block_count: int

    @property
    def end_block(self) -> int:
        """Index of the first block after the range."""
        return self.first_block + self.block_count


def count_blocks(size_bytes: int) -> int:
    """How many blocks a file of ``size_bytes`` has (0 for an empty one)."""
    return -(-size_bytes // BLOCK_BYTES)


def whole_file(size_bytes: int) -> BlockRange:
    return BlockRange(0, count_blocks(size_bytes))


def covering(offset_bytes: int, length_bytes: int, size_bytes: int) -> BlockRange:
    """The blocks that hold the bytes asked for, cut at the end of the file (maybe none)."""
    end_bytes = min(offset_bytes + length_bytes, size_bytes)
    if offset_bytes >= end_bytes:
        return BlockRange(offset_bytes // BLOCK_BYTES, 0)
    first_block = offset_bytes // BLOCK_BYTES
    return BlockRange(first_block, count_blocks(end_bytes) - first_block)


def byte_length(blocks: BlockRange, size_bytes: int) -> int:
    """How many bytes these blocks hold in a file of ``size_bytes``; the last block may be short."""
    first_block, block_count = blocks
    start_bytes = first_block * BLOCK_BYTES
    return max(0, min(start_bytes + block_count * BLOCK_BYTES, size_bytes) - start_bytes)


def split_at_extents(blocks: BlockRange) -> Iterator[BlockRange]:
    """Cut a range at every 1 MiB boundary, in order."""
    first_block, end_block = blocks.first_block, blocks.end_block
    while first_block < end_block:
        cut_block = min(end_block, (first_block // EXTENT_BLOCKS + 1) * EXTENT_BLOCKS)
        yield BlockRange(first_block, cut_block - first_block)
        first_block = cut_block


def split(blocks: BlockRange, piece_blocks: int) -> list[BlockRange]:
    """In pieces of ``piece_blocks``, the last maybe shorter."""
    return [
        BlockRange(first, min(piece_blocks, blocks.end_block - first))
        for first in range(blocks.first_block, blocks.end_block, piece_blocks)
    ]


def coalesce(ranges: Iterable[BlockRange]) -> list[BlockRange]:
    """Sorted, disjoint, non-adjacent ranges that cover the same blocks."""
    found = [blocks for blocks in ranges if blocks[1] > 0]
    if len(found) < 2:
        return found
    found.sort()
    merged = [found[0]]
    for blocks in found:
        first_block, block_count = merged[-1]
        if blocks[0] <= first_block + block_count:
            merged[-1] = BlockRange(first_block, max(block_count, blocks[0] + blocks[1] - first_block))
        else:
            merged.append(blocks)
    return merged


# Every READ and every extent that arrives passes here several times: no property and no call where arithmetic does.


def intersection(one: BlockRange, other: BlockRange) -> BlockRange:
    """The blocks in both; of count 0 when there are none."""
    first, count = one
    other_first, other_count = other
    from_block = first if first > other_first else other_first
    to_block = min(first + count, other_first + other_count)
    return BlockRange(from_block, to_block - from_block if to_block > from_block else 0)


def subtract(ranges: Iterable[BlockRange], taken: BlockRange) -> list[BlockRange]:
    """The parts of ``ranges`` that ``taken`` does not cover, in the order given."""
    left: list[BlockRange] = []
    taken_first, taken_count = taken
    taken_end = taken_first + taken_count
    for blocks in ranges:
        first, count = blocks
        end = first + count
        if end <= taken_first or taken_end <= first or not taken_count or not count:
            left.append(blocks)
            continue
        if first < taken_first:
            left.append(BlockRange(first, taken_first - first))
        if taken_end < end:
            left.append(BlockRange(taken_end, end - taken_end))
    return left
