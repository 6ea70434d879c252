"""The catalog's tables, and what is read from them.

Directories have a row with their whole path; entries hang below it, so that a tree's order (a parent before its
children, siblings sorted, grouped by directory) is the order of two keys. ``since`` is the revision at which an entry
became what it is; what it was before stands in ``past`` with the revision at which that ended, as long as a named
snapshot or the change log still reaches back to it (hub.past): so a tree of an earlier revision costs the rows that
changed since, not a copy. Functions take a connection, and let ``sqlite3.Error`` out: hub.catalog translates it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from common.entries import Change, Entry, Kind
from common.errors import RevisionGone
from hub.export import join_path
from hub.versions import FILE, Identity

APPLICATION_ID = 0x48524341  # "HRCA"
SCHEMA_VERSION = 2

_PAST_SCHEMA = """
CREATE TABLE past (
    directory BLOB NOT NULL, name BLOB NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL,
    kind INTEGER NOT NULL, mode INTEGER NOT NULL, size_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    version BLOB NOT NULL, target BLOB NOT NULL,
    PRIMARY KEY (directory, name, since)
) WITHOUT ROWID;
CREATE INDEX past_by_until ON past (until);
CREATE TABLE former_ids (catalog_id BLOB PRIMARY KEY, last_revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE snapshots (
    name TEXT PRIMARY KEY, revision INTEGER NOT NULL, entry_count INTEGER NOT NULL, created_s REAL NOT NULL
) WITHOUT ROWID;
"""

_INDEXES = f"""
CREATE INDEX entries_by_version ON entries (version) WHERE kind = {FILE};
CREATE INDEX entries_by_inode ON entries (inode) WHERE kind = {FILE};
"""

_SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE directories (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE);
CREATE TABLE entries (
    directory INTEGER NOT NULL, name BLOB NOT NULL,
    kind INTEGER NOT NULL, mode INTEGER NOT NULL, size_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    inode INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, device INTEGER NOT NULL, link_count INTEGER NOT NULL,
    target BLOB NOT NULL, edit_ctime_ns INTEGER NOT NULL, version BLOB NOT NULL, since INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (directory, name)
) WITHOUT ROWID;
{_INDEXES}
CREATE TABLE changes (
    revision INTEGER PRIMARY KEY, path BLOB NOT NULL,
    kind INTEGER, mode INTEGER, size_bytes INTEGER, mtime_ns INTEGER, version BLOB, target BLOB
);
{_PAST_SCHEMA}
INSERT INTO directories VALUES (1, x'');
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

_FROM_1 = f"""
ALTER TABLE entries ADD COLUMN since INTEGER NOT NULL DEFAULT 0;
{_PAST_SCHEMA}
INSERT INTO meta VALUES ('past_floor', (SELECT value FROM meta WHERE key = 'head'));
INSERT INTO meta VALUES ('past_rows', 0);
PRAGMA user_version = {SCHEMA_VERSION};
"""
"""Rows of a catalog of schema 1 count as old as the log: trees from before the migration cannot be given."""


class Resolved(NamedTuple):
    """Where a version's bytes are now, and what fstat must say there."""

    path: bytes
    identity: Identity


class ForeignCatalog(Exception):
    """The file is not a catalog of this schema, or is damaged."""


def connect(path: Path, cache_kib: int = 65536, timeout_s: float = 10.0) -> sqlite3.Connection:
    """A connection that any one thread at a time may use, in autocommit mode. ``timeout_s``: how long to wait for a lock."""
    database = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=timeout_s, cached_statements=64
    )
    database.execute("PRAGMA journal_mode = WAL")
    # FULL: a revision that a spoke has seen must survive a power cut, or the next one would reuse its number.
    database.execute("PRAGMA synchronous = FULL")
    database.execute(f"PRAGMA cache_size = -{cache_kib}")
    return database


def create(database: sqlite3.Connection) -> None:
    database.execute("BEGIN IMMEDIATE")
    _execute_all(database, _SCHEMA)
    values = {
        "catalog_id": os.urandom(16), "head": 0, "floor": 0, "entry_count": 0, "past_floor": 0, "past_rows": 0,
    }  # fmt: skip
    database.executemany("INSERT INTO meta VALUES (?, ?)", list(values.items()))
    database.execute("COMMIT")


def begin_life(database: sqlite3.Connection) -> None:
    """Take a new catalog id, and note until which revision the former one was given.

    A database put back from a backup counts on from where the backup was: under the same id, its next revisions could
    not be told from others with the same numbers that spokes have seen.
    """
    database.execute("BEGIN IMMEDIATE")
    database.execute(
        "INSERT OR REPLACE INTO former_ids VALUES (?, ?)",
        (read_meta(database, "catalog_id"), read_number(database, "head")),
    )
    database.execute("DELETE FROM former_ids WHERE last_revision < ?", (read_number(database, "floor"),))
    write_meta(database, "catalog_id", os.urandom(16))
    database.execute("COMMIT")


