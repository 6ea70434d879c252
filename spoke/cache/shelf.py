"""The cached files of one directory: found by version, loaded at first use, opened and closed within a bound, removed.

All bookkeeping is on the event loop. What takes disk time runs in one of two pools, reads and writes apart, as a
task of the shelf's own, so that a caller who gives up cannot leave a job half accounted for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange, count_blocks, whole_file
from common.limits import (
    CACHE_CLOSE_TIMEOUT_S,
    CACHE_OPEN_FILES_MAX,
    CACHE_READ_THREADS,
    CACHE_SLOW_FOR_S,
    CACHE_SLOW_LOAD_S,
    CACHE_WRITE_THREADS,
)
from common.log import get_logger
from spoke.cache.cached_file import (
    CachedFile,
    CreatedFile,
    Stamp,
    allocated_by,
    create_pair,
    extents_of,
    free_blocks,
    load_blocks,
    open_pair,
    remove_pair,
    stamp_of,
)
from spoke.cache.disk import Disk, be_idle, write_full
from spoke.cache.eviction import EvictionPolicy, FileExtents
from spoke.cache.index import DamagedIndex, encode_header
from spoke.cache.presence import BlockMap
from spoke.cache.quota import DIRECTORY_BYTES, NAME_BYTES, Ledger
from spoke.cache.recovery import CacheDirectory, DirectoryLost, FoundFile

log = get_logger(__name__)
T = TypeVar("T")
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)
_SHORT_OF = (errno.ENOMEM, *_TOO_MANY_OPEN)
# Errors that speak of one file or of this process, not of the disk.
NOT_THE_DISK = (errno.EFBIG, errno.EISDIR, errno.ELOOP, *_SHORT_OF)
_NO_HOLES = (errno.EOPNOTSUPP, errno.ENOSYS)


def open_files_max() -> int:
    """Cached files whose two descriptors stay open: a quarter of what the process may have, at most CACHE_OPEN_FILES_MAX."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CACHE_OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else max(1, min(CACHE_OPEN_FILES_MAX, soft // 8))


