"""Per-block digests: xxh3-64 seeded by (version, block index).

The seed makes a neighbour's block, or the same block of an older version, fail verification although its
bytes are intact. Packed form, on the wire and in the index file: 8 bytes little-endian a block, in block order.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES
from common.buffers import blocks_of_buffer

DIGEST_BYTES = 8
_MASK_64 = (1 << 64) - 1
# An odd multiplier (2**64 / golden ratio) spreads neighbouring indices over all 64 bits of the seed.
_INDEX_MULTIPLIER = 0x9E3779B97F4A7C15

# The seeds of an extent's blocks, computed all at once: one long integer holds them side by side, 128 bits apart, so that
# the carry of one never reaches the next.
_LANE_BYTES = 16
_ONES = sum(1 << (8 * _LANE_BYTES * lane) for lane in range(EXTENT_BLOCKS))
_STEPS = sum((lane * _INDEX_MULTIPLIER & _MASK_64) << (8 * _LANE_BYTES * lane) for lane in range(EXTENT_BLOCKS))
_LOW_HALVES = _ONES * _MASK_64
_LANES_PAY_FROM = 144  # below, one by one: 3 us of 13 for 32 blocks
_SEEDS = struct.Struct("<" + "Q8x" * EXTENT_BLOCKS)


def version_seed(version: bytes) -> int:
    """The part of the seed that all blocks of a version share."""
    return xxh3_64_intdigest(version)


def _block_seeds(version: bytes, first_block: int, block_count: int) -> Sequence[int]:
    """``version_seed ^ (index * multiplier mod 2**64)`` of at least ``block_count`` blocks from ``first_block`` on."""
    if block_count < _LANES_PAY_FROM:
        seed = version_seed(version)
        return [
            seed ^ (block * _INDEX_MULTIPLIER & _MASK_64) for block in range(first_block, first_block + block_count)
        ]
    indices = _STEPS + (first_block * _INDEX_MULTIPLIER & _MASK_64) * _ONES & _LOW_HALVES
    return _SEEDS.unpack((indices ^ version_seed(version) * _ONES).to_bytes(_SEEDS.size, "little"))


def _blocks_of(data: bytes | bytearray | memoryview) -> Iterator[Sequence[memoryview]]:
    """Views of the blocks, at most EXTENT_BLOCKS at a time."""
    known = blocks_of_buffer(data)
    if known is not None:
        yield known
        return
    view = memoryview(data)
    for start in range(0, len(view), EXTENT_BYTES):
        end = min(len(view), start + EXTENT_BYTES)
        yield [view[at : at + BLOCK_BYTES] for at in range(start, end, BLOCK_BYTES)]


def block_digests(version: bytes, first_block: int, data: bytes | bytearray | memoryview) -> bytes:
    """Packed digests of the blocks in ``data``, which starts at block ``first_block``; a short last block is digested as it is."""
    parts: list[bytes] = []
    for position, blocks in enumerate(_blocks_of(data)):
        seeds = _block_seeds(version, first_block + position * EXTENT_BLOCKS, len(blocks))
        parts += map(xxh3_64_digest, blocks, seeds)
    numbers = array("Q", b"".join(parts))  # big-endian, xxhash's canonical form
    numbers.byteswap()
    return numbers.tobytes()


def first_mismatch(
    version: bytes, first_block: int, data: bytes | bytearray | memoryview, digests: bytes | memoryview
) -> int | None:
    """Index of the first block whose bytes differ from its digest, or None when all match.

    ``digests`` must hold one digest for each block of ``data``; a wrong count is a mismatch at the first missing one.
    """
    seen = block_digests(version, first_block, data)
    if seen == digests:
        return None
    for position in range(0, len(seen), DIGEST_BYTES):
        if seen[position : position + DIGEST_BYTES] != digests[position : position + DIGEST_BYTES]:
            return first_block + position // DIGEST_BYTES
    return first_block + len(seen) // DIGEST_BYTES
