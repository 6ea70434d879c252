"""The catalog of one dataset: entries with their versions, and a log of numbered changes, in SQLite.

Owns the database file (its lock, its damage, its connections): batches are written on one thread, read on another, and
each snapshot has a connection whose read transaction shows one revision to its end. Everything outside talks to this
class; the rows are :mod:`hub.catalog_store`'s business and :mod:`hub.catalog_tables`'.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import fcntl
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from common import limits
from common.entries import Change, Entry, Kind
from common.errors import DiskError, RevisionGone, UsageError
from common.log import get_logger
from common.serving.source import Snapshot
from hub import catalog_tables
from hub.catalog_store import Applied, CatalogWriter
from hub.catalog_tables import ForeignCatalog, Resolved
from hub.export import join_path
from hub.scan import Listing
from hub.versions import Evidence, InodeKey

log = get_logger(__name__)
_T = TypeVar("_T")

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR})


class Catalog:
    """Open with :meth:`open`, end with :meth:`close` (both block). Methods raise DiskError when the database fails.

    ``on_replaced``, if set, is told after each batch which versions are gone or elsewhere (None: too many to name), from
    the catalog's thread.
    """

    def __init__(self, dataset: str, path: Path, lock_fd: int) -> None:
        """Use :meth:`open`."""
        self.dataset = dataset
        self._path = path
        self._lock_fd = lock_fd
        self._database = _open_or_replace(path)
        try:
            with _translated(path):
                self._reader = catalog_tables.connect(path)
                catalog_id = catalog_tables.read_meta(self._database, "catalog_id")
                self._head_revision = catalog_tables.read_number(self._database, "head")
        except BaseException:
            self._database.close()
            raise
        assert isinstance(catalog_id, bytes)
        self.catalog_id = catalog_id
        self._store = CatalogWriter(self._database)
        self._write_thread = ThreadPoolExecutor(1, f"catalog-write-{dataset}")
        self._read_thread = ThreadPoolExecutor(1, f"catalog-read-{dataset}")
        self._snapshots: set[_SnapshotPages] = set()
        self._snapshot_slots = asyncio.Semaphore(limits.SNAPSHOTS_MAX_OPEN)
        self._guard = threading.Lock()
        self._places: OrderedDict[bytes, Resolved] = OrderedDict()
        self._generation = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._failure: BaseException | None = None
        self.on_replaced: Callable[[set[bytes] | None], None] | None = None

    @classmethod
    def open(cls, state_dir: str | os.PathLike[str], dataset: str) -> Catalog:
        """Open or create the dataset's catalog below ``state_dir`` (made with mode 0700).

        A damaged or foreign file is moved aside as ``….broken-N`` and a fresh catalog made. Raises UsageError when the
        directory cannot be used or another hub uses it for this dataset.
        """
        directory = Path(state_dir)
        path = directory / f"{quote(dataset, safe='')}.catalog"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(
                f"state directory {directory}: {error.strerror}; it must be a directory this user can write to"
            ) from error
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"state directory {directory} is in use by another hub that serves dataset {dataset!r}; "
                    "stop it, or give this one a --state-dir of its own"
                ) from None
            return cls(dataset, path, lock_fd)
        except BaseException:
            os.close(lock_fd)
            raise

    def close(self) -> None:
        """Finish what runs, close the database, let the lock go. Those who wait are failed."""
        self.fail(DiskError(f"the catalog of dataset {self.dataset!r} was closed"))
        self._write_thread.shutdown(wait=True, cancel_futures=True)
        for pages in list(self._snapshots):
            pages.expire()
        self._read_thread.shutdown(wait=True, cancel_futures=True)
        with _translated(self._path):
            self._reader.close()
            self._database.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # --- writing: called from the watcher's thread ------------------------------------------------------------

    def apply(self, observed: Sequence[Listing], scanned: Iterable[Listing], evidence: Evidence) -> Applied:
        """Bring the entries to what was seen, as one transaction; returns once it is durable and announced.

        ``observed``: listings of single names, whose ``edit_ctime`` is judged by ``evidence``. ``scanned``: complete
        listings, parents before children; pulled on the catalog's thread inside the transaction, so it may be a walk of
        the disk. Blocks. Raises what ``scanned`` raises, nothing applied then.
        """
        return self._on(self._write_thread, lambda: self._apply(observed, scanned, evidence)).result()

    def linked_names(self, paths: Iterable[bytes], inodes: Iterable[InodeKey]) -> set[bytes]:
        """All names of the files with several links that are known under ``paths`` or are among ``inodes``. Blocks."""
        return self._on(self._write_thread, lambda: self._store.linked_names(paths, inodes)).result()

    def root_inode(self) -> int | None:
        """The inode number of the directory last scanned as this dataset. Blocks."""
        value = self._on(self._write_thread, lambda: catalog_tables.read_meta(self._database, "root_inode")).result()
        return value if isinstance(value, int) else None

    def remember_root(self, inode: int) -> None:
        """Blocks."""
        self._on(self._write_thread, lambda: catalog_tables.write_meta(self._database, "root_inode", inode)).result()

    def entry_count(self) -> int:
        """Blocks."""
        return self._on(self._write_thread, lambda: catalog_tables.read_number(self._database, "entry_count")).result()

    # --- reading: called from the event loop ------------------------------------------------------------------

    @property
    def head_revision(self) -> int:
        return self._head_revision

    async def resolve(self, version: bytes, *, fresh: bool = False) -> Resolved | None:
        """Where this version's bytes are; None when no file is of this version. ``fresh``: past the memory, from the database."""
        with self._guard:
            place = self._places.get(version)
            generation = self._generation
            if place is not None and not fresh:
                self._places.move_to_end(version)
                return place
        place = await asyncio.wrap_future(
            self._on(self._read_thread, lambda: catalog_tables.find_version(self._reader, version))
        )
        if place is not None:
            with self._guard:
                # A batch committed meanwhile may have moved it: then remember nothing.
                if generation == self._generation:
                    self._places[version] = place
                    if len(self._places) > limits.HUB_RESOLVE_CACHE_MAX_VERSIONS:
                        self._places.popitem(last=False)
        return place

    async def changes_since(self, revision: int, limit: int) -> list[Change]:
        """See common.serving.source.TreeSource; RevisionGone also for a revision this log has not come to."""
        return await asyncio.wrap_future(
            self._on(self._read_thread, lambda: catalog_tables.read_changes(self._reader, revision, limit))
        )

    async def snapshot(self) -> Snapshot:
        """The tree as of now. It must be read within ``limits.SNAPSHOT_MAX_S``; after that its pages raise RevisionGone."""
        await self._snapshot_slots.acquire()
        pages = _SnapshotPages(self._path, self._read_thread, self._snapshot_done)
        self._snapshots.add(pages)
        try:
            revision, entry_count = await pages.begin()
        except BaseException:
            pages.expire()
            raise
        return Snapshot(revision, entry_count, pages)

    def _snapshot_done(self, pages: _SnapshotPages) -> None:
        if pages in self._snapshots:
            self._snapshots.discard(pages)
            self._snapshot_slots.release()

    async def wait_beyond(self, revision: int) -> None:
        """Return once ``head_revision > revision``; raises what :meth:`fail` was given."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._guard:
            if self._failure is not None:
                raise self._failure
            if self._head_revision > revision:
                return
            waiter = (revision, future)
            self._waiters.append(waiter)
        try:
            await future
        finally:
            with self._guard:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def fail(self, error: BaseException) -> None:
        """No change will come any more: fail everybody who waits for one, now and later."""
        with self._guard:
            if self._failure is None:
                self._failure = error
            failed, self._waiters = self._waiters, []
        for _, future in failed:
            _wake(future, error)

    # ----------------------------------------------------------------------------------------------------------

    def _on(self, thread: ThreadPoolExecutor, work: Callable[[], _T]) -> concurrent.futures.Future[_T]:
        def run() -> _T:
            with _translated(self._path):
                return work()

        try:
            return thread.submit(run)
        except RuntimeError:  # shut down
            raise DiskError(f"the catalog of dataset {self.dataset!r} was closed") from None

    def _apply(self, observed: Sequence[Listing], scanned: Iterable[Listing], evidence: Evidence) -> Applied:
        applied = self._store.apply(observed, scanned, evidence)
        with self._guard:
            self._generation += 1
            if applied.replaced is None:
                self._places.clear()
            else:
                for version in applied.replaced:
                    self._places.pop(version, None)
            self._head_revision = applied.head_revision
            woken = [waiter for waiter in self._waiters if waiter[0] < applied.head_revision]
            self._waiters = [waiter for waiter in self._waiters if waiter[0] >= applied.head_revision]
        for _, future in woken:
            _wake(future, None)
        if self.on_replaced is not None:
            self.on_replaced(applied.replaced)
        return applied


class _SnapshotPages(AsyncIterator[Sequence[tuple[bytes, Entry]]]):
    """The pages of one snapshot, from a read transaction of its own. Expires by a timer, whether it is read or forgotten."""

    def __init__(self, path: Path, thread: ThreadPoolExecutor, done: Callable[[_SnapshotPages], None]) -> None:
        self._path = path
        self._thread = thread
        self._done = done
        self._database: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._left: list[tuple[bytes, Entry]] = []
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> tuple[int, int]:
        """(revision, how many entries)"""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.SNAPSHOT_MAX_S, self.expire)
        return await loop.run_in_executor(self._thread, self._begin)

    async def __anext__(self) -> Sequence[tuple[bytes, Entry]]:
        try:
            page = await asyncio.get_running_loop().run_in_executor(self._thread, self._next_page)
        except RuntimeError as error:  # shut down
            raise DiskError("the catalog was closed while a snapshot was read") from error
        if not page:
            self.expire()
            raise StopAsyncIteration
        return page

    async def aclose(self) -> None:
        self.expire()

    def expire(self) -> None:
        """End it; a page being read is finished first, on its thread."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(RuntimeError):
            self._thread.submit(self._end)
        self._done(self)

    def _begin(self) -> tuple[int, int]:
        with _translated(self._path):
            self._database = catalog_tables.connect(self._path, cache_kib=4096)
            self._database.execute("PRAGMA query_only = 1")
            self._database.execute("BEGIN")
            revision = catalog_tables.read_number(self._database, "head")
            return revision, catalog_tables.read_number(self._database, "entry_count")

    def _next_page(self) -> list[tuple[bytes, Entry]]:
        if self._database is None or self._closed:
            raise RevisionGone(f"a snapshot must be read within {limits.SNAPSHOT_MAX_S:.0f} s; take a new one")
        with _translated(self._path):
            if self._cursor is None:
                self._cursor = self._database.execute(catalog_tables.SNAPSHOT_QUERY)
            if not self._left:
                self._left = [
                    (join_path(row[0], row[1]), Entry(Kind(row[2]), *row[3:]))
                    for row in self._cursor.fetchmany(limits.SNAPSHOT_PAGE_MAX_ENTRIES)
                ]
        page_bytes = 0
        for count, (path, entry) in enumerate(self._left):
            page_bytes += len(path) + len(entry.target)
            if page_bytes > limits.SNAPSHOT_PAGE_MAX_BYTES and count:
                page, self._left = self._left[:count], self._left[count:]
                return page
        page, self._left = self._left, []
        return page

    def _end(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = self._cursor = None


def _wake(future: asyncio.Future[None], error: BaseException | None) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):  # its loop has ended, and nobody waits
        future.get_loop().call_soon_threadsafe(settle)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise DiskError(f"the catalog {path} failed: {error}; see that its disk has room and is sound") from error


