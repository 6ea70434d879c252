"""An entry's attributes as one small bytes object: what a node keeps, and what the journal writes.

Layout, little-endian: kind u8, mode u16, mtime_ns i64, size_bytes u64, then the 16 version bytes of a file, or the
target of a symlink. One object instead of five per name: a million names cost 100 MB less and the garbage collector
has half as much to walk.
"""

from __future__ import annotations

import struct

from common.entries import VERSION_BYTES, Entry, Kind

_HEAD = struct.Struct("<BHqQ")
HEAD_BYTES = _HEAD.size
KINDS: tuple[Kind | None, ...] = (None, Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK)
FILE, DIRECTORY, SYMLINK = int(Kind.FILE), int(Kind.DIRECTORY), int(Kind.SYMLINK)
_SIZE_AT = 11  # after kind, mode and time
_PACKED_FILE_BYTES = HEAD_BYTES + VERSION_BYTES


def pack_entry(entry: Entry) -> bytes:
    """Raises ValueError for an entry that cannot be (a field out of its range, a file without a version)."""
    kind = entry.kind
    if kind is Kind.FILE:
        tail = entry.version
        if len(tail) != VERSION_BYTES or entry.target:
            raise ValueError(f"a file needs a version of {VERSION_BYTES} bytes and no target: {entry!r}")
    else:
        tail = entry.target
        if entry.version or (tail and kind is not Kind.SYMLINK):
            raise ValueError(f"only a file has a version and only a symlink a target: {entry!r}")
    try:
        return _HEAD.pack(kind, entry.mode, entry.mtime_ns, entry.size_bytes) + tail
    except struct.error as error:
        raise ValueError(f"an entry's mode, time or size is out of range: {entry!r}") from error


def unpack_entry(packed: bytes) -> Entry:
    """Raises ValueError for bytes that :func:`pack_entry` cannot have written."""
    check_packed(packed)
    kind, mode, mtime_ns, size_bytes = _HEAD.unpack_from(packed)
    tail = packed[HEAD_BYTES:]
    if kind == FILE:
        return Entry(Kind.FILE, mode, size_bytes, mtime_ns, tail)
    return Entry(Kind(kind), mode, size_bytes, mtime_ns, b"", tail)


def check_packed(packed: bytes) -> None:
    """Raises ValueError unless these bytes have the shape of their kind."""
    length_bytes = len(packed)
    kind = packed[0] if packed else 0
    if (
        (kind == FILE and length_bytes == _PACKED_FILE_BYTES)
        or (kind == DIRECTORY and length_bytes == HEAD_BYTES)
        or (kind == SYMLINK and length_bytes >= HEAD_BYTES)
    ):
        return
    raise ValueError(f"{length_bytes} bytes of kind {kind} are no packed entry")


def packed_size_bytes(packed: bytes) -> int:
    return int.from_bytes(packed[_SIZE_AT:HEAD_BYTES], "little")


def packed_version(packed: bytes) -> bytes:
    """The version of a packed file."""
    return packed[HEAD_BYTES:]


def same_content(old: bytes, new: bytes) -> bool:
    """Two packed entries of one kind differ at most in mode and time (and a directory's size, which means nothing)."""
    return old[0] == DIRECTORY or old[_SIZE_AT:] == new[_SIZE_AT:]
