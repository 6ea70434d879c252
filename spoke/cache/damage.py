"""What is done about a cached file that cannot be believed: cut, overwritten, replaced, unreadable, or with blocks that are wrong.

It is told of, counted, forgotten, and removed or repaired. A file that the kernel reads by itself is never taken from its readers: what
is wrong of it is forgotten and stays in place, at its full length, until the right bytes are written over it.
"""

from __future__ import annotations

from collections.abc import Callable

from common.blocks import BLOCK_BYTES, BlockRange, count_blocks, whole_file
from common.log import get_logger
from spoke.cache.cached_file import CachedFile, Stamp, stamp_of
from spoke.cache.disk import write_full
from spoke.cache.index import DamagedIndex, encode_header
from spoke.cache.open_files import SHORT_OF
from spoke.cache.presence import BlockMap
from spoke.cache.recovery import DirectoryLost
from spoke.cache.shelf import Shelf

log = get_logger(__name__)


class Damage:
    """On one shelf, which it hears from. ``on_bad(file, blocks, cause)``: of blocks that were here and cannot be believed."""

    def __init__(self, shelf: Shelf, on_bad: Callable[[CachedFile, list[BlockRange], str], None]) -> None:
        self._shelf = shelf
        self._disk = shelf.disk
        self._on_bad = on_bad
        self.damaged_files_total = 0
        self.lost_blocks_total = 0
        shelf.on_changed = self._changed
        shelf.on_not_loaded = self._not_loaded
        shelf.on_damaged = self.discard

    # --- blocks ------------------------------------------------------------------------------------------

    def spoil(self, file: CachedFile, ranges: list[BlockRange], cause: str) -> None:
        """These blocks are not what they should be: forget them and say so, so that they are fetched again.

        In a file that is lent the bytes stay where they are until the right ones are written over them: a hole would
        give its readers zeros, and removing the file would leave them the bad bytes for ever.
        """
        if file.borrows:
            self._shelf.forget(file, ranges)
        else:
            self._shelf.free(file, ranges)
        self._on_bad(file, ranges, cause)

    # --- whole files -------------------------------------------------------------------------------------

    def discard(self, file: CachedFile, reason: str, size_bytes: int | None = None) -> None:
        """Drop a file that cannot be believed, counted and told of. ``size_bytes``: what it should be, if not what it is."""
        self.damaged_files_total += 1
        known = file.blocks
        # What an index held that cannot be read is not known: as many as the disk space was for.
        guessed = max(1, min(count_blocks(file.size_bytes), file.charged_bytes // BLOCK_BYTES))
        self.lost_blocks_total += known.present_count if known is not None else guessed
        self._shelf.remove(file)
        self._on_bad(file, [whole_file(file.size_bytes if size_bytes is None else size_bytes)], reason)

    def cut_short(self, file: CachedFile, reason: str) -> None:
        """One of the two files ends too early. Those of a lent file get their length back, to be filled again; else both go."""
        blocks = file.blocks
        if blocks is None or not file.borrows or file.data_fd < 0:
            self.discard(file, reason)
            return
        try:
            data = self._disk.fstat(file.data_fd)
            lent = self._disk.fstat(file.borrow_fd) if file.borrow_fd >= 0 else data
            if (data.st_dev, data.st_ino) != (lent.st_dev, lent.st_ino):  # what is lent is another file, and not cut
                self.discard(file, reason)
                return
            lost_block = data.st_size // BLOCK_BYTES
            if self._disk.fstat(file.index_fd).st_size < file.layout.total_bytes:
                self._write_fresh_index(file)
                lost_block = 0
            elif data.st_size >= file.size_bytes:
                return  # another read has seen it too, and it is mended
            self._disk.ftruncate(file.data_fd, file.size_bytes)
            file.stamp = stamp_of(self._disk, file.data_fd)
        except OSError as error:
            self._shelf.on_disk_error(error)
            self.discard(file, reason)
            return
        self.damaged_files_total += 1
        lost = BlockRange(lost_block, blocks.block_count - lost_block)
        self.lost_blocks_total += sum(part.block_count for part in blocks.present(lost))
        self.spoil(file, [lost], reason)

    def _changed(self, file: CachedFile, stamp: Stamp) -> None:
        """Somebody else changed the data file, and it looks like this now: none of it counts as checked any more."""
        assert file.stamp is not None
        if file.borrows and (stamp.device, stamp.inode) != (file.stamp.device, file.stamp.inode):
            # The kernel reads the one that was there, which stays as it was; what stands here now is nobody's.
            self.discard(file, "another file was put in its place")
            return
        log.info(
            "a cached file was changed by somebody else: all of it is checked again before its next use",
            data_path=self._shelf.directory.paths(file.version)[0],
        )
        file.stamp = stamp
        file.announced = False
        if file.blocks is not None:
            file.blocks.doubt()
        self._shelf.on_doubt(file)

    def _not_loaded(self, file: CachedFile, error: Exception) -> None:
        if isinstance(error, DamagedIndex):
            if not self._begin_anew(file, str(error)):
                self.discard(file, str(error))
        elif isinstance(error, DirectoryLost):
            self._shelf.on_disk_error(error)  # and it may come back
        elif isinstance(error, OSError) and error.errno not in SHORT_OF:
            self.discard(file, f"cannot be read: {error.strerror or error}")

    def _begin_anew(self, file: CachedFile, reason: str) -> bool:
        """The index of a file that an earlier process lent is damaged: nothing of it counts as here, and its bytes stay for those
        who read it until the right ones are written over them. False: it is not lent, or the disk does not let us."""
        if not file.borrows or file.data_fd < 0:
            return False
        try:
            self._write_fresh_index(file)
            self._disk.ftruncate(file.data_fd, file.size_bytes)
            file.stamp = stamp_of(self._disk, file.data_fd)
        except OSError as error:
            self._shelf.on_disk_error(error)
            return False
        file.adopt(BlockMap(count_blocks(file.size_bytes))).pins = self._shelf.pins.get(file.version, 0)
        self.damaged_files_total += 1
        self.lost_blocks_total += max(1, min(count_blocks(file.size_bytes), file.charged_bytes // BLOCK_BYTES))
        self._on_bad(file, [whole_file(file.size_bytes)], reason)
        return True

    def _write_fresh_index(self, file: CachedFile) -> None:
        """Raises OSError."""
        self._disk.ftruncate(file.index_fd, 0)
        self._disk.ftruncate(file.index_fd, file.layout.total_bytes)
        write_full(self._disk, file.index_fd, encode_header(file.version, file.size_bytes), 0)
