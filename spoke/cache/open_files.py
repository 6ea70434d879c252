"""The threads that work on cached files, and the descriptors they work with: opened when they are needed, closed within a bound.

All bookkeeping is on the event loop. What takes disk time runs in one of two pools, reads and writes apart, as a
task of its own, so that a caller who gives up cannot leave a job half accounted for. Which files there are is not known here.
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

from common.limits import CACHE_OPEN_FILES_MAX, CACHE_READ_THREADS, CACHE_SLOW_FOR_S, CACHE_WRITE_THREADS
from common.log import get_logger
from spoke.cache.cached_file import CachedFile, CreatedFile, Stamp, allocated_by, create_pair, open_pair, stamp_of
from spoke.cache.disk import Disk, be_idle
from spoke.cache.quota import DIRECTORY_BYTES, NAME_BYTES, Ledger
from spoke.cache.recovery import CacheDirectory

log = get_logger(__name__)
T = TypeVar("T")
# Errors that say that the process is short of something; what it holds open idly can be given back.
SHORT_OF = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# Errors that speak of one file or of this process, not of the disk.
NOT_THE_DISK = (errno.EFBIG, errno.EISDIR, errno.ELOOP, *SHORT_OF)


def open_files_max() -> int:
    """Cached files whose two descriptors stay open: a quarter of what the process may have, at most CACHE_OPEN_FILES_MAX."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CACHE_OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else max(1, min(CACHE_OPEN_FILES_MAX, soft // 8))


class OpenFiles:
    """Files that threads are at work on. ``on_changed(file, stamp)`` hears of a data file that is not as our own last write
    left it: none of it counts as checked any more. Whoever it tells may remove the file."""

    def __init__(
        self, disk: Disk, directory: CacheDirectory, ledger: Ledger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.ledger = ledger
        self.on_changed: Callable[[CachedFile, Stamp], None] = lambda file, stamp: None
        self.read_pool = ThreadPoolExecutor(CACHE_READ_THREADS, "cache-read")
        self.write_pool = ThreadPoolExecutor(CACHE_WRITE_THREADS, "cache-write")
        self.idle_pool = ThreadPoolExecutor(1, "cache-scrub", initializer=be_idle)
        self.is_quiet = True
        """After ``end``: no thread is left inside the disk."""
        self._clock = clock
        self._slow_until_s = float("-inf")
        self._open_files_max = open_files_max()
        self._open_files: OrderedDict[CachedFile, None] = OrderedDict()
        self._opening: dict[CachedFile, asyncio.Task[None]] = {}
        self._creating: dict[CachedFile, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- threads and tasks ---------------------------------------------------------------------------

    def own(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run to its end whatever becomes of the caller; ``end`` waits for it."""
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
            if changes:  # some of it may have been done: what it looks like now, and takes, is our doing
                file.stamp = None
                with contextlib.suppress(OSError):
                    if file.data_fd >= 0:
                        self.recharge(file)
            self._release(file)
            raise
        file.own_writes -= changes
        self._release(file)
        return result

    def _release(self, file: CachedFile) -> None:
        file.uses -= 1
        if file.removed:
            self.retire(file)

    @property
    def is_slow(self) -> bool:
        """A look at the disk held the event loop for long: better none for a while."""
        return self._clock() < self._slow_until_s

    def slow(self) -> None:
        """The disk takes its time: nothing on the event loop waits for it for a while."""
        self._slow_until_s = self._clock() + CACHE_SLOW_FOR_S

    # --- descriptors -------------------------------------------------------------------------------------

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
            if error.errno not in SHORT_OF:
                raise
            self.close_idle(0)  # the process is short of descriptors: give back what we can, once
            pair = self._open_pair(file.version)
        self._have_open(file, pair)

    def used(self, file: CachedFile) -> None:
        """Most recently used now (its descriptors are open)."""
        self._open_files.move_to_end(file)

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
                if error.errno not in SHORT_OF:
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

    def retire(self, file: CachedFile) -> None:
        """Nobody uses a removed file any more: only now is its space free."""
        if file.uses or file.borrows:
            return
        self._close(file)
        if not file.on_disk and file.charged_bytes:
            self.ledger.charge(-file.charged_bytes, -2)
            file.charged_bytes = 0

    # --- what is on disk ---------------------------------------------------------------------------------

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
                if error.errno not in SHORT_OF:
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

    def is_as_left(self, file: CachedFile, stamp: Stamp) -> bool:
        """Whether the data file is as our own last write left it; see ``on_changed``."""
        if file.own_writes or file.stamp == stamp:
            return True
        if file.stamp is None:
            file.stamp = stamp
            return True
        self.on_changed(file, stamp)
        return False

    async def until_made(self, file: CachedFile) -> None:
        """Wait until nobody creates or opens the pair."""
        for begun in (self._creating.get(file), self._opening.get(file)):
            if begun is not None:
                await asyncio.wait((begun,))

    async def end(self, within_s: float) -> None:
        """Waits so long for jobs on the disk; what they hold open stays so when they do not end (see ``is_quiet``)."""
        end_s = time.monotonic() + within_s
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
