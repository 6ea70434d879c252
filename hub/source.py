"""A dataset directory as a source: export, catalog, watcher and reader put together behind common.serving.source."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from types import TracebackType

from common.blocks import BlockRange
from common.entries import Change
from common.errors import DiskError, HeadraceError, SourceReadError, UsageError
from common.serving.source import Extent, Held, Snapshot
from hub.catalog import Catalog
from hub.catalog_tables import Resolved
from hub.catalog_view import CatalogView
from hub.export import Export
from hub.reader import Reader
from hub.scan import Scanner
from hub.watcher import Watcher, WatcherSettings, WatcherStatus


class CatalogSource:
    """What a catalog answers of common.serving.source.TreeSource, in whichever process."""

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._export: Export | None = None

    @property
    def _view(self) -> CatalogView:
        raise NotImplementedError

    @property
    def dataset(self) -> str:
        return self._dataset

    @property
    def catalog_id(self) -> bytes:
        return self._view.catalog_id

    @property
    def head_revision(self) -> int:
        return self._view.head_revision

    @property
    def root_mtime_ns(self) -> int | None:
        if self._export is None:
            return None
        return max(-(1 << 63), min(self._export.mtime_ns, (1 << 63) - 1))  # some file systems hold times past 2262

    def leads_from(self, catalog_id: bytes, revision: int) -> bool:
        return self._view.leads_from(catalog_id, revision)

    async def snapshot(self, revision: int | None = None) -> Snapshot:
        return await self._view.snapshot(revision)

    async def named_revision(self, name: str) -> int:
        return await self._view.named_revision(name)

    async def changes_since(self, revision: int, limit: int) -> list[Change]:
        return await self._view.changes_since(revision, limit)

    async def wait_beyond(self, revision: int) -> None:
        """Also raises HeadraceError when no change can come any more: the watcher died, or this source was closed."""
        await self._view.wait_beyond(revision)

    async def resolve(self, version: bytes, *, fresh: bool = False) -> Resolved | None:
        """Where a version's bytes are now; None when no file is of this version."""
        return await self._view.resolve(version, fresh=fresh)

    async def sizes_of(self, versions: list[bytes]) -> dict[bytes, int]:
        """Sizes in bytes of the files that have one of these versions now."""
        return await self._view.sizes_of(versions)


