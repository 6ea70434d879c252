"""What entries were before a batch changed them: kept while a snapshot or the change log may ask for it, forgotten after that."""

from __future__ import annotations

import sqlite3

from common import limits
from hub.catalog_tables import read_number, write_meta
from hub.versions import Known

BELOW = "path = ?1 OR (path > ?2 AND path < ?3)"
"""Of a directory and all below it, by (path, path + "/", path + "0"): "0" is the byte after "/"."""

_INSERT = "INSERT INTO past VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class PastKeeper:
    """Of one batch, inside its transaction. ``first_head``: the revision it began at."""

    def __init__(self, database: sqlite3.Connection, first_head: int) -> None:
        self._database = database
        self._first_head = first_head
        newest: int | None = database.execute("SELECT MAX(revision) FROM snapshots").fetchone()[0]
        self._newest_snapshot = -1 if newest is None else newest
        self._rows: list[tuple[object, ...]] = []
        self._added = 0
        self._incomplete = False

    def keep(self, parent: bytes, name: bytes, known: Known, until: int) -> None:
        """What this name was until that revision."""
        if known.since > self._newest_snapshot and until - self._first_head > limits.CHANGE_LOG_MAX_CHANGES:
            self._incomplete = True  # the log will not reach back to it, and no snapshot shows it
            return
        old = known.facts
        self._rows.append((parent, name, known.since, until, *old[:4], known.version, old.target))
        self._added += 1

    def keep_below(self, bounds: tuple[bytes, bytes, bytes], until: int) -> None:
        """As :meth:`keep`, for all below a directory (``bounds`` as BELOW has them)."""
        below = f"FROM entries e JOIN directories d ON d.id = e.directory WHERE ({BELOW.replace('path', 'd.path')})"
        count = self._database.execute(f"SELECT COUNT(*) {below}", bounds).fetchone()[0]
        newest = until
        if self._added + count > limits.CHANGE_LOG_MAX_CHANGES:
            self._incomplete = True
            newest = self._newest_snapshot
        kept = self._database.execute(
            "INSERT INTO past SELECT d.path, e.name, e.since, ?4, e.kind, e.mode, e.size_bytes, e.mtime_ns, e.version,"
            f" e.target {below} AND e.since <= ?5",
            (*bounds, until, newest),
        )
        self._added += kept.rowcount

    def flush(self) -> None:
        if self._rows:
            self._database.executemany(_INSERT, self._rows)
            self._rows.clear()

    def trim(self, log_floor: int, head: int) -> None:
        """At the batch's end: let the past begin where the log does, or at the head if it has grown too large or has holes."""
        rows = read_number(self._database, "past_rows") + self._added
        write_meta(self._database, "past_rows", rows)
        old_floor = read_number(self._database, "past_floor")
        too_much = self._incomplete or rows > limits.PAST_ROWS_MAX
        floor = head if too_much else max(old_floor, log_floor)
        if floor > old_floor:
            write_meta(self._database, "past_floor", floor)
            forget(self._database, old_floor, floor)


def forget(database: sqlite3.Connection, after: int, floor: int) -> None:
    """Drop the past that ended after ``after`` and up to ``floor``, unless a snapshot shows it."""
    gone = database.execute(
        "DELETE FROM past WHERE until > ? AND until <= ? AND NOT EXISTS"
        " (SELECT 1 FROM snapshots s WHERE s.revision >= past.since AND s.revision < past.until)",
        (after, floor),
    )
    if gone.rowcount:
        write_meta(database, "past_rows", read_number(database, "past_rows") - gone.rowcount)
