"""The way of blocks to the disk: wait for what is under way on their extents, make room, write in a thread, then say they are here.

An extent being written is neither evicted nor punched, and one being punched is not written: a block called present
has its bytes.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence

from common.blocks import BLOCK_BYTES, BlockRange
from common.errors import CacheWriteError
from common.extent_bits import masks_of
from common.limits import CACHE_STATVFS_EVERY_BYTES
from common.log import get_logger
from common.units import format_size
from spoke.cache.cached_file import CachedFile, extents_of, free_space, loaded, write_blocks
from spoke.cache.disk import Disk
from spoke.cache.health import DiskHealth, NoRoom, TroubleKind, kind_of
from spoke.cache.open_files import NOT_THE_DISK
from spoke.cache.quota import FILE_OVERHEAD_BYTES, WRITE_OVERHEAD_BYTES, FreeSpace
from spoke.cache.reclaim import OUT_OF_SPACE, Reclaimer
from spoke.cache.shelf import Shelf

log = get_logger(__name__)

_FILE_INODES = 3  # data, index, and perhaps a folder
_SHORT_OF_WHAT: dict[TroubleKind, str] = {
    "full": "no space left on it",
    "inodes": "no inodes left on it",
    "quota": "the quota of this user, group or directory is reached",
}


class BlockWriter:
    """Writes blocks of any file on the shelf.

    ``on_written(file)`` is called after each success, ``disk_failed(error)`` when the disk is to blame, ``on_well()`` when
    trouble has ended with a write.
    """

    def __init__(
        self,
        shelf: Shelf,
        reclaim: Reclaimer,
        health: DiskHealth,
        disk_failed: Callable[[OSError], None],
        on_written: Callable[[CachedFile], None],
        clock: Callable[[], float],
        on_well: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._on_well = on_well
        self._under_way: dict[object, float] = {}
        self._shelf = shelf
        self._directory = shelf.directory
        self._policy = shelf.policy
        self._reclaim = reclaim
        self._health = health
        self._disk_failed = disk_failed
        self._on_written = on_written
        self._unseen_bytes = 0  # written since the last look at the disk's free space
        self.errors_total = 0

    async def write(
        self,
        version: bytes,
        size_bytes: int,
        blocks: BlockRange,
        pieces: Sequence[bytes | bytearray | memoryview],
        digests: bytes | memoryview,
    ) -> None:
        """Blocks that matched their digests; see Store.write. Raises CacheWriteError."""
        touched = extents_of(blocks)
        while True:
            await self._shelf.settled(version)
            file = self._shelf.find(version, size_bytes)
            if file is None:
                if version in self._shelf.files:
                    raise CacheWriteError("the process has too many open files to look into the cache")
                if self._shelf.is_removing(version):
                    continue
                file = self._shelf.add(version, size_bytes)
            if loaded(file).covers(blocks.first_block, blocks.end_block):
                return
            punches = {file.punching[extent] for extent in touched if extent in file.punching}
            if not punches:
                break
            await asyncio.wait(punches)
        extents = file.extents
        assert extents is not None
        for extent in touched:
            extents.hold(extent)
        file.writing.append(blocks)
        try:
            await self._write_held(file, blocks, pieces, digests)
        except CacheWriteError as error:
            self.errors_total += 1
            if isinstance(error, NoRoom) and error.kind is not None:
                self.short_of(error.kind, str(error))
            raise
        finally:
            file.write_ended(blocks)
            for extent in touched:
                extents.let_go(extent)
            self._shelf.remove_if_empty(file)

    def short_of(self, kind: TroubleKind, reason: str) -> None:
        if self._health.refused(self._clock(), kind, reason):
            log.warning("no room on the cache disk: what does not fit is served and not cached", reason=reason,
                        path=str(self._directory.path))  # fmt: skip

    def _too_large(self, size_bytes: int) -> None:
        reason = (
            f"it takes no file of {format_size(size_bytes)}: such files are served and not cached (its file system's limit, or "
            "LimitFSIZE=, ulimit -f, of the spoke)"
        )
        if self._health.refused_length(self._clock(), size_bytes, reason):
            log.warning("no room on the cache disk for files as large as some of the dataset", reason=reason,
                        path=str(self._directory.path))  # fmt: skip

    def oldest_s(self, now_s: float) -> float:
        """How long the write that began first has been under way; 0 when there is none."""
        return now_s - next(iter(self._under_way.values()), now_s)

    async def _write_held(
        self,
        file: CachedFile,
        blocks: BlockRange,
        pieces: Sequence[bytes | bytearray | memoryview],
        digests: bytes | memoryview,
    ) -> None:
        new_count = sum(found.block_count for found in loaded(file).missing(blocks))
        overhead_bytes = WRITE_OVERHEAD_BYTES if file.on_disk else FILE_OVERHEAD_BYTES
        need_bytes = new_count * BLOCK_BYTES + overhead_bytes * len(extents_of(blocks))
        need_inodes = 0 if file.on_disk else _FILE_INODES
        await self._reclaim.reserve(need_bytes, need_inodes, file.version, blocks)
        used_before_bytes = self._shelf.ledger.used_bytes
        write = object()
        self._under_way[write] = self._clock()
        try:
            space = await self._write_to_disk(file, blocks, pieces, digests, need_bytes)
            if file.removed:
                return
            self._shelf.recharge(file)
        except OSError as error:  # it cannot even say what the file takes
            if error.errno not in NOT_THE_DISK:
                self._disk_failed(error)
            raise CacheWriteError(f"cache write failed: {error.strerror or error}") from error
        finally:
            del self._under_way[write]
            self._reclaim.release(need_bytes, need_inodes)
        if space is not None:
            self._reclaim.look(space, used_before_bytes)
        if self._health.wrote():
            self._on_well()
        loaded(file).set_verified(blocks)
        assert file.extents is not None
        for extent, mask in masks_of(blocks):
            self._policy.wrote(file.extents, extent, mask.bit_count() * BLOCK_BYTES, mask)
        self._on_written(file)

    async def _write_to_disk(
        self,
        file: CachedFile,
        blocks: BlockRange,
        pieces: Sequence[bytes | bytearray | memoryview],
        digests: bytes | memoryview,
        need_bytes: int,
    ) -> FreeSpace | None:
        for last_try in (False, True):
            try:
                if not file.on_disk and not file.removed:
                    await self._shelf.create(file)
                if file.removed:
                    return None  # dropped while we waited: there is nothing to keep these blocks in
                self._unseen_bytes += blocks.block_count * BLOCK_BYTES
                look = self._unseen_bytes >= CACHE_STATVFS_EVERY_BYTES
                if look:
                    self._unseen_bytes = 0
                return await self._shelf.run_open(
                    self._shelf.write_pool, file, self._write_job, file.size_bytes, blocks, pieces, digests, look
                )
            except OSError as error:
                if file.removed:
                    return None
                if error.errno in OUT_OF_SPACE:
                    need_inodes = 0 if file.on_disk else _FILE_INODES
                    if not last_try and await self._squeezed(need_bytes, need_inodes):
                        continue
                    kind = "inodes" if self._reclaim.is_out_of_inodes(need_inodes) else kind_of(error)
                    raise NoRoom(kind, f"the cache disk is full: {_SHORT_OF_WHAT[kind]}") from error
                if error.errno == errno.EFBIG:
                    self._too_large(file.size_bytes)
                elif error.errno not in NOT_THE_DISK:
                    self._disk_failed(error)
                raise CacheWriteError(f"cache write failed: {error.strerror or error}") from error
        raise AssertionError("the last try returns or raises")

    def _write_job(
        self,
        disk: Disk,
        pair: tuple[int, int],
        size_bytes: int,
        blocks: BlockRange,
        pieces: Sequence[bytes | bytearray | memoryview],
        digests: bytes | memoryview,
        look: bool,
    ) -> FreeSpace | None:
        """In a thread: the directory is still there, the blocks, and now and then the disk's free space."""
        self._directory.check(disk)
        write_blocks(disk, pair, size_bytes, blocks.first_block, pieces, digests)
        return free_space(disk, str(self._directory.path)) if look else None

    async def _squeezed(self, need_bytes: int, need_inodes: int) -> bool:
        try:
            return await self._reclaim.squeeze(need_bytes, need_inodes)
        except OSError as error:
            self._disk_failed(error)
            return False
