"""A directory behind a hub keeps the contract, in the process that writes its catalog and in one that reads beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.serving.source import Source
from hub.source import HubSource
from hub.workers.source import WorkerSource
from tests.contract.source_suite import SourceSuite


class DirectoryHarness:
    def __init__(self, root: Path, source: Source) -> None:
        self._root = os.fsencode(root)
        self.source = source

    def _made(self, path: bytes) -> bytes:
        whole = os.path.join(self._root, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        return whole

    async def write(self, path: bytes, data: bytes) -> None:
        whole = self._made(path)
        Path(os.fsdecode(whole + b".new")).write_bytes(data)
        os.replace(whole + b".new", whole)

    async def mkdir(self, path: bytes) -> None:
        os.mkdir(self._made(path))

    async def symlink(self, path: bytes, target: bytes) -> None:
        os.symlink(target, self._made(path))

    async def remove(self, path: bytes) -> None:
        whole = os.path.join(self._root, path)
        shutil.rmtree(whole) if os.path.isdir(whole) else os.unlink(whole)

    async def rename(self, old: bytes, new: bytes) -> None:
        os.rename(os.path.join(self._root, old), self._made(new))


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[tuple[Path, HubSource]]:
    root = tmp_path / "data"
    root.mkdir()
    async with HubSource("ds", root, tmp_path / "state") as source:
        yield root, source


class TestHubSource(SourceSuite):
    @pytest.fixture
    def harness(self, directory: tuple[Path, HubSource]) -> DirectoryHarness:
        return DirectoryHarness(*directory)


class TestWorkerSource(SourceSuite):
    """Beside the HubSource that writes, which tells it what moved, in this process but through its own connection."""

    @pytest.fixture
    async def harness(self, directory: tuple[Path, HubSource], tmp_path: Path) -> AsyncIterator[DirectoryHarness]:
        root, main = directory

        async def ask(_dataset: str, path: bytes, check: bool) -> int:
            if check:
                return await main.check(path)
            await main.recheck(path)
            return main.head_revision

        beside = WorkerSource("ds", os.fsencode(root), os.dup(main.root_fd), str(tmp_path / "state"), ask)
        beside.open()
        main.on_moved = beside.moved_on
        main.on_failed = beside.fail
        yield DirectoryHarness(root, beside)
        main.on_moved = main.on_failed = None
        await beside.close()
