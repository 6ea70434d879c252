"""The replica's names on disk: one snapshot file and one log of changes, both of checksummed records.

A file is a header and records. Little-endian throughout.

    header   magic "HRNAMES\\0", format u16, kind u16 (1 snapshot, 2 log), zero u32, generation u64,
             catalog_id 16 bytes, revision u64, xxh3-64 of all that u64                            = 56 bytes
    record   payload length u32, xxh3-64 of the payload u64, payload (msgpack)

    ["r", packed]                                        the root's own entry (packing.py)
    ["d", [[directory, [name...], [packed...]]...]]      names of directories, a parent before its children
    ["e", end_revision, entry_count]                     the snapshot is complete
    ["c", after_revision, to_revision, [[revision, path, packed or nil]...]]      changes (in a log)

The snapshot ``names.snapshot`` of generation g belongs to ``names.<g>.log``. It is written while the tree changes, so
it holds the tree at its header's revision with some of the changes up to ``end_revision`` already in it; the log has
those changes again and replaying them makes it exact: in that stretch alone, a change whose parent is missing is passed
over (a later change in the same stretch removes it). A new generation is written beside the old one and renamed into
place with its log already there, so that a crash leaves one of the two whole.

Appends are not synced: a torn tail is cut at load and the hub sends the rest again. A damaged snapshot means an empty
tree and a full resync, never a wrong name.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import xxhash

from common import limits
from common.entries import Change
from common.wire.messages import Changes
from spoke.namespace.files import Files, Output, sync_directory
from spoke.namespace.packing import pack_entry, unpack_entry
from spoke.namespace.tree import Node, SequenceBroken, Tree

FORMAT = 1
MAGIC = b"HRNAMES\0"
SNAPSHOT, LOG = 1, 2
SNAPSHOT_NAME = "names.snapshot"
_HEADER = struct.Struct("<8sHHIQ16sQ")
_CHECK = struct.Struct("<Q")
_RECORD = struct.Struct("<IQ")
HEADER_BYTES = _HEADER.size + _CHECK.size


class Damaged(Exception):
    """A file of the journal that is not what was written; handled inside this room."""


class _Unfit(Exception):
    """A whole record of the log that does not follow."""


class Header(NamedTuple):
    kind: int
    generation: int
    catalog_id: bytes
    revision: int

    def encode(self) -> bytes:
        head = _HEADER.pack(MAGIC, FORMAT, self.kind, 0, self.generation, self.catalog_id, self.revision)
        return head + _CHECK.pack(xxhash.xxh3_64_intdigest(head))

    @classmethod
    def decode(cls, data: bytes | memoryview, kind: int) -> Header:
        """Raises Damaged for anything but a header of this kind and format."""
        if len(data) < HEADER_BYTES:
            raise Damaged("the header is cut short")
        magic, version, found_kind, _, generation, catalog_id, revision = _HEADER.unpack_from(data)
        if magic != MAGIC or version != FORMAT or found_kind != kind:
            raise Damaged(f"not a names journal of format {FORMAT} and kind {kind}")
        if _CHECK.unpack_from(data, _HEADER.size)[0] != xxhash.xxh3_64_intdigest(bytes(data[: _HEADER.size])):
            raise Damaged("the header does not match its checksum")
        return cls(kind, generation, catalog_id, revision)


class Loaded(NamedTuple):
    """What a directory held. ``notes``: what was cut or dropped, for the log. ``generation`` 0: nothing usable."""

    tree: Tree
    generation: int
    snapshot_bytes: int
    log_bytes: int
    notes: tuple[str, ...]


def log_path(directory: Path, generation: int) -> Path:
    return directory / f"names.{generation}.log"


# --- writing -----------------------------------------------------------------------------------------------


def record(payload: list[Any]) -> bytes:
    data: bytes = msgpack.packb(payload)
    assert len(data) <= limits.JOURNAL_RECORD_MAX_BYTES, f"a journal record of {len(data)} bytes"
    return _RECORD.pack(len(data), xxhash.xxh3_64_intdigest(data)) + data


def changes_record(message: Changes) -> bytes:
    rows = [
        [change.revision, change.path, None if change.entry is None else pack_entry(change.entry)]
        for change in message.changes
    ]
    return record(["c", message.after_revision, message.to_revision, rows])


def snapshot_records(tree: Tree) -> Iterator[tuple[int, bytes]]:
    """(entries in it, record) of the whole tree. May run in a thread while the tree changes: see the module's text."""
    yield 0, record(["r", tree.root.packed])
    page: list[list[Any]] = []
    page_entries = page_bytes = 0
    stack: list[tuple[bytes, Node]] = [(b"", tree.root)]
    while stack:
        path, directory = stack.pop()
        children = _listing(directory)
        below = path + b"/" if path else b""
        stack.extend((below + child.name, child) for child in reversed(children) if child.is_directory)
        for start in range(0, len(children), limits.JOURNAL_PAGE_ENTRIES):
            some = children[start : start + limits.JOURNAL_PAGE_ENTRIES]
            page.append([path, [child.name for child in some], [child.packed for child in some]])
            page_entries += len(some)
            page_bytes += len(path)
            if page_entries >= limits.JOURNAL_PAGE_ENTRIES or page_bytes >= limits.JOURNAL_RECORD_MAX_BYTES // 8:
                yield page_entries, record(["d", page])
                page, page_entries, page_bytes = [], 0, 0
    if page:
        yield page_entries, record(["d", page])


