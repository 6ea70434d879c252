"""What prefetch was worth: hits, late hits, misses, bytes used and wasted, lead time, by reason; and what is outstanding.

The ledger keeps two bits a block, as integers of 256 bits per extent: planned and not arrived, arrived and not read. It is
bounded, and an extent that falls out of it is simply not counted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange
from common.extent_bits import LOWEST, WHOLE, blocks_of, masks_of


class Reason(Enum):
    """Why something is fetched ahead."""

    SEQUENTIAL = "sequential"
    STRIDED = "strided"
    SMALL_FILE = "small-file"
    NEXT_FILE = "next-file"
    PLAN = "plan"
    RECIPE = "recipe"
    LEARNED = "learned"
    REPORTED = "reported"
    """Learned by another spoke, which told of it through the hub."""
    THROUGHOUT = "throughout"
    """The rest of a file of a kind that is read whole, in scattered places."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and each READ looks some up


@dataclass(slots=True)
class ReasonScore:
    """Bytes are whole blocks. ``lead_s_total`` over ``leads`` extents: how long data lay ready before the first read."""

    planned_bytes: int = 0
    arrived_bytes: int = 0
    used_bytes: int = 0
    wasted_bytes: int = 0
    lead_s_total: float = 0.0
    leads: int = 0


@dataclass(slots=True)
class Scorecard:
    """Counters since start. ``hits``, ``late`` and ``misses`` are reads as the read path judged them."""

    hits: int = 0
    late: int = 0
    misses: int = 0
    read_bytes: int = 0
    reasons: dict[Reason, ReasonScore] = field(default_factory=lambda: {reason: ReasonScore() for reason in Reason})

    @property
    def used_bytes(self) -> int:
        return sum(score.used_bytes for score in self.reasons.values())

    @property
    def wasted_bytes(self) -> int:
        return sum(score.wasted_bytes for score in self.reasons.values())


class _Extent:
    __slots__ = ("arrived_s", "awaited", "outstanding", "planned_s", "reason", "unread")

    def __init__(self, reason: Reason, outstanding: int, now_s: float) -> None:
        self.outstanding = outstanding
        self.awaited = 0  # outstanding, and somebody reads it already
        self.unread = 0
        self.reason = reason
        self.planned_s = now_s
        self.arrived_s = now_s


