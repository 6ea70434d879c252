"""Who leaves a full cache: the spoke's own policy, least recently used, CLOCK, or Belady, who knows the next use."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from random import Random
from typing import Protocol

from bench.replay.trace import Trace
from common.blocks import EXTENT_BYTES
from common.errors import UsageError
from spoke.cache.eviction import EvictionPolicy, FileExtents, NextUse

FILE_SHIFT = 32
EXTENT_MASK = (1 << FILE_SHIFT) - 1
"""An extent is named by one number: index of its file, shifted, and its index in the file."""


class Evictor(Protocol):
    name: str

    def wrote(self, extent: int, length_bytes: int) -> None: ...
    def touch(self, extent: int, length_bytes: int) -> None: ...
    def gone(self, extent: int) -> None: ...
    def choose(self) -> int | None:
        """The next victim; None when none may go. ``gone`` follows."""


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

    def wrote(self, extent: int, length_bytes: int) -> None:
        self._policy.wrote(self._file(extent >> FILE_SHIFT), extent & EXTENT_MASK, length_bytes)

    def touch(self, extent: int, length_bytes: int) -> None:
        file = self._files.get(extent >> FILE_SHIFT)
        if file is not None:
            index = extent & EXTENT_MASK
            self._policy.touch(file, index, index + 1, length_bytes)

    def gone(self, extent: int) -> None:
        self._policy.gone(self._file(extent >> FILE_SHIFT), extent & EXTENT_MASK)

    def foresee(self, next_use: NextUse) -> None:
        """Choose by what orders tell of the future."""
        self._policy.next_use = next_use

    def choose(self) -> int | None:
        found = self._policy.choose()
        return None if found is None else self._numbers[found[0].version] << FILE_SHIFT | found[1]


class LeastRecent:
    name = "lru"

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def wrote(self, extent: int, length_bytes: int) -> None:
        self._order[extent] = None
        self._order.move_to_end(extent)

    def touch(self, extent: int, length_bytes: int) -> None:
        if extent in self._order:
            self._order.move_to_end(extent)

    def gone(self, extent: int) -> None:
        self._order.pop(extent, None)

    def choose(self) -> int | None:
        return next(iter(self._order), None)


class Clock:
    """Second chance: a ring, a hand, a bit an extent."""

    name = "clock"

    def __init__(self) -> None:
        self._ring: OrderedDict[int, bool] = OrderedDict()

    def wrote(self, extent: int, length_bytes: int) -> None:
        self._ring.setdefault(extent, False)

    def touch(self, extent: int, length_bytes: int) -> None:
        if extent in self._ring:
            self._ring[extent] = True

    def gone(self, extent: int) -> None:
        self._ring.pop(extent, None)

    def choose(self) -> int | None:
        while self._ring:
            extent, used = next(iter(self._ring.items()))
            if not used:
                return extent
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

    def wrote(self, extent: int, length_bytes: int) -> None:
        self._present.add(extent)
        self._push(extent)

    def touch(self, extent: int, length_bytes: int) -> None:
        if extent in self._present:
            self._push(extent)

    def gone(self, extent: int) -> None:
        self._present.discard(extent)

    def choose(self) -> int | None:
        furthest = self.furthest()
        return None if furthest is None else furthest[1]

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