def end_record(end_revision: int, entry_count: int) -> bytes:
    return record(["e", end_revision, entry_count])


def _listing(directory: Node) -> list[Node]:
    while True:
        try:
            return list(directory.children.values())
        except RuntimeError:  # the dict changed under the copy: another thread applies changes
            continue


def install(
    directory: Path, written: Path, header: Header, log_records: Iterable[bytes], files: Files | None = None
) -> int:
    """Make the snapshot ``written`` (complete and synced) the current one, with its log; returns the log's bytes.

    Raises OSError; the old generation is then still the current one.
    """
    files = files or Files()
    new_log = log_path(directory, header.generation)
    data = header._replace(kind=LOG).encode() + b"".join(log_records)
    with Output(files, new_log, anew=True) as out:
        out.write(data)
        out.sync()
    # A power cut may keep the rename and lose the log's name, unless that is on disk first.
    sync_directory(files, directory)
    files.rename(os.fspath(written), os.fspath(directory / SNAPSHOT_NAME))
    sync_directory(files, directory)
    for path in directory.glob("names.*.log"):
        if path != new_log:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(os.fspath(path))
    return len(data)


# --- reading -----------------------------------------------------------------------------------------------


def load(directory: Path, *, cut: bool = True) -> Loaded:
    """The tree as it was last kept in ``directory``, or an empty one. Cuts a torn log (not without ``cut``). Raises OSError alone."""
    try:
        data = (directory / SNAPSHOT_NAME).read_bytes()
    except FileNotFoundError:
        return Loaded(Tree(), 0, 0, 0, ())
    try:
        tree, header, end_revision = _load_snapshot(memoryview(data))
    except Damaged as error:
        return Loaded(Tree(), 0, 0, 0, (f"{SNAPSHOT_NAME} is damaged and not used: {error}",))
    snapshot_bytes = len(data)
    del data
    path = log_path(directory, header.generation)
    try:
        log_data = path.read_bytes()
        if Header.decode(log_data, LOG) != header._replace(kind=LOG):
            raise Damaged("it belongs to another snapshot")
    except (FileNotFoundError, Damaged) as error:
        # The snapshot may hold part of what only its log makes exact.
        return Loaded(Tree(), 0, 0, 0, (f"{path.name} is missing or damaged, the names are not used: {error}",))
    try:
        kept_bytes = _replay(tree, memoryview(log_data), end_revision)
        if tree.revision < end_revision:
            raise Damaged("it was cut inside what completes the snapshot")
    except Damaged as error:
        return Loaded(Tree(), 0, 0, 0, (f"{path.name} is damaged, the names are not used: {error}",))
    notes: tuple[str, ...] = ()
    if kept_bytes < len(log_data):
        if cut:
            os.truncate(path, kept_bytes)
        notes = (f"{path.name}: {len(log_data) - kept_bytes} bytes of a torn tail were cut",)
    return Loaded(tree, header.generation, snapshot_bytes, kept_bytes, notes)


