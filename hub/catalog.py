"""The catalog of one dataset: entries with their versions, and a log of numbered changes, in SQLite.

Owns the database (its lock, the one connection that writes): batches are written on one thread. Reading, here and in the
hub's other processes, is :mod:`hub.catalog_view`'s; the rows are :mod:`hub.catalog_store`'s business and
:mod:`hub.catalog_tables`', the file :mod:`hub.catalog_file`'s.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import fcntl
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from common.errors import DiskError, UsageError
from hub import catalog_tables
from hub.catalog_file import open_or_replace, translated
from hub.catalog_store import Applied, CatalogWriter
from hub.catalog_view import CatalogView, catalog_path
from hub.scan import Listing
from hub.versions import Evidence, InodeKey, Known

_T = TypeVar("_T")

_MEANWHILE_S = 0.01


class Catalog(CatalogView):
    """Open with :meth:`open`, end with :meth:`close` (both block). Methods raise DiskError when the database fails.

    ``on_replaced``, if set, is told after each batch which versions are gone or elsewhere (None: too many to name), from
    the catalog's thread, when :attr:`head_revision` is the batch's.
    """

    def __init__(self, dataset: str, path: Path, lock_fd: int) -> None:
        """Use :meth:`open`."""
        self._lock_fd = lock_fd
        self._database = open_or_replace(path)
        try:
            with translated(path):
                catalog_tables.begin_life(self._database)
            super().__init__(dataset, path)
        except BaseException:
            self._database.close()
            raise
        self._store = CatalogWriter(self._database)
        self._looker = CatalogWriter(self._reader)
        self._write_thread = ThreadPoolExecutor(1, f"catalog-write-{dataset}")
        self.on_replaced: Callable[[set[bytes] | None], None] | None = None

    @classmethod
    def open(cls, state_dir: str | os.PathLike[str], dataset: str) -> Catalog:
        """Open or create the dataset's catalog below ``state_dir`` (made with mode 0700).

        A damaged or foreign file is moved aside as ``….broken-N`` and a fresh catalog made. Raises UsageError when the
        directory cannot be used or another hub uses it for this dataset.
        """
        directory = Path(state_dir)
        path = catalog_path(directory, dataset)
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
        super().close()
        with translated(self._path):
            self._database.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # --- writing: called from the watcher's thread ------------------------------------------------------------

    def apply(
        self,
        observed: Sequence[Listing],
        scanned: Iterable[Listing],
        evidence: Evidence,
        meanwhile: Callable[[], None] | None = None,
    ) -> Applied:
        """Bring the entries to what was seen, as one transaction; returns once it is durable and announced.

        ``observed``: listings of single names, whose ``edit_ctime`` is judged by ``evidence``. ``scanned``: complete
        listings, parents before children; pulled on the catalog's thread inside the transaction, so it may be a walk of
        the disk. Blocks, and calls ``meanwhile`` every few milliseconds. Raises what ``scanned`` raises, nothing applied then.
        """
        return _await(self._on(self._write_thread, lambda: self._apply(observed, scanned, evidence)), meanwhile)

    def linked_names(
        self, paths: Iterable[bytes], inodes: Iterable[InodeKey], meanwhile: Callable[[], None] | None = None
    ) -> set[bytes]:
        """All names of the files with several links that are known under ``paths`` or are among ``inodes``. Blocks, as apply."""
        return _await(self._on(self._write_thread, lambda: self._store.linked_names(paths, inodes)), meanwhile)

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

    async def known(self, path: bytes) -> tuple[Known | None, int]:
        """What the catalog holds of this name, and at which revision that was read."""
        return await asyncio.wrap_future(self._on(self._read_thread, lambda: self._looker.known_at_head(path)))

    # ----------------------------------------------------------------------------------------------------------

    def _apply(self, observed: Sequence[Listing], scanned: Iterable[Listing], evidence: Evidence) -> Applied:
        applied = self._store.apply(observed, scanned, evidence)
        self.moved_on(applied.head_revision, applied.replaced)
        if self.on_replaced is not None:
            self.on_replaced(applied.replaced)
        return applied


def _await(work: concurrent.futures.Future[_T], meanwhile: Callable[[], None] | None) -> _T:
    while meanwhile is not None and not concurrent.futures.wait([work], _MEANWHILE_S).done:
        meanwhile()
    return work.result()
