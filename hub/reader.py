"""Reads blocks of a version from the hub's files, and never a byte that is not of it.

A descriptor is trusted for a version only while fstat, before and after the read, says what the catalog knows
(inode, size, mtime, ctime). Bytes in the page cache are read at once; others in a few threads. Files are read with
preadv, never mapped: a file truncated under us gives a short read and not a SIGBUS.

A writer that holds a shared writable mapping can change bytes without the kernel moving any timestamp until it next
faults a page: no check of this kind sees that. Datasets are written, then served.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange, byte_length, count_blocks
from common.buffers import EXTENT_BUFFERS
from common.digest import block_digests
from common.errors import HeadraceError, ProtocolError, SourceReadError, StaleVersion
from common.log import get_logger
from common.runtime import cancel_and_wait
from common.serving.source import Extent
from hub.catalog_tables import Resolved
from hub.export import Export
from hub.versions import Identity, identity_of

log = get_logger(__name__)

RACY_WINDOW_NS = 20_000_000
"""A second edit within one tick of the kernel's coarse clock (at most 10 ms) leaves the timestamps as they were."""

_RECHECK_TIMEOUT_S = 2.0
_MOVED_ON_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE, errno.EINVAL, errno.EXDEV})
_NO_NOWAIT_ERRNOS = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class Places(Protocol):
    """Where versions are (hub.catalog), and who looks again when a place proved wrong (hub.watcher)."""

    async def resolve(self, version: bytes, *, fresh: bool = False) -> Resolved | None: ...

    async def recheck(self, path: bytes) -> None: ...


class _MovedOn(Exception):
    """What stands at the path is not what the catalog said; it may have been renamed, or edited."""


class _OpenFile:
    __slots__ = ("evicted", "fd", "identity", "users")

    def __init__(self, fd: int, identity: Identity) -> None:
        self.fd = fd
        self.identity = identity
        self.users = 0
        self.evicted = False