def _records(data: memoryview) -> Iterator[tuple[list[Any], int]]:
    """(payload, offset of its end) of each whole record; raises Damaged at the first that is not."""
    offset_bytes = HEADER_BYTES
    while offset_bytes < len(data):
        start_bytes = offset_bytes + _RECORD.size
        if start_bytes > len(data):
            raise Damaged("a record is cut short")
        length_bytes, digest = _RECORD.unpack_from(data, offset_bytes)
        offset_bytes = start_bytes + length_bytes
        payload = data[start_bytes:offset_bytes]
        if length_bytes > limits.JOURNAL_RECORD_MAX_BYTES or len(payload) != length_bytes:
            raise Damaged("a record is cut short")
        if xxhash.xxh3_64_intdigest(payload) != digest:
            raise Damaged("a record does not match its checksum")
        try:
            fields = msgpack.unpackb(payload)
        except ValueError as error:
            raise Damaged(f"a record is not msgpack: {error}") from error
        yield fields, offset_bytes


def _load_snapshot(data: memoryview) -> tuple[Tree, Header, int]:
    header = Header.decode(data, SNAPSHOT)
    tree = Tree()
    tree.catalog_id, tree.revision = header.catalog_id, header.revision
    ended: tuple[int, int] | None = None
    try:
        for fields, _ in _records(data):
            if ended is not None:
                raise Damaged("something follows the end")
            if fields[0] == "d":
                for path, names, packed in fields[1]:
                    parent = tree.resolve(path)
                    if parent is None or not parent.is_directory:
                        raise Damaged(f"{path!r} has names but is no directory")
                    tree.add_children(parent, names, packed)
            elif fields[0] == "r":
                tree.upsert_packed(b"", fields[1])
            elif fields[0] == "e":
                ended = (fields[1], fields[2])
            else:
                raise Damaged(f"a record of type {fields[0]!r}")
    except (ValueError, TypeError, IndexError, KeyError, SequenceBroken) as error:
        raise Damaged(f"a record's content cannot be: {error}") from error
    if ended is None or ended[1] != tree.entry_count:
        raise Damaged("the end is missing or counts other names")
    return tree, header, ended[0]


def _replay(tree: Tree, data: memoryview, end_revision: int) -> int:
    """Apply the log as far as it is whole and follows; returns the bytes of it that are good.

    Raises Damaged for a whole record that does not fit the tree: then one of the two files lies.
    """
    good_bytes = HEADER_BYTES
    try:
        for fields, end_bytes in _records(data):
            kind, after_revision, to_revision, rows = fields
            if kind != "c" or after_revision != tree.revision:
                break
            try:
                for revision, path, packed in rows:
                    change = Change(revision, path, None if packed is None else unpack_entry(packed))
                    _apply(tree, change, end_revision)
            except (SequenceBroken, ValueError, TypeError) as error:
                raise _Unfit(f"changes after revision {after_revision} do not fit: {error}") from error
            tree.revision = to_revision
            good_bytes = end_bytes
    except _Unfit as error:
        raise Damaged(str(error)) from error
    except (Damaged, ValueError, TypeError):
        pass  # a torn tail
    return good_bytes


def _apply(tree: Tree, change: Change, end_revision: int) -> None:
    try:
        tree.apply(change)
    except SequenceBroken:
        if change.revision > end_revision:
            raise