class Shelf:
    """Files by version. ``on_disk_error(error)`` hears of every failed removal or punch, ``on_gone(version, blocks)`` of
    blocks that are cached no more, ``on_bad(file, blocks, cause)`` of blocks that were here and cannot be believed."""

    def __init__(
        self,
        disk: Disk,
        directory: CacheDirectory,
        policy: EvictionPolicy,
        ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.policy = policy
        self.ledger = ledger
        self.files: dict[bytes, CachedFile] = {}
        self.pins: dict[bytes, int] = {}
        self.unloaded: list[CachedFile] = []
        self.can_punch = True
        self.damaged_files_total = 0
        self.on_disk_error: Callable[[OSError], None] = lambda error: None
        self.on_gone: Callable[[bytes, BlockRange], None] = lambda version, blocks: None
        self.on_bad: Callable[[CachedFile, list[BlockRange], str], None] = lambda file, blocks, cause: None
        self.on_doubt: Callable[[CachedFile], None] = lambda file: None
        self.lost_blocks_total = 0
        self.read_pool = ThreadPoolExecutor(CACHE_READ_THREADS, "cache-read")
        self.write_pool = ThreadPoolExecutor(CACHE_WRITE_THREADS, "cache-write")
        self._clock = clock
        self._slow_until_s = float("-inf")
        self._open_files_max = open_files_max()
        self.idle_pool = ThreadPoolExecutor(1, "cache-scrub", initializer=be_idle)
        self._open_files: OrderedDict[CachedFile, None] = OrderedDict()
        self._opening: dict[CachedFile, asyncio.Task[None]] = {}
        self._loading: set[CachedFile] = set()
        self.is_quiet = True
        """After ``close``: no thread is left inside the disk."""
        self._creating: dict[CachedFile, asyncio.Task[None]] = {}
        self._removing: dict[bytes, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- threads and tasks ---------------------------------------------------------------------------

    def own(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run to its end whatever becomes of the caller; ``close`` waits for it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._disown)
        return task

    def _disown(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may have gone: not "never retrieved"

    async def run(self, pool: ThreadPoolExecutor, file: CachedFile, job: Callable[..., T], *arguments: Any) -> T:
        """The job in a thread, with the file's descriptors held open.

        Raises FileNotFoundError when the job was to change a file in whose place another stands.
        """
        changes = pool is self.write_pool
        if changes and not file.own_writes and not file.removed and file.data_fd >= 0:
            # What somebody else did before would pass for ours afterwards.
            self.is_as_left(file, stamp_of(self.disk, file.data_fd))
            if file.removed:
                raise FileNotFoundError(errno.ENOENT, "replaced by somebody else")
        file.uses += 1
        file.own_writes += changes
        try:
            result = await asyncio.get_running_loop().run_in_executor(pool, job, *arguments)
        except asyncio.CancelledError:
            raise  # the loop is going down and the thread may still be at work: the descriptors stay open
        except BaseException:
            file.own_writes -= changes
            if changes:  # some of it may have been done: what it looks like now is our doing
                file.stamp = None
                with contextlib.suppress(OSError):
                    file.stamp = stamp_of(self.disk, file.data_fd) if file.data_fd >= 0 else None
            self._release(file)
            raise
        file.own_writes -= changes
        self._release(file)
        return result

    def _release(self, file: CachedFile) -> None:
        file.uses -= 1
        if file.removed:
            self._retire(file)

    async def run_open(self, pool: ThreadPoolExecutor, file: CachedFile, job: Callable[..., T], *arguments: Any) -> T:
        """As ``run``; the job gets the disk and the file's descriptors first, which are opened in a thread if they are not.

        Raises OSError, FileNotFoundError when the file was removed before they were open.
        """
        file.uses += 1
        try:
            while file.data_fd < 0:
                if file.removed:  # another file may have its name by now
                    raise FileNotFoundError(errno.ENOENT, "removed meanwhile")
                await self._opened(pool, file)
            if file in self._open_files:
                self._open_files.move_to_end(file)
            return await self.run(pool, file, job, self.disk, (file.data_fd, file.index_fd), *arguments)
        finally:
            self._release(file)

    async def _opened(self, pool: ThreadPoolExecutor, file: CachedFile) -> None:
        task = self._opening.get(file)
        if task is None:
            task = self._opening[file] = self.own(self._open_in(pool, file), "cache open")
        await asyncio.shield(task)

    async def _open_in(self, pool: ThreadPoolExecutor, file: CachedFile) -> None:
        loop = asyncio.get_running_loop()
        self.close_idle(self._open_files_max - 1)
        try:
            try:
                pair = await loop.run_in_executor(pool, self._open_pair, file.version)
            except OSError as error:
                if error.errno not in _SHORT_OF:
                    raise
                self.close_idle(0)
                pair = await loop.run_in_executor(pool, self._open_pair, file.version)
        finally:
            del self._opening[file]
        self._have_open(file, pair)

    def _open_pair(self, version: bytes) -> tuple[int, int]:
        """Raises OSError; DirectoryLost when the file is away because the directory is."""
        try:
            return open_pair(self.disk, *self.directory.paths(version))
        except FileNotFoundError:
            self.directory.check(self.disk)
            raise

    def _have_open(self, file: CachedFile, pair: tuple[int, int]) -> None:
        if file.data_fd >= 0:  # somebody was quicker
            for fd in pair:
                self.disk.close(fd)
            return
        file.data_fd, file.index_fd = pair
        self._open_files[file] = None
        self.close_idle(self._open_files_max)

    async def close(self) -> None:
        """Waits a bounded time for jobs on the disk; what they hold open stays so when they do not end (see ``is_quiet``)."""
        end_s = time.monotonic() + CACHE_CLOSE_TIMEOUT_S
        while self._tasks and (left_s := end_s - time.monotonic()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left_s)
        self.is_quiet = not self._tasks
        self.read_pool.shutdown(wait=self.is_quiet, cancel_futures=True)
        self.write_pool.shutdown(wait=self.is_quiet, cancel_futures=True)
        self.idle_pool.shutdown(wait=self.is_quiet, cancel_futures=True)
        if not self.is_quiet:
            log.warning("the cache disk does not finish what was begun; left as it is", jobs=len(self._tasks))
            return
        for file in list(self._open_files):
            self._close(file)

    # --- finding, loading, opening ---------------------------------------------------------------------

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
            self.discard_damaged(file, f"file of {file.size_bytes} bytes, expected {size_bytes}", size_bytes)
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

    @property
    def is_slow(self) -> bool:
        """A look at the disk held the event loop for long: better none for a while."""
        return self._clock() < self._slow_until_s

    def slow(self) -> None:
        """The disk takes its time: nothing on the event loop waits for it for a while."""
        self._slow_until_s = self._clock() + CACHE_SLOW_FOR_S

    async def _load_in_thread(self, file: CachedFile) -> None:
        try:
            blocks = await self.run_open(self.read_pool, file, load_blocks, file.version, file.size_bytes)
            if not file.removed and file.blocks is None:
                self._look_at_load(file)
                self._adopt(file, blocks)
        except (DamagedIndex, OSError) as error:
            if not file.removed:
                self._not_loaded(file, error)
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
            self._not_loaded(file, error)
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

    def _not_loaded(self, file: CachedFile, error: Exception) -> None:
        if isinstance(error, DamagedIndex):
            if not self._begin_anew(file, str(error)):
                self.discard_damaged(file, str(error))
        elif isinstance(error, DirectoryLost):
            self.on_disk_error(error)  # and it may come back
        elif isinstance(error, OSError) and error.errno not in _SHORT_OF:
            self.discard_damaged(file, f"cannot be read: {error.strerror or error}")

    def _begin_anew(self, file: CachedFile, reason: str) -> bool:
        """The index of a file that an earlier process lent is damaged: nothing of it counts as here, and its bytes stay for those
        who read it until the right ones are written over them. False: it is not lent, or the disk does not let us."""
        if not file.borrows or file.data_fd < 0:
            return False
        try:
            self._write_fresh_index(file)
            self.disk.ftruncate(file.data_fd, file.size_bytes)
            file.stamp = stamp_of(self.disk, file.data_fd)
        except OSError as error:
            self.on_disk_error(error)
            return False
        file.adopt(BlockMap(count_blocks(file.size_bytes))).pins = self.pins.get(file.version, 0)
        self.damaged_files_total += 1
        self.lost_blocks_total += max(1, min(count_blocks(file.size_bytes), file.charged_bytes // BLOCK_BYTES))
        self.on_bad(file, [whole_file(file.size_bytes)], reason)
        return True

    def _write_fresh_index(self, file: CachedFile) -> None:
        """Raises OSError."""
        self.disk.ftruncate(file.index_fd, 0)
        self.disk.ftruncate(file.index_fd, file.layout.total_bytes)
        write_full(self.disk, file.index_fd, encode_header(file.version, file.size_bytes), 0)

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

    def open(self, file: CachedFile) -> None:
        """Have the descriptors open, as the most recently used. Raises OSError."""
        assert not file.removed, "another file may have its name by now"
        if file.data_fd >= 0:
            self._open_files.move_to_end(file)
            return
        self.close_idle(self._open_files_max - 1)
        try:
            pair = self._open_pair(file.version)
        except OSError as error:
            if error.errno not in _SHORT_OF:
                raise
            self.close_idle(0)  # the process is short of descriptors: give back what we can, once
            pair = self._open_pair(file.version)
        self._have_open(file, pair)

    def used(self, file: CachedFile) -> None:
        """Most recently used now (its descriptors are open)."""
        self._open_files.move_to_end(file)

    async def create(self, file: CachedFile) -> None:
        """Make the pair on disk, once however many writers come first. Raises OSError."""
        task = self._creating.get(file)
        if task is None:
            task = self._creating[file] = self.own(self._create(file), "cache create")
        await asyncio.shield(task)

    async def _create(self, file: CachedFile) -> None:
        self.close_idle(self._open_files_max - 1)
        try:
            try:
                made = await self.run(self.write_pool, file, self._create_job, file.version, file.size_bytes)
            except OSError as error:
                if error.errno not in _SHORT_OF:
                    raise
                self.close_idle(0)
                made = await self.run(self.write_pool, file, self._create_job, file.version, file.size_bytes)
        finally:
            del self._creating[file]
        file.on_disk = True
        file.data_fd, file.index_fd = made.data_fd, made.index_fd
        self._open_files[file] = None
        file.charged_bytes = NAME_BYTES
        self.ledger.charge(NAME_BYTES, 2)
        if made.made_folder:
            self.ledger.charge(DIRECTORY_BYTES, 1)
        self.recharge(file)

    def _create_job(self, version: bytes, size_bytes: int) -> CreatedFile:
        """In a thread: the directory is still there, and the pair."""
        self.directory.check(self.disk)
        return create_pair(self.disk, *self.directory.paths(version), version, size_bytes)

    def recharge(self, file: CachedFile) -> None:
        """What the file takes now, as the file system counts it (its descriptors are open)."""
        taken_bytes = allocated_by(self.disk, (file.data_fd, file.index_fd)) + NAME_BYTES
        file.stamp = stamp_of(self.disk, file.data_fd)
        self.ledger.charge(taken_bytes - file.charged_bytes)
        file.charged_bytes = taken_bytes

    def close_idle(self, keep_count: int) -> None:
        """Close the least recently used files nobody is at work on, until ``keep_count`` are open."""
        surplus = len(self._open_files) - keep_count
        if surplus > 0:
            idle = (file for file in self._open_files if not file.uses and not file.extents_busy)
            for file in list(islice(idle, surplus)):
                self._close(file)

    def _close(self, file: CachedFile) -> None:
        self._open_files.pop(file, None)
        for fd in (file.data_fd, file.index_fd):
            if fd >= 0:
                self.disk.close(fd)
        file.data_fd = file.index_fd = -1

    # --- freeing and removing ----------------------------------------------------------------------------

    def _forget(self, file: CachedFile, ranges: list[BlockRange]) -> tuple[BlockMap, FileExtents]:
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
        return blocks, extents

    def free(self, file: CachedFile, ranges: list[BlockRange]) -> asyncio.Task[None] | None:
        """Forget blocks at once and give their space back in a thread; the file goes when nothing is left.

        An extent with a write or a punch under way is only forgotten. Returns the job, if there is one.
        """
        blocks, extents = self._forget(file, ranges)
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

    def spoil(self, file: CachedFile, ranges: list[BlockRange], cause: str) -> None:
        """These blocks are not what they should be: forget them and say so, so that they are fetched again.

        In a file that is lent the bytes stay where they are until the right ones are written over them: a hole would
        give its readers zeros, and removing the file would leave them the bad bytes for ever.
        """
        if file.borrows:
            self._forget(file, ranges)
        else:
            self.free(file, ranges)
        self.on_bad(file, ranges, cause)

    def cut_short(self, file: CachedFile, reason: str) -> None:
        """One of the two files ends too early. Those of a lent file get their length back, to be filled again; else both go."""
        blocks = file.blocks
        if blocks is None or not file.borrows or file.data_fd < 0:
            self.discard_damaged(file, reason)
            return
        try:
            data = self.disk.fstat(file.data_fd)
            lent = self.disk.fstat(file.borrow_fd) if file.borrow_fd >= 0 else data
            if (data.st_dev, data.st_ino) != (lent.st_dev, lent.st_ino):  # what is lent is another file, and not cut
                self.discard_damaged(file, reason)
                return
            lost_block = data.st_size // BLOCK_BYTES
            if self.disk.fstat(file.index_fd).st_size < file.layout.total_bytes:
                self._write_fresh_index(file)
                lost_block = 0
            elif data.st_size >= file.size_bytes:
                return  # another read has seen it too, and it is mended
            self.disk.ftruncate(file.data_fd, file.size_bytes)
            file.stamp = stamp_of(self.disk, file.data_fd)
        except OSError as error:
            self.on_disk_error(error)
            self.discard_damaged(file, reason)
            return
        self.damaged_files_total += 1
        lost = BlockRange(lost_block, blocks.block_count - lost_block)
        self.lost_blocks_total += sum(part.block_count for part in blocks.present(lost))
        self.spoil(file, [lost], reason)

    def discard_damaged(self, file: CachedFile, reason: str, size_bytes: int | None = None) -> None:
        """Drop a file that cannot be believed, counted and told of. ``size_bytes``: what it should be, if not what it is."""
        self.damaged_files_total += 1
        known = file.blocks
        # What an index held that cannot be read is not known: as many as the disk space was for.
        guessed = max(1, min(count_blocks(file.size_bytes), file.charged_bytes // BLOCK_BYTES))
        self.lost_blocks_total += known.present_count if known is not None else guessed
        self.remove(file)
        self.on_bad(file, [whole_file(file.size_bytes if size_bytes is None else size_bytes)], reason)

    def is_as_left(self, file: CachedFile, stamp: Stamp) -> bool:
        """Whether the data file is as our own last write left it. If not, none of it counts as checked any more."""
        if file.own_writes or file.stamp == stamp:
            return True
        if file.stamp is None:
            file.stamp = stamp
            return True
        if file.borrows and (stamp.device, stamp.inode) != (file.stamp.device, file.stamp.inode):
            # The kernel reads the one that was there, which stays as it was; what stands here now is nobody's.
            self.discard_damaged(file, "another file was put in its place")
            return False
        log.info(
            "a cached file was changed by somebody else: all of it is checked again before its next use",
            data_path=self.directory.paths(file.version)[0],
        )
        file.stamp = stamp
        file.announced = False
        if file.blocks is not None:
            file.blocks.doubt()
        self.on_doubt(file)
        return False

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
        self._retire(file)

    async def _unlink(self, file: CachedFile, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        for begun in (self._creating.get(file), self._opening.get(file)):
            if begun is not None:
                await asyncio.wait((begun,))
        try:
            if file.on_disk:
                paths = self.directory.paths(file.version)
                await self.run(self.write_pool, file, remove_pair, self.disk, *paths)
                file.on_disk = False
        except OSError as error:
            self.on_disk_error(error)  # still there: it stays counted, and the next start finds it

    def _retire(self, file: CachedFile) -> None:
        """Nobody uses a removed file any more: only now is its space free."""
        if file.uses or file.borrows:
            return
        self._close(file)
        if not file.on_disk and file.charged_bytes:
            self.ledger.charge(-file.charged_bytes, -2)
            file.charged_bytes = 0

    async def settled(self, version: bytes) -> None:
        """Wait until no removal of this version is under way: the paths are free."""
        while (task := self._removing.get(version)) is not None:
            await asyncio.wait((task,))

    def is_removing(self, version: bytes) -> bool:
        """Files of this version are about to go: no new one may take the names yet."""
        return version in self._removing

    # --- pins and loans ----------------------------------------------------------------------------------

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

    def give_back(self, file: CachedFile) -> None:
        """One loan of the read-only descriptor ended."""
        file.borrows -= 1
        if file.borrows == 0:
            if file.removed:
                self._retire(file)
            else:
                self.remove_if_empty(file)
