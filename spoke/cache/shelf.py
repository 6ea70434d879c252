"""The cached files of one directory: found by version, loaded at first use, their blocks let go, removed.

What takes disk time is done by ``open_files``, in threads; what cannot be believed is left to whoever hears of it (``damage``).
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable

from common.blocks import EXTENT_BLOCKS, BlockRange, count_blocks, whole_file
from common.extent_bits import mask_in
from common.limits import CACHE_CLOSE_TIMEOUT_S, CACHE_SLOW_LOAD_S
from common.log import get_logger
from spoke.cache.cached_file import CachedFile, extents_of, free_blocks, load_blocks, remove_pair, stamp_of
from spoke.cache.disk import Disk
from spoke.cache.eviction import EvictionPolicy, FileExtents
from spoke.cache.index import DamagedIndex
from spoke.cache.open_files import OpenFiles
from spoke.cache.presence import BlockMap
from spoke.cache.quota import NAME_BYTES, Ledger
from spoke.cache.recovery import CacheDirectory, FoundFile

log = get_logger(__name__)
_NO_HOLES = (errno.EOPNOTSUPP, errno.ENOSYS)


class Shelf(OpenFiles):
    """Files by version. ``on_disk_error(error)`` hears of every failed removal or punch, ``on_gone(version, blocks)`` of
    blocks that are cached no more, ``on_doubt(file)`` of one in which nothing counts as checked any more.

    ``on_damaged(file, reason, size_bytes)``: it is not of this size, and must go. ``on_not_loaded(file, error)``: it may have to.
    """

    def __init__(
        self,
        disk: Disk,
        directory: CacheDirectory,
        policy: EvictionPolicy,
        ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(disk, directory, ledger, clock)
        self.policy = policy
        self.files: dict[bytes, CachedFile] = {}
        self.pins: dict[bytes, int] = {}
        self.unloaded: list[CachedFile] = []
        self.can_punch = True
        self.on_disk_error: Callable[[OSError], None] = lambda error: None
        self.on_gone: Callable[[bytes, BlockRange], None] = lambda version, blocks: None
        self.on_doubt: Callable[[CachedFile], None] = lambda file: None
        self.on_damaged: Callable[[CachedFile, str, int], None] = lambda file, reason, size_bytes: None
        self.on_not_loaded: Callable[[CachedFile, Exception], None] = lambda file, error: None
        self._loading: set[CachedFile] = set()
        self._removing: dict[bytes, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Waits a bounded time for jobs on the disk; see ``end``."""
        await self.end(CACHE_CLOSE_TIMEOUT_S)

    # --- finding and loading -----------------------------------------------------------------------------

    def restore(self, found: FoundFile) -> None:
        """A pair seen on disk at start; its index is read when somebody asks, or when room is needed."""
        file = CachedFile(found.version, found.size_bytes, found.allocated_bytes + NAME_BYTES)
        self.files[file.version] = file
        self.unloaded.append(file)
        self.ledger.charge(file.charged_bytes)

    def find(self, version: bytes, size_bytes: int) -> CachedFile | None:
        """The loaded file of this version, or None. One of another size, or that cannot be believed, is removed."""
        file = self.files.get(version)
        if file is None:
            return None
        if file.size_bytes != size_bytes:
            self.on_damaged(file, f"file of {file.size_bytes} bytes, expected {size_bytes}", size_bytes)
            return None
        if file.blocks is None:
            if file in self._loading:
                return None
            if self.is_slow:
                self._loading.add(file)
                self.own(self._load_in_thread(file), "cache load")
                return None
            if not self.load(file):
                return None
        return file

    async def _load_in_thread(self, file: CachedFile) -> None:
        try:
            blocks = await self.run_open(self.read_pool, file, load_blocks, file.version, file.size_bytes)
            if not file.removed and file.blocks is None:
                self._look_at_load(file)
                self._adopt(file, blocks)
        except (DamagedIndex, OSError) as error:
            if not file.removed:
                self.on_not_loaded(file, error)
        finally:
            self._loading.discard(file)

    def load(self, file: CachedFile) -> bool:
        """Read the presence map; False when there is nothing to rely on (now)."""
        began_s = self._clock()
        try:
            self.open(file)
            self._look_at_load(file)
            blocks = load_blocks(self.disk, (file.data_fd, file.index_fd), file.version, file.size_bytes)
        except (DamagedIndex, OSError) as error:
            self.on_not_loaded(file, error)
            return file.blocks is not None
        finally:
            if self._clock() - began_s > CACHE_SLOW_LOAD_S:
                self.slow()
        return self._adopt(file, blocks)

    def _look_at_load(self, file: CachedFile) -> None:
        """How the file is now; none of it counts as checked. One that the kernel reads may have changed since it was last looked at."""
        stamp = stamp_of(self.disk, file.data_fd)
        if file.borrows and file.stamp not in (None, stamp):
            self.on_doubt(file)
        file.stamp = stamp

    def _adopt(self, file: CachedFile, blocks: BlockMap) -> bool:
        extents = file.adopt(blocks)
        extents.pins = self.pins.get(file.version, 0)
        for extent in blocks.present_extents():
            self.policy.restored(extents, extent)
        if blocks.present_count == 0 and not file.borrows:
            self.remove(file)
            return False
        return True

    def add(self, version: bytes, size_bytes: int) -> CachedFile:
        """A file with nothing in it; it comes to disk with its first write."""
        file = CachedFile(version, size_bytes, on_disk=False)
        file.adopt(BlockMap(count_blocks(size_bytes))).pins = self.pins.get(version, 0)
        self.files[version] = file
        return file

    # --- freeing and removing ----------------------------------------------------------------------------

    def forget(self, file: CachedFile, ranges: list[BlockRange]) -> tuple[BlockMap, FileExtents]:
        """These blocks count as absent from now on; their space stays taken. Returns what is known of the file."""
        blocks, extents = file.blocks, file.extents
        assert blocks is not None
        assert extents is not None
        touched = sorted({extent for found in ranges for extent in extents_of(found)})
        for found in ranges:
            blocks.clear(found)
            self.on_gone(file.version, found)
        file.note_freed(touched)
        for extent in touched:
            if not blocks.present_in_extent(extent):
                self.policy.gone(extents, extent)
            else:
                for found in ranges:
                    self.policy.parted(extents, extent, mask_in(found, extent))
        return blocks, extents

    def free(self, file: CachedFile, ranges: list[BlockRange]) -> asyncio.Task[None] | None:
        """Forget blocks at once and give their space back in a thread; the file goes when nothing is left.

        An extent with a write or a punch under way is only forgotten. Returns the job, if there is one.
        """
        blocks, extents = self.forget(file, ranges)
        if blocks.present_count == 0 and not extents.busy:
            return self.remove(file)
        ranges = [found for found in ranges if not any(extent in extents.busy for extent in extents_of(found))]
        if not ranges:
            return None
        held = sorted({extent for found in ranges for extent in extents_of(found)})
        for extent in held:
            extents.hold(extent)
        task = self.own(self._punch(file, ranges, held), "cache punch")
        file.punching.update(dict.fromkeys(held, task))
        return task

    async def _punch(self, file: CachedFile, ranges: list[BlockRange], held: list[int]) -> None:
        extents = file.extents
        assert extents is not None
        try:
            if not file.removed:
                await self.run_open(self.write_pool, file, free_blocks, file.size_bytes, ranges)
            if not file.removed:
                self.recharge(file)
        except OSError as error:
            if error.errno in _NO_HOLES:
                if self.can_punch:
                    log.warning("the cache disk cannot punch holes: whole files are evicted instead")
                self.can_punch = False
            elif not file.removed:
                self.on_disk_error(error)
        finally:
            for extent in held:
                extents.let_go(extent)
                del file.punching[extent]
        if not self.can_punch and not file.removed and not extents.busy and not extents.pins:
            await asyncio.shield(self.remove(file))
        else:
            self.remove_if_empty(file)

    def remove_if_empty(self, file: CachedFile) -> None:
        blocks, extents = file.blocks, file.extents
        if not file.removed and blocks is not None and extents is not None:
            self.policy.freed()
            if blocks.present_count == 0 and not extents.busy and not file.borrows:
                self.remove(file)

    def remove(self, file: CachedFile) -> asyncio.Task[None]:
        """Forget the file at once and remove both files in a thread; readers under way keep their descriptors."""
        assert not file.removed
        del self.files[file.version]
        file.removed = True
        if file.blocks is not None and file.extents is not None:
            for extent in file.blocks.present_extents():
                self.policy.gone(file.extents, extent)
                self.on_gone(file.version, BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS))
            if file.blocks.block_count:
                file.blocks.clear(whole_file(file.size_bytes))
            file.note_freed(range(-(-file.blocks.block_count // EXTENT_BLOCKS)))
        before = self._removing.get(file.version)
        task = self._removing[file.version] = self.own(self._unlink(file, before), "cache remove")
        task.add_done_callback(lambda ended: self._removal_ended(file, ended))
        return task

    def _removal_ended(self, file: CachedFile, task: asyncio.Task[None]) -> None:
        if self._removing.get(file.version) is task:
            del self._removing[file.version]
        self.retire(file)

    async def _unlink(self, file: CachedFile, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        await self.until_made(file)
        try:
            if file.on_disk:
                paths = self.directory.paths(file.version)
                await self.run(self.write_pool, file, remove_pair, self.disk, *paths)
                file.on_disk = False
        except OSError as error:
            self.on_disk_error(error)  # still there: it stays counted, and the next start finds it

    async def settled(self, version: bytes) -> None:
        """Wait until no removal of this version is under way: the paths are free."""
        while (task := self._removing.get(version)) is not None:
            await asyncio.wait((task,))

    def is_removing(self, version: bytes) -> bool:
        """Files of this version are about to go: no new one may take the names yet."""
        return version in self._removing

    # --- pins --------------------------------------------------------------------------------------------

    def pin(self, version: bytes, change: int) -> None:
        count = self.pins.get(version, 0) + change
        assert count >= 0, "unpin without pin"
        if count:
            self.pins[version] = count
        else:
            self.pins.pop(version, None)
        file = self.files.get(version)
        if file is not None and file.extents is not None:
            file.extents.pins = count
        if change < 0:
            self.policy.freed()
