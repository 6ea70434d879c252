"""Finds reads at equal distances in one file, forwards or backwards: columns of tables, headers of records, a file read from its end.

Only reads that continue no run come here. Of the last few, three or more at equal distances in time's order are a progression; how long
it must be depends on how likely chance makes one among so many reads in so little room, so that random reads, and shuffles
inside a small window, make none. As runs, progressions are known by place alone: whoever reads the next place goes on with it.
"""

from __future__ import annotations

import math
import sys
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

_FAULT_LEAD_BLOCKS = 16
_PARTS = 3
_PARTS_MAX = 128
_PARTS_CHANCE = 0.001
"""Three reads in a row, each where a part of the file begins (or, by a page fault, 64 KiB before), of at most so many equal ones: how
likely random reads may be to do so."""


class Stride:
    """A progression: the last read at ``at_block``, ``step_blocks`` (may be negative) from one to the next, ``read_blocks`` each.

    ``reads`` seen; ``planned`` steps ahead of ``at_block`` were given out to be fetched, ``fetch_blocks`` each. ``are_parts``: its
    places are where equal parts of the file begin. While more than ``due`` are planned, its READs that are hits need only be counted, in
    ``noted_reads``.
    """

    __slots__ = ("are_parts", "at_block", "due", "fetch_blocks", "noted_reads", "planned", "read_blocks", "reads", "step_blocks",
                 "stride_id", "window")  # fmt: skip

    def __init__(
        self, stride_id: int, at_block: int, step_blocks: int, read_blocks: int, reads: int, now_s: float
    ) -> None:
        self.stride_id = stride_id
        self.at_block = at_block
        self.step_blocks = step_blocks
        self.read_blocks = self.fetch_blocks = read_blocks
        self.reads = reads
        self.are_parts = False
        self.planned = self.noted_reads = 0
        self.due = sys.maxsize
        self.window = Window(now_s)

    @property
    def ahead_bytes(self) -> int:
        """Given out and not yet read."""
        return self.planned * self.fetch_blocks * BLOCK_BYTES


class StrideTable:
    """The progressions of one file of ``block_count`` blocks; the longest unread is forgotten. ``wasted_bytes``: what the forgotten
    ones had ahead, until taken."""

    def __init__(self, block_count: int) -> None:
        self._block_count = block_count
        self._recent: OrderedDict[int, int] = OrderedDict()  # first block: blocks
        self._strides: OrderedDict[int, Stride] = OrderedDict()
        self._by_next: dict[int, Stride] = {}
        self._next_id = 0
        self._last_block, self._last_blocks = -(1 << 60), 0  # where the last read was, and of how many blocks
        self._step_blocks = self._equal_steps = 0  # the latest distance from one to the next, and how often in a row
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
        step_blocks = start_block - self._last_block
        if step_blocks == self._step_blocks and read_blocks == self._last_blocks:
            self._equal_steps += 1
        else:
            self._step_blocks, self._last_blocks, self._equal_steps = step_blocks, read_blocks, 1
        self._last_block = start_block
        if downward_reads >= _SHORTEST:
            return self._begin(start_block, -read_blocks, read_blocks, downward_reads, now_s)
        if self._strides and self._is_echo(start_block):
            return None
        recent = self._recent
        found = None
        # Every read that continues no run comes by here, and hardly one has two before it at equal distances.
        for before in recent:
            if 2 * before - start_block in recent and before != start_block:
                found = self._progression(start_block, read_blocks)
                break
        recent[start_block] = read_blocks
        recent.move_to_end(start_block)
        if len(recent) > _RECENT_READS:
            recent.popitem(last=False)
        if found is not None:
            return self._begin(start_block, found[0], read_blocks, found[1], now_s)
        if self._equal_steps != _PARTS - 1 or not self._are_parts(start_block, step_blocks, read_blocks):
            return None
        stride = self._begin(start_block, step_blocks, read_blocks, _PARTS, now_s)
        stride.are_parts = True
        return stride

    def ahead(
        self, stride: Stride, now_s: float, *, late: bool, latency_s: float, cap_bytes: int, least_blocks: int = 0
    ) -> list[BlockRange]:
        """Learn from a read of ``stride``; what to fetch now, nearest first: at each place as much as was read, or ``least_blocks``."""
        read_bytes = stride.read_blocks * BLOCK_BYTES
        stride.window.read(
            now_s,
            read_bytes * (1 + stride.noted_reads),
            stride.reads * read_bytes,
            late=late,
            latency_s=latency_s,
            cap_bytes=cap_bytes,
        )
        # Never more steps ahead than were seen: lanes at equal distances begin like a progression, and go on otherwise.
        wanted = max(1, stride.window.window_bytes // read_bytes)
        stride.noted_reads = 0
        stride.due = wanted - max(1, wanted // 4)
        if stride.reads < wanted:
            stride.due = sys.maxsize  # each read shows that it is longer
            if not stride.are_parts:
                wanted = stride.reads
        if wanted - stride.planned < max(1, wanted // 4):
            return []  # a few at a time
        stride.fetch_blocks = max(stride.read_blocks, least_blocks)
        ranges = []
        for number in range(stride.planned + 1, wanted + 1):
            first_block = stride.at_block + number * stride.step_blocks
            end_block = min(first_block + stride.fetch_blocks, self._block_count)
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

    def _are_parts(self, start_block: int, step_blocks: int, read_blocks: int) -> bool:
        """Reads so far apart begin equal parts of the file, as readers do that share it between them."""
        step = abs(step_blocks)
        if step <= read_blocks:
            return False
        parts = round(self._block_count / step)
        if not _PARTS <= parts <= _PARTS_MAX or abs(self._block_count - parts * step) > parts:
            return False
        beside = start_block % step
        if parts < beside < step - _FAULT_LEAD_BLOCKS:
            return False
        unit = read_blocks if start_block % read_blocks == 0 and step % read_blocks == 0 else 1
        places = self._block_count / unit
        return _PARTS_MAX / places / places < _PARTS_CHANCE

    def _progression(self, start_block: int, read_blocks: int) -> tuple[int, int] | None:
        """(step, reads) of the longest progression that ends in this read, if no chance."""
        recent = self._recent
        best_reads, best_step = 2, 0
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
        step_blocks, by_next = stride.step_blocks, self._by_next
        if start_block == stride.at_block + step_blocks:  # none was skipped: most
            del by_next[start_block]
            stride.at_block = start_block
            stride.reads += 1
            if stride.planned:
                stride.planned -= 1
            by_next.setdefault(start_block + _STEPS_SKIPPED * step_blocks, stride)
            self._strides.move_to_end(stride.stride_id)
            return
        steps = (start_block - stride.at_block) // step_blocks
        for place in range(stride.at_block + step_blocks, start_block + step_blocks, step_blocks):
            if by_next.get(place) is stride:
                del by_next[place]
        stride.at_block = start_block
        stride.reads += 1
        stride.planned = max(0, stride.planned - steps)
        for number in range(_STEPS_SKIPPED - steps + 1, _STEPS_SKIPPED + 1):
            by_next.setdefault(start_block + number * step_blocks, stride)
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
