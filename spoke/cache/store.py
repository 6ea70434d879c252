"""The block cache as the rest of the spoke sees it: what is here, read it, write it, keep it within its limits.

Blocks are named (version, index). A block is handed out only if it was written in this process life or matched its
digest in it. A disk that fails makes reads say "missing" and writes say CacheWriteError; neither ends a reader's
request. All methods belong to the event loop's thread, except ``open``, which blocks.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

from common.blocks import (
    BLOCK_BYTES,
    BlockRange,
    byte_length,
    count_blocks,
    covering,
    whole_file,
)
from common.digest import DIGEST_BYTES
from common.errors import CacheDirectoryError, CacheWriteError
from common.limits import CACHE_INODE_FLOOR_SHARE, CACHE_LENT_FILES_MAX, CACHE_TEND_WAIT_S, CACHE_WRITE_RUN_SHARE
from common.log import get_logger
from spoke.cache.cached_file import CachedFile, extents_of, free_space, loaded
from spoke.cache.damage import Damage
from spoke.cache.disk import Disk
from spoke.cache.disk_care import DiskCare
from spoke.cache.eviction import EvictionPolicy
from spoke.cache.examine import Examined, Examiner
from spoke.cache.foreseen import Foresight
from spoke.cache.health import DiskHealth, Trouble
from spoke.cache.loans import Loans
from spoke.cache.quota import (
    DIRECTORY_BYTES,
    Ledger,
    Limits,
    check_limits,
)
from spoke.cache.reader import BlockReader, BlocksMissing
from spoke.cache.reclaim import Reclaimer
from spoke.cache.recovery import CacheDirectory, open_directory
from spoke.cache.shelf import Shelf
from spoke.cache.writer import BlockWriter

log = get_logger(__name__)

__all__ = ["Bad", "BlocksMissing", "CacheState", "Held", "Store", "Usage"]

CacheState = Literal["absent", "partial", "whole", "verified"]
_MAP_LOOKS = 16  # at one part of a map: 24 files of 48 parts are some 20 ms


@dataclass(frozen=True, slots=True)
class Usage:
    """What the cache holds and went through. ``capacity_bytes`` is what it may hold now, ``configured_bytes`` what was asked for."""

    used_bytes: int
    capacity_bytes: int
    configured_bytes: int
    files: int
    evicted_bytes_total: int
    corrupt_blocks_total: int
    damaged_files_total: int
    read_errors_total: int
    write_errors_total: int
    bypass: str | None
    trouble: Trouble | None = None


class Bad(NamedTuple):
    """Blocks that were cached and could not be believed; forgotten by now. ``lent``: the kernel reads the file by itself."""

    version: bytes
    size_bytes: int
    blocks: list[BlockRange]
    cause: str
    lent: bool
    data_path: str


@dataclass(frozen=True, slots=True)
class Held:
    """What is on disk of one version. ``state``: partial, whole, verified, or unchecked: not looked at since the start.

    ``pinned``: also when the kernel reads it by itself now.
    """

    cached_bytes: int
    disk_bytes: int
    state: str
    pinned: bool


class Store:
    """The cache in one directory. Make it with ``open``; ``close`` it, or use it as an async context manager.

    ``on_whole``: called on the event loop with a version when all its blocks are present and verified.
    ``on_gone``: called with a version and blocks that were evicted, dropped or found corrupt (some may not have been here).
    ``on_bad``: called with what was found corrupt or unreadable, to be told and mended; without it, it is logged here.
    ``on_doubt``: called with a version and size that somebody else changed on the disk: it is checked again before its next use.
    """

    def __init__(
        self, directory: CacheDirectory, shelf: Shelf, dice: Random, clock: Callable[[], float], configured_bytes: int
    ) -> None:
        self.on_whole: Callable[[bytes], None] | None = None
        self.on_gone: Callable[[bytes, BlockRange], None] | None = None
        self.on_well: Callable[[], None] = lambda: None
        """Called when trouble with the disk has ended."""
        self.on_bad: Callable[[Bad], None] | None = None
        self.on_doubt: Callable[[bytes, int], None] | None = None
        self._directory = directory
        self._shelf = shelf
        self._disk = shelf.disk
        self._policy = shelf.policy
        self._ledger = shelf.ledger
        self._reclaim = Reclaimer(shelf, dice)
        self._clock = clock
        self._configured_bytes = configured_bytes
        self._health = DiskHealth()
        self._damage = Damage(shelf, self._bad)
        self._loans = Loans(shelf, CACHE_LENT_FILES_MAX)
        self._care = DiskCare(
            shelf, self._reclaim, self._loans, self._health, clock, self._well, lambda: self._writer.oldest_s(clock())
        )
        self._reader = BlockReader(shelf, self._damage, self._health, self._care.failed, self._announce, clock)
        self._writer = BlockWriter(
            shelf, self._reclaim, self._health, self._care.failed, self._announce, clock, self._care.well
        )
        self._examiner = Examiner(shelf, self._reader)
        self._closed = False
        shelf.on_disk_error = self._care.failed
        shelf.on_gone = self._gone
        shelf.on_doubt = self._doubted

    @classmethod
    def open(
        cls,
        cache_dir: str | os.PathLike[str],
        capacity_bytes: int,
        free_floor_bytes: int,
        free_floor_inodes: int,
        dice: Random,
        *,
        clock: Callable[[], float] = time.monotonic,
        disk: Disk | None = None,
    ) -> Store:
        """Take over or make the directory and list what is in it. Blocks: call it in a thread.

        ``clock`` (seconds) times the retries of a failing disk. Raises CacheDirectoryError: foreign, newer, in use,
        not writable, not readable, too small.
        """
        disk = disk or Disk()
        directory = open_directory(Path(cache_dir))
        try:
            space = free_space(disk, str(directory.path))
            free_floor_inodes = min(free_floor_inodes, (space.total_inodes or 0) // CACHE_INODE_FLOOR_SHARE)
            limits = Limits(capacity_bytes, free_floor_bytes, free_floor_inodes)
            check_limits(limits, space.total_bytes)
            ledger = Ledger(limits, space)
            policy = EvictionPolicy(dice, capacity_bytes)
            shelf = Shelf(disk, directory, policy, ledger, clock)
            for found in directory.scan(disk):
                shelf.restore(found)
            ledger.charge(directory.count_folders() * DIRECTORY_BYTES)
            ledger.look(space)
            policy.set_capacity(ledger.capacity_bytes)
        except OSError as error:
            directory.close()
            raise CacheDirectoryError(
                f"cache directory {cache_dir} cannot be read: {error.strerror or error}"
            ) from error
        except BaseException:
            directory.close()
            raise
        if ledger.capacity_bytes < capacity_bytes:
            log.warning(
                "the cache disk has less room than the cache was given: using what there is",
                configured_bytes=capacity_bytes,
                usable_bytes=ledger.capacity_bytes,
                free_bytes=space.free_bytes,
                free_floor_bytes=free_floor_bytes,
            )
        log.info("cache opened", path=str(directory.path), files=len(shelf.files), used_bytes=ledger.used_bytes)
        return cls(directory, shelf, dice, clock, capacity_bytes)

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let what is under way end, close everything, give the lock back. Later reads miss, later writes are refused."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._shelf.idle_pool, self._examiner.forget)
        await self._shelf.close()
        self._loans.close()
        self._directory.close()

    @property
    def is_quiet(self) -> bool:
        """After ``close``: no thread of ours is left inside the disk."""
        return self._shelf.is_quiet

    # --- what is here ------------------------------------------------------------------------------------

    def missing(self, version: bytes, size_bytes: int, blocks: BlockRange) -> list[BlockRange]:
        """The parts of ``blocks`` that are not in the cache. Reads an index at its first use, else only memory."""
        if blocks.block_count == 0:
            return []
        file = self._find(version, size_bytes)
        return [blocks] if file is None else loaded(file).missing(blocks)

    def state(self, version: bytes, size_bytes: int) -> CacheState:
        """``whole``: all blocks present; ``verified``: and all of them checked in this process life (an empty file always is)."""
        if size_bytes == 0:
            return "verified"
        file = self._find(version, size_bytes)
        if file is None or file.blocks is None or file.blocks.present_count == 0:
            return "absent"
        if not file.blocks.is_whole:
            return "partial"
        return "verified" if file.blocks.is_verified else "whole"

    def present_bytes(self, version: bytes, size_bytes: int) -> int:
        """Bytes of the file in the cache, in whole blocks, at most its size."""
        file = self._find(version, size_bytes) if size_bytes else None
        return 0 if file is None else min(size_bytes, loaded(file).present_count * BLOCK_BYTES)

    @property
    def making_room(self) -> tuple[bytes, bool] | None:
        """Within ``on_gone``: for which version blocks are evicted (empty: to keep the disk's limit), and whether no name has theirs any
        more; None when they go for another reason."""
        return self._reclaim.making_room

    def foresee(self, foresight: Foresight | None) -> None:
        """Evict by what is known of the future, while that is not None."""
        self._policy.foresight = foresight

    def usage(self) -> Usage:
        return Usage(
            used_bytes=self._ledger.used_bytes,
            capacity_bytes=self._ledger.capacity_bytes,
            configured_bytes=self._configured_bytes,
            files=len(self._shelf.files),
            evicted_bytes_total=self._reclaim.evicted_bytes_total,
            corrupt_blocks_total=self._reader.corrupt_blocks_total + self._damage.lost_blocks_total,
            damaged_files_total=self._damage.damaged_files_total,
            read_errors_total=self._reader.errors_total,
            write_errors_total=self._writer.errors_total,
            bypass=self._health.reason,
            trouble=self.trouble,
        )

    @property
    def trouble(self) -> Trouble | None:
        """What is the matter with the cache disk now; reads succeed from the hub meanwhile."""
        return self._care.trouble

    def behind(self, is_behind: bool) -> None:
        """Whoever hands over what is to be written had to leave some out (or need not any more)."""
        self._care.behind(is_behind)

    def close_idle_files(self) -> None:
        """Give descriptors back that nobody is at work on."""
        self._shelf.close_idle(0)
        self._loans.close_idle(0)

    @property
    def files_known(self) -> int:
        return len(self._shelf.files)

    def _find(self, version: bytes, size_bytes: int) -> CachedFile | None:
        return None if self._closed else self._shelf.find(version, size_bytes)

    def held(self, version: bytes) -> Held | None:
        """What is on disk of a version, without a look at the disk; of one not asked for since the start ``cached_bytes`` is a guess."""
        file = self._shelf.files.get(version)
        if file is None:
            return None
        pinned = version in self._shelf.pins
        blocks = file.blocks
        if blocks is None:
            return Held(min(file.size_bytes, file.charged_bytes), file.charged_bytes, "unchecked", pinned)
        cached_bytes = min(file.size_bytes, blocks.present_count * BLOCK_BYTES)
        state = "partial" if not blocks.is_whole else "verified" if blocks.is_verified else "whole"
        return Held(cached_bytes, file.charged_bytes, state, pinned)

    def versions(self) -> list[bytes]:
        """All of which something is on disk."""
        return list(self._shelf.files)

    def map_of(self, version: bytes, size_bytes: int, cells: int) -> list[float]:
        """For each of ``cells`` equal parts of a file how much of it is cached, 0 to 1; of a large part a sample is looked at."""
        file = self._find(version, size_bytes) if size_bytes else None
        if file is None:
            return [0.0] * cells
        blocks = loaded(file)
        shares = []
        for cell in range(cells):
            first, end = (cell * blocks.block_count // cells, (cell + 1) * blocks.block_count // cells)
            end = max(end, first + 1)
            step = max(1, (end - first) // _MAP_LOOKS)
            looks = range(first, end, step)
            shares.append(1 - sum(bool(blocks.missing(BlockRange(at, 1))) for at in looks) / len(looks))
        return shares

    # --- reading -----------------------------------------------------------------------------------------

    def read_nowait(
        self, version: bytes, size_bytes: int, offset_bytes: int, length_bytes: int
    ) -> bytes | bytearray | memoryview | None:
        """The bytes (cut at the end of the file) if all are verified and in the page cache, else None: never waits for the disk.

        They stand in a buffer of the store's and are good until the next call: a new one each time costs its zeroing.
        """
        return self._reader.read_nowait(version, size_bytes, offset_bytes, length_bytes)

    async def read(
        self, version: bytes, size_bytes: int, offset_bytes: int, length_bytes: int
    ) -> bytes | bytearray | memoryview:
        """The bytes (cut at the end of the file), read in a thread and checked against their digests.

        Raises BlocksMissing with what must be fetched: never written, evicted meanwhile, failed verification, unreadable.
        """
        blocks = covering(offset_bytes, length_bytes, size_bytes)
        if blocks.block_count == 0:
            return b""
        if self._closed:
            raise BlocksMissing([blocks])
        end_bytes = min(offset_bytes + length_bytes, size_bytes)
        span = (offset_bytes, end_bytes - offset_bytes)
        return await asyncio.shield(self._shelf.own(self._reader.read(version, size_bytes, blocks, span), "cache read"))

    def touch(self, version: bytes, size_bytes: int, offset_bytes: int, length_bytes: int) -> None:
        """A reader got these bytes from elsewhere (from memory, as they arrived): a use all the same."""
        blocks = covering(offset_bytes, length_bytes, size_bytes)
        if blocks.block_count == 0:
            return
        extents = extents_of(blocks)
        file = self._find(version, size_bytes)
        if file is None or file.extents is None or loaded(file).missing(blocks):
            self._policy.want(version, blocks)
        else:
            read_bytes = min(length_bytes, size_bytes - offset_bytes)
            self._policy.touch(file.extents, extents.start, extents.stop, read_bytes, blocks)

    async def verify(self, version: bytes, size_bytes: int, blocks: BlockRange | None = None) -> bool:
        """Check every block not yet checked, slice by slice in a read thread; True when all are here and verified.

        ``blocks``: of these only; default the whole file.
        """
        blocks = whole_file(size_bytes) if blocks is None else blocks
        if blocks.block_count == 0:
            return True
        return not self._closed and await self._reader.verify(version, size_bytes, blocks)

    # --- looking again -----------------------------------------------------------------------------------

    def size_of(self, version: bytes) -> int | None:
        """Bytes of the whole file; None when nothing of it is cached."""
        file = self._shelf.files.get(version)
        return None if file is None else file.size_bytes

    async def examine(self, version: bytes, first_block: int) -> Examined | None:
        """Compare the next piece that is cached at or after a block with its digests, read from the disk at the lowest priority.

        What is bad is booked as for a read (``on_bad``). None when nothing of the version is cached.
        """
        if self._closed:
            return None
        return await asyncio.shield(self._shelf.own(self._examiner.examine(version, first_block), "cache examine"))

    def is_lent(self, version: bytes) -> bool:
        """The kernel reads it by itself now."""
        return self._loans.is_lent(version)

    # --- writing -----------------------------------------------------------------------------------------

    @property
    def run_max_bytes(self) -> int:
        """To be written in one go: room is made for all of it first, so it is a small part of the cache."""
        return self._ledger.capacity_bytes // CACHE_WRITE_RUN_SHARE

    def is_worthless(self, version: bytes, blocks: BlockRange) -> bool:
        """The cache is full, and orders tell that these blocks were used for the last time: to write them helps nobody."""
        return self._reclaim.is_worthless(version, blocks)

    async def write(
        self,
        version: bytes,
        size_bytes: int,
        first_block: int,
        data: bytes | bytearray | memoryview,
        digests: bytes | memoryview,
    ) -> None:
        """Keep whole blocks (the file's last one may be short) that already matched their ``digests``.

        ``data`` must not change until this returns. Raises CacheWriteError (full, failing, read-only or removed disk,
        or nothing that may be evicted): the caller goes on from memory.
        """
        await self.write_run(version, size_bytes, first_block, (data,), digests)

    async def write_run(
        self,
        version: bytes,
        size_bytes: int,
        first_block: int,
        pieces: Sequence[bytes | bytearray | memoryview],
        digests: bytes | memoryview,
    ) -> None:
        """As ``write``, the data in several buffers that follow one another; all but the last hold whole blocks."""
        data_bytes = sum(len(piece) for piece in pieces)
        blocks = BlockRange(first_block, count_blocks(data_bytes))
        if blocks.block_count == 0:
            return
        assert data_bytes == byte_length(blocks, size_bytes), "whole blocks within the file"
        assert len(digests) == blocks.block_count * DIGEST_BYTES, "one digest for each block"
        if self._closed:
            raise CacheWriteError("the cache is closed")
        if not self._health.may_write(self._clock()):
            raise CacheWriteError(f"the cache is bypassed: {self._health.reason}")
        await asyncio.shield(
            self._shelf.own(self._writer.write(version, size_bytes, blocks, pieces, digests), "cache write")
        )

    def _well(self) -> None:
        asyncio.get_running_loop().call_soon(self.on_well)

    def _gone(self, version: bytes, blocks: BlockRange) -> None:
        if self.on_gone is not None:
            self.on_gone(version, blocks)

    def _bad(self, file: CachedFile, blocks: list[BlockRange], cause: str) -> None:
        data_path = self._directory.paths(file.version)[0]
        lent = file.borrows > 0 and not file.removed
        if self.on_bad is not None:
            self.on_bad(Bad(file.version, file.size_bytes, blocks, cause, lent, data_path))
        else:
            log.warning("cached blocks were dropped", blocks=blocks[:8], cause=cause, data_path=data_path)

    def _doubted(self, file: CachedFile) -> None:
        if self.on_doubt is not None:
            self.on_doubt(file.version, file.size_bytes)

    def _announce(self, file: CachedFile) -> None:
        if not file.announced and not file.removed and loaded(file).is_verified:
            file.announced = True
            if self.on_whole is not None:
                asyncio.get_running_loop().call_soon(self.on_whole, file.version)

    # --- keeping and letting go --------------------------------------------------------------------------

    def borrow_fd(self, version: bytes, size_bytes: int) -> int:
        """A read-only descriptor for the kernel to read by itself, of a verified, non-empty file; kept from eviction until returned.

        Raises BlocksMissing when the file is not verified, or cannot be opened. Every loan needs its ``return_fd``.
        """
        file = self._find(version, size_bytes) if size_bytes else None
        if file is None or not loaded(file).is_verified:
            raise BlocksMissing([whole_file(size_bytes)])
        return self._loans.lend(file)

    def return_fd(self, version: bytes) -> None:
        """End one loan. The reads it served were not seen: the whole file counts as used now."""
        self._loans.take_back(version)

    def hold(self, version: bytes) -> None:
        """A loan that an earlier process made: the kernel reads the file, and has its descriptor. Every one needs its ``let_go``."""
        self._loans.hold(version)

    def let_go(self, version: bytes) -> None:
        """End one such loan."""
        self._loans.let_go(version)

    def pin(self, version: bytes) -> None:
        """Keep what is cached of this version, now or later, from eviction. Counted: each pin needs its ``unpin``."""
        self._shelf.pin(version, +1)

    def unpin(self, version: bytes) -> None:
        self._shelf.pin(version, -1)

    def drop(self, version: bytes) -> None:
        """Forget a version and remove its files, also when pinned; its space is free once nobody reads it any more."""
        file = self._shelf.files.get(version)
        if file is not None and not self._closed:
            self._shelf.remove(file)

    async def erase(self, version: bytes) -> int | None:
        """As ``drop``, and returns once its files are gone: the bytes they took.

        None, and nothing done, while the kernel reads it itself.
        """
        file = self._shelf.files.get(version)
        if file is None or self._closed:
            return 0
        if file.borrows:
            return None
        taken_bytes = file.charged_bytes
        await asyncio.shield(self._shelf.remove(file))
        return taken_bytes

    def charged_bytes(self, version: bytes) -> int:
        """What a version takes of the disk."""
        file = self._shelf.files.get(version)
        return file.charged_bytes if file is not None else 0

    def forget_unreferenced(self, live: Callable[[bytes], bool]) -> int:
        """Versions for which ``live`` is false are the first to be evicted from now on; returns how many there are."""
        return self._reclaim.condemn(live)

    async def tend(self) -> None:
        """For a slow timer: look at the directory and the disk's free space, and get down to the limits if others took some."""
        if not self._closed:
            await self._care.tend(CACHE_TEND_WAIT_S)
