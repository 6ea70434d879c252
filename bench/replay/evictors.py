"""Who leaves a full cache: the spoke's own policy, least recently used, CLOCK, or Belady, who knows the next use."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

from bench.replay.trace import Trace
from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from common.errors import UsageError
from common.extent_bits import blocks_of
from spoke.cache.eviction import EvictionPolicy, FileExtents
from spoke.cache.foreseen import Foresight

FILE_SHIFT = 32
EXTENT_MASK = (1 << FILE_SHIFT) - 1
"""An extent is named by one number: index of its file, shifted, and its index in the file."""


def bits_of(blocks: BlockRange) -> int:
    """A bit for each of these blocks of one extent."""
    return ((1 << blocks.block_count) - 1) << blocks.first_block % EXTENT_BLOCKS


def runs(mask: int) -> list[BlockRange]:
    """(first bit, count) of each run of set bits."""
    return blocks_of(0, mask)


def blocks_in(index: int, mask: int) -> BlockRange:
    """The blocks of the extent of this index in its file from the first bit to the last."""
    first = (mask & -mask).bit_length() - 1
    return BlockRange(index * EXTENT_BLOCKS + first, mask.bit_length() - first)


class Evictor(Protocol):
    name: str

    def wrote(self, extent: int, length_bytes: int, mask: int) -> None:
        """Blocks ``mask`` of an extent arrived."""

    def touch(self, extent: int, length_bytes: int, mask: int) -> None:
        """A reader got some of an extent, out of its blocks ``mask``."""

    def gone(self, extent: int) -> None: ...
    def choose(self, newest: int = 0, mask: int = 0) -> tuple[int, int] | None:
        """The next victim: (extent, bits of its blocks, 0 for all); None when none may go. ``gone`` follows when all went.

        Room is made for ``newest``, blocks ``mask``.
        """


class Ours:
    """The spoke's policy, called as its cache calls it."""

    name = "ours"

    def __init__(self, trace: Trace, capacity_bytes: int, seed: int) -> None:
        self._policy = EvictionPolicy(Random(seed), capacity_bytes)
        self._files: dict[int, FileExtents] = {}
        self._numbers: dict[bytes, int] = {}
        self._sizes = [file.size_bytes for file in trace.files]

    def _file(self, number: int) -> FileExtents:
        file = self._files.get(number)
        if file is None:
            version = number.to_bytes(16, "big")
            file = self._files[number] = FileExtents(version, -(-self._sizes[number] // EXTENT_BYTES))
            self._numbers[version] = number
        return file

    def wrote(self, extent: int, length_bytes: int, mask: int) -> None:
        self._policy.wrote(self._file(extent >> FILE_SHIFT), extent & EXTENT_MASK, length_bytes, mask)

    def touch(self, extent: int, length_bytes: int, mask: int) -> None:
        file = self._files.get(extent >> FILE_SHIFT)
        if file is not None:
            index = extent & EXTENT_MASK
            self._policy.touch(file, index, index + 1, length_bytes, blocks_in(index, mask))

    def gone(self, extent: int) -> None:
        self._policy.gone(self._file(extent >> FILE_SHIFT), extent & EXTENT_MASK)

    def foresee(self, foresight: Foresight, held: Mapping[int, int]) -> None:
        """Choose by what orders tell of the future."""
        self.holds(held)
        self._policy.foresight = foresight

    def holds(self, held: Mapping[int, int]) -> None:
        """``held``: bits of the blocks that are here, of each extent; kept up to date."""

        def present(file: FileExtents, blocks: BlockRange) -> list[BlockRange]:
            number, base = self._numbers[file.version], blocks.first_block // EXTENT_BLOCKS
            mask = held.get(number << FILE_SHIFT | base, 0) & bits_of(blocks)
            return blocks_of(base, mask)

        self._policy.present = present

    def choose(self, newest: int = 0, mask: int = 0) -> tuple[int, int] | None:
        policy, nearer_stay = self._policy, -1
        if policy.foresight is not None and mask:
            version, base = self._file(newest >> FILE_SHIFT).version, (newest & EXTENT_MASK) * EXTENT_BLOCKS
            known = [
                steps
                for first, count in runs(mask)
                if (steps := policy.foresight.next_use(version, BlockRange(base + first, count))) is not None
            ]
            nearer_stay = min(known, default=-1)
        found = policy.choose(nearer_stay=nearer_stay)
        if found is None:
            return None
        bits = sum(bits_of(blocks) for blocks in found.blocks or ())
        if bits:
            policy.parted(found.file, found.extent, bits)
        return self._numbers[found.file.version] << FILE_SHIFT | found.extent, bits


class LeastRecent:
    name = "lru"

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def wrote(self, extent: int, length_bytes: int, mask: int) -> None:
        self._order[extent] = None
        self._order.move_to_end(extent)

    def touch(self, extent: int, length_bytes: int, mask: int) -> None:
        if extent in self._order:
            self._order.move_to_end(extent)

    def gone(self, extent: int) -> None:
        self._order.pop(extent, None)

    def choose(self, newest: int = 0, mask: int = 0) -> tuple[int, int] | None:
        oldest = next(iter(self._order), None)
        return None if oldest is None else (oldest, 0)


class Clock:
    """Second chance: a ring, a hand, a bit an extent."""

    name = "clock"

    def __init__(self) -> None:
        self._ring: OrderedDict[int, bool] = OrderedDict()

    def wrote(self, extent: int, length_bytes: int, mask: int) -> None:
        self._ring.setdefault(extent, False)

    def touch(self, extent: int, length_bytes: int, mask: int) -> None:
        if extent in self._ring:
            self._ring[extent] = True

    def gone(self, extent: int) -> None:
        self._ring.pop(extent, None)

    def choose(self, newest: int = 0, mask: int = 0) -> tuple[int, int] | None:
        while self._ring:
            extent, used = next(iter(self._ring.items()))
            if not used:
                return extent, 0
            self._ring[extent] = False
            self._ring.move_to_end(extent)
        return None


class Belady:
    """The extent whose next use is furthest away. ``next_use``: the place of that in the order of all READs."""

    name = "belady"

    def __init__(self, next_use: Callable[[int], int]) -> None:
        self._next_use = next_use
        self._present: set[int] = set()
        self._heap: list[tuple[int, int]] = []

    def wrote(self, extent: int, length_bytes: int, mask: int) -> None:
        self._present.add(extent)
        self._push(extent)

    def touch(self, extent: int, length_bytes: int, mask: int) -> None:
        if extent in self._present:
            self._push(extent)

    def gone(self, extent: int) -> None:
        self._present.discard(extent)

    def choose(self, newest: int = 0, mask: int = 0) -> tuple[int, int] | None:
        furthest = self.furthest()
        return None if furthest is None else (furthest[1], 0)

    def furthest(self) -> tuple[int, int] | None:
        """(place of its next use, extent)."""
        heap = self._heap
        while heap:
            place, extent = -heap[0][0], heap[0][1]
            if extent not in self._present:
                heapq.heappop(heap)
                continue
            now = self._next_use(extent)
            if now == place:
                return place, extent
            heapq.heapreplace(heap, (-now, extent))
        return None

    def _push(self, extent: int) -> None:
        heapq.heappush(self._heap, (-self._next_use(extent), extent))
        if len(self._heap) > 4 * len(self._present) + 1024:
            self._heap = [(-self._next_use(extent), extent) for extent in sorted(self._present)]
            heapq.heapify(self._heap)


EVICTORS = ("ours", "lru", "clock", "belady")


def make_evictor(
    name: str, trace: Trace, capacity_bytes: int, seed: int, next_use: Callable[[], Callable[[int], int]]
) -> Evictor:
    """``next_use`` is asked for only by who needs the future. Raises UsageError for a name that is not there."""
    match name:
        case "ours":
            return Ours(trace, capacity_bytes, seed)
        case "lru":
            return LeastRecent()
        case "clock":
            return Clock()
        case "belady":
            return Belady(next_use())
    raise UsageError(f"no eviction policy {name!r}; there are: {', '.join(EVICTORS)}")
