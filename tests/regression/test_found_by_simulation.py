"""What the simulation of the whole system (bench/simulation) found, each on its own."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from cache_support import CAPACITY_BYTES, FaultyDisk, File

from common.errors import CacheDirectoryError
from spoke.cache.store import Store


@pytest.mark.parametrize("call", ["statvfs", "unlink"])
async def test_a_disk_that_fails_while_a_cache_is_opened_is_told_in_a_sentence(tmp_path: Path, call: str) -> None:
    """It left as OSError: a traceback instead of the reason, and the directory was locked on."""
    store = Store.open(tmp_path, CAPACITY_BYTES, 0, 0, Random(1))
    file = File(1, 100_000)
    await file.put(store)
    await store.close()
    file.path(tmp_path, "index").unlink()  # half a pair, which is removed at the next start
    disk = FaultyDisk()
    disk.fail(call, errno.EIO)
    with pytest.raises(CacheDirectoryError, match=f"{tmp_path} cannot be read: Input/output error"):
        Store.open(tmp_path, CAPACITY_BYTES, 0, 0, Random(1), disk=disk)
    await Store.open(tmp_path, CAPACITY_BYTES, 0, 0, Random(1)).close()
