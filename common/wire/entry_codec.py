"""Entries and changes as payloads: msgpack groups of neighbours in one directory, each group in columns.

Columns keep a million entries cheap: the directory is written once, attributes are packed integers, and most checks
run over a whole column in C. Every column is checked, on both sides, before an entry is made of it. An
:class:`EntryPage` stays in columns until somebody asks for single entries, so that a snapshot goes from the hub's
rows to the spoke's tree without an object for each entry on the way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, overload

import msgpack

from common import limits
from common.entries import NAME_MAX_BYTES, PATH_MAX_BYTES, VERSION_BYTES, Change, Entry, Kind, is_safe_path
from common.errors import ProtocolError

_REMOVED = 0
_UNSAFE_NAMES = frozenset({b"", b".", b".."})
_MODE_MAX = 0o7777
_ITEM_MAX_COUNT = limits.SNAPSHOT_PAGE_MAX_ENTRIES
_COLUMNS = 8
_CHANGE_COLUMNS = 9
# Per item: kind 1, mode 2, size 8, mtime 8, version 16 or a target's header 3, revision 8, a name's header 3; and a
# group of its own: array, directory, columns' headers.
_ITEM_OVERHEAD_BYTES = 96

_Item = tuple[bytes, Entry | None, int]
_T = TypeVar("_T")


class Columns(NamedTuple):
    """Names that follow each other in one directory, checked and unpacked. ``versions``: of the files, ``targets``: of the
    symlinks, in order; ``revisions``: zeros but in CHANGES."""

    directory: bytes
    names: list[bytes]
    kinds: bytes
    modes: tuple[int, ...]
    sizes: tuple[int, ...]
    mtimes: tuple[int, ...]
    versions: bytes
    targets: list[bytes]
    revisions: Sequence[int]


class EntryPage(Sequence[tuple[bytes, Entry]]):
    """The entries of one SNAPSHOT payload. ``groups``: in columns; as a sequence, (path, entry) pairs made anew each time."""

    __slots__ = ("_count", "_groups", "payload")

    def __init__(self, payload: bytes, count: int, groups: list[Columns] | None = None) -> None:
        """``groups``: what ``payload`` was found to hold; None when it was made here and nobody has looked yet."""
        self.payload = payload
        self._count = count
        self._groups = groups

    @property
    def groups(self) -> list[Columns]:
        if self._groups is None:
            self._groups = _decode(self.payload, changes=False)
        return self._groups

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[bytes, Entry]]:
        for group in self.groups:
            for path, entry, _ in _items(group):
                assert entry is not None
                yield path, entry

    @overload
    def __getitem__(self, index: int) -> tuple[bytes, Entry]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[bytes, Entry], ...]: ...
    def __getitem__(self, index: int | slice) -> tuple[bytes, Entry] | tuple[tuple[bytes, Entry], ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


Row = tuple[bytes, bytes, int, int, int, int, bytes, bytes]
"""directory, name, kind, mode, size in bytes, mtime in ns, version, target: as :class:`EntryPacker` takes them."""


class EntryPacker:
    """Gathers rows, a parent's before those below it, into pages of at most ``page_entries`` that each fit a frame."""

    def __init__(self, page_entries: int = limits.FEED_FRAME_MAX_ENTRIES) -> None:
        self._page_entries = page_entries
        self._groups: list[list[object]] = []
        self._count = 0
        self._bytes = 0

    def add(self, rows: Sequence[Row]) -> Iterator[EntryPage]:
        """Yields the pages that became full. Raises ProtocolError for a row that breaks a rule."""
        if not rows:
            return
        directories = list(map(itemgetter(0), rows))
        if directories.count(directories[0]) == len(rows):  # what a large directory gives again and again
            yield from self._add_group(rows)
        else:
            for _, run in groupby(rows, itemgetter(0)):
                yield from self._add_group(list(run))

    def flush(self) -> EntryPage:
        """What is gathered, maybe nothing."""
        page = EntryPage(msgpack.packb(self._groups), self._count)
        self._groups, self._count, self._bytes = [], 0, 0
        return page

    def _add_group(self, rows: Sequence[Row]) -> Iterator[EntryPage]:
        while rows:
            room = self._page_entries - self._count
            some, rows = rows[:room], rows[room:]
            directories, names, kinds, modes, sizes, mtimes, versions, targets = zip(*some, strict=True)
            count, directory = len(some), directories[0]
            size_bytes = len(directory) + sum(map(len, names)) + sum(map(len, targets)) + _ITEM_OVERHEAD_BYTES * count
            if self._bytes + size_bytes > limits.FRAME_PAYLOAD_MAX_BYTES:
                if self._count:
                    yield self.flush()
                    rows = [*some, *rows]
                else:  # many long names: half of them, then
                    yield from self._add_group(some[: count // 2])
                    rows = [*some[count // 2 :], *rows]
                continue
            self._groups.append(_packed_columns(directory, names, kinds, modes, sizes, mtimes, versions, targets))
            self._count += count
            self._bytes += size_bytes
            if self._count == self._page_entries:
                yield self.flush()


def _packed_columns(
    directory: bytes,
    names: Sequence[bytes],
    kinds: Sequence[int],
    modes: Sequence[int],
    sizes: Sequence[int],
    mtimes: Sequence[int],
    versions: Sequence[bytes],
    targets: Sequence[bytes],
) -> list[object]:
    count = len(names)
    try:
        packed_kinds = bytes(kinds)
        group: list[object] = [
            directory,
            list(names),
            packed_kinds,
            struct.pack(f"<{count}H", *modes),
            struct.pack(f"<{count}Q", *sizes),
            struct.pack(f"<{count}q", *mtimes),
            b"".join(versions),
            [target for kind, target in zip(kinds, targets, strict=True) if kind == Kind.SYMLINK]
            if Kind.SYMLINK in packed_kinds
            else [],
        ]
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"an entry in {directory!r:.200} holds a number out of range: {error}") from None
    _check_group(group, changes=False)
    return group


def encode_entries(entries: Sequence[tuple[bytes, Entry]]) -> bytes:
    """A SNAPSHOT payload. Raises ProtocolError for an entry that breaks a rule, or too many."""
    if isinstance(entries, EntryPage):
        return entries.payload
    return _encode([(path, entry, 0) for path, entry in entries], changes=False)


def decode_entries(payload: bytes | bytearray | memoryview) -> EntryPage:
    """The entries of a SNAPSHOT payload, in order, all of them checked. Raises ProtocolError."""
    groups = _decode(payload, changes=False)
    return EntryPage(bytes(payload), sum(len(group.names) for group in groups), groups)


def encode_changes(changes: Sequence[Change]) -> bytes:
    """A CHANGES payload. Raises ProtocolError for a change that breaks a rule, or too many."""
    return _encode([(path, entry, revision) for revision, path, entry in changes], changes=True)


def decode_changes(payload: bytes | bytearray | memoryview) -> tuple[Change, ...]:
    """The changes of a CHANGES payload, in order. Raises ProtocolError."""
    groups = _decode(payload, changes=True)
    return tuple(Change(revision, path, entry) for group in groups for path, entry, revision in _items(group))


def split_entries(entries: Iterable[tuple[bytes, Entry]]) -> Iterator[list[tuple[bytes, Entry]]]:
    """Cut into runs that each fit one SNAPSHOT frame (count and bytes); no run is empty."""
    return _split((item, len(item[0]) + len(item[1].target)) for item in entries)


def split_changes(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Cut into runs that each fit one CHANGES frame (count and bytes); no run is empty."""
    return _split((item, len(item.path) + (len(item.entry.target) if item.entry else 0)) for item in changes)


def _split(sized_items: Iterable[tuple[_T, int]]) -> Iterator[list[_T]]:
    page: list[_T] = []
    room_bytes = limits.FRAME_PAYLOAD_MAX_BYTES
    for item, size_bytes in sized_items:
        need_bytes = size_bytes + _ITEM_OVERHEAD_BYTES
        if page and (need_bytes > room_bytes or len(page) == _ITEM_MAX_COUNT):
            yield page
            page, room_bytes = [], limits.FRAME_PAYLOAD_MAX_BYTES
        page.append(item)
        room_bytes -= need_bytes
    if page:
        yield page


def _directory(item: _Item) -> bytes:
    return item[0].rpartition(b"/")[0]


def _encode(items: list[_Item], *, changes: bool) -> bytes:
    if len(items) > _ITEM_MAX_COUNT:
        raise ProtocolError(f"{len(items)} entries in one frame; {_ITEM_MAX_COUNT} are allowed")
    groups: list[list[object]] = []
    for directory, run in groupby(items, _directory):
        paths, entries, revisions = zip(*run, strict=True)
        start = len(directory) + 1 if directory else 0
        try:
            group = _columns(directory, [path[start:] for path in paths], entries)
            if changes:
                group.append(struct.pack(f"<{len(revisions)}Q", *revisions))
        except struct.error as error:
            raise ProtocolError(f"an entry in {directory!r:.200} holds a number out of range: {error}") from None
        _check_group(group, changes=changes)
        groups.append(group)
    payload: bytes = msgpack.packb(groups)
    if len(payload) > limits.FRAME_PAYLOAD_MAX_BYTES:
        raise ProtocolError(
            f"entries of {len(payload)} bytes in one frame; {limits.FRAME_PAYLOAD_MAX_BYTES} are allowed"
        )
    return payload


def _columns(directory: bytes, names: list[bytes], entries: Sequence[Entry | None]) -> list[object]:
    count = len(names)
    present = [entry for entry in entries if entry is not None]
    for entry in present:
        if len(entry.version) != (VERSION_BYTES if entry.kind is Kind.FILE else 0):
            raise ProtocolError(f"{entry.kind.name} with a version of {len(entry.version)} bytes in {directory!r:.200}")
        if entry.target and entry.kind is not Kind.SYMLINK:
            raise ProtocolError(f"{entry.kind.name} with a symlink's target in {directory!r:.200}")
    return [
        directory,
        names,
        bytes([entry.kind if entry else _REMOVED for entry in entries]),
        struct.pack(f"<{count}H", *[entry.mode if entry else 0 for entry in entries]),
        struct.pack(f"<{count}Q", *[entry.size_bytes if entry else 0 for entry in entries]),
        struct.pack(f"<{count}q", *[entry.mtime_ns if entry else 0 for entry in entries]),
        b"".join([entry.version for entry in present]),
        [entry.target for entry in present if entry.kind is Kind.SYMLINK],
    ]


def _decode(payload: bytes | bytearray | memoryview, *, changes: bool) -> list[Columns]:
    try:
        groups = msgpack.unpackb(
            payload,
            raw=False,
            use_list=True,
            max_str_len=0,
            max_bin_len=_ITEM_MAX_COUNT * VERSION_BYTES,
            max_array_len=_ITEM_MAX_COUNT,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"entries that are not valid msgpack: {error}") from None
    if type(groups) is not list:
        raise ProtocolError("entries are not an array of groups")
    width = _CHANGE_COLUMNS if changes else _COLUMNS
    count = 0
    for group in groups:
        if type(group) is not list or len(group) < width:
            raise ProtocolError(f"a group of entries is not an array of {width} columns")
        if type(group[1]) is list:
            count += len(group[1])
        if count > _ITEM_MAX_COUNT:
            raise ProtocolError(f"more than {_ITEM_MAX_COUNT} entries in one frame")
    return [_check_group(group, changes=changes) for group in groups]


def _check_group(group: list[Any], *, changes: bool) -> Columns:
    directory, names, kinds, packed_modes, packed_sizes, packed_mtimes, versions, targets = group[:_COLUMNS]
    _check_names(directory, names)
    count = len(names)
    _check_column("kinds", kinds, count)
    file_count, link_count = kinds.count(Kind.FILE), kinds.count(Kind.SYMLINK)
    removed_count = kinds.count(_REMOVED) if changes else 0
    if file_count + link_count + kinds.count(Kind.DIRECTORY) + removed_count != count:
        raise ProtocolError(f"an entry in {directory!r:.200} is of no known kind")
    _check_column("modes", packed_modes, count * 2)
    _check_column("sizes", packed_sizes, count * 8)
    _check_column("mtimes", packed_mtimes, count * 8)
    _check_column("versions", versions, file_count * VERSION_BYTES)
    _check_targets(targets, link_count)
    modes = struct.unpack(f"<{count}H", packed_modes)
    sizes = struct.unpack(f"<{count}Q", packed_sizes)
    mtimes = struct.unpack(f"<{count}q", packed_mtimes)
    if max(modes) > _MODE_MAX or max(sizes) > limits.FILE_MAX_BYTES:
        raise ProtocolError(f"an entry in {directory!r:.200} has a mode or a size out of range")
    revisions: Sequence[int] = (0,) * count
    if changes:
        _check_column("revisions", group[_COLUMNS], count * 8)
        revisions = struct.unpack(f"<{count}Q", group[_COLUMNS])
    return Columns(directory, names, kinds, modes, sizes, mtimes, versions, targets, revisions)


def _items(columns: Columns) -> Iterator[_Item]:
    directory, names, kinds, modes, sizes, mtimes, versions, targets, revisions = columns
    prefix = directory + b"/" if directory else b""
    next_target = iter(targets)
    version_start = 0
    file_kind, link_kind, directory_kind = Kind.FILE, Kind.SYMLINK, Kind.DIRECTORY
    for name, kind, mode, size_bytes, mtime_ns, revision in zip(
        names, kinds, modes, sizes, mtimes, revisions, strict=True
    ):
        entry: Entry | None = None
        if kind == file_kind:
            version_end = version_start + VERSION_BYTES
            entry = Entry(file_kind, mode, size_bytes, mtime_ns, versions[version_start:version_end])
            version_start = version_end
        elif kind == link_kind:
            entry = Entry(link_kind, mode, size_bytes, mtime_ns, b"", next(next_target))
        elif kind != _REMOVED:
            entry = Entry(directory_kind, mode, size_bytes, mtime_ns)
        yield prefix + name, entry, revision


def _check_column(name: str, column: object, size_bytes: int) -> None:
    if type(column) is not bytes or len(column) != size_bytes:
        raise ProtocolError(f"the column of {name} does not hold {size_bytes} bytes")


def _check_names(directory: object, names: object) -> None:
    if type(directory) is not bytes or not is_safe_path(directory):
        raise ProtocolError(f"directory {directory!r:.200} is not a safe path")
    if type(names) is not list or not names or set(map(type, names)) != {bytes}:
        raise ProtocolError(f"the names in {directory!r:.200} are not a list of bytes")
    # As is_safe_name says of each, over all of them in C.
    joined = b"\0".join(names)
    if (
        joined.count(b"\0") != len(names) - 1
        or b"/" in joined
        or not _UNSAFE_NAMES.isdisjoint(names)
        or max(map(len, names)) > NAME_MAX_BYTES
    ):
        raise ProtocolError(f"a name in {directory!r:.200} is not safe")
    if len(directory) + 1 + max(map(len, names)) > PATH_MAX_BYTES + (not directory):
        raise ProtocolError(f"a path in {directory!r:.200} is longer than {PATH_MAX_BYTES} bytes")


def _check_targets(targets: object, count: int) -> None:
    if type(targets) is not list or len(targets) != count or not set(map(type, targets)) <= {bytes}:
        raise ProtocolError(f"the targets of {count} symlinks are not a list of as many byte strings")
    if targets and (
        min(map(len, targets)) == 0 or max(map(len, targets)) > PATH_MAX_BYTES or b"\0" in b"".join(targets)
    ):
        raise ProtocolError(f"a symlink's target is empty, holds NUL, or is longer than {PATH_MAX_BYTES} bytes")