class Ledger:
    """Which blocks are on their way, and which came and were not read; keeps the scorecard."""

    def __init__(self, scorecard: Scorecard) -> None:
        self._score = scorecard
        self._extents: OrderedDict[tuple[bytes, int], _Extent] = OrderedDict()

    def __len__(self) -> int:
        return len(self._extents)

    def plan(self, now_s: float, version: bytes, blocks: BlockRange, reason: Reason) -> list[BlockRange]:
        """The parts of ``blocks`` that are not on their way yet, now marked as such."""
        extents = self._extents
        fresh: list[tuple[int, int]] = []
        new_blocks = 0
        for index, mask in masks_of(blocks):
            key = (version, index)
            extent = extents.get(key)
            if extent is None:
                new = mask
                extents[key] = _Extent(reason, new, now_s)
            else:
                new = mask & ~extent.outstanding
                if not new:
                    continue
                extent.outstanding |= new
                extent.unread &= ~new  # asked for again: it must have been evicted
                extent.reason = reason
                extent.planned_s = now_s
            new_blocks += new.bit_count()
            fresh.append((index, new))
        if not new_blocks:
            return []
        while len(extents) > limits.PREFETCH_LEDGER_MAX_EXTENTS:
            extents.popitem(last=False)
        self._score.reasons[reason].planned_bytes += new_blocks * BLOCK_BYTES
        if new_blocks == blocks[1]:
            return [blocks]
        runs: list[BlockRange] = []  # in order as they are: to sort them all was half of what this cost
        for index, new in fresh:
            for run in blocks_of(index, new):
                if runs and run[0] == runs[-1][0] + runs[-1][1]:
                    runs[-1] = BlockRange(runs[-1][0], runs[-1][1] + run[1])
                else:
                    runs.append(run)
        return runs

    def arrived(self, now_s: float, version: bytes, blocks: BlockRange) -> float | None:
        """Blocks came; seconds since they were planned, or None if they were not."""
        took_s: float | None = None
        extents = self._extents
        first_block, count = blocks
        bit, masks = first_block % EXTENT_BLOCKS, None
        if bit + count > EXTENT_BLOCKS:
            masks = masks_of(blocks)
        for index, mask in masks or ((first_block // EXTENT_BLOCKS, LOWEST[count] << bit),):
            extent = extents.get((version, index))
            if extent is None:
                continue
            outstanding = extent.outstanding
            came = mask & outstanding
            if not came:
                continue
            score = self._score.reasons[extent.reason]
            score.arrived_bytes += came.bit_count() * BLOCK_BYTES
            extent.outstanding = outstanding = outstanding ^ came
            if extent.awaited:
                awaited = came & extent.awaited
                score.used_bytes += awaited.bit_count() * BLOCK_BYTES
                extent.awaited &= ~came
                came &= ~awaited
            extent.unread |= came
            extent.arrived_s = now_s
            took_s = now_s - extent.planned_s
            if not outstanding and not extent.unread:
                del extents[(version, index)]
        return took_s

    def failed(self, version: bytes, blocks: BlockRange) -> None:
        self._clear(version, blocks, count_waste=False)

    def unread_bytes(self, version: bytes, blocks: BlockRange) -> int:
        """Of these blocks, those that came and were not read."""
        unread = 0
        for index, mask in masks_of(blocks):
            extent = self._extents.get((version, index))
            if extent is not None:
                unread += (mask & extent.unread).bit_count()
        return unread * BLOCK_BYTES

    def has_unread(self, version: bytes, blocks: BlockRange) -> bool:
        """Some of these blocks may have come and not been read."""
        first_block, block_count = blocks
        index = first_block // EXTENT_BLOCKS
        if first_block % EXTENT_BLOCKS + block_count > EXTENT_BLOCKS:
            return True  # several extents: not worth a look
        extent = self._extents.get((version, index))
        return extent is not None and extent.unread != 0

    def evicted(self, version: bytes, blocks: BlockRange) -> dict[Reason, int]:
        """The cache let blocks go; those that nobody had read were wasted: returns their bytes, by what they were fetched for."""
        return self._clear(version, blocks, count_waste=True)

    def read(self, now_s: float, version: bytes, blocks: tuple[int, int], *, late: bool) -> None:
        """Blocks were read. ``late``: the reader waits for some; otherwise what still counts as outstanding was there all along."""
        extents = self._extents
        first_block, count = blocks
        end_block = first_block + count
        while first_block < end_block:
            index, bit = first_block // EXTENT_BLOCKS, first_block % EXTENT_BLOCKS
            if not bit and not late and end_block - first_block >= EXTENT_BLOCKS:  # all of it
                first_block += EXTENT_BLOCKS
                extent = extents.pop((version, index), None)
                if extent is not None and (unread := extent.unread):
                    score = self._score.reasons[extent.reason]
                    score.used_bytes += (EXTENT_BLOCKS if unread == WHOLE else unread.bit_count()) * BLOCK_BYTES
                    score.lead_s_total += now_s - extent.arrived_s
                    score.leads += 1
                continue
            extent = extents.get((version, index))
            if extent is None:
                first_block += EXTENT_BLOCKS - bit
                continue
            count = EXTENT_BLOCKS - bit
            count = min(count, end_block - first_block)
            mask = LOWEST[count] << bit
            first_block += count
            unread = extent.unread
            used = mask & unread
            if used:
                extent.unread = unread = unread & ~used
                score = self._score.reasons[extent.reason]
                score.used_bytes += used.bit_count() * BLOCK_BYTES
                score.lead_s_total += now_s - extent.arrived_s
                score.leads += 1
            outstanding = extent.outstanding
            if outstanding:
                waited = mask & outstanding
                if not waited:
                    continue
                if late:
                    extent.awaited |= waited
                    continue
                extent.outstanding = outstanding = outstanding & ~waited
            if not unread and not outstanding:
                del extents[(version, index)]

    def _clear(self, version: bytes, blocks: BlockRange, *, count_waste: bool) -> dict[Reason, int]:
        """Returns the bytes that were wasted."""
        wasted_bytes: dict[Reason, int] = {}
        for index, mask in masks_of(blocks):
            extent = self._extents.get((version, index))
            if extent is None:
                continue
            if count_waste and (wasted := mask & extent.unread):
                size_bytes = wasted.bit_count() * BLOCK_BYTES
                wasted_bytes[extent.reason] = wasted_bytes.get(extent.reason, 0) + size_bytes
                self._score.reasons[extent.reason].wasted_bytes += size_bytes
                extent.unread &= ~wasted
            if not count_waste:
                extent.outstanding &= ~mask
                extent.awaited &= ~mask
            if not extent.unread and not extent.outstanding:
                del self._extents[(version, index)]
        return wasted_bytes
