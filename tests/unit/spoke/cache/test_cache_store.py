"""The store on a real directory: what is written is read, states, whole files, loans, pins, drops, restart."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from cache_support import (
    BLOCK_BYTES,
    CAPACITY_BYTES,
    EXTENT_BYTES,
    MIB,
    BlocksMissing,
    FaultyDisk,
    File,
    ManualClock,
    disk_usage,
)

from common.blocks import EXTENT_BLOCKS, BlockRange, intersection, whole_file
from common.errors import CacheWriteError
from common.limits import CACHE_OPEN_FILES_MAX
from spoke.cache.eviction import FileExtents
from spoke.cache.store import Store
from spoke.prefetch.next_use import Use, parts_of


@pytest.mark.parametrize(
    "size_bytes", [1, 4095, 4096, 4097, EXTENT_BYTES - 1, EXTENT_BYTES, EXTENT_BYTES + 1, 3 * EXTENT_BYTES + 5000]
)
async def test_what_is_written_is_read(store: Store, size_bytes: int) -> None:
    file = File(1, size_bytes)
    assert file.state(store) == "absent"
    assert file.missing(store) == [whole_file(size_bytes)]
    await file.put(store)
    assert file.missing(store) == []
    assert file.state(store) == "verified"
    assert store.present_bytes(file.version, size_bytes) == size_bytes
    await file.check(store)
    await file.check(store, size_bytes - 1, 100)
    assert bytes(await store.read(file.version, size_bytes, size_bytes, 10)) == b""
    got = store.read_nowait(file.version, size_bytes, 0, size_bytes + 10)
    assert got == file.content


async def test_an_empty_file_needs_nothing(store: Store) -> None:
    version = File(1, 1).version
    assert store.state(version, 0) == "verified"
    assert store.missing(version, 0, whole_file(0)) == []
    assert await store.read(version, 0, 0, 100) == b""
    assert store.read_nowait(version, 0, 0, 100) == b""
    await store.write(version, 0, 0, b"", b"")
    assert await store.verify(version, 0)
    with pytest.raises(BlocksMissing):
        store.borrow_fd(version, 0)
    assert store.usage().files == 0


async def test_partly_cached(store: Store) -> None:
    file = File(2, 3 * EXTENT_BYTES + 100)
    await file.put(store, BlockRange(250, 20))
    assert file.state(store) == "partial"
    assert file.missing(store) == [BlockRange(0, 250), BlockRange(270, 769 - 270)]
    assert store.missing(file.version, file.size_bytes, BlockRange(250, 20)) == []
    assert store.present_bytes(file.version, file.size_bytes) == 20 * BLOCK_BYTES
    await file.check(store, 250 * BLOCK_BYTES + 7, 19 * BLOCK_BYTES)
    assert store.read_nowait(file.version, file.size_bytes, 251 * BLOCK_BYTES, 100) is not None
    assert store.read_nowait(file.version, file.size_bytes, 249 * BLOCK_BYTES, 2 * BLOCK_BYTES) is None
    with pytest.raises(BlocksMissing) as caught:
        await file.check(store, 260 * BLOCK_BYTES, 20 * BLOCK_BYTES)
    assert caught.value.ranges == [BlockRange(270, 10)]


async def test_blocks_are_checked_once_after_a_restart(open_store, disk: FaultyDisk) -> None:
    file = File(3, 2 * EXTENT_BYTES + 17)
    first = open_store()
    await file.put(first)
    used_bytes = first.usage().used_bytes
    await first.close()

    second = open_store()
    assert abs(second.usage().used_bytes - used_bytes) <= 4096
    assert file.state(second) == "whole"
    assert second.read_nowait(file.version, file.size_bytes, 0, 4096) is None
    whole: list[bytes] = []
    second.on_whole = whole.append
    await file.check(second, 0, 8192)
    assert second.read_nowait(file.version, file.size_bytes, 0, 8192) == file.content[:8192]
    assert file.state(second) == "whole"
    assert await second.verify(file.version, file.size_bytes)
    assert file.state(second) == "verified"
    await asyncio.sleep(0)
    assert whole == [file.version]
    reads = disk.calls["preadv"]
    assert await second.verify(file.version, file.size_bytes)
    assert disk.calls["preadv"] == reads


async def test_on_whole_fires_once_when_the_last_block_came(store: Store) -> None:
    file = File(4, 2 * EXTENT_BYTES)
    whole: list[bytes] = []
    store.on_whole = whole.append
    await file.put(store, BlockRange(0, 511))
    await asyncio.sleep(0)
    assert whole == []
    await file.put(store, BlockRange(511, 1))
    await file.put(store)
    await file.check(store)
    await asyncio.sleep(0)
    assert whole == [file.version]


async def test_a_loan_keeps_the_file_and_is_read_only(store: Store) -> None:
    file = File(5, EXTENT_BYTES)
    with pytest.raises(BlocksMissing):
        store.borrow_fd(file.version, file.size_bytes)
    await file.put(store)
    fd = store.borrow_fd(file.version, file.size_bytes)
    assert store.borrow_fd(file.version, file.size_bytes) == fd
    with pytest.raises(OSError) as caught:
        os.pwrite(fd, b"x", 0)
    assert caught.value.errno == errno.EBADF
    for number in range(20, 60):
        await File(number, EXTENT_BYTES).put(store)
    assert os.pread(fd, EXTENT_BYTES, 0) == file.content
    assert file.state(store) == "verified"
    store.return_fd(file.version)
    assert os.fstat(fd).st_size == EXTENT_BYTES
    store.return_fd(file.version)
    with pytest.raises(OSError):
        os.fstat(fd)


async def test_dropping_a_lent_file_leaves_the_loan_good(store: Store, tmp_path: Path) -> None:
    file = File(6, EXTENT_BYTES)
    await file.put(store)
    fd = store.borrow_fd(file.version, file.size_bytes)
    store.drop(file.version)
    assert file.state(store) == "absent"
    await file.put(store)  # the same version again, in new files
    assert os.pread(fd, 10, 0) == file.content[:10]
    used_bytes = store.usage().used_bytes
    assert used_bytes > 2 * MIB  # the dropped file's space is not free yet
    store.return_fd(file.version)
    assert store.usage().used_bytes < used_bytes - MIB + 1
    await file.check(store)


async def test_pins_outlive_pressure_and_unpinned_goes(store: Store) -> None:
    kept = File(7, 4 * EXTENT_BYTES)
    store.pin(kept.version)
    await kept.put(store)
    for number in range(20, 60):
        await File(number, EXTENT_BYTES).put(store)
    assert kept.state(store) == "verified"
    store.unpin(kept.version)
    assert store.forget_unreferenced(lambda version: version != kept.version) == 1
    for number in range(60, 75):
        await File(number, EXTENT_BYTES).put(store)
    assert kept.state(store) == "absent"


async def test_a_cache_full_of_pins_refuses_writes(store: Store) -> None:
    files = [File(number, EXTENT_BYTES) for number in range(16)]
    for file in files:
        store.pin(file.version)
    for file in files[:15]:
        await file.put(store)
    with pytest.raises(CacheWriteError, match="no room"):
        await files[15].put(store)
    assert store.usage().write_errors_total == 1
    assert store.usage().bypass is None
    await files[0].check(store)
    store.unpin(files[0].version)
    await files[15].put(store)


async def test_unreferenced_versions_go_first(store: Store, tmp_path: Path) -> None:
    old = [File(number, EXTENT_BYTES) for number in range(7)]
    new = [File(number, EXTENT_BYTES) for number in range(100, 107)]
    for file in old + new:
        await file.put(store)
        await file.check(store)
    live = {file.version for file in new}
    assert store.forget_unreferenced(live.__contains__) == 7
    for number in range(200, 207):
        await File(number, EXTENT_BYTES).put(store)
    assert all(file.state(store) == "verified" for file in new)
    assert sum(file.state(store) == "absent" for file in old) >= 5
    gone = next(file for file in old if file.state(store) == "absent")
    assert not gone.path(tmp_path / "cache").exists()
    assert not gone.path(tmp_path / "cache", "index").exists()


async def test_drop_and_write_again(store: Store, tmp_path: Path) -> None:
    file = File(8, EXTENT_BYTES + 1)
    await file.put(store)
    for _ in range(5):
        store.drop(file.version)
        assert file.missing(store) == [whole_file(file.size_bytes)]
        await file.put(store)
        await file.check(store)
    store.drop(b"never seen 123456")


async def test_another_size_for_a_version_drops_it(store: Store) -> None:
    file = File(9, EXTENT_BYTES)
    await file.put(store)
    assert store.missing(file.version, file.size_bytes + 1, BlockRange(0, 1)) == [BlockRange(0, 1)]
    assert store.usage().damaged_files_total == 1


async def test_capacity_holds_with_all_files_open(store: Store, tmp_path: Path) -> None:
    worst_bytes = 0
    for number in range(60):
        file = File(number, MIB // 2 + number * 1000)
        await file.put(store)
        await file.check(store)
        worst_bytes = max(worst_bytes, disk_usage(tmp_path / "cache"))
        assert store.usage().used_bytes <= CAPACITY_BYTES
    assert worst_bytes <= CAPACITY_BYTES + EXTENT_BYTES
    assert worst_bytes >= CAPACITY_BYTES * 0.8
    assert store.usage().evicted_bytes_total > 10 * MIB


async def test_used_bytes_follow_du(store: Store, tmp_path: Path) -> None:
    big = File(1, 40 * MIB)
    for block in range(0, 10_000, 37):
        await big.put(store, BlockRange(block, 1))
    await File(2, 40 * MIB).put(store)
    assert 0 <= store.usage().used_bytes - disk_usage(tmp_path / "cache") <= 64 * 1024


async def test_a_file_larger_than_the_cache(store: Store) -> None:
    file = File(10, 24 * MIB)
    await file.put(store)
    assert file.state(store) == "partial"
    assert store.present_bytes(file.version, file.size_bytes) > 12 * MIB
    assert await file.right_bytes(store) * BLOCK_BYTES == store.present_bytes(file.version, file.size_bytes)


async def test_open_files_are_bounded(open_store, tmp_path: Path) -> None:
    store = open_store(64 * MIB)
    before = len(os.listdir("/proc/self/fd"))
    files = [File(number, 5000) for number in range(CACHE_OPEN_FILES_MAX + 60)]
    for file in files:
        await file.put(store)
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * CACHE_OPEN_FILES_MAX
    for file in files:
        await file.check(store)
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * CACHE_OPEN_FILES_MAX
    await store.close()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_reads_never_return_a_punched_hole(open_store, disk: FaultyDisk) -> None:
    """A read that a thread began, evicted and refilled before it looks at the disk."""
    store = open_store()
    file = File(11, 4 * EXTENT_BYTES)
    await file.put(store)
    reached, go = threading.Event(), threading.Event()

    def gate() -> None:
        reached.set()
        assert go.wait(10)

    disk.gates["preadv"] = gate
    reading = asyncio.create_task(store.read(file.version, file.size_bytes, 0, EXTENT_BYTES))
    await asyncio.to_thread(reached.wait, 10)
    cached = store._shelf.files[file.version]  # the only way to evict exactly this extent
    job = store._shelf.free(cached, [BlockRange(0, 256)])
    assert job is not None
    await job
    disk.gates.clear()
    go.set()
    with pytest.raises(BlocksMissing) as caught:
        await reading
    assert caught.value.ranges == [BlockRange(0, 256)]
    assert store.usage().corrupt_blocks_total == 0
    assert store.read_nowait(file.version, file.size_bytes, 0, 10) is None


async def test_a_write_waits_for_the_hole_it_would_fall_into(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(12, 2 * EXTENT_BYTES)
    await file.put(store)
    reached, go = threading.Event(), threading.Event()

    def gate() -> None:
        reached.set()
        assert go.wait(10)

    disk.gates["punch_hole"] = gate
    job = store._shelf.free(store._shelf.files[file.version], [BlockRange(0, 256)])
    await asyncio.to_thread(reached.wait, 10)
    writing = asyncio.create_task(file.put(store, BlockRange(3, 5)))
    await file.check(store, EXTENT_BYTES, EXTENT_BYTES)  # reads go on meanwhile
    assert not writing.done()
    go.set()
    await writing
    assert job is not None
    assert job.done()
    await file.check(store, 3 * BLOCK_BYTES, 5 * BLOCK_BYTES)


async def test_a_slow_write_lane_does_not_block_reads(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(13, EXTENT_BYTES)
    await file.put(store)
    go = threading.Event()
    disk.gates["pwrite"] = lambda: (go.wait(10), None)[1]
    others = [asyncio.create_task(File(number, 8192).put(store)) for number in range(20, 30)]
    for _ in range(20):
        await file.check(store)
    assert not any(task.done() for task in others)
    go.set()
    await asyncio.gather(*others)


async def test_a_cancelled_caller_leaves_the_books_right(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(14, EXTENT_BYTES)
    reached, go = threading.Event(), threading.Event()

    def gate() -> None:
        reached.set()
        go.wait(10)

    disk.gates["pwrite"] = gate
    writing = asyncio.create_task(file.put(store))
    await asyncio.to_thread(reached.wait, 10)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    go.set()
    await store.close()
    store = open_store()
    assert file.state(store) == "whole"
    assert await file.right_bytes(store) == 256


async def test_a_drop_during_a_write(open_store, disk: FaultyDisk, tmp_path: Path) -> None:
    store = open_store()
    file = File(15, EXTENT_BYTES)
    await file.put(store, BlockRange(0, 1))
    reached, go = threading.Event(), threading.Event()

    def gate() -> None:
        reached.set()
        go.wait(10)

    disk.gates["pwrite"] = gate
    writing = asyncio.create_task(file.put(store, BlockRange(1, 10)))
    await asyncio.to_thread(reached.wait, 10)
    store.drop(file.version)
    await store._shelf.settled(file.version)
    others = [
        os.open(tmp_path, os.O_RDONLY) for _ in range(4)
    ]  # would take the numbers of descriptors closed too early
    disk.gates.clear()
    go.set()
    await writing
    for fd in others:
        os.close(fd)
    assert store.usage().write_errors_total == 0
    assert file.state(store) == "absent"
    assert store.usage().used_bytes == 4096  # the folder
    await file.put(store)
    await file.check(store)


async def test_many_writers_of_one_new_file(store: Store) -> None:
    file = File(16, 8 * EXTENT_BYTES)
    await asyncio.gather(*(file.put(store, BlockRange(first, 64)) for first in range(0, 2048, 64)))
    assert file.state(store) == "verified"
    await file.check(store)


async def test_calls_after_close(open_store, clock: ManualClock) -> None:
    store = open_store()
    file = File(17, 5000)
    await file.put(store)
    await store.close()
    await store.close()
    assert store.read_nowait(file.version, file.size_bytes, 0, 10) is None
    assert file.missing(store) == [BlockRange(0, 2)]
    with pytest.raises(BlocksMissing):
        await file.check(store)
    with pytest.raises(CacheWriteError):
        await file.put(store)


def unread_blocks(extents: FileExtents) -> list[int]:
    """Of each extent: fetched ahead and not read."""
    return [
        extents.halves[extent][0].bit_count() if extent in extents.halves else EXTENT_BLOCKS * unread
        for extent, unread in enumerate(extents.unread)
    ]


async def test_touch_of_bytes_served_from_memory_is_a_use(store: Store) -> None:
    file = File(18, 2 * EXTENT_BYTES)
    store.touch(file.version, file.size_bytes, 0, 100)
    await file.put(store)
    extents = store._shelf.files[file.version].extents
    assert extents is not None
    assert unread_blocks(extents) == [255, 256]
    store.touch(file.version, file.size_bytes, EXTENT_BYTES, 100)
    assert unread_blocks(extents) == [255, 255]
    store.touch(file.version, file.size_bytes, 0, EXTENT_BYTES)
    assert unread_blocks(extents) == [0, 255]


async def test_both_ways_of_reading_are_uses(store: Store) -> None:
    file = File(19, 3 * EXTENT_BYTES)
    await file.put(store)
    extents = store._shelf.files[file.version].extents
    assert extents is not None
    assert store.read_nowait(file.version, file.size_bytes, EXTENT_BYTES, 100) is not None
    assert unread_blocks(extents) == [256, 255, 256]
    await file.check(store, 2 * EXTENT_BYTES, 100)
    assert unread_blocks(extents) == [256, 255, 255]


async def test_a_cyclic_scan_of_twice_the_capacity_keeps_hitting(open_store) -> None:
    store = open_store(32 * MIB)
    file = File(20, 64 * MIB)
    hits = [0, 0, 0]
    for epoch in range(3):
        for extent in range(64):
            try:
                await file.check(store, extent * EXTENT_BYTES, EXTENT_BYTES)
                hits[epoch] += 1
            except BlocksMissing as error:
                for found in error.ranges:
                    await file.put(store, found)
                await file.check(store, extent * EXTENT_BYTES, EXTENT_BYTES)
    assert hits[0] == 0
    assert hits[2] >= 0.85 * 32, hits  # least-recently-used would hit nothing


async def test_who_listens_hears_what_is_cached_no_more(store: Store) -> None:
    gone: list[tuple[bytes, BlockRange]] = []
    store.on_gone = lambda version, blocks: gone.append((version, blocks))
    first = File(1, EXTENT_BYTES)
    await first.put(store)
    assert gone == []
    store.drop(first.version)
    assert gone == [(first.version, BlockRange(0, EXTENT_BYTES // BLOCK_BYTES))]
    others = [File(number, EXTENT_BYTES) for number in range(2, 2 + 2 * CAPACITY_BYTES // EXTENT_BYTES)]
    for other in others:
        await other.put(store)
    evicted = {version for version, _ in gone[1:]}
    assert evicted
    assert evicted == {other.version for other in others if other.state(store) == "absent"}


async def test_what_is_about_to_be_read_stays_while_other_extents_hold_what_was_read(open_store) -> None:
    """Scattered records: the extent used last holds nothing but what orders foretold, as after some evictions it does."""
    store = open_store(capacity_bytes=16 * EXTENT_BYTES)
    file, other = File(31, 16 * EXTENT_BYTES), File(32, 16 * EXTENT_BYTES)
    awaited = {extent: [BlockRange(extent * 256, 64)] for extent in range(8)}
    for extent in range(8):
        await file.put(store, awaited[extent][0])
    await file.put(store, BlockRange(8 * 256, 8 * 256))

    class Order:
        """``file`` is read from its scattered records on, 1,000 steps ahead; the rest of it was read; ``other`` is what comes next."""

        def knows(self, version: bytes) -> bool:
            return True

        def uses(self, version: bytes, extent: int) -> list[Use]:
            blocks = BlockRange(extent * 256, 256)
            if version == other.version:
                return [Use(1, blocks)]
            return parts_of(extent, [Use(1000, found) for found in awaited.get(extent, [])])

        def next_use(self, version: bytes, blocks: BlockRange) -> int:
            extent = blocks.first_block // 256
            return min(use.steps for use in self.uses(version, extent) if intersection(use.blocks, blocks).block_count)

        steps_taken = 0

        def take_used(self) -> None:
            return None

    store.foresee(Order())
    await other.put(store, BlockRange(0, 10 * 256))
    kept = [store.missing(file.version, file.size_bytes, blocks) == [] for (blocks,) in awaited.values()]
    assert kept == [True] * 8


async def test_only_what_is_whole_and_verified_is_lent(open_store) -> None:
    store = open_store()
    file = File(1, EXTENT_BYTES + 5000)
    await file.put(store, BlockRange(0, 257))
    with pytest.raises(BlocksMissing):
        store.borrow_fd(file.version, file.size_bytes)
    await file.put(store, BlockRange(257, 1))
    store.borrow_fd(file.version, file.size_bytes)
    store.return_fd(file.version)
    await store.close()
    store = open_store()
    assert file.state(store) == "whole"
    with pytest.raises(BlocksMissing):  # not in this life
        store.borrow_fd(file.version, file.size_bytes)
    await file.check(store)
    store.borrow_fd(file.version, file.size_bytes)
    store.return_fd(file.version)
