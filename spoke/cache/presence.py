"""Which blocks of one file are here and which of them were checked in this process life, in memory.

One byte per extent as long as all its blocks are alike, one byte per block only where they differ: a check on the
hot path is one lookup, and a terabyte of whole extents costs a megabyte. Pure: the store keeps the file in step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from common.blocks import EXTENT_BLOCKS, BlockRange, coalesce, split_at_extents
from spoke.cache.index import PRESENT

ABSENT, UNVERIFIED, VERIFIED, _MIXED = range(4)
_EXTENT_SHIFT = EXTENT_BLOCKS.bit_length() - 1
_RUNS = {ABSENT: re.compile(b"\0+"), UNVERIFIED: re.compile(b"\1+"), VERIFIED: re.compile(b"\2+")}
_NOT_ABSENT = re.compile(b"[^\0]")
_DOUBTED = bytes(UNVERIFIED if value == VERIFIED else value for value in range(256))
_FROM_DISK = bytes(UNVERIFIED if value == PRESENT else ABSENT for value in range(256))


class BlockMap:
    """The state of every block of a file: absent, present and unverified, or verified."""

    __slots__ = ("_kinds", "_mixed", "block_count", "present_count", "verified_count")

    def __init__(self, block_count: int) -> None:
        self.block_count = block_count
        self.present_count = 0
        self.verified_count = 0
        self._kinds = bytearray(-(-block_count // EXTENT_BLOCKS))
        self._mixed: dict[int, bytearray] = {}

    @classmethod
    def from_presence(cls, presence: bytes | bytearray) -> BlockMap:
        """The map after a restart: what the index calls present is unverified."""
        found = cls(len(presence))
        clean = presence.translate(_FROM_DISK)
        position = clean.find(UNVERIFIED)
        while position >= 0:
            extent = position >> _EXTENT_SHIFT
            part = bytearray(clean[extent * EXTENT_BLOCKS : (extent + 1) * EXTENT_BLOCKS])
            found._put(extent, part)
            position = clean.find(UNVERIFIED, (extent + 1) * EXTENT_BLOCKS)
        found.present_count = clean.count(UNVERIFIED)
        return found

    @property
    def is_whole(self) -> bool:
        return self.present_count == self.block_count

    @property
    def is_verified(self) -> bool:
        return self.verified_count == self.block_count

    def covers(self, first_block: int, end_block: int) -> bool:
        """All blocks of the half-open range are present and verified (the hot path's question)."""
        first_extent = first_block >> _EXTENT_SHIFT
        last_extent = (end_block - 1) >> _EXTENT_SHIFT
        kinds = self._kinds
        if first_extent == last_extent:
            kind = kinds[first_extent]
            if kind != _MIXED:
                return kind == VERIFIED
            start = first_extent * EXTENT_BLOCKS
            part = self._mixed[first_extent]
            return part.count(VERIFIED, first_block - start, end_block - start) == end_block - first_block
        if kinds.count(VERIFIED, first_extent, last_extent + 1) == last_extent + 1 - first_extent:
            return True
        return not any(self._runs(BlockRange(first_block, end_block - first_block), (ABSENT, UNVERIFIED)))

    def missing(self, blocks: BlockRange) -> list[BlockRange]:
        first_block, block_count = blocks
        extent = first_block >> _EXTENT_SHIFT
        if block_count and extent == (first_block + block_count - 1) >> _EXTENT_SHIFT:
            kind = self._kinds[extent]
            if kind != _MIXED:  # most questions: one extent, of one kind
                return [blocks] if kind == ABSENT else []
        return coalesce(self._runs(blocks, (ABSENT,)))

    def unverified(self, blocks: BlockRange) -> list[BlockRange]:
        """Present blocks not yet checked in this process life."""
        return coalesce(self._runs(blocks, (UNVERIFIED,)))

    def first_present(self, first_block: int, end_block: int, most_blocks: int) -> BlockRange | None:
        """The first present blocks of the half-open range, at most so many in a row; None when there are none."""
        while first_block < end_block:
            found = _NOT_ABSENT.search(self._kinds, first_block >> _EXTENT_SHIFT, -(-end_block // EXTENT_BLOCKS))
            if found is None:
                return None
            extent = found.start()
            start = extent * EXTENT_BLOCKS
            first_block = max(first_block, start)
            if self._kinds[extent] == _MIXED:
                inside = _NOT_ABSENT.search(self._mixed[extent], first_block - start, end_block - start)
                if inside is None:
                    first_block = start + EXTENT_BLOCKS
                    continue
                first_block = start + inside.start()
            return self.present(BlockRange(first_block, min(most_blocks, end_block - first_block)))[0]
        return None

    def present_in_extent(self, extent: int) -> int:
        """How many blocks of the extent are present."""
        kind = self._kinds[extent]
        if kind == _MIXED:
            part = self._mixed[extent]
            return len(part) - part.count(ABSENT)
        return 0 if kind == ABSENT else self._blocks_in(extent)

    def count_present(self, blocks: BlockRange) -> int:
        """How many of these blocks are present."""
        return blocks.block_count - sum(found.block_count for found in self.missing(blocks))

    def present_extents(self) -> Iterator[int]:
        """Extents with at least one present block, in order."""
        return (extent for extent, kind in enumerate(self._kinds) if kind != ABSENT)

    def set_verified(self, blocks: BlockRange) -> None:
        """The blocks are here and their digests matched."""
        self._set(blocks, VERIFIED)

    def doubt(self) -> None:
        """Nothing counts as checked any more."""
        if not self.verified_count:
            return
        self._kinds = self._kinds.translate(_DOUBTED)
        for part in self._mixed.values():
            part[:] = part.translate(_DOUBTED)
        self.verified_count = 0
        for extent in list(self._mixed):
            self._put(extent, self._mixed[extent])

    def present(self, blocks: BlockRange) -> list[BlockRange]:
        return coalesce(self._runs(blocks, (UNVERIFIED, VERIFIED)))

    def clear(self, blocks: BlockRange) -> int:
        """The blocks are gone; returns how many of them were present."""
        before_count = self.present_count
        self._set(blocks, ABSENT)
        return before_count - self.present_count

    def _set(self, blocks: BlockRange, value: int) -> None:
        for piece in split_at_extents(blocks):
            extent = piece.first_block >> _EXTENT_SHIFT
            part = self._part(extent)
            start = piece.first_block - extent * EXTENT_BLOCKS
            end = start + piece.block_count
            was_verified = part.count(VERIFIED, start, end)
            was_present = was_verified + part.count(UNVERIFIED, start, end)
            now_count = piece.block_count if value == VERIFIED else 0
            self.present_count += now_count - was_present
            self.verified_count += now_count - was_verified
            part[start:end] = bytes((value,)) * piece.block_count
            self._put(extent, part)

    def _part(self, extent: int) -> bytearray:
        kind = self._kinds[extent]
        return self._mixed[extent] if kind == _MIXED else bytearray((kind,)) * self._blocks_in(extent)

    def _put(self, extent: int, part: bytearray) -> None:
        kind = part[0]
        if part.count(kind) == len(part):
            self._kinds[extent] = kind
            self._mixed.pop(extent, None)
        else:
            self._kinds[extent] = _MIXED
            self._mixed[extent] = part

    def _blocks_in(self, extent: int) -> int:
        return min(EXTENT_BLOCKS, self.block_count - extent * EXTENT_BLOCKS)

    def _runs(self, blocks: BlockRange, values: tuple[int, ...]) -> Iterator[BlockRange]:
        for piece in split_at_extents(blocks):
            extent = piece.first_block >> _EXTENT_SHIFT
            kind = self._kinds[extent]
            if kind != _MIXED:
                if kind in values:
                    yield piece
                continue
            start = extent * EXTENT_BLOCKS
            first = piece.first_block - start
            for value in values:
                for run in _RUNS[value].finditer(self._mixed[extent], first, first + piece.block_count):
                    yield BlockRange(start + run.start(), run.end() - run.start())