class _OpenFiles:
    """Descriptors by version, the least recently used closed beyond ``capacity``; safe from any thread."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._guard = threading.Lock()
        self._files: OrderedDict[bytes, _OpenFile] = OrderedDict()

    def borrow(self, version: bytes, identity: Identity) -> _OpenFile | None:
        """The open file if it was opened as this identity; give it back with :meth:`release`."""
        with self._guard:
            file = self._files.get(version)
            if file is None or file.identity != identity:
                return None
            self._files.move_to_end(version)
            file.users += 1
            return file

    def holds(self, version: bytes) -> bool:
        return version in self._files

    def add(self, version: bytes, fd: int, identity: Identity) -> _OpenFile:
        """Keep ``fd`` from now on, and borrow it."""
        file = _OpenFile(fd, identity)
        file.users = 1
        with self._guard:
            replaced = self._files.pop(version, None)
            self._files[version] = file
            if replaced is not None:
                self._evict(replaced)
            while len(self._files) > self._capacity:
                self._evict(self._files.popitem(last=False)[1])
        return file

    def release(self, file: _OpenFile) -> None:
        with self._guard:
            file.users -= 1
            if file.evicted and not file.users:
                os.close(file.fd)

    def drop(self, versions: Iterable[bytes]) -> None:
        with self._guard:
            for version in versions:
                file = self._files.pop(version, None)
                if file is not None:
                    self._evict(file)

    def drop_all(self) -> None:
        with self._guard:
            while self._files:
                self._evict(self._files.popitem()[1])

    def __len__(self) -> int:
        return len(self._files)

    def _evict(self, file: _OpenFile) -> None:
        file.evicted = True
        if not file.users:
            os.close(file.fd)


class Reader:
    """``wall_clock_ns``: the clock that the kernel stamps files with. End with ``await close()``."""

    def __init__(self, export: Export, places: Places, wall_clock_ns: Callable[[], int], threads: int = 4) -> None:
        self._export = export
        self._places = places
        self._wall_clock_ns = wall_clock_ns
        self._files = _OpenFiles(limits.HUB_OPEN_FILES_MAX)
        self._threads = ThreadPoolExecutor(threads, f"read-{export.name}")
        self._gates: dict[bytes, list[asyncio.Future[Resolved | None]]] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._nowait_works = True
        self._noting = threading.Lock()
        self._noted: dict[tuple[bytes, int], int] = {}
        self.inline_reads = 0
        self.thread_reads = 0

    async def close(self) -> None:
        await cancel_and_wait(*self._opening)
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
        self._files.drop_all()

    def forget(self, versions: set[bytes] | None) -> None:
        """These versions (None: any) are gone or elsewhere: an open descriptor would keep a deleted file's space. Any thread."""
        if versions is None:
            self._files.drop_all()
        else:
            self._files.drop(versions)

    async def read_extent(self, version: bytes, blocks: BlockRange) -> Extent:
        """See common.serving.source.BlockSource. A file found moved is looked for once more before it counts as stale."""
        for attempt in range(2):
            place = await self._find(version, fresh=attempt > 0)
            if place is None:
                break
            _check_range(blocks, place.identity.size_bytes)
            try:
                extent = self._read_inline(version, place, blocks)
                if extent is None:
                    extent = await asyncio.get_running_loop().run_in_executor(
                        self._threads, self._read_in_thread, version, place, blocks
                    )
            except _MovedOn:
                self._files.drop((version,))
                if attempt == 0:
                    await self._recheck(place.path)
            else:
                return extent
        raise StaleVersion(f"version {version.hex()} is no longer in dataset {self._export.name!r}")

    async def _find(self, version: bytes, *, fresh: bool) -> Resolved | None:
        """Where the version is, its file open if it can be, and past the moment in which an edit would not show.

        The first reads of a file wait for that together and go on in the order in which they came, else prefetch would
        overtake what somebody waits for; and a new connection's first round trip carries only some 60 kB.
        """
        waiters = self._gates.get(version)
        if waiters is None:
            if fresh or self._files.holds(version):
                place = await self._places.resolve(version, fresh=fresh)
                if place is not None:
                    await self._leave_racy_window(place.identity)
                return place
            waiters = self._gates[version] = []
            task = asyncio.create_task(self._open_gate(version, waiters), name="open a served file")
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        waiter: asyncio.Future[Resolved | None] = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        return await waiter

    async def _open_gate(self, version: bytes, waiters: list[asyncio.Future[Resolved | None]]) -> None:
        place: Resolved | None = None
        error: BaseException | None = None
        try:
            place = await self._places.resolve(version)
            if place is not None:
                await self._leave_racy_window(place.identity)  # together: timers of their own would shuffle them
                with contextlib.suppress(_MovedOn, HeadraceError):  # the reads will meet it again, and know what to do
                    await asyncio.get_running_loop().run_in_executor(self._threads, self._open_ahead, version, place)
        except BaseException as caught:  # noqa: BLE001 -- for the waiters to handle; cancelled when the reader is closed
            error = caught
        while waiters:  # those who come while the first go on still go after them
            going, waiters[:] = list(waiters), []
            for waiter in going:
                _settle(waiter, place, error)
            if error is None:
                await asyncio.sleep(0)
        del self._gates[version]

    async def _recheck(self, path: bytes) -> None:
        try:
            async with asyncio.timeout(_RECHECK_TIMEOUT_S):
                await self._places.recheck(path)
        except (TimeoutError, HeadraceError) as error:
            log.warning("a file moved on and could not be looked at again", path=path, error=repr(error))

    async def _leave_racy_window(self, identity: Identity) -> None:
        """Wait until a further edit could not carry the same timestamps."""
        age_ns = self._wall_clock_ns() - identity.ctime_ns
        # Far in the future: the clock was set back, and edits now carry other stamps.
        if -RACY_WINDOW_NS < age_ns < RACY_WINDOW_NS:
            await asyncio.sleep((RACY_WINDOW_NS - age_ns) / 1e9)

    def _read_inline(self, version: bytes, place: Resolved, blocks: BlockRange) -> Extent | None:
        """The extent if its file is open and the page cache has all of it, without waiting for a disk."""
        if not self._nowait_works:
            return None
        file = self._files.borrow(version, place.identity)
        if file is None:
            return None
        try:
            data = _buffer(byte_length(blocks, place.identity.size_bytes))
            _require_identity(file.fd, place.identity)
            try:
                count = os.preadv(file.fd, [data], blocks.first_block * BLOCK_BYTES, os.RWF_NOWAIT)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno in _NO_NOWAIT_ERRNOS:
                    log.info(
                        "this file system has no reads without waiting; threads read all", dataset=self._export.name
                    )
                    self._nowait_works = False
                return None  # a failing disk is the thread's to report
            if count < len(data):
                return None
            _require_identity(file.fd, place.identity)
        finally:
            self._files.release(file)
        self.inline_reads += 1
        return Extent(blocks, data, block_digests(version, blocks.first_block, data))

    def _open_ahead(self, version: bytes, place: Resolved) -> None:
        with self._translated(place):
            self._files.release(self._open(version, place))

    def _read_in_thread(self, version: bytes, place: Resolved, blocks: BlockRange) -> Extent:
        with self._translated(place):
            file = self._files.borrow(version, place.identity)
            file = file or self._open(version, place)
            try:
                data = _buffer(byte_length(blocks, place.identity.size_bytes))
                _require_identity(file.fd, place.identity)
                try:
                    _read_fully(file.fd, memoryview(data), blocks.first_block * BLOCK_BYTES)
                except OSError as error:
                    self._note_unreadable(version, place.path, _first_unreadable(file.fd, blocks), error)
                    raise
                _require_identity(file.fd, place.identity)
            finally:
                self._files.release(file)
        self.thread_reads += 1
        return Extent(blocks, data, block_digests(version, blocks.first_block, data))

    def _note_unreadable(self, version: bytes, path: bytes, block: int, error: OSError) -> None:
        """One line for a bad place, however often it is asked for; in any thread."""
        now_ns = self._wall_clock_ns()
        with self._noting:
            last_ns = self._noted.get((version, block))
            if last_ns is not None and 0 <= now_ns - last_ns < limits.UNREADABLE_LOG_INTERVAL_S * 1e9:
                return
            if len(self._noted) >= limits.UNREADABLE_NOTED_MAX:
                self._noted.clear()
            self._noted[version, block] = now_ns
        log.error(
            "a file cannot be read; spokes that have its blocks serve them, readers of others get EIO",
            dataset=self._export.name,
            path=path,
            block=block,
            cause=error.strerror or str(error),
            next_step=_advice(error).removeprefix("; "),
        )

    @contextlib.contextmanager
    def _translated(self, place: Resolved) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _MOVED_ON_ERRNOS:
                raise _MovedOn from error
            raise SourceReadError(
                f"cannot read {place.path.decode('utf-8', 'backslashreplace')} of dataset {self._export.name!r}: "
                f"{error.strerror}{_advice(error)}"
            ) from error

    def _open(self, version: bytes, place: Resolved) -> _OpenFile:
        fd = self._export.open_file(place.path)
        try:
            _require_identity(fd, place.identity)
        except BaseException:
            os.close(fd)
            raise
        return self._files.add(version, fd, place.identity)