def _open_or_replace(path: Path) -> sqlite3.Connection:
    try:
        return _open_sound(path)
    except ForeignCatalog as error:
        kept_as = _move_aside(path)
        log.error("catalog unusable, moved aside; a fresh one is made", reason=str(error), kept_as=str(kept_as))
        return _open_sound(path)


def _open_sound(path: Path) -> sqlite3.Connection:
    """Raises ForeignCatalog when the file is damaged or not ours, UsageError when it cannot be opened."""
    try:
        # SQLite would create it readable for all; its journal files take over this mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        is_new = path.stat().st_size == 0
        database = catalog_tables.connect(path)
    except OSError as error:
        raise UsageError(f"cannot open the catalog {path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise _judged(path, error) from error
    try:
        if is_new:
            catalog_tables.create(database)
        catalog_tables.inspect(database)
    except sqlite3.Error as error:
        database.close()
        raise _judged(path, error) from error
    except BaseException:
        database.close()
        raise
    return database


def _judged(path: Path, error: sqlite3.Error) -> Exception:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
        return ForeignCatalog(str(error))
    return UsageError(f"cannot open the catalog {path}: {error}")


def _move_aside(path: Path) -> Path:
    number = 1
    while path.with_name(f"{path.name}.broken-{number}").exists():
        number += 1
    kept_as = path.with_name(f"{path.name}.broken-{number}")
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{kept_as}{suffix}")
    return kept_as
