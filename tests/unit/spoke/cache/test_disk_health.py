"""What its disk does to the cache: trouble that is named, said once and over by itself; calls that hang; descriptors that run out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import time
from pathlib import Path
from random import Random

import pytest
from cache_support import EXTENT_BYTES, MIB, BlocksMissing, FaultyDisk, File, ManualClock, disk_usage
from structlog.testing import capture_logs

from common.blocks import BlockRange, whole_file
from common.errors import CacheWriteError
from common.limits import CACHE_BYPASS_RETRY_S, CACHE_LENT_FILES_MAX, CACHE_TROUBLE_LOG_S
from spoke.cache import shelf
from spoke.cache.health import DiskHealth
from spoke.cache.store import Store

CALLS = ("open", "stat", "fstat", "statvfs", "mkdir", "unlink", "ftruncate", "preadv", "pwrite", "punch_hole")
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class AnyCallDisk(FaultyDisk):
    """As FaultyDisk, with the calls that one leaves alone."""

    length_limit_bytes: int | None = None

    def stat(self, *arguments, **options):  # type: ignore[no-untyped-def,override]
        self._enter("stat")
        return os.stat(*arguments, **options)

    def fstat(self, fd: int) -> os.stat_result:  # type: ignore[override]
        self._enter("fstat")
        return os.fstat(fd)

    def mkdir(self, *arguments) -> None:  # type: ignore[no-untyped-def,override]
        self._enter("mkdir")
        os.mkdir(*arguments)

    def ftruncate(self, fd: int, length_bytes: int) -> None:  # type: ignore[override]
        self._enter("ftruncate")
        if self.length_limit_bytes is not None and length_bytes > self.length_limit_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        os.ftruncate(fd, length_bytes)


@pytest.fixture
def disk() -> AnyCallDisk:
    return AnyCallDisk()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EDQUOT, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("name", CALLS)
async def test_whatever_runs_short_at_any_call_no_wrong_byte_and_it_comes_back(
    open_store, disk: AnyCallDisk, clock: ManualClock, name: str, code: int
) -> None:
    store = open_store()
    files = [File(number, 100_000 + number * 300_000) for number in range(2)]
    for after in (0, 1, 4):
        for fail in (disk.fail_once, disk.fail):
            fail(name, code, after)
            for file in files:
                with contextlib.suppress(CacheWriteError):
                    await file.put(store)
                with contextlib.suppress(BlocksMissing):
                    await file.check(store)
            await store.tend()
            disk.heal()
            clock.now_s += 1000
        store.drop(files[after % 2].version)
    await store.tend()
    assert store.trouble is None
    for file in files:
        await file.put(store)
        await file.check(store)
    if code in SHORT and name != "statvfs":
        assert store.usage().bypass is None


def test_trouble_is_said_once_and_again_only_after_a_while() -> None:
    health = DiskHealth()
    assert health.refused(0, "full", "no space")
    assert not health.refused(1, "full", "no space")
    assert health.failed(2, "read-only", "read-only")
    assert health.trouble is not None
    assert health.trouble.kind == "read-only", "a bypass weighs more than a shortage"
    assert health.wrote()
    assert health.trouble is None
    assert not health.wrote()
    assert not health.refused(3, "full", "no space"), "it comes and goes"
    health.wrote()
    assert health.refused(CACHE_TROUBLE_LOG_S, "full", "no space")


async def test_files_that_are_too_large_are_named_until_one_fits(
    open_store, disk: AnyCallDisk, clock: ManualClock
) -> None:
    store = open_store()
    ended: list[bool] = []
    store.on_well = lambda: ended.append(True)
    small, large = File(1, 100_000), File(2, 4 * MIB)
    disk.length_limit_bytes = MIB
    with capture_logs() as lines:
        for file in (large, small, large, small):
            with contextlib.suppress(CacheWriteError):
                await file.put(store)
            clock.now_s += CACHE_BYPASS_RETRY_S
            await store.tend()
    await small.check(store)
    assert store.trouble is not None
    assert store.trouble.kind == "file-size"
    assert "4 MiB" in store.trouble.reason
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "no room on the cache disk for files as large as some of the dataset"
    ]
    assert (store.usage().bypass, ended) == (None, [])
    disk.length_limit_bytes = None
    await store.tend()
    assert (store.trouble, ended) == (None, [True])
    await large.put(store)
    await large.check(store)


def test_writes_that_work_do_not_end_the_trouble_of_reads() -> None:
    health = DiskHealth()
    while not health.read_failed():
        pass
    health.failed(0, "failing", "I/O error")
    assert not health.may_read(1)
    assert not health.wrote()
    assert health.may_read(CACHE_BYPASS_RETRY_S)
    assert health.read_worked()
    assert health.trouble is None


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, "full"), (errno.EDQUOT, "quota")])
async def test_no_room_is_named_and_over_when_the_disk_takes_a_file_again(
    open_store, disk: AnyCallDisk, code: int, kind: str
) -> None:
    store = open_store()
    ended: list[bool] = []
    store.on_well = lambda: ended.append(True)
    disk.fail("pwrite", code)
    with pytest.raises(CacheWriteError):
        await File(1, EXTENT_BYTES).put(store)
    trouble = store.trouble
    assert trouble is not None
    assert trouble.kind == kind
    if kind == "quota":
        await store.tend()
        assert store.trouble is not None, "nothing says so but a write"
    disk.heal()
    await store.tend()
    assert store.trouble is None
    await asyncio.sleep(0)
    assert ended == [True]


async def test_a_disk_of_few_inodes_is_used_all_the_same(open_store, disk: AnyCallDisk, monkeypatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path, real=os.statvfs: _with_inodes(real(path), 2000))
    store = open_store(floor_inodes=10_000)
    for number in range(20):
        await File(number, 5000).put(store)
    assert store.usage().files == 20


def _with_inodes(found: os.statvfs_result, total: int) -> os.statvfs_result:
    values = list(found)
    values[5], values[6], values[7] = total, total - 100, total - 100  # f_files, f_ffree, f_favail
    return os.statvfs_result(values)


async def test_a_quota_is_kept_by_evicting(open_store, disk: AnyCallDisk, tmp_path: Path) -> None:
    """statvfs knows nothing of it: each write that meets it makes room and is tried again."""
    store = open_store(64 * MIB)
    real = disk.pwrite

    def pwrite(fd: int, data, offset_bytes: int) -> int:  # type: ignore[no-untyped-def]
        if disk_usage(tmp_path / "cache") + len(data) > 8 * MIB:
            raise OSError(errno.EDQUOT, "quota")
        return real(fd, data, offset_bytes)

    disk.pwrite = pwrite  # type: ignore[method-assign]
    for number in range(24):
        file = File(number, EXTENT_BYTES)
        await file.put(store)
        await file.check(store)
    assert store.trouble is None
    assert store.usage().write_errors_total == 0


async def test_a_directory_that_is_away_keeps_what_it_holds(
    open_store, disk: AnyCallDisk, clock: ManualClock, tmp_path: Path
) -> None:
    """Files whose descriptors were closed were taken for deleted, and their space was never counted again."""
    store = open_store()
    files = [File(number, EXTENT_BYTES) for number in range(3)]
    for file in files:
        await file.put(store)
    store.close_idle_files()
    (tmp_path / "cache").rename(tmp_path / "away")
    for file in files:
        with pytest.raises(BlocksMissing):
            await file.check(store)
    assert store.trouble is not None
    assert store.trouble.kind == "gone"
    (tmp_path / "away").rename(tmp_path / "cache")
    clock.now_s += CACHE_BYPASS_RETRY_S
    await store.tend()
    assert store.trouble is None
    for file in files:
        await file.check(store)
    assert store.usage().files == 3


async def test_a_disk_that_fails_all_reads_loses_little_of_what_it_holds(
    open_store, disk: AnyCallDisk, clock: ManualClock
) -> None:
    """Every block that could not be read was dropped, though the disk came back a minute later with all of them."""
    store = open_store()
    file = File(1, 4 * EXTENT_BYTES)
    await file.put(store)
    disk.fail("preadv", errno.EIO)
    for block in range(0, 1024, 16):
        with pytest.raises(BlocksMissing):
            await file.check(store, block * 4096, 4096)
    assert store.usage().read_errors_total < 16, "a disk that is bad is left alone"
    disk.heal()
    clock.now_s += 1000
    assert 1024 - sum(found.block_count for found in file.missing(store)) >= 1016
    await file.check(store, 900 * 4096, 4096)
    assert store.trouble is None


class Hang:
    """A gate in which calls wait, in whatever thread."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.main_thread_waits = 0

    def __call__(self) -> None:
        self.entered.set()
        if threading.current_thread() is threading.main_thread():
            self.main_thread_waits += 1
            return
        self.go.wait(20)


