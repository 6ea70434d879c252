"""Per-block digests: xxh3-64 seeded by (version, block index).

The seed makes a neighbour's block, or the same block of an older version, fail verification although its
bytes are intact. Packed form, on the wire and in the index file: 8 bytes little-endian a block, in block order.
"""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest

from common.blocks import BLOCK_BYTES

DIGEST_BYTES = 8
_MASK_64 = (1 << 64) - 1
# An odd multiplier (2**64 / golden ratio) spreads neighbouring indices over all 64 bits of the seed.
_INDEX_MULTIPLIER = 0x9E3779B97F4A7C15


def version_seed(version: bytes) -> int:
    """The part of the seed that all blocks of a version share."""
    return xxh3_64_intdigest(version)


def block_digests(version: bytes, first_block: int, data: bytes | bytearray | memoryview) -> bytes:
    """Packed digests of the blocks in ``data``, which starts at block ``first_block``; a short last block is digested as it is."""
    view = memoryview(data)
    seed = version_seed(version)
    digests = [
        xxh3_64_intdigest(
            view[start : start + BLOCK_BYTES],
            seed ^ ((first_block + start // BLOCK_BYTES) * _INDEX_MULTIPLIER & _MASK_64),
        )
        for start in range(0, len(view), BLOCK_BYTES)
    ]
    return struct.pack(f"<{len(digests)}Q", *digests)


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
