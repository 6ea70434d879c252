"""Named snapshots and earlier trees: which can still be given, how they are read, names made and dropped.

A snapshot is a name for a revision; making one copies nothing. What an entry was before it changed is kept in ``past``
(hub.past) while a snapshot or the change log reaches back to it. Functions take a connection; those that write say so, and
want to be inside a transaction of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from common import limits
from common.errors import DiskError, RevisionUnavailable, UsageError
from hub import catalog_tables
from hub.catalog_tables import read_number
from hub.past import forget

_BUSY_TIMEOUT_S = 300.0
"""A first scan holds the write lock for as long as it takes."""


class NamedSnapshot(NamedTuple):
    """``created_s``: seconds since the epoch, for people to read."""

    name: str
    revision: int
    entry_count: int
    created_s: float


# --- which trees there are -----------------------------------------------------------------------------------


def list_all(database: sqlite3.Connection) -> list[NamedSnapshot]:
    """By revision."""
    rows = database.execute("SELECT name, revision, entry_count, created_s FROM snapshots ORDER BY revision, name")
    return [NamedSnapshot(*row) for row in rows]


def revision_of(database: sqlite3.Connection, dataset: str, name: str) -> int:
    """The revision that ``name`` stands for. Raises RevisionUnavailable."""
    row = database.execute("SELECT revision FROM snapshots WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise RevisionUnavailable(f"dataset {dataset!r} has no snapshot {name!r}; {_available(database)}")
    revision: int = row[0]
    return revision


def require(database: sqlite3.Connection, dataset: str, revision: int) -> int:
    """How many entries the tree of this revision has. Raises RevisionUnavailable when it cannot be given any more, or yet."""
    row = database.execute("SELECT entry_count FROM snapshots WHERE revision = ?", (revision,)).fetchone()
    if row is not None:
        named: int = row[0]
        return named
    head = read_number(database, "head")
    if revision == head:
        return read_number(database, "entry_count")
    if not read_number(database, "past_floor") <= revision <= head:
        raise RevisionUnavailable(f"revision {revision} of dataset {dataset!r} is not kept; {_available(database)}")
    now = database.execute("SELECT COUNT(*) FROM entries WHERE since <= ?", (revision,)).fetchone()[0]
    then = database.execute(
        "SELECT COUNT(*) FROM past WHERE since <= ? AND until > ?", (revision, revision)
    ).fetchone()[0]
    count: int = now + then
    return count


def _available(database: sqlite3.Connection) -> str:
    floor, head = read_number(database, "past_floor"), read_number(database, "head")
    named = list_all(database)
    shown = ", ".join(f"{snapshot.name} ({snapshot.revision})" for snapshot in named[-limits.SNAPSHOTS_SHOWN_MAX :])
    return f"the hub can give revisions {floor} to {head}" + (
        f" and the snapshots {shown}" if named else ", no snapshots"
    )


# --- names (both write) --------------------------------------------------------------------------------------


def create(database: sqlite3.Connection, name: str, now_s: float) -> NamedSnapshot:
    """Name the head. Raises UsageError for a name that is taken, or is none."""
    if not name or not name.isprintable() or len(name.encode()) > limits.LABEL_MAX_BYTES or name != name.strip():
        raise UsageError(f"snapshot name {name!r}: printable text of 1 to {limits.LABEL_MAX_BYTES} bytes")
    made = NamedSnapshot(name, read_number(database, "head"), read_number(database, "entry_count"), now_s)
    try:
        database.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?)", made)
    except sqlite3.IntegrityError:
        raise UsageError(f"there is a snapshot {name!r} already; drop it first, or take another name") from None
    return made


def drop(database: sqlite3.Connection, name: str) -> NamedSnapshot:
    """Forget the name, and what only it kept. Raises UsageError when there is none."""
    row = database.execute(
        "SELECT name, revision, entry_count, created_s FROM snapshots WHERE name = ?", (name,)
    ).fetchone()
    if row is None:
        named = ", ".join(snapshot.name for snapshot in list_all(database)[-limits.SNAPSHOTS_SHOWN_MAX :])
        raise UsageError(f"there is no snapshot {name!r}; there are {named or 'none'}")
    database.execute("DELETE FROM snapshots WHERE name = ?", (name,))
    forget(database, 0, read_number(database, "past_floor"))
    return NamedSnapshot(*row)


# --- a tree as it was ------------------------------------------------------------------------------------------

_SHOWN = "kind, mode, size_bytes, mtime_ns, version, target"

# CROSS JOIN fixes the loop order: directories by path, each with its names in order, no sort.
HEAD_QUERY = (
    f"SELECT d.path AS directory, e.name AS name, {_SHOWN}"
    " FROM directories d CROSS JOIN entries e ON e.directory = d.id ORDER BY d.path, e.name"
)
# Two walks in the same order, merged: nothing is sorted, nothing is held.
PAST_QUERY = (
    f"SELECT d.path AS directory, e.name AS name, {_SHOWN}"
    " FROM directories d CROSS JOIN entries e ON e.directory = d.id WHERE e.since <= :revision"
    f" UNION ALL SELECT directory, name, {_SHOWN} FROM past WHERE since <= :revision AND until > :revision"
    " ORDER BY directory, name"
)


def tree_rows(database: sqlite3.Connection, revision: int) -> sqlite3.Cursor:
    """(directory, name, kind, …) of the tree at a revision that :func:`require` accepted, a parent before its children."""
    if revision == read_number(database, "head"):
        return database.execute(HEAD_QUERY)
    return database.execute(PAST_QUERY, {"revision": revision})


# --- beside a hub that may be running ----------------------------------------------------------------------------


def datasets_in(state_dir: Path) -> list[str]:
    """Datasets with a catalog in this directory."""
    return sorted(unquote(path.name.removesuffix(".catalog")) for path in state_dir.glob("*.catalog"))


@contextmanager
def opened(state_dir: Path, dataset: str, *, write: bool = True) -> Iterator[sqlite3.Connection]:
    """The catalog of a dataset inside a transaction, whether a hub serves it or not. Raises UsageError, DiskError."""
    path = state_dir / f"{quote(dataset, safe='')}.catalog"
    if not path.exists():
        known = ", ".join(datasets_in(state_dir)) or "none"
        raise UsageError(
            f"no catalog of dataset {dataset!r} in {state_dir} (there: {known}); has a hub served it from there?"
        )
    try:
        database = catalog_tables.connect(path, timeout_s=_BUSY_TIMEOUT_S)
        try:
            catalog_tables.inspect(database, quick=True)
            database.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield database
            database.execute("COMMIT")
        finally:
            database.close()  # rolls back what was not committed
    except sqlite3.Error as error:
        raise DiskError(f"the catalog {path} failed: {error}") from error
    except catalog_tables.ForeignCatalog as error:
        raise UsageError(
            f"{path} is no catalog of this release ({error}); start the hub once, or see its log"
        ) from error
