"""Cached blocks compared with their digests again, a piece at a time: what the scrub and ``verify`` go through.

A file whose index nobody has asked for yet is looked at beside the shelf, and forgotten again: a scrub of a million
files must not have all of them in memory afterwards. Only one with something bad in it is taken in, to be mended.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from common.blocks import BLOCK_BYTES, BlockRange, byte_length, coalesce, count_blocks
from common.errors import HeadraceError
from common.limits import SCRUB_LOOK_BLOCKS, SCRUB_SLICE_BLOCKS
from spoke.cache.cached_file import CachedFile, load_blocks, loaded, open_pair, reread_blocks
from spoke.cache.disk import Disk
from spoke.cache.index import DamagedIndex
from spoke.cache.presence import BlockMap
from spoke.cache.reader import BlockReader
from spoke.cache.shelf import Shelf


class Examined(NamedTuple):
    """``next_block``: where to go on, None at the end of the file. ``bad``: blocks found so now."""

    next_block: int | None
    checked_blocks: int
    checked_bytes: int
    bad: list[BlockRange]


class PairCheck:
    """One pair of files on disk, read by itself. Blocks: use it in a thread. ``close`` it."""

    def __init__(self, disk: Disk, paths: tuple[str, str], version: bytes, size_bytes: int) -> None:
        """Raises DamagedIndex (ShortFile too) for a pair that cannot be believed, OSError."""
        self._disk = disk
        self.version = version
        self.size_bytes = size_bytes
        self.files = open_pair(disk, *paths, flags=os.O_RDONLY)
        try:
            self.blocks: BlockMap = load_blocks(disk, self.files, version, size_bytes)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for fd in self.files:
            self._disk.close(fd)

    def examine(self, first_block: int) -> Examined:
        """The next piece at or after ``first_block`` that is present. Raises ShortFile, OSError."""
        found, after = next_piece(self.blocks, first_block)
        if found is None:
            return Examined(after, 0, 0, [])
        length_bytes = byte_length(found, self.size_bytes)
        span = (found.first_block * BLOCK_BYTES, length_bytes)
        bad = reread_blocks(self._disk, self.files, self.version, self.size_bytes, span).bad_blocks
        return Examined(after, found.block_count, length_bytes, coalesce(BlockRange(block, 1) for block in bad))


def next_piece(blocks: BlockMap, first_block: int) -> tuple[BlockRange | None, int | None]:
    """The first piece present at or after a block, and where to look next; a long gap is passed in several looks."""
    end_block = min(first_block + SCRUB_LOOK_BLOCKS, blocks.block_count)
    found = blocks.first_present(first_block, end_block, SCRUB_SLICE_BLOCKS)
    after = end_block if found is None else found.end_block
    return found, after if after < blocks.block_count else None


class Examiner:
    """Goes through the files of a shelf; one piece at a time, whoever asks."""

    def __init__(self, shelf: Shelf, reader: BlockReader) -> None:
        self._shelf = shelf
        self._reader = reader
        self._turn = asyncio.Lock()
        self._beside: PairCheck | None = None

    async def examine(self, version: bytes, first_block: int) -> Examined | None:
        """The next piece of a version; None when it is not cached (any more)."""
        async with self._turn:
            file = self._shelf.files.get(version)
            if file is None or file.size_bytes == 0 or not file.on_disk:
                return None
            if file.blocks is None:
                seen = await self._look_beside(file, first_block)
                if seen is not None and not seen.bad:
                    return seen
                # Something is wrong with it, or it was loaded or removed meanwhile: by the book.
                file = self._shelf.files.get(version)
                if file is None or (file.blocks is None and not self._shelf.load(file)):
                    return Examined(None, 0, 0, [] if file is None else [BlockRange(0, count_blocks(file.size_bytes))])
            found, after = next_piece(loaded(file), first_block)
            if found is None:
                return Examined(after, 0, 0, [])
            bad = await self._reader.recheck(file, found)
            return Examined(after, found.block_count, byte_length(found, file.size_bytes), bad)

    async def _look_beside(self, file: CachedFile, first_block: int) -> Examined | None:
        """None when its files cannot be believed."""
        try:
            return await self._shelf.run(self._shelf.idle_pool, file, self._examine_beside, file.version,
                                         file.size_bytes, first_block)  # fmt: skip
        except (HeadraceError, OSError):
            return None

    def _examine_beside(self, version: bytes, size_bytes: int, first_block: int) -> Examined:
        beside = self._beside
        if beside is None or beside.version != version or not first_block:
            self.forget()
            beside = self._beside = PairCheck(
                self._shelf.disk, self._shelf.directory.paths(version), version, size_bytes
            )
        try:
            seen = beside.examine(first_block)
        except (DamagedIndex, OSError):
            self.forget()
            raise
        if seen.next_block is None:
            self.forget()
        return seen

    def forget(self) -> None:
        """Close what is open beside the shelf."""
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.close()
