"""What the catalog's rows say of names and inodes, asked of many at once: most of what a name cost was its queries."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hub.export import join_path, split_path
from hub.versions import FILE, Facts, InodeKey, Known

FACTS = "kind, mode, size_bytes, mtime_ns, inode, ctime_ns, device, link_count, target"
KNOWN = f"{FACTS}, edit_ctime_ns, version, since"
_FACTS_COUNT = len(Facts._fields)
_NAMED = f"SELECT name, {KNOWN} FROM entries WHERE directory = ? AND name"
_SHARED = f"SELECT device, inode FROM entries WHERE kind = {FILE} AND link_count > 1 AND directory = ? AND name"
_BY_INODE = f"SELECT {KNOWN} FROM entries WHERE kind = {FILE} AND inode"
_ASKED_AT_ONCE = 256


def known_at(database: sqlite3.Connection, path: bytes) -> Known | None:
    return known_of(database, [path]).get(path)


def known_of(database: sqlite3.Connection, paths: Iterable[bytes]) -> dict[bytes, Known]:
    """By path; what has no row is not in it."""
    return {
        join_path(parent, row[0]): _known(row[1:])
        for parent, directory_id, names in _by_directory(database, paths)
        for row in _select(database, _NAMED, (directory_id,), names)
    }


def known_in(database: sqlite3.Connection, directory_id: int, names: Sequence[bytes]) -> dict[bytes, Known]:
    """As :func:`known_of`, by name, of one directory."""
    return {row[0]: _known(row[1:]) for row in _select(database, _NAMED, (directory_id,), names)}


def facts_in(database: sqlite3.Connection, directory_id: int) -> dict[bytes, tuple[object, ...]]:
    """Of every name in a directory: the fields of its Facts."""
    found = database.execute(f"SELECT name, {FACTS} FROM entries WHERE directory = ?", (directory_id,))
    return {row[0]: row[1:] for row in found}


def shared_of(database: sqlite3.Connection, paths: Iterable[bytes]) -> set[InodeKey]:
    """The files among ``paths`` that have further names."""
    return {
        row
        for _, directory_id, names in _by_directory(database, paths)
        for row in _select(database, _SHARED, (directory_id,), names)
    }


def names_of(database: sqlite3.Connection, key: InodeKey) -> set[bytes]:
    """Every path of a file."""
    rows = database.execute(
        f"SELECT d.path, e.name FROM entries e JOIN directories d ON d.id = e.directory"
        f" WHERE e.kind = {FILE} AND e.inode = ? AND e.device = ?",
        (key[1], key[0]),
    )
    return {join_path(parent, name) for parent, name in rows}


def files_of(database: sqlite3.Connection, inodes: Iterable[int]) -> dict[tuple[int, int], Known]:
    """One row of each file among these inode numbers, by (inode, ctime_ns)."""
    found = (_known(row) for row in _select(database, _BY_INODE, (), list(inodes)))
    return {(known.facts.inode, known.facts.ctime_ns): known for known in found}


def _known(row: tuple[object, ...]) -> Known:
    return Known(Facts(*row[:_FACTS_COUNT]), *row[_FACTS_COUNT:])  # type: ignore[arg-type]


def _by_directory(database: sqlite3.Connection, paths: Iterable[bytes]) -> Iterator[tuple[bytes, int, list[bytes]]]:
    """(path, id, names) of the directories that have a row."""
    names: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for path in paths:
        parent, name = split_path(path)
        names[parent].append(name)
    for parent in sorted(names):
        row = database.execute("SELECT id FROM directories WHERE path = ?", (parent,)).fetchone()
        if row is not None:
            yield parent, row[0], sorted(names[parent])


def _select(
    database: sqlite3.Connection, query: str, fixed: tuple[object, ...], values: Sequence[object]
) -> Iterator[tuple[Any, ...]]:
    """Rows of ``query IN (values)``."""
    for start in range(0, len(values), _ASKED_AT_ONCE):
        some = list(values[start : start + _ASKED_AT_ONCE])
        # Filled up to a power of two: so that a few statements, prepared once, serve any number.
        some += some[-1:] * ((1 << (len(some) - 1).bit_length()) - len(some))
        yield from database.execute(f"{query} IN ({', '.join('?' * len(some))})", (*fixed, *some))
