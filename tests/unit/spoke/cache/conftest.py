"""Fixtures for the cache: a small store on a real directory, a disk that fails on request, file content made from its version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest
from cache_support import CAPACITY_BYTES, FaultyDisk, ManualClock

from spoke.cache.store import Store

OpenStore = Callable[..., Store]


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def open_store(tmp_path: Path, disk: FaultyDisk, clock: ManualClock) -> AsyncIterator[OpenStore]:
    """``open_store(capacity_bytes=…, floor_bytes=…, floor_inodes=…)``; what it opened is closed at the end."""
    opened: list[Store] = []

    def make(capacity_bytes: int = CAPACITY_BYTES, floor_bytes: int = 0, floor_inodes: int = 0) -> Store:
        store = Store.open(
            tmp_path / "cache", capacity_bytes, floor_bytes, floor_inodes, Random(1), clock=clock, disk=disk
        )
        opened.append(store)
        return store

    yield make
    disk.heal()
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return open_store()