def _settle(waiter: asyncio.Future[Resolved | None], place: Resolved | None, error: BaseException | None) -> None:
    if waiter.done():
        return  # withdrawn meanwhile
    if isinstance(error, asyncio.CancelledError):
        waiter.cancel()
    elif error is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(place)


def _buffer(size_bytes: int) -> bytearray | memoryview:
    return EXTENT_BUFFERS.take() if size_bytes == EXTENT_BYTES else bytearray(size_bytes)


def _check_range(blocks: BlockRange, size_bytes: int) -> None:
    first_block, block_count = blocks
    if first_block < 0 or block_count < 1 or blocks.end_block > count_blocks(size_bytes):
        raise ProtocolError(f"blocks {first_block}+{block_count} are not in a file of {size_bytes} bytes")
    if first_block // EXTENT_BLOCKS != (blocks.end_block - 1) // EXTENT_BLOCKS:
        raise ProtocolError(f"blocks {first_block}+{block_count} are not of one extent of {EXTENT_BLOCKS} blocks")


def _require_identity(fd: int, identity: Identity) -> None:
    if identity_of(os.fstat(fd)) != identity:
        raise _MovedOn


def _read_fully(fd: int, view: memoryview, offset_bytes: int) -> None:
    done_bytes = 0
    while done_bytes < len(view):
        count = os.preadv(fd, [view[done_bytes:]], offset_bytes + done_bytes)
        if not count:
            raise _MovedOn  # shorter than it was
        done_bytes += count


def _first_unreadable(fd: int, blocks: BlockRange) -> int:
    """Which of the blocks it was; the first of them when all can be read after all."""
    block = bytearray(BLOCK_BYTES)
    for index in range(blocks.first_block, blocks.end_block):
        try:
            os.preadv(fd, [block], index * BLOCK_BYTES)
        except OSError:
            return index
    return blocks.first_block


def _advice(error: OSError) -> str:
    if error.errno in {errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO}:
        return "; the disk under the dataset fails there: look at dmesg and smartctl on the hub, put the file back from a copy"
    if error.errno == errno.EACCES:
        return "; let the hub's user read it"
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "; raise the limit of open files (LimitNOFILE)"
    return ""
