"""An entry's attributes as one small bytes object: what a node keeps, and what the journal writes.

Layout, little-endian: kind u8, mode u16, mtime_ns i64, size_bytes u64, then the 16 version bytes of a file, or the
target of a symlink. One object instead of five per name: a million names cost 100 MB less and the garbage collector
has half as much to walk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from common.entries import VERSION_BYTES, Entry, Kind
from common.wire.entry_codec import Columns, EntryPage

_HEAD = struct.Struct("<BHqQ")
_FILE = struct.Struct(f"<BHqQ{VERSION_BYTES}s")
_SIZE = struct.Struct("<11xQ")
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


def packed_groups(entries: Sequence[tuple[bytes, Entry]]) -> Iterator[tuple[bytes, list[bytes], list[bytes]]]:
    """(directory, names, packed entries) of names that follow each other in one directory; the root is named ``b""`` in it.

    Raises ValueError as :func:`pack_entry` does. What came in columns is packed in columns, with no entry in between.
    """
    if isinstance(entries, EntryPage):
        for columns in entries.groups:
            yield columns.directory, columns.names, pack_columns(columns)
        return
    for directory, run in groupby(entries, lambda item: item[0].rpartition(b"/")[0]):
        start = len(directory) + 1 if directory else 0
        found = list(run)
        yield directory, [path[start:] for path, _ in found], [pack_entry(entry) for _, entry in found]


def pack_columns(columns: Columns) -> list[bytes]:
    """What :func:`pack_entry` makes of each entry in (checked) columns."""
    _, names, kinds, modes, sizes, mtimes, versions, targets, _ = columns
    starts = range(0, len(versions), VERSION_BYTES)
    split = [versions[start : start + VERSION_BYTES] for start in starts]
    if len(split) == len(names):
        return list(map(_FILE.pack, kinds, modes, mtimes, sizes, split))
    heads = map(_HEAD.pack, kinds, modes, mtimes, sizes)
    tails = {FILE: iter(split), SYMLINK: iter(targets)}
    return [head + next(tails[kind]) if kind in tails else head for kind, head in zip(kinds, heads, strict=True)]


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


def files_in(packed_entries: Iterable[bytes]) -> tuple[int, list[bytes]]:
    """(bytes of all files together, the version of each) among packed entries."""
    files = [packed for packed in packed_entries if packed[0] == FILE]
    return sum(size_bytes for (size_bytes,) in map(_SIZE.unpack_from, files)), [packed[HEAD_BYTES:] for packed in files]


def packed_version(packed: bytes) -> bytes:
    """The version of a packed file."""
    return packed[HEAD_BYTES:]


def same_content(old: bytes, new: bytes) -> bool:
    """Two packed entries of one kind differ at most in mode and time (and a directory's size, which means nothing)."""
    return old[0] == DIRECTORY or old[_SIZE_AT:] == new[_SIZE_AT:]
