"""An extent in parts that are used next at one step each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange
from spoke.prefetch.next_use import NEVER, Use, parts_of, pieces_of

uses = st.lists(
    st.builds(
        lambda steps, first, count: Use(steps, BlockRange(first, count)),
        st.integers(0, 1000),
        st.integers(2 * EXTENT_BLOCKS, 4 * EXTENT_BLOCKS),
        st.integers(1, 60),
    ),
    max_size=20,
)


@given(uses)
def test_each_block_is_in_one_part_with_its_soonest_use(uses: list[Use]) -> None:
    parts = parts_of(3, uses)
    at = 3 * EXTENT_BLOCKS
    for part in parts:
        assert part.blocks.first_block == at
        assert part.blocks.block_count > 0
        for block in range(at, part.blocks.end_block):
            known = [use.steps for use in uses if use.blocks.first_block <= block < use.blocks.end_block]
            assert part.steps == min(known, default=NEVER)
        at = part.blocks.end_block
    assert at == 4 * EXTENT_BLOCKS


@given(st.integers(0, 3 << 20), st.integers(1, 2 << 20))
def test_pieces_hold_all_blocks_once_and_shared_ones_alone(start_bytes: int, length_bytes: int) -> None:
    end_bytes = start_bytes + length_bytes
    pieces = sorted(pieces_of(start_bytes, end_bytes))
    blocks = [block for piece in pieces for block in range(piece.first_block, piece.end_block)]
    assert blocks == list(range(start_bytes // BLOCK_BYTES, -(-end_bytes // BLOCK_BYTES)))
    for piece in pieces:
        assert piece.first_block // EXTENT_BLOCKS == (piece.end_block - 1) // EXTENT_BLOCKS
        whole = piece.first_block * BLOCK_BYTES >= start_bytes and piece.end_block * BLOCK_BYTES <= end_bytes
        assert whole or piece.block_count == 1
