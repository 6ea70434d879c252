"""Eviction by what is known of the future, block by block: what is not used again goes first, then what is used furthest away.

An extent of 1 MiB may hold scattered records, some read, some about to be: so it is looked at in parts, each used next at one step of an
order. Parts come from what was just used, which is told of, and from an extent or two looked at by chance for each choice; the furthest
of all that was seen so far goes, if it still is as far as it was. Plain data: no file, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace, nsmallest
from typing import Generic, NamedTuple, Protocol, TypeVar

from common.blocks import EXTENT_BLOCKS, BlockRange
from common.limits import NEVER_STEPS

NEVER = NEVER_STEPS

_PARTS_MAX = 8192
_TRIES = 64
_TOLD_MAX = 64
_POSTPONED_MAX = 1024
_HELD_MAX = 256

FileT = TypeVar("FileT")


class Part(Protocol):
    """Blocks of one extent that are used next after so many steps."""

    @property
    def steps(self) -> int: ...
    @property
    def blocks(self) -> BlockRange: ...


class Foresight(Protocol):
    """Who knows what comes."""

    def knows(self, version: bytes) -> bool:
        """It says when bytes of this version are used next."""

    def next_use(self, version: bytes, blocks: BlockRange) -> int | None:
        """Steps until one of the blocks is used; None: it does not say."""

    def uses(self, version: bytes, extent_index: int) -> Sequence[Part] | None:
        """All blocks of an extent, in parts; None: it does not say."""

    def take_used(self) -> tuple[bytes, BlockRange] | None:
        """(version, blocks of one extent) that were used, perhaps for the last time; each is given once. A whole extent: some of it."""

    @property
    def steps_taken(self) -> int:
        """Steps that were used so far, about: so that what was noted earlier can be compared with what is noted now."""


class Victim(NamedTuple, Generic[FileT]):
    """Blocks of one extent that may go: present ones, or None for all there are."""

    file: FileT
    extent: int
    blocks: list[BlockRange] | None = None


class Parts(Generic[FileT]):
    """The parts seen, furthest first. ``present``: those of some blocks of a file that are cached.

    ``find``: what a version is known as, if something of it is cached. ``is_held``: the extent may not be touched now.
    """

    def __init__(
        self,
        find: Callable[[bytes], FileT | None],
        present: Callable[[FileT, BlockRange], list[BlockRange]],
        is_held: Callable[[FileT, int], bool],
    ) -> None:
        self._find = find
        self._present = present
        self._is_held = is_held
        # Steps until it is used plus those taken before it was noted, negative; a tie-break; by which look; what it is.
        self._heap: list[tuple[int, int, int, FileT, bytes, int, BlockRange]] = []
        self._seen_at: dict[tuple[bytes, int], int] = {}
        """By which look the parts of an extent are as they were noted last."""
        self._serial = 0
        self._noted = 0
        self._postponed: dict[tuple[bytes, BlockRange], None] = {}
        self.heard = False
        """Something was told of with the last :meth:`take_spent`."""

    def take_spent(self, foresight: Foresight) -> Victim[FileT] | None:
        """What was used for the last time, the longest ago; None when nothing was that may go now. What is used again is noted."""
        self.heard = False
        left = len(self._postponed)
        for _ in range(_TOLD_MAX):
            found = foresight.take_used()
            if found is not None:
                self.heard = True
            elif left:
                left -= 1
                found = next(iter(self._postponed))
            else:
                return None
            self._postponed.pop(found, None)
            version, blocks = found
            file, extent = self._find(version), blocks.first_block // EXTENT_BLOCKS
            if file is None:
                continue
            if self._is_held(file, extent):
                self._postponed[found] = None
                if len(self._postponed) > _POSTPONED_MAX:
                    del self._postponed[next(iter(self._postponed))]
                continue
            if blocks.block_count == EXTENT_BLOCKS:
                self.look(foresight, file, version, extent)
                continue
            present = self._present(file, blocks)
            steps = foresight.next_use(version, blocks) if present else None
            if steps is None:
                continue
            if steps >= NEVER:
                return Victim(file, extent, present)
            ends = (blocks.first_block, blocks.end_block - 1)
            if any(
                foresight.next_use(version, BlockRange(at, 1)) != steps for at in ends
            ):  # used again in part, as by page faults
                self.look(foresight, file, version, extent)
                continue
            due = steps + foresight.steps_taken
            self._note(due, file, version, extent, present, self._seen_at.get((version, extent), 0))
        return None

    def look(self, foresight: Foresight, file: FileT, version: bytes, extent: int) -> None:
        """Take note of all parts of an extent as they are now."""
        self._serial += 1
        self._seen_at[version, extent] = self._serial
        taken = foresight.steps_taken
        for part in foresight.uses(version, extent) or ():
            self._note(part.steps + taken, file, version, extent, self._present(file, part.blocks), self._serial)

    def _note(self, due: int, file: FileT, version: bytes, extent: int, present: list[BlockRange], serial: int) -> None:
        for blocks in present:
            self._noted += 1
            heappush(self._heap, (-due, self._noted, serial, file, version, extent, blocks))
        if len(self._heap) > _PARTS_MAX or len(self._seen_at) > 2 * _PARTS_MAX:
            self._heap[:] = nsmallest(_PARTS_MAX // 2, self._heap)  # sorted, so a heap
            kept = {(entry[4], entry[5]) for entry in self._heap}
            self._seen_at = {key: at for key, at in self._seen_at.items() if key in kept}

    def __len__(self) -> int:
        return len(self._heap)

    def take_furthest(self, foresight: Foresight, nearer_stay: int) -> Victim[FileT] | None:
        """The part used last as things stand now; None when nothing seen is used after ``nearer_stay`` steps."""
        held: list[tuple[int, int, int, FileT, bytes, int, BlockRange]] = []
        try:
            return self._take_furthest(foresight, nearer_stay, held)
        finally:
            for entry in held:
                heappush(self._heap, entry)

    def _take_furthest(
        self, foresight: Foresight, nearer_stay: int, held: list[tuple[int, int, int, FileT, bytes, int, BlockRange]]
    ) -> Victim[FileT] | None:
        """``held`` gets what may not go just now."""
        heap, tries, taken = self._heap, 0, foresight.steps_taken
        while heap and len(held) < _HELD_MAX:
            noted, _, serial, file, version, extent, blocks = heap[0]
            if self._seen_at.get((version, extent), 0) != serial:  # looked at again since
                heappop(heap)
                continue
            present = [] if self._find(version) is not file else self._present(file, blocks)
            steps = foresight.next_use(version, blocks) if present else None
            if steps is None:
                heappop(heap)
                continue
            if self._is_held(file, extent):
                held.append(heappop(heap))
                continue
            if steps + taken < -noted and steps < NEVER and tries < _TRIES:  # its reader has come nearer
                tries += 1
                self._noted += 1
                heapreplace(heap, (-steps - taken, self._noted, serial, file, version, extent, blocks))
                continue
            if steps <= nearer_stay and steps < NEVER:
                return None
            heappop(heap)
            return Victim(file, extent, present)
        return None
