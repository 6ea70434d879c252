"""A look of the scrub once listed all it could see, 64 MiB, to take the first 256 KiB of it: 1 to 3 ms in which no reader was answered."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from common.blocks import EXTENT_BLOCKS, BlockRange
from common.limits import SCRUB_LOOK_BLOCKS, SCRUB_SLICE_BLOCKS
from spoke.cache.examine import next_piece
from spoke.cache.presence import BlockMap

EXTENTS = 4 * SCRUB_LOOK_BLOCKS // EXTENT_BLOCKS


def calls_of(blocks: BlockMap, first_block: int) -> tuple[tuple[BlockRange | None, int | None], int]:
    """What comes out, and how many functions it took."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        return next_piece(blocks, first_block), calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("absent_extents", [0, 100])
def test_a_look_costs_the_same_however_much_is_cached(absent_extents: int) -> None:
    blocks = BlockMap(EXTENTS * EXTENT_BLOCKS)
    blocks.set_verified(BlockRange(absent_extents * EXTENT_BLOCKS, (EXTENTS - absent_extents) * EXTENT_BLOCKS))
    first = BlockRange(max(3, absent_extents * EXTENT_BLOCKS), SCRUB_SLICE_BLOCKS)
    (found, after), calls = calls_of(blocks, 3)
    assert (found, after) == (first, first.end_block)
    assert calls < 30


def test_a_look_at_a_long_gap_ends_where_it_may() -> None:
    blocks = BlockMap(EXTENTS * EXTENT_BLOCKS)
    (found, after), calls = calls_of(blocks, 5)
    assert (found, after) == (None, 5 + SCRUB_LOOK_BLOCKS)
    assert calls < 30