class HubSource(CatalogSource):
    """One dataset served from a local directory; a common.serving.source.Source.

    ``on_moved``, if set, hears of each batch: the revision it came to, and the versions gone or elsewhere (None: any);
    ``on_failed``, why no batch will come any more. From other threads.

    ``root``: the directory; ``state_dir``: where its catalog is kept, outside of it. ``reader_threads``: reads from disk
    at once. ``clock``: monotonic seconds; ``wall_clock_ns``: the clock that stamps files.
    """

    def __init__(
        self,
        dataset: str,
        root: str | bytes | os.PathLike[str],
        state_dir: str | os.PathLike[str],
        *,
        settings: WatcherSettings | None = None,
        reader_threads: int = 4,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(dataset)
        self._root = root
        self._state_dir = state_dir
        self._settings = settings or WatcherSettings()
        self._reader_threads = reader_threads
        self._clock = clock
        self._wall_clock_ns = wall_clock_ns
        self._export: Export | None = None
        self._catalog_opened: Catalog | None = None
        self._watcher_started: Watcher | None = None
        self._reader_opened: Reader | None = None
        self.on_moved: Callable[[int, set[bytes] | None], None] | None = None
        self.on_failed: Callable[[BaseException], None] | None = None

    async def start(self) -> None:
        """Returns once the directory as it is now is in the catalog (or the catalog is held, see :attr:`status`).

        Raises UsageError when the directory or the state directory cannot be used.
        """
        try:
            self._export = Export(self._root, self._dataset)
            _refuse_nested_state(self._export.root, self._state_dir, self._dataset)
            self._catalog_opened = await asyncio.to_thread(Catalog.open, self._state_dir, self._dataset)
            self._reader_opened = Reader(self._export, self, self._wall_clock_ns, self._reader_threads)
            self._catalog_opened.on_replaced = self._moved
            self._watcher_started = Watcher(self._export, self._catalog, self._settings, self._clock, self._failed)
            await self._watcher.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop watching, finish reads, close the catalog. May be called again, and after a failed start."""
        watcher, self._watcher_started = self._watcher_started, None
        if watcher is not None:
            await watcher.close()
        reader, self._reader_opened = self._reader_opened, None
        if reader is not None:
            await reader.close()
        if self._catalog_opened is not None:
            await asyncio.to_thread(self._catalog_opened.close)
        if self._export is not None:
            self._export.close()

    async def __aenter__(self) -> HubSource:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def held(self) -> Held | None:
        status = self._watcher_started.status if self._watcher_started is not None else WatcherStatus()
        if status.held is not None:
            return Held(status.held, self._clock() - status.held_since_s)
        return (
            Held(status.unwritten, self._clock() - status.unwritten_since_s) if status.unwritten is not None else None
        )

    # --- common.serving.source.Source -------------------------------------------------------------------------

    async def check(self, path: bytes) -> int:
        """One stat when nothing changed; else also returns once the catalog has the change. Raises DiskError, SourceReadError."""
        catalog, watcher, export = self._catalog, self._watcher, self._export
        assert export is not None
        if watcher.status.held is not None:
            raise SourceReadError(watcher.status.held)
        known, revision = await catalog.known(path)
        seen = await asyncio.to_thread(Scanner(export).look_at, path)
        if seen is None or (known.facts if known is not None else None) != seen.facts:
            await watcher.recheck(path)
            revision = catalog.head_revision
        return revision

    async def read_extent(self, version: bytes, blocks: BlockRange) -> Extent:
        if self._reader_opened is None:
            raise closed(self._dataset)
        return await self._reader_opened.read_extent(version, blocks)

    # --- for the reader, the daemon and tests -----------------------------------------------------------------

    async def recheck(self, path: bytes) -> None:
        """Look at this path again soon; returns once the catalog knows."""
        await self._watcher.recheck(path)

    async def rescan(self) -> None:
        """Scan everything now; returns once the catalog knows. Raises SourceReadError while the root is not there."""
        await self._watcher.rescan()

    async def settled(self) -> None:
        """Returns once every change made to the directory before the call is in the catalog."""
        await self._watcher.settled()

    @property
    def root_fd(self) -> int:
        """The exported directory, open."""
        if self._export is None:
            raise closed(self._dataset)
        return self._export.root_fd

    @property
    def status(self) -> WatcherStatus:
        return self._watcher.status

    def _moved(self, replaced: set[bytes] | None) -> None:
        reader, catalog = self._reader_opened, self._catalog_opened
        if reader is not None:
            reader.forget(replaced)
        if self.on_moved is not None and catalog is not None:
            self.on_moved(catalog.head_revision, replaced)

    def _failed(self, error: BaseException) -> None:
        self._catalog.fail(error)
        if self.on_failed is not None:
            self.on_failed(error)

    @property
    def _view(self) -> CatalogView:
        return self._catalog

    @property
    def _catalog(self) -> Catalog:
        if self._catalog_opened is None:
            raise closed(self._dataset)
        return self._catalog_opened

    @property
    def _watcher(self) -> Watcher:
        if self._watcher_started is None:
            raise closed(self._dataset)
        return self._watcher_started


def closed(dataset: str) -> HeadraceError:
    return DiskError(f"dataset {dataset!r} is not being served: not started, or closed")


def _refuse_nested_state(root: bytes, state_dir: str | os.PathLike[str], dataset: str) -> None:
    """A catalog inside the directory it describes would be changed by every change it notes."""
    inside = os.path.realpath(os.fsencode(state_dir))
    outside = os.path.realpath(root)
    if os.path.commonpath([inside, outside]) == outside:
        raise UsageError(
            f"state directory {os.fsdecode(inside)} lies in dataset {dataset!r} ({os.fsdecode(outside)}); put it elsewhere"
        )
