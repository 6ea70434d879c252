"""The edge to the cache disk: every system call of the cache goes through a :class:`Disk`, so that tests can make the nth one fail.

Nothing here decides anything. Errors leave as ``OSError``; the store translates them once.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Protocol

_FALLOC_FL_KEEP_SIZE = 0x01  # linux/falloc.h
_FALLOC_FL_PUNCH_HOLE = 0x02
_STAT_BLOCK_BYTES = 512  # st_blocks counts these, whatever the file system's own block is

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.fallocate.restype = ctypes.c_int


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

    def punch_hole(self, fd: int, offset_bytes: int, length_bytes: int) -> None:
        """Give the range's space back; it reads as zeros and the file keeps its length. EOPNOTSUPP where the file system cannot."""
        if _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, offset_bytes, length_bytes):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


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
