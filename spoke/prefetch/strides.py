"""Finds reads at equal distances in one file, forwards or backwards: columns of tables, headers of records, a file read from its end.

Only reads that continue no run come here. Of the last few, three or more at equal distances in time's order are a progression; how long
it must be depends on how likely chance makes one among so many reads in so little room, so that random reads, and shuffles
inside a small window, make none. As runs, progressions are known by place alone: whoever reads the next place goes on with it.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from spoke.prefetch.window import Window

_RECENT_READS = 32
_SHORTEST = 5
_LONGEST_STEP_BLOCKS = 64 * 1024 * 1024 // BLOCK_BYTES
"""Reads further apart are lanes: several readers, each of whom goes on from where he is."""

_CHANCE = math.log(0.001)
"""Of a thousand random reads one may be taken for the next of a progression (and is charged for what it wasted)."""

_STEPS_SKIPPED = 3
"""Reads of a progression may be missing, or come out of order, by so many: workers share it, the page cache has some."""

_ECHO_STEPS = 64


class Stride:
    """A progression: the last read at ``at_block``, ``step_blocks`` (may be negative) from one to the next, ``read_blocks`` each.

    ``reads`` seen; ``planned`` steps ahead of ``at_block`` were given out to be fetched.
    """

    __slots__ = ("at_block", "planned", "read_blocks", "reads", "step_blocks", "stride_id", "window")

    def __init__(
        self, stride_id: int, at_block: int, step_blocks: int, read_blocks: int, reads: int, now_s: float
    ) -> None:
        self.stride_id = stride_id
        self.at_block = at_block
        self.step_blocks = step_blocks
        self.read_blocks = read_blocks
        self.reads = reads
        self.planned = 0
        self.window = Window(now_s)

    @property
    def ahead_bytes(self) -> int:
        """Given out and not yet read."""
        return self.planned * self.read_blocks * BLOCK_BYTES


class StrideTable:
    """The progressions of one file of ``block_count`` blocks; the longest unread is forgotten. ``wasted_bytes``: what the forgotten
    ones had ahead, until taken."""

    def __init__(self, block_count: int) -> None:
        self._block_count = block_count
        self._recent: OrderedDict[int, int] = OrderedDict()  # first block: blocks
        self._strides: OrderedDict[int, Stride] = OrderedDict()
        self._by_next: dict[int, Stride] = {}
        self._next_id = 0
        self.wasted_bytes = 0

    def __len__(self) -> int:
        return len(self._strides)

    def __contains__(self, stride: Stride) -> bool:
        return self._strides.get(stride.stride_id) is stride

    def observe(self, start_block: int, end_block: int, now_s: float, *, downward_reads: int = 0) -> Stride | None:
        """The progression a read belongs to, if any. ``downward_reads``: so many reads in a row each ended where the last began."""
        read_blocks = end_block - start_block
        stride = self._by_next.get(start_block)
        if stride is not None and stride.read_blocks == read_blocks:
            self._advance(stride, start_block)
            return stride
        if downward_reads >= _SHORTEST:
            return self._begin(start_block, -read_blocks, read_blocks, downward_reads, now_s)
        if self._strides and self._is_echo(start_block):
            return None
        found = self._progression(start_block, read_blocks)
        self._recent[start_block] = read_blocks
        self._recent.move_to_end(start_block)
        if len(self._recent) > _RECENT_READS:
            self._recent.popitem(last=False)
        if found is None:
            return None
        return self._begin(start_block, found[0], read_blocks, found[1], now_s)

    def ahead(self, stride: Stride, now_s: float, *, late: bool, latency_s: float, cap_bytes: int) -> list[BlockRange]:
        """Learn from a read of ``stride``; what to fetch now, nearest first."""
        read_bytes = stride.read_blocks * BLOCK_BYTES
        stride.window.read(
            now_s, read_bytes, stride.reads * read_bytes, late=late, latency_s=latency_s, cap_bytes=cap_bytes
        )
        # Never more steps ahead than were seen: lanes at equal distances begin like a progression, and go on otherwise.
        wanted = min(stride.reads, max(1, stride.window.window_bytes // read_bytes))
        if wanted - stride.planned < max(1, wanted // 4):
            return []  # a few at a time
        ranges = []
        for number in range(stride.planned + 1, wanted + 1):
            first_block = stride.at_block + number * stride.step_blocks
            end_block = min(first_block + stride.read_blocks, self._block_count)
            first_block = max(first_block, 0)
            if first_block >= end_block:
                break
            ranges.append(BlockRange(first_block, end_block - first_block))
        stride.planned += len(ranges)
        return ranges

    def forget(self) -> None:
        """All of them: the file was closed."""
        for stride in list(self._strides.values()):
            self._drop(stride)
        self._recent.clear()

    # --- inside ------------------------------------------------------------------------------------------

    def _progression(self, start_block: int, read_blocks: int) -> tuple[int, int] | None:
        """(step, reads) of the longest progression that ends in this read, if no chance."""
        recent = self._recent
        best_reads, best_step = 2, 0
        # Every read that continues no run comes by here, and hardly one has two before it at equal distances.
        for before in [before for before in recent if 2 * before - start_block in recent]:
            if recent[before] == read_blocks and before != start_block:
                step = start_block - before
                if abs(step) > _LONGEST_STEP_BLOCKS:
                    continue
                reads = 2
                at = before
                while recent.get(at - step) == read_blocks:
                    at -= step
                    reads += 1
                if reads > best_reads:
                    best_reads, best_step = reads, step
        if best_step == 0 or best_reads < _SHORTEST:
            return None
        count = len(recent)
        unit = read_blocks if start_block % read_blocks == 0 else 1
        room = max(1, (max(*recent, start_block) - min(*recent, start_block)) // unit)
        density = count / room
        if density >= 1.0 or best_reads < 2 + (_CHANCE - math.log(count)) / math.log(density):
            return None
        return best_step, best_reads

    def _begin(self, start_block: int, step_blocks: int, read_blocks: int, reads: int, now_s: float) -> Stride:
        self._next_id += 1
        stride = Stride(self._next_id, start_block, step_blocks, read_blocks, reads, now_s)
        self._strides[stride.stride_id] = stride
        self._expect(stride)
        if len(self._strides) > limits.PREFETCH_STRIDES_PER_FILE:
            self._drop(next(iter(self._strides.values())))
        return stride

    def _advance(self, stride: Stride, start_block: int) -> None:
        steps = (start_block - stride.at_block) // stride.step_blocks
        self._unexpect(stride)
        stride.at_block = start_block
        stride.reads += 1
        stride.planned = max(0, stride.planned - steps)
        self._expect(stride)
        self._strides.move_to_end(stride.stride_id)

    def _is_echo(self, start_block: int) -> bool:
        """A step that was passed over, or read before."""
        for stride in self._strides.values():
            steps, rest = divmod(stride.at_block - start_block, stride.step_blocks)
            if rest == 0 and 0 <= steps <= _ECHO_STEPS:
                return True
        return False

    def _expect(self, stride: Stride) -> None:
        for number in range(1, _STEPS_SKIPPED + 1):
            self._by_next.setdefault(stride.at_block + number * stride.step_blocks, stride)

    def _unexpect(self, stride: Stride) -> None:
        for number in range(1, _STEPS_SKIPPED + 1):
            place = stride.at_block + number * stride.step_blocks
            if self._by_next.get(place) is stride:
                del self._by_next[place]

    def _drop(self, stride: Stride) -> None:
        self._unexpect(stride)
        del self._strides[stride.stride_id]
        self.wasted_bytes += stride.ahead_bytes
