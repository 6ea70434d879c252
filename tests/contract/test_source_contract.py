"""The in-memory source keeps the contract it stands in for elsewhere."""

from __future__ import annotations

import pytest

from tests.contract.source_suite import SourceSuite
from tests.fakes.memory_source import MemorySource


class MemoryHarness:
    def __init__(self) -> None:
        self.source = MemorySource(page_entries=2)

    async def write(self, path: bytes, data: bytes) -> None:
        self.source.put(path, data)

    async def mkdir(self, path: bytes) -> None:
        self.source.mkdir(path)

    async def symlink(self, path: bytes, target: bytes) -> None:
        self.source.symlink(path, target)

    async def remove(self, path: bytes) -> None:
        self.source.remove(path)

    async def rename(self, old: bytes, new: bytes) -> None:
        self.source.rename(old, new)


class TestMemorySource(SourceSuite):
    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()