@pytest.fixture
def hang() -> Hang:
    return Hang()


@pytest.mark.parametrize("name", ["open", "preadv", "pwrite", "punch_hole", "unlink", "statvfs", "stat", "ftruncate"])
async def test_a_call_that_hangs_holds_nobody_on_the_event_loop(
    open_store, disk: AnyCallDisk, hang: Hang, name: str
) -> None:
    store = open_store()
    files = [File(number, 8 * EXTENT_BYTES) for number in range(4)]
    await files[0].put(store)
    store.close_idle_files()
    disk.gates[name] = hang
    tasks = [
        asyncio.create_task(files[0].check(store)),
        asyncio.create_task(store.tend()),
        *(asyncio.create_task(file.put(store)) for file in files[1:]),
    ]
    await asyncio.sleep(0)
    if name == "unlink":
        store.drop(files[0].version)
    assert await asyncio.to_thread(hang.entered.wait, 10)
    assert store.missing(files[3].version, files[3].size_bytes, whole_file(files[3].size_bytes))
    assert hang.main_thread_waits == 0
    hang.go.set()
    disk.gates.clear()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_tending_and_closing_do_not_wait_for_ever(
    open_store, disk: AnyCallDisk, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Housekeeping stood still behind a disk that hung, and a spoke could not be stopped."""
    monkeypatch.setattr(shelf, "CACHE_CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("spoke.cache.store.CACHE_TEND_WAIT_S", 0.05)
    store = open_store()
    disk.gates["pwrite"] = hang
    writes = [asyncio.create_task(File(number, EXTENT_BYTES).put(store)) for number in range(4)]
    await asyncio.to_thread(hang.entered.wait, 10)
    async with asyncio.timeout(5):
        await store.tend()
        await store.close()
    assert not store.is_quiet
    hang.go.set()
    await asyncio.gather(*writes, return_exceptions=True)


async def test_an_index_on_a_slow_disk_is_looked_into_in_a_thread(tmp_path: Path) -> None:
    disk = AnyCallDisk()
    store = Store.open(tmp_path / "cache", 16 * MIB, 0, 0, Random(1), disk=disk)
    files = [File(number, EXTENT_BYTES) for number in range(3)]
    for file in files:
        await file.put(store)
    await store.close()
    store = Store.open(tmp_path / "cache", 16 * MIB, 0, 0, Random(1), disk=disk)
    threads: list[str] = []

    def slow() -> None:
        threads.append(threading.current_thread().name)
        time.sleep(0.06)

    disk.gates["preadv"] = slow
    assert files[0].missing(store) == [], "how slow it is must be found out once"
    assert files[1].missing(store) == [BlockRange(0, 256)], "not known yet"
    async with asyncio.timeout(10):
        while files[1].missing(store):
            await asyncio.sleep(0.01)
    assert [name.startswith("cache-read") for name in threads] == [False, True]
    await store.close()


async def test_what_is_lent_to_the_kernel_takes_few_descriptors(open_store, monkeypatch) -> None:
    monkeypatch.setattr("spoke.cache.store.CACHE_LENT_FILES_MAX", 8)
    assert CACHE_LENT_FILES_MAX >= 8
    store = open_store(64 * MIB)
    files = [File(number, 5000) for number in range(40)]
    for file in files:
        await file.put(store)
    store.close_idle_files()
    before = len(os.listdir("/proc/self/fd"))
    for file in files:
        fd = store.borrow_fd(file.version, file.size_bytes)
        assert os.pread(fd, 100, 0) == file.content[:100], "good when it is lent"
        store.borrow_fd(file.version, file.size_bytes)
    assert len(os.listdir("/proc/self/fd")) <= before + 8
    for file in files:
        store.return_fd(file.version)
        store.return_fd(file.version)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_without_descriptors_idle_files_make_way(open_store, disk: AnyCallDisk) -> None:
    store = open_store()
    files = [File(number, EXTENT_BYTES) for number in range(4)]
    for file in files:
        await file.put(store)
    disk.fail_once("open", errno.EMFILE)
    new = File(9, EXTENT_BYTES)
    await new.put(store)
    await new.check(store)
    disk.fail_once("open", errno.ENOMEM)
    store.close_idle_files()
    await files[0].check(store)
    disk.fail_once("open", errno.ENFILE)
    assert store.borrow_fd(files[1].version, files[1].size_bytes) >= 0
    store.return_fd(files[1].version)


async def test_64_writers_with_all_files_open_keep_capacity_and_floor(
    open_store, disk: AnyCallDisk, tmp_path: Path
) -> None:
    def free_bytes() -> int:
        return 40 * MIB - disk_usage(tmp_path / "cache")

    def statvfs(path: str) -> os.statvfs_result:
        values = list(os.statvfs(path))
        values[4] = free_bytes() // values[1]  # f_bavail, f_frsize
        return os.statvfs_result(values)

    disk.statvfs = statvfs  # type: ignore[method-assign]
    store = open_store(32 * MIB, floor_bytes=16 * MIB)  # 24 MiB by the floor
    most_bytes, least_free, stop = [0], [1 << 60], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            most_bytes[0] = max(most_bytes[0], disk_usage(tmp_path / "cache"))
            least_free[0] = min(least_free[0], free_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:

        async def writer(number: int) -> None:
            for turn in range(2):
                file = File(1000 * turn + number, EXTENT_BYTES)
                await file.put(store)
                with contextlib.suppress(BlocksMissing):
                    await file.check(store)

        await asyncio.gather(*(writer(number) for number in range(64)))
    finally:
        stop.set()
        watcher.join()
    assert most_bytes[0] <= 24 * MIB + 2 * EXTENT_BYTES
    assert least_free[0] >= 16 * MIB - 2 * EXTENT_BYTES
    assert store.usage().evicted_bytes_total > 64 * MIB