def read_life(database: sqlite3.Connection) -> tuple[bytes, dict[bytes, int]]:
    """The catalog's id, and former ones with the last revision that was given under each."""
    catalog_id = read_meta(database, "catalog_id")
    assert isinstance(catalog_id, bytes)
    return catalog_id, dict(database.execute("SELECT catalog_id, last_revision FROM former_ids"))


def migrate(database: sqlite3.Connection) -> None:
    """Bring a catalog of an earlier schema to this one, in one transaction."""
    found = (
        database.execute("PRAGMA application_id").fetchone()[0],
        database.execute("PRAGMA user_version").fetchone()[0],
    )
    if found == (APPLICATION_ID, 1):
        database.execute("BEGIN IMMEDIATE")
        _execute_all(database, _FROM_1)
        database.execute("COMMIT")


def drop_indexes(database: sqlite3.Connection) -> None:
    """Before a first scan: built at its end, in order, they cost a third."""
    for name in ("entries_by_version", "entries_by_inode"):
        database.execute(f"DROP INDEX {name}")


def make_indexes(database: sqlite3.Connection) -> None:
    _execute_all(database, _INDEXES)


def _execute_all(database: sqlite3.Connection, script: str) -> None:
    """Unlike executescript, inside the transaction at hand."""
    for statement in script.split(";"):
        if statement.strip():
            database.execute(statement)


def inspect(database: sqlite3.Connection, *, quick: bool = False) -> None:
    """Raises ForeignCatalog unless this is a sound catalog of our schema. ``quick``: without reading all of it."""
    application_id = database.execute("PRAGMA application_id").fetchone()[0]
    schema_version = database.execute("PRAGMA user_version").fetchone()[0]
    if (application_id, schema_version) != (APPLICATION_ID, SCHEMA_VERSION):
        raise ForeignCatalog(f"application {application_id:#x} schema {schema_version}")
    verdict = "ok" if quick else database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise ForeignCatalog(str(verdict))
    catalog_id = read_meta(database, "catalog_id")
    if not isinstance(catalog_id, bytes) or len(catalog_id) != 16:
        raise ForeignCatalog("no catalog id")


def read_meta(database: sqlite3.Connection, key: str) -> object:
    row = database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def write_meta(database: sqlite3.Connection, key: str, value: object) -> None:
    database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def read_number(
    database: sqlite3.Connection, key: Literal["head", "floor", "entry_count", "past_floor", "past_rows"]
) -> int:
    """``head``: the last revision; ``floor``: the one the log begins after; ``entry_count``: entries at the head.

    ``past_floor``: trees from this revision on can be given whether a snapshot names them or not; ``past_rows``: rows in past.
    """
    number = read_meta(database, key)
    assert isinstance(number, int)
    return number


def find_version(database: sqlite3.Connection, version: bytes) -> Resolved | None:
    row = database.execute(
        "SELECT d.path, e.name, e.inode, e.size_bytes, e.mtime_ns, e.ctime_ns FROM entries e"
        f" JOIN directories d ON d.id = e.directory WHERE e.kind = {FILE} AND e.version = ? LIMIT 1",
        (version,),
    ).fetchone()
    return Resolved(join_path(row[0], row[1]), Identity(*row[2:])) if row else None


def sizes_of(database: sqlite3.Connection, versions: Iterable[bytes]) -> dict[bytes, int]:
    """Sizes in bytes of the files that have one of these versions."""
    query = f"SELECT size_bytes FROM entries WHERE kind = {FILE} AND version = ? LIMIT 1"
    found = ((version, database.execute(query, (version,)).fetchone()) for version in versions)
    return {version: row[0] for version, row in found if row is not None}


def read_changes(database: sqlite3.Connection, revision: int, limit: int) -> list[Change]:
    """Raises RevisionGone when the log does not reach back to ``revision``, or has not come to it yet."""
    database.execute("BEGIN")
    try:
        floor, head = read_number(database, "floor"), read_number(database, "head")
        if not floor <= revision <= head:
            raise RevisionGone(f"revision {revision} is not in the change log, which holds {floor} to {head}")
        rows = database.execute(
            "SELECT revision, path, kind, mode, size_bytes, mtime_ns, version, target FROM changes"
            " WHERE revision > ? ORDER BY revision LIMIT ?",
            (revision, limit),
        ).fetchall()
    finally:
        database.execute("COMMIT")
    return [Change(row[0], row[1], None if row[2] is None else Entry(Kind(row[2]), *row[3:])) for row in rows]
