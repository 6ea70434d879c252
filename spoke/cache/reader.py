"""The way of blocks from the disk: read in a thread, check every block, book what turned out bad or gone.

Presence is compared before and after: an extent evicted while a thread read it gives no bytes, whatever the thread saw.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable

from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange, byte_length, coalesce
from common.errors import HeadraceError
from common.limits import CACHE_READ_ATTEMPTS, CACHE_VERIFY_SLICE_BYTES
from common.log import get_logger
from spoke.cache.cached_file import CachedFile, ShortFile, extents_of, loaded, read_blocks, reread_blocks, stamp_of
from spoke.cache.damage import Damage
from spoke.cache.health import DiskHealth
from spoke.cache.open_files import NOT_THE_DISK
from spoke.cache.recovery import DirectoryLost
from spoke.cache.shelf import Shelf

log = get_logger(__name__)

_SCRATCH_BYTES = EXTENT_BYTES  # the largest READ the kernel sends
_BLOCK_SHIFT = BLOCK_BYTES.bit_length() - 1
_EXTENT_SHIFT = EXTENT_BYTES.bit_length() - 1
MISMATCH = "its bytes on the cache disk do not match their digest"


class BlocksMissing(HeadraceError):
    """Blocks of a read are not in the cache (never written, evicted, failed verification, or unreadable): fetch ``ranges``."""

    wire_code = "blocks-missing"
    retryable = True

    def __init__(self, ranges: list[BlockRange]) -> None:
        super().__init__(
            f"not in the cache: {', '.join(f'{found.first_block}+{found.block_count}' for found in ranges)}"
        )
        self.ranges = ranges


class BlockReader:
    """Reads and verifies blocks of any file on the shelf. ``on_verified(file)`` is called when blocks may have become verified."""

    def __init__(
        self,
        shelf: Shelf,
        damage: Damage,
        health: DiskHealth,
        disk_failed: Callable[[OSError], None],
        on_verified: Callable[[CachedFile], None],
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._shelf = shelf
        self._damage = damage
        self._disk = shelf.disk
        self._policy = shelf.policy
        self._health = health
        self._disk_failed = disk_failed
        self._on_verified = on_verified
        self._nowait_works = True
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.corrupt_blocks_total = 0
        self.errors_total = 0

    def read_nowait(
        self, version: bytes, size_bytes: int, offset_bytes: int, length_bytes: int
    ) -> bytes | bytearray | memoryview | None:
        """The bytes (cut at the end of the file) if all are verified and in the page cache, else None: never waits for the disk.

        They stand in a buffer of the reader's and are good until the next call: a new one each time costs its zeroing.
        """
        end_bytes = min(offset_bytes + length_bytes, size_bytes)
        if offset_bytes >= end_bytes:
            return b""
        file = self._shelf.files.get(version)
        if (
            file is None
            or file.data_fd < 0
            or file.size_bytes != size_bytes
            or not loaded(file).covers(offset_bytes >> _BLOCK_SHIFT, (end_bytes - 1 >> _BLOCK_SHIFT) + 1)
            or not self._nowait_works
            or not self._shelf.is_as_left(file, stamp_of(self._disk, file.data_fd))
        ):
            return None
        length_bytes = end_bytes - offset_bytes
        buffer = self._scratch[:length_bytes] if length_bytes <= _SCRATCH_BYTES else memoryview(bytearray(length_bytes))
        try:
            if self._disk.preadv(file.data_fd, (buffer,), offset_bytes, os.RWF_NOWAIT) != length_bytes:
                return None
        except OSError as error:
            # EOPNOTSUPP, EINVAL: this file system or kernel never answers without waiting. EAGAIN: not in the page cache.
            self._nowait_works = error.errno not in (errno.EOPNOTSUPP, errno.EINVAL)
            return None
        self._shelf.used(file)
        assert file.extents is not None
        first_block = offset_bytes >> _BLOCK_SHIFT
        self._policy.touch(
            file.extents,
            offset_bytes >> _EXTENT_SHIFT,
            (end_bytes - 1 >> _EXTENT_SHIFT) + 1,
            length_bytes,
            BlockRange(first_block, (end_bytes - 1 >> _BLOCK_SHIFT) + 1 - first_block),
        )
        return buffer

    async def read(self, version: bytes, size_bytes: int, blocks: BlockRange, span: tuple[int, int]) -> memoryview:
        """The bytes of ``span`` (offset, length), which lies in ``blocks``; see Store.read. Raises BlocksMissing."""
        extents = extents_of(blocks)
        for _ in range(CACHE_READ_ATTEMPTS):
            file = self._shelf.find(version, size_bytes)
            absent = [blocks] if file is None else loaded(file).missing(blocks)
            if file is None or absent:
                for found in absent:
                    self._policy.want(version, found)
                raise BlocksMissing(absent)
            if not self._health.may_read(self._clock()):
                raise BlocksMissing([blocks])
            serial = file.freed_serial
            seen = await self._check(file, blocks, span)
            if seen is None or file.removed or file.was_freed(extents, serial):
                continue
            data, bad = seen
            if bad:
                raise BlocksMissing(bad)
            assert file.extents is not None
            self._policy.touch(file.extents, extents.start, extents.stop, span[1], blocks)
            return data
        raise BlocksMissing([blocks])

    async def _check(
        self, file: CachedFile, blocks: BlockRange, span: tuple[int, int], *, idle: bool = False
    ) -> tuple[memoryview, list[BlockRange]] | None:
        """Read in a thread, verify and book the outcome; the bytes, and the blocks that turned out bad.

        None: blocks of these extents went meanwhile, and nothing seen counts. Raises BlocksMissing.
        """
        pool, job = (self._shelf.idle_pool, reread_blocks) if idle else (self._shelf.read_pool, read_blocks)
        state = loaded(file)
        unverified = state.unverified(blocks)
        serial, written_serial = file.freed_serial, file.written_serial
        try:
            data, bad_blocks = await self._shelf.run_open(
                pool,
                file,
                job,
                file.version,
                file.size_bytes,
                span,
            )
        except ShortFile as error:
            if not file.removed:
                self._damage.cut_short(file, str(error))
            raise BlocksMissing([blocks]) from error
        except OSError as error:
            self._read_failed(file, blocks, error)
            raise BlocksMissing([blocks]) from error
        if self._health.read_worked():
            log.info("the cache disk can be read again")
        if file.removed or file.was_freed(extents_of(blocks), serial):
            return None
        bad = coalesce(BlockRange(block, 1) for block in bad_blocks)
        # A block written while we read it is not to be judged by what we saw.
        judged = [block for block in bad_blocks if not file.is_being_written(block, written_serial)]
        spoilt = [part for found in coalesce(BlockRange(block, 1) for block in judged) for part in state.present(found)]
        if unverified:
            gone = set(bad_blocks)
            for found in unverified:
                for part in _without(found, gone) if gone else [found]:
                    state.set_verified(part)
        if spoilt:
            self.corrupt_blocks_total += sum(found.block_count for found in spoilt)
            self._damage.spoil(file, spoilt, MISMATCH)
        self._on_verified(file)
        return data, bad

    def _read_failed(self, file: CachedFile, blocks: BlockRange, error: OSError) -> None:
        if error.errno in NOT_THE_DISK or file.removed:
            return
        self.errors_total += 1
        if isinstance(error, DirectoryLost):
            self._disk_failed(error)  # what is cached may come back with it
            return
        if self._health.read_failed():
            self._disk_failed(error)  # the disk, not a spot on it: what it holds may be well
            return
        if error.errno in (errno.ENOENT, errno.ESTALE):
            self._damage.discard(file, "its files are gone")
        else:
            self._damage.spoil(file, [blocks], f"the cache disk cannot read it: {error.strerror or error}")

    async def verify(self, version: bytes, size_bytes: int, blocks: BlockRange) -> bool:
        """Check what is unverified, a slice at a time; see Store.verify."""
        slice_blocks = CACHE_VERIFY_SLICE_BYTES // BLOCK_BYTES
        position = blocks.first_block
        while (file := self._shelf.find(version, size_bytes)) is not None:
            rest = BlockRange(position, blocks.end_block - position)
            unverified = loaded(file).unverified(rest) if rest.block_count else []
            if not unverified:
                return loaded(file).covers(blocks.first_block, blocks.end_block)
            found = BlockRange(unverified[0].first_block, min(slice_blocks, unverified[0].block_count))
            span = (found.first_block * BLOCK_BYTES, byte_length(found, size_bytes))
            position = found.end_block
            try:
                await asyncio.shield(self._shelf.own(self._check(file, found, span), "cache verify"))
            except BlocksMissing:
                continue
        return False

    async def recheck(self, file: CachedFile, blocks: BlockRange) -> list[BlockRange]:
        """Compare blocks that are present again, at the lowest priority, and book the outcome; those that are bad.

        Nobody asks again for what is passed over here, so what was disturbed meanwhile is looked at once more.
        """
        bad: list[BlockRange] = []
        left = [blocks]
        for _ in range(CACHE_READ_ATTEMPTS):
            again: list[BlockRange] = []
            for part in left:
                span = (part.first_block * BLOCK_BYTES, byte_length(part, file.size_bytes))
                try:
                    seen = await self._check(file, part, span, idle=True)
                except BlocksMissing:  # cut short, or unreadable: what could not be kept is not here any more
                    bad += loaded(file).missing(part)
                    again += loaded(file).present(part)
                else:
                    bad += seen[1] if seen is not None else []
                    again += loaded(file).present(part) if seen is None else []
            left = again
            if not left:
                break
        return coalesce(bad)


def _without(blocks: BlockRange, gone: set[int]) -> list[BlockRange]:
    """The blocks of a range that are not ``gone``."""
    kept = (block for block in range(blocks.first_block, blocks.end_block) if block not in gone)
    return coalesce(BlockRange(block, 1) for block in kept)
