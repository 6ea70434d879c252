"""Keeps the replica's names on disk: loads them at start, appends changes, writes the whole anew when the log outgrows it.

All file work runs in threads, batched; the event loop only queues. A disk that fails costs nothing but an older start:
what is on it stays whole, and after a pause everything is written anew. The format is in journal_file.py.
"""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from common import limits
from common.log import get_logger
from common.wire.messages import Changes
from spoke.namespace import journal_file
from spoke.namespace.files import Files, Output
from spoke.namespace.journal_file import SNAPSHOT, SNAPSHOT_NAME, Header, Loaded

log = get_logger(__name__)


class _Written(NamedTuple):
    path: Path
    size_bytes: int
    entry_count: int


class Journal:
    """The names of one dataset in ``directory``; ``tree`` is what they were, and what compaction writes.

    Use as an async context manager: leaving it writes what is queued. ``failure``: why the disk is behind, or None.
    """

    def __init__(self, directory: Path, loaded: Loaded, files: Files | None = None) -> None:
        self.directory = directory
        self._files = files or Files()
        self.tree = loaded.tree
        self.failure: str | None = None
        self._generation = loaded.generation
        self._snapshot_bytes = loaded.snapshot_bytes
        self._log_bytes = loaded.log_bytes
        self._queue: list[Changes] = []
        self._queued_changes = 0
        self._rewrite = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._dead = False
        self._worker: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, directory: Path, files: Files | None = None) -> Journal:
        """Load ``directory`` (made if absent) in a thread. Raises OSError when it cannot be made or read."""
        loaded = await asyncio.to_thread(_load, directory)
        for note in loaded.notes:
            log.warning("names on disk", note=note, directory=str(directory))
        return cls(directory, loaded, files)

    async def __aenter__(self) -> Self:
        self._worker = asyncio.create_task(self._work(), name="names journal")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:  # fmt: skip
        await self.close()

    async def close(self) -> None:
        """Write what is queued, then stop. A failing disk is not waited for."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._closing = True
            self._wake.set()
            await worker

    def append(self, changes: Changes) -> None:
        """Queue changes that the tree has just taken, at once after it took them."""
        self._queue.append(changes)
        self._queued_changes += len(changes.changes)
        if self._queued_changes > limits.JOURNAL_QUEUE_MAX_CHANGES:
            self.rewrite()
            return
        self._stir()

    def rewrite(self) -> None:
        """The tree was replaced (a resync): write all of it, and drop what was queued before."""
        self._take_queue()
        self._rewrite = True
        self._stir()

    async def flush(self) -> None:
        """Return once what was queued is written, or has failed (see ``failure``). Raises RuntimeError once the worker has died."""
        await self._idle.wait()
        if self._dead:
            raise RuntimeError(f"the names journal has stopped: {self.failure}")

    # --- the worker --------------------------------------------------------------------------------------

    def _take_queue(self) -> list[Changes]:
        taken, self._queue, self._queued_changes = self._queue, [], 0
        return taken

    def _stir(self) -> None:
        if not self._dead:
            self._idle.clear()
            self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._write_all()
            except OSError as error:
                self._rewrite = True  # an append may have left a torn record: nothing may follow it
                if self.failure is None:
                    log.error("names cannot be kept on disk", directory=str(self.directory), error=str(error))
                self.failure = str(error)
                self._idle.set()
                if not self._closing:
                    await self._pause()
                    self._wake.set()
            except BaseException as error:
                self._dead = True
                self.failure = repr(error)
                self._idle.set()
                log.exception("names are not kept on disk any more", directory=str(self.directory))
                raise
            if self._closing and not self._wake.is_set():
                return

    async def _pause(self) -> None:
        """Wait before the next attempt; a close ends the wait."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limits.JOURNAL_RETRY_S
        while not self._closing and (left_s := until_s - loop.time()) > 0:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), left_s)
            except TimeoutError:
                return

    async def _write_all(self) -> None:
        while self._queue or self._rewrite:
            outgrown = self._log_bytes > max(self._snapshot_bytes, limits.JOURNAL_COMPACT_MIN_BYTES)
            if self._rewrite or outgrown or self._generation == 0:
                if not await self._compact():
                    return
            else:
                batch = self._take_queue()
                self._log_bytes += await asyncio.to_thread(self._append_batch, batch)
        self._idle.set()

    def _append_batch(self, batch: list[Changes]) -> int:
        data = b"".join(map(journal_file.changes_record, batch))
        with Output(self._files, journal_file.log_path(self.directory, self._generation), anew=False) as out:
            out.write(data)
        return len(data)

    async def _compact(self) -> bool:
        """Write a new generation; False when the tree is being replaced (a rewrite will follow that)."""
        tree = self.tree
        epoch, base_revision = tree.epoch, tree.revision
        if epoch % 2 == 1:
            return False
        self._rewrite = False
        self._take_queue()  # all of it is in the tree
        header = Header(SNAPSHOT, self._generation + 1, tree.catalog_id, base_revision)
        written = await asyncio.to_thread(self._write_tree, header)
        if tree.epoch != epoch:
            return self._rewrite
        batch = self._take_queue()
        end_revision = batch[-1].to_revision if batch else base_revision
        assert end_revision == tree.revision or self._rewrite, "changes must be queued as soon as the tree has them"
        self._snapshot_bytes, self._log_bytes = await asyncio.to_thread(
            self._install, header, written, end_revision, batch
        )
        self._generation += 1
        if self.failure is not None:
            log.info("names are kept on disk again", directory=str(self.directory))
        self.failure = None
        return True

    def _write_tree(self, header: Header) -> _Written:
        path = self.directory / f"{SNAPSHOT_NAME}.new"
        entry_count = 0
        with Output(self._files, path, anew=True) as out:
            out.write(header.encode())
            for entries, data in journal_file.snapshot_records(self.tree):
                out.write(data)
                entry_count += entries
            out.sync()
            return _Written(path, out.written_bytes, entry_count)

    def _install(self, header: Header, written: _Written, end_revision: int, batch: list[Changes]) -> tuple[int, int]:
        end = journal_file.end_record(end_revision, written.entry_count)
        with Output(self._files, written.path, anew=False) as out:
            out.write(end)
            out.sync()
        records = map(journal_file.changes_record, batch)
        log_bytes = journal_file.install(self.directory, written.path, header, records, self._files)
        return written.size_bytes + len(end), log_bytes


def _load(directory: Path) -> Loaded:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A million new objects would make the collector walk all of them again and again, to find nothing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return journal_file.load(directory)
    finally:
        if collecting:
            gc.enable()
