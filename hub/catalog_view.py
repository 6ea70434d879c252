"""The reading side of a dataset's catalog: versions resolved, changes and trees read, waiting for revisions to come.

Any process of the hub may open one beside the single writer (:mod:`hub.catalog`): SQLite's write-ahead log lets readers see
what is committed. What a reader cannot see by itself it is told through :meth:`CatalogView.moved_on`: the new head, and
which remembered places are no longer true. Reads run on one thread; each snapshot has a connection whose read
transaction shows one revision to its end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from common import limits
from common.entries import Change
from common.errors import DiskError, RevisionGone
from common.serving.source import Snapshot
from common.wire.entry_codec import EntryPacker, EntryPage
from hub import catalog_tables, snapshots
from hub.catalog_file import translated
from hub.catalog_tables import Resolved

_T = TypeVar("_T")


def catalog_path(state_dir: str | os.PathLike[str], dataset: str) -> Path:
    return Path(state_dir) / f"{quote(dataset, safe='')}.catalog"


class CatalogView:
    """Open with :meth:`view`, end with :meth:`close` (both block). Methods raise DiskError when the database fails."""

    def __init__(self, dataset: str, path: Path, cache_kib: int = 65536) -> None:
        """Use :meth:`view`. ``path``: a sound catalog of this schema."""
        self.dataset = dataset
        self._path = path
        with translated(path):
            self._reader = catalog_tables.connect(path, cache_kib=cache_kib)
            self.catalog_id, self._former_ids = catalog_tables.read_life(self._reader)
            self._head_revision = catalog_tables.read_number(self._reader, "head")
        self._read_thread = ThreadPoolExecutor(1, f"catalog-read-{dataset}")
        self._snapshots: set[_SnapshotPages] = set()
        self._snapshot_slots = asyncio.Semaphore(limits.SNAPSHOTS_MAX_OPEN)
        self._guard = threading.Lock()
        self._places: OrderedDict[bytes, Resolved] = OrderedDict()
        self._generation = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._failure: BaseException | None = None

    @classmethod
    def view(cls, state_dir: str | os.PathLike[str], dataset: str) -> CatalogView:
        """Of a catalog that another process of this hub has open for writing."""
        found = CatalogView(dataset, catalog_path(state_dir, dataset), cache_kib=limits.HUB_VIEW_CACHE_KIB)
        found._reader.execute("PRAGMA query_only = 1")
        return found

    def close(self) -> None:
        """Finish what runs, close the database. Those who wait are failed."""
        self.fail(DiskError(f"the catalog of dataset {self.dataset!r} was closed"))
        for pages in list(self._snapshots):
            pages.expire()
        self._read_thread.shutdown(wait=True, cancel_futures=True)
        with translated(self._path):
            self._reader.close()

    @property
    def head_revision(self) -> int:
        return self._head_revision

    def leads_from(self, catalog_id: bytes, revision: int) -> bool:
        """Whether revisions of that catalog, up to this one, are ours as well."""
        return catalog_id == self.catalog_id or revision <= self._former_ids.get(catalog_id, -1)

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

    async def sizes_of(self, versions: list[bytes]) -> dict[bytes, int]:
        """Sizes in bytes of the files that have one of these versions: a look-up each, so some at a time."""
        return await asyncio.wrap_future(
            self._on(self._read_thread, lambda: catalog_tables.sizes_of(self._reader, versions))
        )

    async def changes_since(self, revision: int, limit: int) -> list[Change]:
        """See common.serving.source.TreeSource; RevisionGone also for a revision this log has not come to."""
        return await asyncio.wrap_future(
            self._on(self._read_thread, lambda: catalog_tables.read_changes(self._reader, revision, limit))
        )

    async def named_revision(self, name: str) -> int:
        """The revision of a named snapshot. Raises RevisionUnavailable."""
        return await asyncio.wrap_future(
            self._on(self._read_thread, lambda: snapshots.revision_of(self._reader, self.dataset, name))
        )

    async def snapshot(self, revision: int | None = None) -> Snapshot:
        """The tree as of now, or as it was at ``revision``; raises RevisionUnavailable when that is not kept.

        It must be read within ``limits.SNAPSHOT_MAX_S``; after that its pages raise RevisionGone.
        """
        await self._snapshot_slots.acquire()
        pages = _SnapshotPages(self._path, self._read_thread, self._snapshot_done)
        self._snapshots.add(pages)
        try:
            found_revision, entry_count = await pages.begin(self.dataset, revision)
        except BaseException:
            pages.expire()
            raise
        return Snapshot(found_revision, entry_count, pages)

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

    def moved_on(self, head_revision: int, replaced: set[bytes] | None) -> None:
        """The writer has committed a batch: the revision it came to, and the versions gone or elsewhere (None: any). Any thread."""
        with self._guard:
            self._generation += 1
            if replaced is None:
                self._places.clear()
            else:
                for version in replaced:
                    self._places.pop(version, None)
            self._head_revision = max(self._head_revision, head_revision)
            woken = [waiter for waiter in self._waiters if waiter[0] < self._head_revision]
            self._waiters = [waiter for waiter in self._waiters if waiter[0] >= self._head_revision]
        for _, future in woken:
            _wake(future, None)

    # ----------------------------------------------------------------------------------------------------------

    def _on(self, thread: ThreadPoolExecutor, work: Callable[[], _T]) -> concurrent.futures.Future[_T]:
        def run() -> _T:
            with translated(self._path):
                return work()

        try:
            return thread.submit(run)
        except RuntimeError:  # shut down
            raise DiskError(f"the catalog of dataset {self.dataset!r} was closed") from None


class _SnapshotPages(AsyncIterator[EntryPage]):
    """The pages of one snapshot, from a read transaction of its own. Expires by a timer, whether it is read or forgotten.

    Packed on the catalog's thread, one page ahead of the one that is asked for.
    """

    def __init__(self, path: Path, thread: ThreadPoolExecutor, done: Callable[[_SnapshotPages], None]) -> None:
        self._path = path
        self._thread = thread
        self._done = done
        self._database: sqlite3.Connection | None = None
        self._pages: Iterator[EntryPage] | None = None
        self._ahead: asyncio.Future[EntryPage | None] | None = None
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, dataset: str, revision: int | None) -> tuple[int, int]:
        """(revision, how many entries). Raises RevisionUnavailable."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.SNAPSHOT_MAX_S, self.expire)
        return await loop.run_in_executor(self._thread, self._begin, dataset, revision)

    async def __anext__(self) -> EntryPage:
        loop = asyncio.get_running_loop()
        try:
            page = await (self._ahead or loop.run_in_executor(self._thread, self._next_page))
            self._ahead = loop.run_in_executor(self._thread, self._next_page) if page is not None else None
        except RuntimeError as error:  # shut down
            raise DiskError("the catalog was closed while a snapshot was read") from error
        if page is None:
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
        if self._ahead is not None:
            self._ahead.add_done_callback(_look_at)
        with contextlib.suppress(RuntimeError):
            self._thread.submit(self._end)
        self._done(self)

    def _begin(self, dataset: str, revision: int | None) -> tuple[int, int]:
        with translated(self._path):
            database = self._database = catalog_tables.connect(self._path, cache_kib=4096)
            database.execute("PRAGMA query_only = 1")
            database.execute("BEGIN")
            if revision is None:
                revision = catalog_tables.read_number(database, "head")
            entry_count = snapshots.require(database, dataset, revision)
            self._pages = _packed(snapshots.tree_rows(database, revision))
            return revision, entry_count

    def _next_page(self) -> EntryPage | None:
        if self._pages is None or self._closed:
            raise RevisionGone(f"a snapshot must be read within {limits.SNAPSHOT_MAX_S:.0f} s; take a new one")
        with translated(self._path):
            return next(self._pages, None)

    def _end(self) -> None:
        self._pages = None
        if self._database is not None:
            self._database.close()
            self._database = None


def _packed(rows: sqlite3.Cursor) -> Iterator[EntryPage]:
    packer = EntryPacker(limits.FEED_FRAME_MAX_ENTRIES)
    while some := rows.fetchmany(limits.FEED_FRAME_MAX_ENTRIES):
        yield from packer.add(some)
    last = packer.flush()
    if last:
        yield last


def _look_at(future: asyncio.Future[EntryPage | None]) -> None:
    """A page nobody will ask for: its error is nobody's either."""
    if not future.cancelled():
        future.exception()


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
