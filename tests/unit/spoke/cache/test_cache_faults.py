"""Disks that are full, fail, shrink or vanish: reads say "missing", writes say CacheWriteError, the cache comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from pathlib import Path

import pytest
from cache_support import CAPACITY_BYTES, EXTENT_BYTES, MIB, BlocksMissing, FaultyDisk, File, ManualClock, disk_usage

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange
from common.digest import block_digests
from common.errors import CacheDirectoryError, CacheWriteError
from common.limits import CACHE_BYPASS_RETRY_S, CACHE_READ_ERRORS_MAX


async def test_short_writes_and_reads_are_completed(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(1, EXTENT_BYTES + 5000)
    disk.short_bytes = 100_000
    await file.put(store)
    await file.check(store)
    await store.close()
    store = open_store()
    await file.check(store)
    assert await store.verify(file.version, file.size_bytes)


@pytest.mark.parametrize("short_bytes", [None, 3 * BLOCK_BYTES + 100])
async def test_a_run_of_very_many_pieces_is_written_whole(
    open_store, disk: FaultyDisk, short_bytes: int | None
) -> None:
    """A hub may send each block for itself, and pwritev(2) takes 1024 buffers."""
    store = open_store()
    file = File(1, 5 * EXTENT_BYTES + 5000)
    pieces = [memoryview(file.content)[at : at + BLOCK_BYTES] for at in range(0, file.size_bytes, BLOCK_BYTES)]
    disk.short_bytes = short_bytes
    await store.write_run(file.version, file.size_bytes, 0, pieces, block_digests(file.version, 0, file.content))
    disk.short_bytes = None
    await store.close()
    store = open_store()
    await file.check(store)


async def test_small_pieces_are_written_four_mebibytes_at_a_time(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(1, 8 * EXTENT_BYTES)
    step = 32 * BLOCK_BYTES
    pieces = [memoryview(file.content)[at : at + step] for at in range(0, file.size_bytes, step)]
    before = disk.calls.get("pwrite", 0)
    await store.write_run(file.version, file.size_bytes, 0, pieces, block_digests(file.version, 0, file.content))
    assert disk.calls["pwrite"] - before == 5, "the index's header, the data twice, the digests, the presence"
    await file.check(store)


async def test_a_full_disk_evicts_and_tries_once_more(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    olds = [File(number, EXTENT_BYTES) for number in range(4)]
    for old in olds:
        await old.put(store)
        await old.check(store)
    file = File(10, EXTENT_BYTES)
    disk.fail_once("pwrite", errno.ENOSPC, after=1)  # the header fits, the data do not
    await file.put(store)
    await file.check(store)
    assert any(old.state(store) == "absent" for old in olds)
    assert store.usage().bypass is None


async def test_a_disk_that_stays_full_refuses_without_bypass(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    old = File(1, EXTENT_BYTES)
    await old.put(store)
    disk.fail("pwrite", errno.ENOSPC)
    with pytest.raises(CacheWriteError, match="full"):
        await File(2, EXTENT_BYTES).put(store)
    assert store.usage().write_errors_total == 1
    assert store.usage().bypass is None
    disk.heal()
    file = File(2, EXTENT_BYTES)
    await file.put(store)
    await file.check(store)


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
async def test_a_failing_disk_is_bypassed_and_tried_again(
    open_store, disk: FaultyDisk, clock: ManualClock, code: int
) -> None:
    store = open_store()
    kept = File(1, EXTENT_BYTES)
    await kept.put(store)
    disk.fail("pwrite", code)
    for _ in range(2):
        with pytest.raises(CacheWriteError):
            await File(2, EXTENT_BYTES).put(store)
    assert store.usage().bypass is not None
    await kept.check(store)  # reads go on
    calls = disk.calls["pwrite"]
    with pytest.raises(CacheWriteError, match="bypassed"):
        await File(3, EXTENT_BYTES).put(store)
    assert disk.calls["pwrite"] == calls, "the disk is left alone for a while"
    clock.now_s += CACHE_BYPASS_RETRY_S
    with pytest.raises(CacheWriteError):
        await File(3, EXTENT_BYTES).put(store)
    assert disk.calls["pwrite"] > calls
    disk.heal()
    clock.now_s += CACHE_BYPASS_RETRY_S
    with pytest.raises(CacheWriteError, match="bypassed"):  # the wait has doubled
        await File(3, EXTENT_BYTES).put(store)
    clock.now_s += CACHE_BYPASS_RETRY_S
    file = File(3, EXTENT_BYTES)
    await file.put(store)
    await file.check(store)
    assert store.usage().bypass is None


async def test_what_a_run_left_that_failed_in_its_middle_is_counted(
    open_store, disk: FaultyDisk, tmp_path: Path
) -> None:
    store = open_store()
    file = File(1, 9 * EXTENT_BYTES)
    await file.put(store, BlockRange(0, EXTENT_BLOCKS))
    rest = memoryview(file.content)[EXTENT_BYTES:]
    pieces = [rest[at : at + EXTENT_BYTES] for at in range(0, len(rest), EXTENT_BYTES)]
    digests = block_digests(file.version, EXTENT_BLOCKS, rest)
    disk.fail_once("pwrite", errno.EIO, after=1)  # half of the run is written, and none of it is said to be there
    with pytest.raises(CacheWriteError):
        await store.write_run(file.version, file.size_bytes, EXTENT_BLOCKS, pieces, digests)
    taken_bytes = disk_usage(tmp_path / "cache")
    assert taken_bytes > 5 * EXTENT_BYTES
    assert store.usage().used_bytes >= taken_bytes
    assert file.missing(store) == [BlockRange(EXTENT_BLOCKS, 8 * EXTENT_BLOCKS)]
    await file.check(store, 0, EXTENT_BYTES)


async def test_unreadable_blocks_are_missing_and_can_be_written_again(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(1, 2 * EXTENT_BYTES)
    await file.put(store)
    disk.fail_once("preadv", errno.EIO)
    with pytest.raises(BlocksMissing) as caught:
        await file.check(store, 0, 8192)
    assert caught.value.ranges == [BlockRange(0, 2)]
    assert file.missing(store) == [BlockRange(0, 2)]
    assert store.usage().read_errors_total == 1
    assert store.usage().bypass is None
    await file.put(store, BlockRange(0, 2))
    await file.check(store)


async def test_many_failed_reads_in_a_row_are_the_disk(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(1, EXTENT_BYTES)
    await file.put(store)
    disk.fail("preadv", errno.EIO)
    for block in range(CACHE_READ_ERRORS_MAX):
        with pytest.raises(BlocksMissing):
            await file.check(store, block * 4096, 4096)
    assert store.usage().bypass is not None


async def test_a_removed_directory_is_noticed_and_so_is_its_return(
    open_store, clock: ManualClock, tmp_path: Path
) -> None:
    store = open_store()
    file = File(1, 2 * EXTENT_BYTES)
    await file.put(store, BlockRange(0, 256))
    (tmp_path / "cache").rename(tmp_path / "away")
    with pytest.raises(CacheWriteError, match="removed or unmounted"):
        await file.put(store, BlockRange(256, 256))
    await file.check(store, 0, EXTENT_BYTES)  # its descriptor is still open
    (tmp_path / "cache").mkdir()
    shutil.copy(tmp_path / "away" / "headrace-cache.json", tmp_path / "cache")
    clock.now_s += 1000
    with pytest.raises(CacheWriteError, match="replaced"):
        await file.put(store, BlockRange(256, 256))
    assert store.usage().bypass is not None
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"headrace-cache.json"}
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "away").rename(tmp_path / "cache")
    clock.now_s += 1000
    await file.put(store)
    await file.check(store)
    assert store.usage().bypass is None


async def test_the_free_space_floor_holds(open_store, disk: FaultyDisk, tmp_path: Path) -> None:
    disk.free_override = (20 * MIB, 1_000_000)
    store = open_store(64 * MIB, floor_bytes=15 * MIB)
    assert store.usage().capacity_bytes == 5 * MIB
    assert store.usage().configured_bytes == 64 * MIB
    for number in range(8):
        file = File(number, EXTENT_BYTES)
        await file.put(store)
        await file.check(store)
    assert disk_usage(tmp_path / "cache") <= 5 * MIB + EXTENT_BYTES
    used_bytes = store.usage().used_bytes
    disk.free_override = (16 * MIB - used_bytes // 2, 1_000_000)  # others wrote meanwhile
    await store.tend()
    assert store.usage().used_bytes <= store.usage().capacity_bytes < 5 * MIB


async def test_the_inode_floor_holds_by_evicting_whole_files(open_store, disk: FaultyDisk, tmp_path: Path) -> None:
    disk.free_override = (10**12, 130)
    store = open_store(floor_inodes=100)
    for number in range(40):
        file = File(number, 5000)
        await file.put(store)
        await file.check(store)
    assert 8 <= store.usage().files <= 14  # 30 inodes: 2 a file, and one folder
    left = sum(1 for path in (tmp_path / "cache" / "versions").rglob("*") if path.is_file())
    assert left == 2 * store.usage().files


async def test_an_unreadable_free_space_is_a_failing_disk(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    disk.fail("statvfs", errno.EIO)
    await store.tend()
    assert store.usage().bypass is not None


async def test_a_smaller_capacity_is_reached_by_tending(open_store, tmp_path: Path) -> None:
    store = open_store(48 * MIB)
    files = [File(number, EXTENT_BYTES) for number in range(40)]
    for file in files:
        await file.put(store)
    await store.close()
    store = open_store(CAPACITY_BYTES)
    await store.tend()
    assert store.usage().used_bytes <= CAPACITY_BYTES
    assert disk_usage(tmp_path / "cache") <= CAPACITY_BYTES
    assert sum(file.state(store) == "whole" for file in files) >= 12


async def test_without_hole_punching_whole_files_go(open_store, disk: FaultyDisk, tmp_path: Path) -> None:
    store = open_store()
    disk.fail("punch_hole", errno.EOPNOTSUPP)
    files = [File(number, 3 * EXTENT_BYTES) for number in range(12)]
    for file in files:
        await file.put(store)
        await file.check(store)
        assert disk_usage(tmp_path / "cache") <= CAPACITY_BYTES + EXTENT_BYTES
    assert sum(file.state(store) == "verified" for file in files) >= 4
    assert store.usage().used_bytes <= CAPACITY_BYTES


async def test_a_failed_removal_stays_counted_and_is_found_again(
    open_store, disk: FaultyDisk, clock: ManualClock
) -> None:
    store = open_store()
    file = File(1, EXTENT_BYTES)
    await file.put(store)
    used_bytes = store.usage().used_bytes
    disk.fail("unlink", errno.EROFS)
    store.drop(file.version)
    await store.close()
    assert store.usage().used_bytes == used_bytes
    assert store.usage().bypass is not None
    disk.heal()
    store = open_store()
    assert file.state(store) == "whole"


async def test_no_descriptors_left_is_a_miss_not_a_loss(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(1, EXTENT_BYTES)
    await file.put(store)
    await store.close()
    store = open_store()
    disk.fail("open", errno.EMFILE)
    assert file.missing(store) == [BlockRange(0, 256)]
    with pytest.raises(CacheWriteError):
        await file.put(store)
    assert store.usage().bypass is None
    disk.heal()
    assert file.missing(store) == []
    await file.check(store)


async def test_nowait_reads_stop_where_the_file_system_has_none(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(1, EXTENT_BYTES)
    await file.put(store)
    disk.fail("preadv_nowait", errno.EAGAIN)
    assert store.read_nowait(file.version, file.size_bytes, 0, 100) is None
    disk.heal()
    assert store.read_nowait(file.version, file.size_bytes, 0, 100) == file.content[:100]
    disk.fail("preadv_nowait", errno.EOPNOTSUPP)
    assert store.read_nowait(file.version, file.size_bytes, 0, 100) is None
    calls = disk.calls["preadv_nowait"]
    assert store.read_nowait(file.version, file.size_bytes, 0, 100) is None
    assert disk.calls["preadv_nowait"] == calls
    await file.check(store)


@pytest.mark.parametrize("name", ["open", "pwrite", "preadv", "unlink", "punch_hole", "statvfs"])
async def test_whatever_fails_at_the_nth_call_no_wrong_byte(
    open_store, disk: FaultyDisk, clock: ManualClock, name: str
) -> None:
    store = open_store()
    files = [File(number, EXTENT_BYTES + number * 300_000) for number in range(6)]
    for after in range(0, 40, 3):
        disk.fail_once(name, errno.EIO, after)
        clock.now_s += 1000
        for file in files:
            try:
                await file.put(store)
            except CacheWriteError:
                clock.now_s += 1000
            with contextlib.suppress(BlocksMissing):
                await file.check(store)
        store.drop(files[after % 6].version)
        await store.tend()
    disk.heal()
    clock.now_s += 1000
    for file in files:
        await file.put(store)
        await file.check(store)


async def test_concurrent_writers_share_one_shortage(open_store, tmp_path: Path) -> None:
    store = open_store()
    files = [File(number, EXTENT_BYTES) for number in range(40)]

    async def use(file: File) -> None:
        await file.put(store)
        with contextlib.suppress(BlocksMissing):
            await file.check(store)

    await asyncio.gather(*map(use, files))
    assert disk_usage(tmp_path / "cache") <= CAPACITY_BYTES
    assert store.usage().used_bytes <= CAPACITY_BYTES


def test_limits_that_cannot_work_are_refused_with_numbers(open_store, disk: FaultyDisk) -> None:
    with pytest.raises(CacheDirectoryError, match=r"16777215 bytes.*16777216"):
        open_store(CAPACITY_BYTES - 1)
    with pytest.raises(CacheDirectoryError, match="must stay free"):
        open_store(CAPACITY_BYTES, floor_bytes=1 << 60)
