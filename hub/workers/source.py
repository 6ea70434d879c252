"""A dataset as a serving process has it: the catalog read beside the main process, files read here, looks at the disk asked for there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from common.blocks import BlockRange
from common.serving.source import Extent, Held
from hub.catalog_view import CatalogView
from hub.export import Export
from hub.reader import Reader
from hub.source import CatalogSource, closed

Ask = Callable[[str, bytes, bool], Awaitable[int]]
"""Have the main process look at (dataset, path), as CHECK does or as for a reader: the catalog's revision then. Raises HeadraceError."""


class WorkerSource(CatalogSource):
    """A common.serving.source.Source. ``root_fd``: the directory that the main process exports. ``open`` blocks."""

    def __init__(self, dataset: str, root: bytes, root_fd: int, state_dir: str, ask: Ask) -> None:
        super().__init__(dataset)
        self._ask = ask
        self._export = self._served = Export(root, dataset, root_fd)
        self._state_dir = state_dir
        self._opened: tuple[CatalogView, Reader] | None = None
        self.held: Held | None = None

    def open(self) -> None:
        """Raises DiskError when the catalog cannot be read."""
        view = CatalogView.view(self._state_dir, self._dataset)
        self._opened = view, Reader(self._served, self, time.time_ns)

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            view, reader = opened
            await reader.close()
            await asyncio.to_thread(view.close)
        self._served.close()

    async def read_extent(self, version: bytes, blocks: BlockRange) -> Extent:
        return await self._both[1].read_extent(version, blocks)

    async def check(self, path: bytes) -> int:
        return await self._ask(self._dataset, path, True)

    async def recheck(self, path: bytes) -> None:
        """For the reader: the catalog knows when this returns."""
        await self._ask(self._dataset, path, False)

    def moved_on(self, head_revision: int, replaced: set[bytes] | None) -> None:
        view, reader = self._both
        view.moved_on(head_revision, replaced)
        reader.forget(replaced)

    def fail(self, error: BaseException) -> None:
        """No change will come any more."""
        self._view.fail(error)

    @property
    def _view(self) -> CatalogView:
        return self._both[0]

    @property
    def _both(self) -> tuple[CatalogView, Reader]:
        if self._opened is None:
            raise closed(self._dataset)
        return self._opened
