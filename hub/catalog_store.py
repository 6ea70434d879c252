"""The one writer to the catalog's tables: listings go in, rows and numbered changes come out. Synchronous.

A batch is one transaction. Within a batch changes come first and removals last, so that a renamed file is never
missing in between. What an entry was before goes to the past (hub.past).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from common import limits
from hub.catalog_rows import KNOWN, facts_in, files_of, known_at, known_in, known_of, names_of, shared_of
from hub.catalog_tables import drop_indexes, make_indexes, read_number, write_meta
from hub.export import join_path, split_path
from hub.past import BELOW, PastKeeper
from hub.scan import Listing
from hub.versions import (
    DIRECTORY,
    FILE,
    Evidence,
    Facts,
    InodeKey,
    Judgement,
    Known,
    inode_key,
    judge,
    same_entry,
    version_of,
)

_FLUSH_ROWS = 2000

_UPSERT = f"INSERT OR REPLACE INTO entries (directory, name, {KNOWN}) VALUES ({', '.join('?' * 14)})"
_LOG = "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


class Applied(NamedTuple):
    """What a batch did. ``replaced``: versions whose place changed; None when too many to name.

    ``shared``: files of several names that a scan found new or changed, or that lost a name with its directory: their
    other names want a look.
    """

    head_revision: int
    entry_count: int
    changes: int
    replaced: set[bytes] | None
    shared: set[InodeKey]


class CatalogWriter:
    """Applies batches over one connection; one thread at a time."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def linked_names(self, paths: Iterable[bytes], inodes: Iterable[InodeKey]) -> set[bytes]:
        """Every name of the files that several names share: of those known under ``paths``, and of ``inodes``."""
        found: set[bytes] = set()
        for key in shared_of(self._database, paths).union(inodes):
            found.update(names_of(self._database, key))
        return found

    def known_at_head(self, path: bytes) -> tuple[Known | None, int]:
        """What the catalog holds of this name, and the revision it is of."""
        self._database.execute("BEGIN")
        try:
            return known_at(self._database, path), read_number(self._database, "head")
        finally:
            self._database.execute("COMMIT")

    def apply(self, observed: Sequence[Listing], scanned: Iterable[Listing], evidence: Evidence) -> Applied:
        """One batch: names looked at one by one, judged by ``evidence``, then whole directories as they were scanned."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            batch = self._judged_batch(observed, evidence)
            for listing in observed:
                batch.add(listing)
            batch.before.clear()
            batch.shared.clear()  # whoever looked at single names has looked at their siblings too
            for listing in scanned:
                batch.add(listing)
            applied = batch.finish()
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        return applied

    def _judged_batch(self, observed: Sequence[Listing], evidence: Evidence) -> _Batch:
        now = {join_path(listing.path, name): facts for listing in observed for name, facts in listing.entries.items()}
        before = known_of(self._database, evidence.named_paths() | now.keys())
        several = {
            inode_key(facts)
            for facts in (*now.values(), *(known.facts for known in before.values()))
            if facts is not None and facts.kind == FILE and facts.link_count > 1
        }
        linked = {key: names_of(self._database, key) for key in several}
        before.update(known_of(self._database, set().union(*linked.values()) - before.keys()))
        judgement = judge(before, now, linked, evidence)
        return _Batch(self._database, judgement, {path: before.get(path) for path in now})


class _Doom(NamedTuple):
    """``removed``: the name itself goes, and the log says so; else it became something else, at ``revision``.

    ``subtree``: rows lie below.
    """

    removed: bool
    subtree: bool
    revision: int = 0


class _Batch:
    """The diff of one batch against the rows, inside its transaction.

    ``before``: the rows, or None, of names whose first listing in this batch is still to be added.
    """

    def __init__(self, database: sqlite3.Connection, judgement: Judgement, before: dict[bytes, Known | None]) -> None:
        self._database = database
        self._judgement = judgement
        self.before = before
        self._head = self._first_head = read_number(database, "head")
        self._entry_count = read_number(database, "entry_count")
        # On a first scan there is nothing that a new name could have been before.
        self._had_files = database.execute(f"SELECT 1 FROM entries WHERE kind = {FILE} LIMIT 1").fetchone() is not None
        self._indexed = True
        self._directory_ids: dict[bytes, int | None] = {}
        self._rows: list[tuple[object, ...]] = []
        self._unflushed: set[bytes] = set()
        self._log: list[tuple[object, ...]] = []
        self._past = PastKeeper(database, self._first_head)
        # Rows go at the end: until then a renamed file's old row says what it was.
        self._doomed: dict[bytes, _Doom] = {}
        self._displaced: dict[int, Known] = {}
        self._elsewhere: dict[tuple[int, int], Known] = {}
        self._replaced: set[bytes] | None = set()
        self.shared: set[InodeKey] = set()

    def add(self, listing: Listing) -> None:
        directory_id = self._directory_id(listing.path)
        if directory_id is None or (self._doomed and self._is_doomed(listing.path)):
            return
        if listing.path in self._unflushed or len(self._rows) > _FLUSH_ROWS:
            self._flush()
        entries = listing.entries
        known: dict[bytes, Known] | None = None
        rows: dict[bytes, tuple[object, ...]]
        if listing.complete:
            rows = facts_in(self._database, directory_id)
        else:
            known = self._known_before(directory_id, listing)
            rows = {name: it.facts for name, it in known.items()}
        edited = self._judgement.edited
        if rows == entries and not edited and not self._doomed:
            return  # what a rescan finds nearly everywhere, and compared in C
        if not rows and not self._had_files and not edited and not self._doomed and listing.complete:
            self._insert_all(directory_id, listing)
            return
        names = sorted(entries)
        for start in range(0, len(names), _FLUSH_ROWS):
            self._add_some(directory_id, listing, names[start : start + _FLUSH_ROWS], rows, known)
        if listing.complete:
            for name in sorted(rows.keys() - entries.keys() - listing.unknown):
                doom = _Doom(removed=True, subtree=rows[name][0] == DIRECTORY)
                self._doomed[join_path(listing.path, name)] = doom

    def _add_some(
        self,
        directory_id: int,
        listing: Listing,
        names: Sequence[bytes],
        rows: Mapping[bytes, tuple[object, ...]],
        known: Mapping[bytes, Known] | None,
    ) -> None:
        edited = self._judgement.edited
        changed = {
            name: facts
            for name in names
            if (facts := listing.entries[name]) is not None
            and (rows.get(name) != facts or (edited and inode_key(facts) in edited))
        }
        if known is None:
            known = known_in(self._database, directory_id, [name for name in changed if name in rows])
        if self._had_files:
            came = {
                facts.inode
                for name, facts in changed.items()
                if facts.kind == FILE and (name not in known or known[name].facts.inode != facts.inode)
            }
            self._elsewhere = files_of(self._database, came)
        for name in names:
            facts, row = changed.get(name), rows.get(name)
            path = join_path(listing.path, name)
            if facts is not None:
                self._upsert(directory_id, listing.path, path, name, facts, known.get(name))
            elif listing.entries[name] is None:
                if row is not None:
                    self._doomed[path] = _Doom(removed=True, subtree=row[0] == DIRECTORY)
            elif self._doomed and path in self._doomed and self._doomed[path].removed:
                del self._doomed[path]  # looked at twice in this batch: it is there after all

    def _insert_all(self, directory_id: int, listing: Listing) -> None:
        """A directory of a first scan: all of it is new, and nothing can be told of it but what was seen."""
        if self._indexed and self._entry_count == 0:
            drop_indexes(self._database)  # nearly all rows are still to come
            self._indexed = False
        prefix = listing.path + b"/" if listing.path else b""
        revision = self._head
        rows, logged = self._rows, self._log
        keeps_log = revision - self._first_head + len(listing.entries) <= limits.CHANGE_LOG_MAX_CHANGES
        for name, facts in sorted(listing.entries.items()):
            assert facts is not None
            revision += 1
            kind, mode, size_bytes, mtime_ns, _, ctime_ns, _, link_count, target = facts
            edit_ctime_ns, version = 0, b""
            if kind == FILE:
                edit_ctime_ns, version = ctime_ns, version_of(facts, ctime_ns)
                if link_count > 1:
                    self.shared.add(inode_key(facts))
            elif kind == DIRECTORY:
                self._make_directory(prefix + name)
            rows.append((directory_id, name, *facts, edit_ctime_ns, version, revision))
            if keeps_log:
                logged.append((revision, prefix + name, kind, mode, size_bytes, mtime_ns, version, target))
        self._head = revision
        self._entry_count += len(listing.entries)
        self._unflushed.add(listing.path)

    def finish(self) -> Applied:
        self._flush()
        if not self._indexed:
            make_indexes(self._database)
        # Parents sort before what lies below them, so one look at the last removed path tells.
        removed_dir: bytes | None = None
        single: list[bytes] = []
        for path in sorted(self._doomed, key=lambda path: path.split(b"/")):
            if removed_dir is not None and path.startswith(removed_dir):
                continue
            removed_dir = path + b"/"
            doom = self._doomed[path]
            if doom.subtree:
                self._remove(single)
                single = []
                self._delete_below(path, doom.revision or self._head + 1)
            if doom.removed:
                single.append(path)
            if doom.subtree or len(single) > _FLUSH_ROWS:
                self._remove(single)
                single = []
        self._remove(single)
        self._flush()
        self._trim()
        return Applied(self._head, self._entry_count, self._head - self._first_head, self._replaced, self.shared)

    def _known_before(self, directory_id: int, listing: Listing) -> dict[bytes, Known]:
        """What the rows say of the names in a listing of single ones: from before this batch, unless it had them already."""
        missed: list[bytes] = []
        found: dict[bytes, Known] = {}
        for name in listing.entries:
            path = join_path(listing.path, name)
            if path not in self.before:
                missed.append(name)
            elif (known := self.before.pop(path)) is not None:
                found[name] = known
        found.update(known_in(self._database, directory_id, missed))
        return found

    def _upsert(
        self, directory_id: int, parent: bytes, path: bytes, name: bytes, facts: Facts, known: Known | None
    ) -> None:
        doom = self._doomed.pop(path, None)
        if doom is not None and not doom.removed:
            # A directory, then a file, now again something else: nothing below survived that.
            self._delete_below(path, doom.revision)
        edit_ctime_ns, version = 0, b""
        if facts.kind == FILE:
            edit_ctime_ns = self._edit_ctime_ns(facts, known)
            version = version_of(facts, edit_ctime_ns)
            if facts.link_count > 1:
                self.shared.add(inode_key(facts))
        elif facts.kind == DIRECTORY and (known is None or known.facts.kind != DIRECTORY):
            self._make_directory(path)
        changed = known is None or not same_entry(known.facts, known.version, facts, version)
        self._head += changed
        since = self._head
        if known is not None:
            old = known.facts
            if old.kind == DIRECTORY and facts.kind != DIRECTORY:
                self._doomed[path] = _Doom(removed=False, subtree=True, revision=self._head)
            elif old.kind == FILE:
                self._forget_version(known.version)
                if old.inode != facts.inode and known.edit_ctime_ns != old.ctime_ns:
                    self._displaced[old.inode] = known
            if changed:
                self._past.keep(parent, name, known, self._head)
            else:
                since = known.since
        else:
            self._entry_count += 1
        self._rows.append((directory_id, name, *facts, edit_ctime_ns, version, since))
        self._unflushed.add(parent)
        if changed:
            self._log.append(
                (self._head, path, facts.kind, facts.mode, facts.size_bytes, facts.mtime_ns, version, facts.target)
            )

    def _edit_ctime_ns(self, facts: Facts, known: Known | None) -> int:
        key = inode_key(facts)
        if key in self._judgement.edited:
            return facts.ctime_ns
        kept = self._judgement.kept.get(key)
        if kept is not None:
            return kept
        if known is None or known.facts.inode != facts.inode:
            known = self._displaced.get(facts.inode) or self._elsewhere.get((facts.inode, facts.ctime_ns))
        # Nothing touched the inode at all since: a moved directory, a device number that changed at a reboot.
        if known is not None and _content_facts(known.facts) == _content_facts(facts):
            return known.edit_ctime_ns
        return facts.ctime_ns

    def _make_directory(self, path: bytes) -> None:
        self._directory_ids[path] = self._database.execute(
            "INSERT INTO directories (path) VALUES (?)", (path,)
        ).lastrowid

    def _directory_id(self, path: bytes) -> int | None:
        if path not in self._directory_ids:
            row = self._database.execute("SELECT id FROM directories WHERE path = ?", (path,)).fetchone()
            self._directory_ids[path] = row[0] if row else None
        return self._directory_ids[path]

    def _is_doomed(self, path: bytes) -> bool:
        while path:
            if path in self._doomed:
                return True
            path = split_path(path)[0]
        return False

    def _delete_below(self, path: bytes, until: int) -> None:
        """Take away all that lies below a directory."""
        below = f"SELECT id FROM directories WHERE {BELOW}"
        bounds = (path, path + b"/", path + b"0")  # "0" is the byte after "/"
        self._past.keep_below(bounds, until)
        files = f"SELECT version FROM entries WHERE directory IN ({below}) AND kind = {FILE} LIMIT ?4"
        for (version,) in self._database.execute(files, (*bounds, limits.HUB_RESOLVE_CACHE_MAX_VERSIONS + 1)):
            self._forget_version(version)
        shared = f"SELECT device, inode FROM entries WHERE directory IN ({below}) AND kind = {FILE} AND link_count > 1"
        self.shared.update(self._database.execute(shared, bounds))
        gone = self._database.execute(f"DELETE FROM entries WHERE directory IN ({below})", bounds)
        self._entry_count -= gone.rowcount
        self._database.execute(f"DELETE FROM directories WHERE {BELOW}", bounds)
        self._directory_ids.clear()
        self.before.clear()

    def _remove(self, paths: Sequence[bytes]) -> None:
        """Take away these names, and say so in the log."""
        for parent, run in groupby(paths, key=lambda path: split_path(path)[0]):
            directory_id = self._directory_id(parent)
            assert directory_id is not None
            names = [split_path(path)[1] for path in run]
            known = known_in(self._database, directory_id, names)
            places = [(directory_id, name) for name in names]
            self._database.executemany("DELETE FROM entries WHERE directory = ? AND name = ?", places)
            self._entry_count -= len(names)
            for name in names:
                self._forget_version(known[name].version)
                self._head += 1
                self._past.keep(parent, name, known[name], self._head)
                self._log.append((self._head, join_path(parent, name), None, None, None, None, None, None))
        if len(self._log) > _FLUSH_ROWS:
            self._flush()

    def _forget_version(self, version: bytes) -> None:
        if self._replaced is not None and version:
            self._replaced.add(version)
            if len(self._replaced) > limits.HUB_RESOLVE_CACHE_MAX_VERSIONS:
                self._replaced = None

    def _flush(self) -> None:
        if self._rows:
            self._database.executemany(_UPSERT, self._rows)
            self._rows.clear()
        self._past.flush()
        self._unflushed.clear()
        # A batch larger than the log would be trimmed again at once: keep its tail only if it can be whole.
        if self._head - self._first_head <= limits.CHANGE_LOG_MAX_CHANGES:
            self._database.executemany(_LOG, self._log)
        self._log.clear()

    def _trim(self) -> None:
        if self._head == self._first_head:
            return
        floor = max(0, self._head - limits.CHANGE_LOG_MAX_CHANGES)
        if self._head - self._first_head > limits.CHANGE_LOG_MAX_CHANGES:
            floor = self._head
        if floor > read_number(self._database, "floor"):
            self._database.execute("DELETE FROM changes WHERE revision <= ?", (floor,))
            write_meta(self._database, "floor", floor)
        self._past.trim(floor, self._head)
        write_meta(self._database, "head", self._head)
        write_meta(self._database, "entry_count", self._entry_count)


def _content_facts(facts: Facts) -> tuple[int, int, int, int]:
    return facts.inode, facts.size_bytes, facts.mtime_ns, facts.ctime_ns
