"""One cached version: its descriptors, its block map, who uses it; and the jobs that threads run on it.

A job gets plain arguments and a file that is held (``uses``), so that a descriptor is never closed, and its number
never reused, under a thread. The object itself is touched on the event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange, byte_length, count_blocks
from common.digest import DIGEST_BYTES, block_digests
from spoke.cache.disk import Disk, allocated_bytes, read_full, write_full, write_pieces
from spoke.cache.eviction import FileExtents
from spoke.cache.index import HEADER_BYTES, PRESENT, DamagedIndex, IndexLayout, check_index, encode_header, layout_of
from spoke.cache.presence import BlockMap
from spoke.cache.quota import FreeSpace

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NOT_RESIDENT = re.compile(
    b"[^\1\3\5\7]+", re.DOTALL
)  # mincore(2): only the lowest bit means anything, the rest is 0 today


class ShortFile(DamagedIndex):
    """The data file ends before its size: somebody cut it. The whole file is dropped."""


class CachedFile:
    """The event loop's view of one version. ``blocks`` and ``extents`` are None until it is loaded."""

    __slots__ = (
        "announced",
        "blocks",
        "borrow_fd",
        "borrows",
        "charged_bytes",
        "condemned",
        "data_fd",
        "extents",
        "freed",
        "freed_serial",
        "index_fd",
        "on_disk",
        "own_writes",
        "punching",
        "removed",
        "size_bytes",
        "stamp",
        "uses",
        "version",
        "writing",
        "written",
        "written_serial",
    )

    def __init__(self, version: bytes, size_bytes: int, charged_bytes: int = 0, on_disk: bool = True) -> None:
        self.version = version
        self.size_bytes = size_bytes
        self.charged_bytes = charged_bytes
        self.on_disk = on_disk
        self.blocks: BlockMap | None = None
        self.extents: FileExtents | None = None
        self.data_fd = -1
        self.index_fd = -1
        self.borrow_fd = -1
        self.borrows = 0
        self.uses = 0  # threads at work on the descriptors
        self.removed = False
        self.condemned = False
        self.announced = False
        self.freed_serial = 0
        self.freed: dict[int, int] = {}  # extent -> freed_serial when its blocks last went, while reads are under way
        self.punching: dict[int, asyncio.Task[None]] = {}  # extent -> the job that makes its hole
        self.written_serial = 0
        self.writing: list[BlockRange] = []
        self.written: dict[BlockRange, int] = {}  # -> written_serial when last written, while reads are under way
        self.own_writes = 0  # jobs of ours that change the files now: their stamp tells nothing meanwhile
        self.stamp: Stamp | None = None

    @property
    def layout(self) -> IndexLayout:
        return layout_of(self.size_bytes)

    @property
    def extents_busy(self) -> bool:
        """A write or a punch is under way or about to start."""
        return self.extents is not None and bool(self.extents.busy)

    def adopt(self, blocks: BlockMap) -> FileExtents:
        """The presence map is known now."""
        self.blocks = blocks
        self.extents = FileExtents(self.version, -(-count_blocks(self.size_bytes) // EXTENT_BLOCKS))
        return self.extents

    def note_freed(self, extents: range | list[int]) -> None:
        """Blocks of these extents went: a read that began before must look again."""
        self.announced = False
        self.freed_serial += 1
        if not self.uses:
            self.freed.clear()
            return
        for extent in extents:
            self.freed[extent] = self.freed_serial

    def write_ended(self, blocks: BlockRange) -> None:
        """A write that was in ``writing`` is over, however: what a read under way saw there may be half of it."""
        self.writing.remove(blocks)
        self.written_serial += 1
        if not self.uses:
            self.written.clear()
            return
        self.written[blocks] = self.written_serial

    def is_being_written(self, block: int, since_serial: int) -> bool:
        """A write of this very block is under way, or ended after ``since_serial``: its outcome tells what the block is."""
        ended = (found for found, serial in self.written.items() if serial > since_serial)
        return any(found.first_block <= block < found.end_block for found in (*self.writing, *ended))

    def was_freed(self, extents: range, since_serial: int) -> bool:
        """Whether blocks of these extents went after ``since_serial``."""
        return self.freed_serial != since_serial and any(self.freed.get(extent, 0) > since_serial for extent in extents)


class Stamp(NamedTuple):
    """What a data file looks like from outside. The kernel moves ctime with every change of bytes or length, and nobody can set it."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)


def stamp_of(disk: Disk, fd: int) -> Stamp:
    return Stamp.of(disk.fstat(fd))


def stamps_at(disk: Disk, paths: Sequence[str]) -> list[Stamp | None]:
    """Job: of files that are not open; None for one that is away. Raises OSError."""
    stamps: list[Stamp | None] = []
    for path in paths:
        try:
            found = disk.stat(path)
        except FileNotFoundError:
            stamps.append(None)
        else:
            stamps.append(Stamp.of(found))
    return stamps


def loaded(file: CachedFile) -> BlockMap:
    """The map of a file that the shelf found or added: it is loaded."""
    assert file.blocks is not None
    return file.blocks


def extents_of(blocks: BlockRange) -> range:
    """Indices of the extents that a non-empty range touches."""
    return range(blocks.first_block // EXTENT_BLOCKS, (blocks.end_block - 1) // EXTENT_BLOCKS + 1)


def open_pair(disk: Disk, data_path: str, index_path: str, flags: int = os.O_RDWR) -> tuple[int, int]:
    """Descriptors of data and index."""
    data_fd = disk.open(data_path, flags | os.O_NOFOLLOW)
    try:
        return data_fd, disk.open(index_path, flags | os.O_NOFOLLOW)
    except BaseException:
        disk.close(data_fd)
        raise


def load_blocks(disk: Disk, file: tuple[int, int], version: bytes, size_bytes: int) -> BlockMap:
    """The presence map of an opened pair (descriptors of data and index). Raises DamagedIndex, OSError."""
    data_fd, index_fd = file
    data_bytes = disk.fstat(data_fd).st_size
    if data_bytes != size_bytes:
        raise ShortFile(f"data file of {data_bytes} bytes, expected {size_bytes}")
    layout = layout_of(size_bytes)
    head = bytearray(HEADER_BYTES + layout.block_count)
    got_bytes = read_full(disk, index_fd, head, 0)
    check_index(head[: min(got_bytes, HEADER_BYTES)], disk.fstat(index_fd).st_size, version, size_bytes)
    if got_bytes < len(head):
        raise DamagedIndex("index ends inside its presence map")
    return BlockMap.from_presence(head[HEADER_BYTES:])


class BlocksRead(NamedTuple):
    data: memoryview
    bad_blocks: list[int]


def read_blocks(
    disk: Disk, file: tuple[int, int], version: bytes, size_bytes: int, span: tuple[int, int]
) -> BlocksRead:
    """Job: the bytes of ``span`` (offset, length), and the blocks among them that differ from their digest.

    Always compared, also when they were before: what comes from a disk again may have rotted since (75 us for 128 KiB).
    ``file``: descriptors of data and index. Raises ShortFile, OSError.
    """
    data_fd, index_fd = file
    offset_bytes, length_bytes = span
    first_block = offset_bytes // BLOCK_BYTES
    block_count = count_blocks(offset_bytes + length_bytes) - first_block
    start_bytes = first_block * BLOCK_BYTES
    buffer = bytearray(byte_length(BlockRange(first_block, block_count), size_bytes))
    if read_full(disk, data_fd, buffer, start_bytes) < len(buffer):
        raise ShortFile("data file ends before its size")
    digests = bytearray(block_count * DIGEST_BYTES)
    if read_full(disk, index_fd, digests, layout_of(size_bytes).digest_at(first_block)) < len(digests):
        raise ShortFile("index ends before its last digest")
    seen = block_digests(version, first_block, buffer)
    bad_blocks: list[int] = []
    if seen != digests:
        bad_blocks = [
            first_block + position // DIGEST_BYTES
            for position in range(0, len(seen), DIGEST_BYTES)
            if seen[position : position + DIGEST_BYTES] != digests[position : position + DIGEST_BYTES]
        ]
    skip_bytes = offset_bytes - start_bytes
    return BlocksRead(memoryview(buffer)[skip_bytes : skip_bytes + length_bytes], bad_blocks)


def reread_blocks(
    disk: Disk, file: tuple[int, int], version: bytes, size_bytes: int, span: tuple[int, int]
) -> BlocksRead:
    """As ``read_blocks``, for nobody: what was not in the page cache before is not left in it, and nothing is read ahead."""
    data_fd, index_fd = file
    offset_bytes, length_bytes = span
    # A descriptor of the same file by another name: advice belongs to a descriptor, and readers use the other.
    try:
        fd = disk.open(f"/proc/self/fd/{data_fd}", os.O_RDONLY)
    except OSError:  # no /proc here, or no descriptor left: that says nothing about the file
        return read_blocks(disk, file, version, size_bytes, span)
    try:
        disk.advise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            pages = disk.resident(fd, offset_bytes, length_bytes)
        except OSError:  # not known: leave all of it as it will be
            pages = b""
        try:
            return read_blocks(disk, (fd, index_fd), version, size_bytes, span)
        finally:
            for run in _NOT_RESIDENT.finditer(pages):
                start_bytes = offset_bytes + run.start() * _PAGE_BYTES
                disk.advise(fd, start_bytes, (run.end() - run.start()) * _PAGE_BYTES, os.POSIX_FADV_DONTNEED)
    finally:
        disk.close(fd)


@dataclass(frozen=True, slots=True)
class CreatedFile:
    data_fd: int
    index_fd: int
    made_folder: bool


def create_pair(disk: Disk, data_path: str, index_path: str, version: bytes, size_bytes: int) -> CreatedFile:
    """Job: an empty sparse data file of the full length and its index; whatever stood there is overwritten. Raises OSError."""
    made_folder = False
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        data_fd = disk.open(data_path, flags, 0o600)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            disk.mkdir(os.path.dirname(data_path), 0o700)
            made_folder = True
        data_fd = disk.open(data_path, flags, 0o600)
    index_fd = -1
    try:
        disk.ftruncate(data_fd, size_bytes)
        index_fd = disk.open(index_path, flags, 0o600)
        disk.ftruncate(index_fd, layout_of(size_bytes).total_bytes)
        write_full(disk, index_fd, encode_header(version, size_bytes), 0)
        return CreatedFile(data_fd, index_fd, made_folder)
    except BaseException:
        for fd in (data_fd, index_fd):
            if fd >= 0:
                disk.close(fd)
        remove_pair(disk, data_path, index_path)
        raise


def write_blocks(
    disk: Disk,
    file: tuple[int, int],
    size_bytes: int,
    first_block: int,
    pieces: Sequence[bytes | bytearray | memoryview],
    digests: bytes | memoryview,
) -> None:
    """Job: data, then digests, then presence, so that a block called present has had both written. Raises OSError.

    ``pieces``: the data, in buffers that follow one another.
    """
    data_fd, index_fd = file
    layout = layout_of(size_bytes)
    write_pieces(disk, data_fd, pieces, first_block * BLOCK_BYTES)
    write_full(disk, index_fd, digests, layout.digest_at(first_block))
    write_full(disk, index_fd, bytes((PRESENT,)) * (len(digests) // DIGEST_BYTES), layout.presence_at(first_block))


def free_blocks(disk: Disk, file: tuple[int, int], size_bytes: int, ranges: list[BlockRange]) -> None:
    """Job: presence cleared, then holes punched. Raises OSError (EOPNOTSUPP: no holes on this file system)."""
    data_fd, index_fd = file
    layout = layout_of(size_bytes)
    for blocks in ranges:
        write_full(disk, index_fd, bytes(blocks.block_count), layout.presence_at(blocks.first_block))
    for blocks in ranges:
        disk.punch_hole(data_fd, blocks.first_block * BLOCK_BYTES, blocks.block_count * BLOCK_BYTES)


def remove_pair(disk: Disk, data_path: str, index_path: str) -> None:
    """Job: remove both files, the index first, so that what a crash leaves is recognised. Raises OSError."""
    for path in (index_path, data_path):
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)


def allocated_by(disk: Disk, file: tuple[int, int]) -> int:
    data_fd, index_fd = file
    return allocated_bytes(disk.fstat(data_fd)) + allocated_bytes(disk.fstat(index_fd))


def free_space(disk: Disk, path: str) -> FreeSpace:
    """statvfs, for this process (``f_bavail``, ``f_favail``); a file system that reports no inodes has no fixed number of them."""
    found = disk.statvfs(path)
    return FreeSpace(
        found.f_blocks * found.f_frsize,
        found.f_bavail * found.f_frsize,
        found.f_favail if found.f_files else None,
        found.f_files or None,
    )
