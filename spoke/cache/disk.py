"""The edge to the cache disk: every system call of the cache goes through a :class:`Disk`, so that tests can make the nth one fail.

Nothing here decides anything. Errors leave as ``OSError``; the store translates them once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
from collections.abc import Sequence
from typing import Protocol

from common.blocks import EXTENT_BYTES

_FALLOC_FL_KEEP_SIZE = 0x01  # linux/falloc.h
_FALLOC_FL_PUNCH_HOLE = 0x02
_STAT_BLOCK_BYTES = 512  # st_blocks counts these, whatever the file system's own block is

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.fallocate.restype = ctypes.c_int
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# After each call the thread waits for the interpreter's lock, 1 to 2 ms while the event loop is busy. With 8 to 32 MiB at once the kernel
# took twice as long where memory came fresh from the host; out of a full page cache 1 to 16 MiB take the same.
_WRITE_BYTES = 4 * EXTENT_BYTES
_MAP_FAILED = ctypes.c_void_p(-1).value
# ioprio_set(2) has no wrapper in the C library, and a number of its own on each machine.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(platform.machine())
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13


class Stat(Protocol):
    """The part of ``os.stat_result`` that counts disk space."""

    @property
    def st_blocks(self) -> int: ...


class Disk:
    """The real disk. A subclass may fail, delay or shorten any call."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    stat = staticmethod(os.stat)
    fstat = staticmethod(os.fstat)
    statvfs = staticmethod(os.statvfs)
    mkdir = staticmethod(os.mkdir)
    unlink = staticmethod(os.unlink)
    ftruncate = staticmethod(os.ftruncate)
    preadv = staticmethod(os.preadv)
    pwrite = staticmethod(os.pwrite)
    pwritev = staticmethod(os.pwritev)

    def punch_hole(self, fd: int, offset_bytes: int, length_bytes: int) -> None:
        """Give the range's space back; it reads as zeros and the file keeps its length. EOPNOTSUPP where the file system cannot."""
        if _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, offset_bytes, length_bytes):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def resident(self, fd: int, offset_bytes: int, length_bytes: int) -> bytes:
        """A byte for each page of the range (which starts on one): odd when it is in the page cache. Raises OSError."""
        address = _libc.mmap(None, length_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset_bytes)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        try:  # only asked about, never touched: a file cut meanwhile raises no SIGBUS
            pages = ctypes.create_string_buffer(-(-length_bytes // _PAGE_BYTES))
            if _libc.mincore(address, length_bytes, pages):
                raise OSError(ctypes.get_errno(), "mincore")
            return pages.raw
        finally:
            _libc.munmap(address, length_bytes)

    def advise(self, fd: int, offset_bytes: int, length_bytes: int, advice: int) -> None:
        """posix_fadvise(2); what it cannot do it does not do."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, offset_bytes, length_bytes, advice)


def be_idle() -> None:
    """The calling thread's disk requests wait until nobody else has any, where the disk's scheduler knows such a thing.

    Its share of the processor stays: a thread that is put aside while it holds the interpreter would hold up the others.
    """
    if _IOPRIO_SET is not None:
        _libc.syscall(_IOPRIO_SET, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)


def allocated_bytes(stat: Stat) -> int:
    """Bytes of disk a file takes, as ``du`` counts them."""
    return stat.st_blocks * _STAT_BLOCK_BYTES


def read_full(disk: Disk, fd: int, buffer: bytearray | memoryview, offset_bytes: int) -> int:
    """Fill ``buffer`` from ``offset_bytes`` on; fewer bytes than asked only at the end of the file."""
    got_bytes = disk.preadv(fd, [buffer], offset_bytes)
    if got_bytes == len(buffer):
        return got_bytes
    view = memoryview(buffer)
    while got_bytes < len(buffer):
        more_bytes = disk.preadv(fd, [view[got_bytes:]], offset_bytes + got_bytes)
        if more_bytes == 0:
            break
        got_bytes += more_bytes
    return got_bytes


def write_full(disk: Disk, fd: int, data: bytes | bytearray | memoryview, offset_bytes: int) -> None:
    """Write all of ``data``; a disk that takes nothing any more is out of space."""
    done_bytes = disk.pwrite(fd, data, offset_bytes)
    view = memoryview(data)
    while done_bytes < len(view):
        more_bytes = disk.pwrite(fd, view[done_bytes:], offset_bytes + done_bytes)
        if more_bytes == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done_bytes += more_bytes


def write_pieces(disk: Disk, fd: int, pieces: Sequence[bytes | bytearray | memoryview], offset_bytes: int) -> None:
    """As ``write_full``, of buffers of whole blocks that follow one another: small ones together, since after each call the thread
    waits for the interpreter's lock."""
    start = 0
    while start < len(pieces):
        end, size_bytes = start + 1, len(pieces[start])
        while end < len(pieces) and size_bytes + len(pieces[end]) <= _WRITE_BYTES:
            size_bytes += len(pieces[end])
            end += 1
        done_bytes = disk.pwritev(fd, pieces[start:end], offset_bytes)
        for piece in pieces[start:end]:
            if done_bytes < len(piece):
                write_full(disk, fd, memoryview(piece)[done_bytes:], offset_bytes + done_bytes)
                done_bytes = len(piece)
            offset_bytes += len(piece)
            done_bytes -= len(piece)
        start = end
