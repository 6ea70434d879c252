"""Room on the cache disk before it is needed: reservations, and evictions until they fit.

Files whose version no name in the tree has any more go first and as a whole; then what the policy chooses.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange, subtract
from common.limits import CACHE_EVICT_BATCH_BYTES, CACHE_EVICT_ROUNDS_MAX
from spoke.cache.cached_file import CachedFile, free_space
from spoke.cache.eviction import FileExtents
from spoke.cache.health import NoRoom, TroubleKind
from spoke.cache.quota import FreeSpace, Ledger
from spoke.cache.shelf import Shelf

_BATCHES_OF_CAPACITY = 64
_NEW_FILE_INODES = 3
_SPARED_MAX = 64  # extents of which nothing may go that a batch passes over, before what is about to be read goes
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)


class _Leaving(NamedTuple):
    """Of a file, what an eviction takes; ``leaving_bytes`` of it are present."""

    file: CachedFile
    spans: list[BlockRange]
    leaving_bytes: int


class Reclaimer:
    """Makes room on a shelf; one at a time, so that two writers do not evict for the same shortage."""

    def __init__(self, shelf: Shelf, dice: Random) -> None:
        self._shelf = shelf
        self._dice = dice
        self._lock = asyncio.Lock()
        self._released = asyncio.Event()
        self._condemned: list[CachedFile] = []
        self.evicted_bytes_total = 0
        self.making_room: tuple[bytes, bool] | None = None
        """While something is evicted: the version it goes for (empty: the disk's limit), and whether no name has the victim any more."""

    @property
    def _ledger(self) -> Ledger:
        return self._shelf.ledger

    def look(self, space: FreeSpace, used_before_bytes: int) -> None:
        """Take in what statvfs said, and what was used before it was asked."""
        self._ledger.look(space, used_before_bytes)
        self._shelf.policy.set_capacity(self._ledger.capacity_bytes)

    async def reserve(self, need_bytes: int, need_inodes: int, version: bytes = b"") -> None:
        """Set ``need_bytes`` aside for blocks of ``version``, evicting until they fit. Raises NoRoom when they cannot."""
        for _ in range(CACHE_EVICT_ROUNDS_MAX):
            async with self._lock:
                if self._ledger.excess_bytes(need_bytes) <= 0 and self._ledger.excess_inodes(need_inodes) <= 0:
                    self._ledger.reserve(need_bytes, need_inodes)
                    return
                if await self._evict_batch(self._ledger.excess_bytes(need_bytes), need_inodes, version):
                    continue
                if not self._ledger.reserved_bytes:
                    break
                self._released.clear()
            # What fills the cache is being written right now, and can be evicted or was refused once it is done.
            await self._released.wait()
        raise NoRoom(
            self._short_of(need_inodes),
            f"no room for {need_bytes} bytes: {self._ledger.used_bytes} of {self._ledger.capacity_bytes} bytes are used, "
            "and what is cached is pinned, in use or about to be read",
        )

    def _short_of(self, need_inodes: int) -> TroubleKind | None:
        """What is lacking; None when the disk has given all the room the cache was to have."""
        if self._ledger.excess_inodes(need_inodes) > 0:
            return "inodes"
        return "full" if self._ledger.capacity_bytes < self._ledger.limits.capacity_bytes else None

    def release(self, need_bytes: int, need_inodes: int) -> None:
        """End a reservation: what was written is charged by now."""
        self._ledger.release(need_bytes, need_inodes)
        self._released.set()

    async def squeeze(self, need_bytes: int, need_inodes: int) -> bool:
        """The disk is full although the books say there is room: look again and evict some. False when nothing can go."""
        async with self._lock:
            await self.refresh()
            return await self._evict_batch(need_bytes, need_inodes)

    def has_room(self, need_bytes: int) -> bool:
        """By the last look at the disk a write of so much fits, if the cache makes room for it, and so does a new file."""
        ledger = self._ledger
        return ledger.capacity_bytes > 2 * need_bytes and ledger.excess_inodes(_NEW_FILE_INODES) <= 0

    def is_out_of_inodes(self, need_inodes: int) -> bool:
        """As of the last look at the disk."""
        free_inodes = self._ledger.space.free_inodes
        return free_inodes is not None and free_inodes < need_inodes

    async def trim(self) -> None:
        """Get down to the limit, however long it takes."""
        while self._ledger.excess_bytes() > 0:
            async with self._lock:
                if not await self._evict_batch(self._ledger.excess_bytes(), 0):
                    return

    async def refresh(self) -> None:
        """Ask the disk for its free space now. Raises OSError."""
        shelf = self._shelf
        path = str(shelf.directory.path)
        used_before_bytes = self._ledger.used_bytes
        space = await asyncio.get_running_loop().run_in_executor(shelf.write_pool, free_space, shelf.disk, path)
        self.look(space, used_before_bytes)

    def condemn(self, live: Callable[[bytes], bool]) -> int:
        """Mark the files whose version is not ``live`` as the first to go; returns how many."""
        self._condemned = []
        for file in self._shelf.files.values():
            file.condemned = not live(file.version)
            if file.condemned:
                self._condemned.append(file)
        return len(self._condemned)

    async def _evict_batch(self, excess_bytes: int, need_inodes: int, version: bytes = b"") -> bool:
        """Free about ``excess_bytes``, at least a batch's slack, at most a few MiB. False when there was nothing to free."""
        batch_bytes = min(CACHE_EVICT_BATCH_BYTES, self._ledger.capacity_bytes // _BATCHES_OF_CAPACITY)
        want_bytes = min(max(excess_bytes, 0) + batch_bytes, max(excess_bytes, CACHE_EVICT_BATCH_BYTES))
        want_bytes = min(want_bytes, 4 * CACHE_EVICT_BATCH_BYTES)
        whole_files = (
            not self._shelf.can_punch
            or self._ledger.excess_inodes(need_inodes) > 0
            or self.is_out_of_inodes(need_inodes)
        )
        freed_bytes = 0
        jobs: set[asyncio.Task[None]] = set()
        while freed_bytes < want_bytes:
            victim = self._take_condemned()
            self.making_room = version, victim is not None
            if victim is not None:
                freed_bytes += victim.charged_bytes
                jobs.add(self._shelf.remove(victim))
            else:
                evicted_bytes = self._evict_one(whole_files, jobs)
                if evicted_bytes is None:
                    break
                freed_bytes += evicted_bytes
        self._shelf.policy.spared.clear()
        self.making_room = None
        self.evicted_bytes_total += freed_bytes
        if jobs:
            await asyncio.wait(jobs)
        return bool(jobs)

    def _take_condemned(self) -> CachedFile | None:
        shelf = self._shelf
        for position in range(len(self._condemned) - 1, -1, -1):
            file = self._condemned[position]
            if file.removed or not file.condemned:
                del self._condemned[position]
            elif not file.uses and not file.extents_busy and file.version not in shelf.pins:
                del self._condemned[position]
                return file
        return None

    def _evict_one(self, whole_file: bool, jobs: set[asyncio.Task[None]]) -> int | None:
        """Free the policy's choice; its bytes, or None when there is none."""
        shelf = self._shelf
        # Files not asked for since the start come into the choice one by one, and all of them before we give up.
        self._load_one()
        choice = shelf.policy.choose(whole_file)
        while choice is None and shelf.unloaded:
            self._load_one()
            choice = shelf.policy.choose(whole_file)
        if choice is None:
            return None
        if whole_file:
            file = shelf.files[choice[0].version]
            jobs.add(shelf.remove(file))
            return file.charged_bytes
        # Scattered records: the extent that is used last may hold nothing but what is about to be read, while others hold much that was.
        policy, next_choice, found = shelf.policy, choice, self._leaving(*choice)
        while not found.leaving_bytes and len(policy.spared) < _SPARED_MAX:
            policy.spared.add((found.file.version, next_choice[1]))
            another = policy.choose(whole_file)
            if another is None:
                policy.freed()
                break
            next_choice, found = another, self._leaving(*another)
        if not found.leaving_bytes:  # where all is awaited, all goes
            found = self._leaving(*choice, spare=False)
        job = shelf.free(found.file, found.spans)
        if job is not None:
            jobs.add(job)
        return found.file.charged_bytes if found.file.removed else found.leaving_bytes

    def _leaving(self, extents: FileExtents, extent: int, *, spare: bool = True) -> _Leaving:
        """What would go of an extent: all of it, but, with ``spare``, what orders say is about to be read."""
        shelf = self._shelf
        file = shelf.files[extents.version]
        blocks = file.blocks
        assert blocks is not None
        first_block = extent * EXTENT_BLOCKS
        spans = [BlockRange(first_block, min(EXTENT_BLOCKS, blocks.block_count - first_block))]
        if spare and shelf.policy.awaited is not None:
            for kept in shelf.policy.awaited(file.version, extent):
                spans = subtract(spans, kept)
        return _Leaving(file, spans, sum(blocks.count_present(found) for found in spans) * BLOCK_BYTES)

    def _load_one(self) -> None:
        unloaded = self._shelf.unloaded
        while unloaded:
            position = int(self._dice.random() * len(unloaded))
            unloaded[position], unloaded[-1] = unloaded[-1], unloaded[position]
            file = unloaded.pop()
            if not file.removed and file.blocks is None:
                self._shelf.load(file)
                return
