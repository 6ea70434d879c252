"""Room on the cache disk before it is needed: reservations, and evictions until they fit.

Files whose version no name in the tree has any more go first and as a whole; then what the policy chooses.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from random import Random

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange
from common.limits import CACHE_EVICT_BATCH_BYTES, CACHE_EVICT_ROUNDS_MAX
from spoke.cache.cached_file import CachedFile, free_space
from spoke.cache.eviction import FileExtents
from spoke.cache.foreseen import NEVER
from spoke.cache.health import NoRoom, TroubleKind
from spoke.cache.quota import WRITE_OVERHEAD_BYTES, FreeSpace, Ledger
from spoke.cache.shelf import Shelf

_BATCHES_OF_CAPACITY = 64
_NEW_FILE_INODES = 3
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Reclaimer:
    """Makes room on a shelf; one at a time, so that two writers do not evict for the same shortage."""

    def __init__(self, shelf: Shelf, dice: Random) -> None:
        self._shelf = shelf
        self._dice = dice
        self._lock = asyncio.Lock()
        self._released = asyncio.Event()
        self._condemned: list[CachedFile] = []
        shelf.policy.present = self._present
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

    async def reserve(
        self, need_bytes: int, need_inodes: int, version: bytes = b"", blocks: BlockRange | None = None
    ) -> None:
        """Set ``need_bytes`` aside for ``blocks`` of ``version``, evicting until they fit. Raises NoRoom when they cannot.

        What is read sooner than these blocks does not make room for them, as far as orders tell.
        """
        looked_again = False
        for _ in range(CACHE_EVICT_ROUNDS_MAX):
            async with self._lock:
                if self._ledger.excess_bytes(need_bytes) <= 0 and self._ledger.excess_inodes(need_inodes) <= 0:
                    self._ledger.reserve(need_bytes, need_inodes)
                    return
                nearer_stay = self._next_use(version, blocks)
                if await self._evict_batch(self._ledger.excess_bytes(need_bytes), need_inodes, version, nearer_stay):
                    continue
                if not self._ledger.reserved_bytes:
                    if looked_again:
                        break
                    # The disk was last asked while files that are off the books were still being removed: it had less room then.
                    looked_again = True
                    with contextlib.suppress(OSError):
                        await self.refresh()
                    continue
                self._released.clear()
            # What fills the cache is being written right now, and can be evicted or was refused once it is done.
            await self._released.wait()
        raise NoRoom(
            self._short_of(need_inodes),
            f"no room for {need_bytes} bytes: {self._ledger.used_bytes} of {self._ledger.capacity_bytes} bytes are used, "
            "and what is cached is pinned, in use or about to be read",
        )

    def _next_use(self, version: bytes, blocks: BlockRange | None) -> int:
        """Steps until these blocks are used, -1 where nobody knows, or they are to be kept in any case."""
        foresight = self._shelf.policy.foresight if version not in self._shelf.pins else None
        steps = foresight.next_use(version, blocks) if foresight is not None and blocks is not None else None
        return -1 if steps is None else steps

    def is_worthless(self, version: bytes, blocks: BlockRange) -> bool:
        """To write these blocks something must go, and they are not used again, as far as orders tell: who wanted them has them."""
        need_bytes = blocks.block_count * BLOCK_BYTES + WRITE_OVERHEAD_BYTES
        return self._ledger.excess_bytes(need_bytes) > 0 and self._next_use(version, blocks) >= NEVER

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

    async def _evict_batch(
        self, excess_bytes: int, need_inodes: int, version: bytes = b"", nearer_stay: int = -1
    ) -> bool:
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
                evicted_bytes = self._evict_one(whole_files, jobs, nearer_stay)
                if evicted_bytes is None:
                    break
                freed_bytes += evicted_bytes
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

    def _evict_one(self, whole_file: bool, jobs: set[asyncio.Task[None]], nearer_stay: int) -> int | None:
        """Free the policy's choice; its bytes, or None when there is none."""
        shelf = self._shelf
        # Files not asked for since the start come into the choice one by one, and all of them before we give up.
        self._load_one()
        choice = shelf.policy.choose(whole_file, nearer_stay)
        while choice is None and shelf.unloaded:
            self._load_one()
            choice = shelf.policy.choose(whole_file, nearer_stay)
        if choice is None:
            return None
        if whole_file:
            file = shelf.files[choice.file.version]
            jobs.add(shelf.remove(file))
            return file.charged_bytes
        file = shelf.files[choice.file.version]
        assert file.blocks is not None
        spans = choice.blocks
        if spans is None:
            first_block = choice.extent * EXTENT_BLOCKS
            spans = [BlockRange(first_block, min(EXTENT_BLOCKS, file.blocks.block_count - first_block))]
        leaving_bytes = sum(file.blocks.count_present(found) for found in spans) * BLOCK_BYTES
        job = shelf.free(file, spans)
        if job is not None:
            jobs.add(job)
        return file.charged_bytes if file.removed else leaving_bytes

    def _present(self, extents: FileExtents, blocks: BlockRange) -> list[BlockRange]:
        file = self._shelf.files.get(extents.version)
        if file is None or file.blocks is None:
            return []
        end_block = min(blocks.end_block, file.blocks.block_count)
        return file.blocks.present(BlockRange(blocks.first_block, end_block - blocks.first_block))

    def _load_one(self) -> None:
        unloaded = self._shelf.unloaded
        while unloaded:
            position = int(self._dice.random() * len(unloaded))
            unloaded[position], unloaded[-1] = unloaded[-1], unloaded[position]
            file = unloaded.pop()
            if not file.removed and file.blocks is None:
                self._shelf.load(file)
                return
