"""Sets of blocks as bits: an integer for each extent, a bit for each of its blocks."""

from __future__ import annotations

from collections.abc import Sequence

from common.blocks import EXTENT_BLOCKS, BlockRange

LOWEST = tuple((1 << count) - 1 for count in range(EXTENT_BLOCKS + 1))
"""So many set bits from the lowest on: three operations on 256 bits less, and each READ and arrival needs some."""

WHOLE = LOWEST[EXTENT_BLOCKS]


def masks_of(blocks: tuple[int, int]) -> Sequence[tuple[int, int]]:
    """(extent index, bits of the blocks in it) for each extent that ``blocks`` (a BlockRange, or what is one) touches, in order."""
    first_block, block_count = blocks
    index, bit = first_block // EXTENT_BLOCKS, first_block % EXTENT_BLOCKS
    if bit + block_count <= EXTENT_BLOCKS:  # most of what is read, asked for and had
        return ((index, LOWEST[block_count] << bit),) if block_count else ()
    end_index, end_bit = divmod(first_block + block_count, EXTENT_BLOCKS)
    masks = [(whole, WHOLE) for whole in range(index, end_index)]
    masks[0] = index, WHOLE >> bit << bit
    if end_bit:
        masks.append((end_index, LOWEST[end_bit]))
    return masks


def mask_in(blocks: BlockRange, extent: int) -> int:
    """Bits of those of the blocks that lie in an extent."""
    first_block = extent * EXTENT_BLOCKS
    start = max(0, blocks.first_block - first_block)
    end = min(EXTENT_BLOCKS, blocks.end_block - first_block)
    return (1 << end) - (1 << start) if start < end else 0


def blocks_of(extent: int, mask: int) -> list[BlockRange]:
    """The runs of set bits of an extent, in order."""
    found, base_block = [], extent * EXTENT_BLOCKS
    while mask:
        bit = (mask & -mask).bit_length() - 1
        count = (~(mask >> bit) & -~(mask >> bit)).bit_length() - 1
        found.append(BlockRange(base_block + bit, count))
        mask &= ~(((1 << count) - 1) << bit)
    return found
