"""What ``stat`` and ``getfattr`` show of an entry.

Owner and mode are the mount's to decide: the hub's user ids mean nothing on this host.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from common.entries import Entry, Kind
from spoke.fuse.kernel import PAGE_BYTES, Fields

STREAM_BLKSIZE_BYTES = 1024 * 1024
STREAMED_SUFFIXES = frozenset(
    {b"tar", b"tgz", b"jsonl", b"ndjson", b"parquet", b"csv", b"gz", b"xz", b"bz2", b"zst", b"lz4"}
)
"""Files that are read from front to back. ``st_blksize`` is the size of Python's buffered reads: large spares calls
on a stream, but makes a 16 KiB sample of a token file cost 1 MiB. So a page for everything else."""

_TYPE_BITS = {Kind.FILE: stat.S_IFREG, Kind.DIRECTORY: stat.S_IFDIR, Kind.SYMLINK: stat.S_IFLNK}
DIRENT_TYPE = {kind: bits >> 12 for kind, bits in _TYPE_BITS.items()}
_NANOSECONDS = 10**9
_MASK_64 = (1 << 64) - 1

XATTR_VERSION = b"user.headrace.version"
XATTR_REVISION = b"user.headrace.revision"
XATTR_CACHED = b"user.headrace.cached"


def blksize_bytes(name: bytes) -> int:
    """``st_blksize`` by the name's suffix."""
    return STREAM_BLKSIZE_BYTES if name.rpartition(b".")[2].lower() in STREAMED_SUFFIXES else PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who owns the files, and who may read them. ``umask`` None: the hub's mode without the write bits; else everybody
    may read what the umask does not take away, and execute what somebody may at the hub."""

    uid: int
    gid: int
    umask: int | None = None

    @classmethod
    def of_this_process(cls, umask: int | None = None) -> Ownership:
        return cls(os.geteuid(), os.getegid(), umask)

    def mode(self, kind: Kind, mode: int) -> int:
        if kind is Kind.SYMLINK:
            return stat.S_IFLNK | 0o777
        if self.umask is None:
            return _TYPE_BITS[kind] | (mode & 0o7555)
        allowed = 0o555 if kind is Kind.DIRECTORY else 0o444 | (mode & 0o111)
        return _TYPE_BITS[kind] | (allowed & ~self.umask)

    def fields(self, inode_number: int, name: bytes, entry: Entry, link_count: int = 1) -> Fields:
        """All times are the mtime. A directory has one link, which tells ``find`` not to count subdirectories by links."""
        kind = entry.kind
        size_bytes = len(entry.target) if kind is Kind.SYMLINK else entry.size_bytes
        seconds, nanoseconds = divmod(entry.mtime_ns, _NANOSECONDS)
        seconds &= _MASK_64
        return (
            inode_number,
            size_bytes,
            (size_bytes + 511) >> 9,
            seconds,
            seconds,
            seconds,
            nanoseconds,
            nanoseconds,
            nanoseconds,
            self.mode(kind, entry.mode),
            link_count,
            self.uid,
            self.gid,
            0,
            blksize_bytes(name) if kind is Kind.FILE else PAGE_BYTES,
            0,
        )


def extended(
    entry: Entry, revision: int, cached_fraction: Callable[[Entry], float]
) -> dict[bytes, Callable[[], bytes]]:
    """Our extended attributes of an entry; each value is worked out only when asked for."""
    attributes: dict[bytes, Callable[[], bytes]] = {XATTR_REVISION: lambda: b"%d" % revision}
    if entry.kind is Kind.FILE:
        attributes[XATTR_VERSION] = entry.version.hex().encode
        attributes[XATTR_CACHED] = lambda: b"%.4f" % cached_fraction(entry)
    return attributes
