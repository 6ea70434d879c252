"""Damage while a spoke runs: the cache's files are changed under it, and every byte it hands out is right all the same."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
from cache_support import BLOCK_BYTES, EXTENT_BYTES, BlocksMissing, FaultyDisk, File, version_of

from common.blocks import BlockRange, whole_file
from common.errors import CacheWriteError
from spoke.cache.store import Bad, Store

SIZE_BYTES = EXTENT_BYTES + 5000
BLOCKS = 258


OLDER = 128


def patch(path: Path, offset_bytes: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset_bytes)
        file.write(data)


def flip(file: File, cache: Path) -> None:
    patch(file.path(cache), 7 * BLOCK_BYTES + 9, bytes([file.content[7 * BLOCK_BYTES + 9] ^ 1]))


def swap(file: File, cache: Path) -> None:
    patch(file.path(cache), 0, file.content[BLOCK_BYTES : 2 * BLOCK_BYTES] + file.content[:BLOCK_BYTES])


def zero(file: File, cache: Path) -> None:
    patch(file.path(cache), 0, bytes(SIZE_BYTES))


def truncate(file: File, cache: Path) -> None:
    os.truncate(file.path(cache), EXTENT_BYTES // 2 + 1)


def truncate_index(file: File, cache: Path) -> None:
    os.truncate(file.path(cache, "index"), 5000)


def older_data(file: File, cache: Path) -> None:
    """In place, as rsync --inplace or cp put it back: what it was when only its first half extent was there."""
    patch(file.path(cache), OLDER * BLOCK_BYTES, bytes(SIZE_BYTES - OLDER * BLOCK_BYTES))


def older_index(file: File, cache: Path) -> None:
    patch(file.path(cache, "index"), 4096 + OLDER, bytes(BLOCKS - OLDER))
    patch(file.path(cache, "index"), 8192 + 8 * OLDER, bytes(8 * (BLOCKS - OLDER)))


def both_older(file: File, cache: Path) -> None:
    older_data(file, cache)
    older_index(file, cache)


def both_replaced(file: File, cache: Path) -> None:
    """By files of the same names, as a restored backup does."""
    for kind in ("data", "index"):
        path = file.path(cache, kind)
        shutil.copy(path, path.with_suffix(".copy"))
        os.replace(path.with_suffix(".copy"), path)
    both_older(file, cache)


KINDS = [flip, swap, zero, truncate, truncate_index, older_data, older_index, both_older, both_replaced]


async def mended(store: Store, file: File) -> int:
    """Read all of it, fetch what is missing as the fetcher does, until it is whole; how many blocks were missing."""
    fetched = 0
    for _ in range(BLOCKS + 1):
        try:
            await file.check(store)
            return fetched
        except BlocksMissing as absent:
            for blocks in absent.ranges:
                fetched += blocks.block_count
                await file.put(store, blocks)
    raise AssertionError("it does not mend")


@pytest.mark.parametrize("damage", KINDS)
@pytest.mark.parametrize("reopened", [False, True])
async def test_no_wrong_byte_and_it_mends(open_store, tmp_path: Path, damage, reopened: bool) -> None:
    store = open_store()
    told: list[Bad] = []
    store.on_bad = told.append
    file = File(1, SIZE_BYTES)
    await file.put(store)
    await file.check(store)
    if reopened:
        store._shelf.close_idle(0)
    damage(file, tmp_path / "cache")
    served = store.read_nowait(file.version, SIZE_BYTES, 7 * BLOCK_BYTES, 100)
    assert served is None or bytes(served) == file.content[7 * BLOCK_BYTES : 7 * BLOCK_BYTES + 100]
    fetched = await mended(store, file)
    index_alone = damage in (older_index, truncate_index) and not reopened
    if fetched and not index_alone:
        assert store.usage().corrupt_blocks_total > 0
        assert told
    assert file.state(store) == "verified"
    await store.close()
    store = open_store()  # and it is right on the disk as well
    await mended(store, file)


@pytest.mark.parametrize("damage", KINDS)
async def test_a_lent_file_is_mended_in_place(open_store, tmp_path: Path, damage) -> None:
    """The kernel has a descriptor that nobody can take back: it gives the right bytes again once they are here."""
    store = open_store()
    told: list[Bad] = []
    doubted: list[bytes] = []
    store.on_bad = told.append
    store.on_doubt = lambda version, size_bytes: doubted.append(version)
    file = File(1, SIZE_BYTES)
    await file.put(store)
    fd = store.borrow_fd(file.version, SIZE_BYTES)
    damage(file, tmp_path / "cache")
    if damage not in (older_index, truncate_index, both_replaced):
        assert os.pread(fd, SIZE_BYTES, 0) != file.content
    await store.tend()
    assert doubted == ([] if damage in (older_index, truncate_index) else [file.version])
    block: int | None = 0
    while block is not None:
        seen = await store.examine(file.version, block)
        if seen is None:
            break
        block = seen.next_block
    if told:
        assert all(bad.lent for bad in told)
        with pytest.raises(BlocksMissing):  # new opens go the plain way meanwhile
            store.borrow_fd(file.version, SIZE_BYTES)
    await mended(store, file)
    assert os.pread(fd, SIZE_BYTES, 0) == file.content
    assert await store.verify(file.version, SIZE_BYTES)
    again = store.borrow_fd(file.version, SIZE_BYTES)
    assert os.pread(again, SIZE_BYTES, 0) == file.content
    store.return_fd(file.version)
    store.return_fd(file.version)
    await file.check(store)


async def test_an_untouched_file_is_not_doubted_by_what_we_do(open_store) -> None:
    store = open_store()
    doubted: list[bytes] = []
    store.on_doubt = lambda version, size_bytes: doubted.append(version)
    file = File(1, SIZE_BYTES)
    for first in range(0, BLOCKS, 64):
        await file.put(store, BlockRange(first, min(64, BLOCKS - first)))
        assert store.read_nowait(file.version, SIZE_BYTES, first * BLOCK_BYTES, 4096) is not None
    store._shelf.close_idle(0)
    await file.check(store)
    store.borrow_fd(file.version, SIZE_BYTES)
    await store.tend()
    store.return_fd(file.version)
    assert doubted == []


async def test_a_block_of_a_lent_file_that_cannot_be_read(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    told: list[Bad] = []
    store.on_bad = told.append
    file = File(1, SIZE_BYTES)
    await file.put(store)
    store.borrow_fd(file.version, SIZE_BYTES)
    disk.fail_once("preadv", errno.EIO)
    seen = await store.examine(file.version, 0)
    assert seen is not None
    assert seen.bad == [BlockRange(0, 64)]
    assert "cannot read" in told[0].cause
    assert file.missing(store) == [BlockRange(0, 64)]
    await mended(store, file)
    store.return_fd(file.version)


async def test_a_lent_file_all_of_which_was_bad_goes_when_it_is_returned(open_store, tmp_path: Path) -> None:
    store = open_store()
    file = File(1, 9000)
    await file.put(store)
    store.borrow_fd(file.version, 9000)
    patch(file.path(tmp_path / "cache"), 0, bytes(9000))
    assert (await store.examine(file.version, 0)).bad == [whole_file(9000)]
    assert file.path(tmp_path / "cache").exists()
    store.return_fd(file.version)
    await store.close()
    assert not file.path(tmp_path / "cache").exists()


async def test_bad_blocks_beside_others_that_are_mended_meanwhile(open_store, tmp_path: Path, disk: FaultyDisk) -> None:
    """The scrub looks at one slice of an extent while the right bytes of another are written: it passes nothing over."""
    store = open_store()
    told: list[Bad] = []
    store.on_bad = told.append
    file = File(1, SIZE_BYTES)
    await file.put(store)
    store.borrow_fd(file.version, SIZE_BYTES)
    zero(file, tmp_path / "cache")
    assert (await store.examine(file.version, 0)).bad == [BlockRange(0, 64)]
    goes_on = threading.Event()
    disk.gates["pwrite"] = goes_on.wait
    mend = asyncio.create_task(file.put(store, BlockRange(0, 64)))
    while not disk.calls.get("pwrite"):
        await asyncio.sleep(0)
    assert (await store.examine(file.version, 64)).bad == [BlockRange(64, 64)]
    goes_on.set()
    await mend
    assert file.missing(store) == [BlockRange(64, 64)]
    assert [bad.blocks for bad in told] == [[BlockRange(0, 64)], [BlockRange(64, 64)]]
    store.return_fd(file.version)


async def test_bad_blocks_beside_others_that_are_found_bad_meanwhile(
    open_store, tmp_path: Path, disk: FaultyDisk
) -> None:
    """A reader drops its own bad blocks while the scrub looks at their neighbours in the same extent."""
    store = open_store()
    file = File(1, SIZE_BYTES)
    await file.put(store)
    await store.close()
    store = open_store()
    store.hold(file.version)
    zero(file, tmp_path / "cache")
    assert file.missing(store) == []
    look = asyncio.create_task(store.examine(file.version, 64))
    goes_on, reads = threading.Event(), threading.Semaphore(0)

    def held() -> None:
        if threading.current_thread().name.startswith("cache-scrub"):
            reads.release()
            goes_on.wait()

    disk.gates["preadv"] = held
    while not reads.acquire(blocking=False):
        await asyncio.sleep(0)
    with pytest.raises(BlocksMissing):
        await store.read(file.version, SIZE_BYTES, 0, 64 * BLOCK_BYTES)
    goes_on.set()
    assert (await look).bad == [BlockRange(64, 64)]
    assert file.missing(store) == [BlockRange(0, 128)]
    store.let_go(file.version)


async def test_what_an_earlier_process_lent_gets_no_holes_and_is_not_erased(open_store, tmp_path: Path) -> None:
    """The kernel has the descriptor of a worker that is gone: this one has none, and the file counts as lent all the same."""
    store = open_store()
    told: list[Bad] = []
    file = File(1, SIZE_BYTES)
    await file.put(store)
    await store.close()
    path = file.path(tmp_path / "cache")
    with path.open("rb") as kernels:
        store = open_store()
        store.on_bad = told.append
        store.hold(file.version)
        assert await store.erase(file.version) is None
        patch(path, 0, b"\xff" * 4096)
        assert (await store.examine(file.version, 0)).bad
        assert (told[0].lent, store.is_lent(file.version)) == (True, True)
        assert os.pread(kernels.fileno(), 4096, 0) == b"\xff" * 4096, "a hole would be zeros"
        await mended(store, file)
        assert os.pread(kernels.fileno(), SIZE_BYTES, 0) == file.content
        fd = store.borrow_fd(file.version, SIZE_BYTES)
        store.return_fd(file.version)
        assert os.pread(fd, 1, 0) == file.content[:1], "one loan is left, so its descriptor is too"
        store.let_go(file.version)
        assert not store.is_lent(file.version)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pread(fd, 1, 0)
        assert await store.erase(file.version)
    assert not path.exists()


async def test_another_versions_files_under_our_names(open_store, tmp_path: Path) -> None:
    store = open_store()
    file, other = File(1, SIZE_BYTES), File(2, SIZE_BYTES)
    await file.put(store)
    await other.put(store)
    assert other.version == version_of(2)
    for kind in ("data", "index"):
        shutil.copy(other.path(tmp_path / "cache", kind), file.path(tmp_path / "cache", kind))
    assert await mended(store, file) == BLOCKS
    await other.check(store)


async def test_a_write_of_ours_that_failed_is_not_somebody_elses(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    doubted: list[bytes] = []
    store.on_doubt = lambda version, size_bytes: doubted.append(version)
    file = File(1, SIZE_BYTES)
    await file.put(store, BlockRange(0, 64))
    disk.fail_once("pwrite", errno.EFBIG, after=1)  # the data are written, their digests are not
    with pytest.raises(CacheWriteError):
        await file.put(store, BlockRange(64, 64))
    assert store.read_nowait(file.version, SIZE_BYTES, 0, 4096) is not None
    assert doubted == []


async def test_without_proc_a_file_is_looked_at_all_the_same(open_store, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(1, SIZE_BYTES)
    await file.put(store)
    disk.fail_once("open", errno.ENOENT)
    seen = await store.examine(file.version, 0)
    assert seen is not None
    assert (seen.checked_blocks, seen.bad) == (64, [])
    await file.check(store)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_write_of_ours_does_not_hide_what_somebody_else_did_before(
    open_store, tmp_path: Path, disk: FaultyDisk, fails: bool
) -> None:
    """Nobody read the block between the damage and our next write, which moves the file's ctime as well."""
    store = open_store()
    doubted: list[bytes] = []
    store.on_doubt = lambda version, size_bytes: doubted.append(version)
    file = File(1, SIZE_BYTES)
    await file.put(store, BlockRange(0, 64))
    if fails:
        disk.fail_once("pwrite", errno.EFBIG, after=1)
        with pytest.raises(CacheWriteError):
            await file.put(store, BlockRange(64, 64))
    flip(file, tmp_path / "cache")
    await file.put(store, BlockRange(64, 64))
    assert doubted == [file.version]
    assert store.read_nowait(file.version, SIZE_BYTES, 7 * BLOCK_BYTES, 100) is None
    assert await mended(store, file) == 1 + BLOCKS - 128


async def test_a_change_of_a_lent_file_is_noticed_without_a_descriptor_of_ours(open_store, tmp_path: Path) -> None:
    """Those lent longest ago are closed, and all when descriptors run short: the kernel reads on."""
    store = open_store()
    doubted: list[bytes] = []
    store.on_doubt = lambda version, size_bytes: doubted.append(version)
    file = File(1, SIZE_BYTES)
    await file.put(store)
    kernels = os.dup(store.borrow_fd(file.version, SIZE_BYTES))
    store.close_idle_files()
    await store.tend()
    assert doubted == []
    flip(file, tmp_path / "cache")
    await store.tend()
    await store.tend()
    assert doubted == [file.version]
    assert await mended(store, file) == 1
    await store.tend()
    assert doubted == [file.version], "mending it was our own doing"
    assert os.pread(kernels, SIZE_BYTES, 0) == file.content
    os.close(kernels)
    store.return_fd(file.version)


@pytest.mark.parametrize("loaded", [False, True])
async def test_a_change_of_what_an_earlier_process_lent_is_noticed(open_store, tmp_path: Path, loaded: bool) -> None:
    store = open_store()
    file = File(1, SIZE_BYTES)
    await file.put(store)
    await store.close()
    store = open_store()
    doubted: list[bytes] = []
    told: list[Bad] = []
    store.on_doubt, store.on_bad = lambda version, size_bytes: doubted.append(version), told.append
    store.hold(file.version)
    if loaded:
        await file.check(store)
    await store.tend()
    assert doubted == []
    flip(file, tmp_path / "cache")
    if not loaded:
        await store.tend()  # once more before anybody asks for it
    await store.tend()
    assert doubted == [file.version]
    assert (await store.examine(file.version, 0)).bad == [BlockRange(7, 1)]
    assert [bad.lent for bad in told] == [True]
    assert await mended(store, file) == 1
    store.let_go(file.version)


@pytest.mark.parametrize("slow", [False, True])
async def test_the_index_of_what_an_earlier_process_lent_is_damaged(open_store, tmp_path: Path, slow: bool) -> None:
    """Removed, the file would leave its readers for ever with whatever it holds."""
    store = open_store()
    file = File(1, SIZE_BYTES)
    await file.put(store)
    await store.close()
    flip(file, tmp_path / "cache")
    truncate_index(file, tmp_path / "cache")
    with file.path(tmp_path / "cache").open("rb") as kernels:
        store = open_store()
        told: list[Bad] = []
        store.on_bad = told.append
        store.hold(file.version)
        if slow:
            store._shelf.slow()
        assert file.missing(store) == [whole_file(SIZE_BYTES)]
        await asyncio.gather(*store._shelf._tasks)
        assert file.missing(store) == [whole_file(SIZE_BYTES)]
        assert [(bad.lent, bad.blocks) for bad in told] == [(True, [whole_file(SIZE_BYTES)])]
        assert store.usage().damaged_files_total == 1
        await file.put(store)
        assert os.pread(kernels.fileno(), SIZE_BYTES, 0) == file.content
        await file.check(store)
        store.let_go(file.version)


async def test_a_lent_file_in_whose_place_another_stands_is_let_go(open_store, tmp_path: Path) -> None:
    """The kernel reads the one that was there, which is as it was; the other is not believed, and not doubted for ever."""
    store = open_store()
    doubted: list[bytes] = []
    told: list[Bad] = []
    store.on_doubt, store.on_bad = lambda version, size_bytes: doubted.append(version), told.append
    file = File(1, SIZE_BYTES)
    await file.put(store)
    kernels = os.dup(store.borrow_fd(file.version, SIZE_BYTES))
    store.close_idle_files()
    both_replaced(file, tmp_path / "cache")
    await store.tend()
    assert (len(told), told[0].lent, doubted) == (1, False, [])
    assert await mended(store, file) == BLOCKS
    for _ in range(2):
        await store.tend()
        await file.check(store)
    assert (len(told), doubted) == (1, [])
    assert os.pread(kernels, SIZE_BYTES, 0) == file.content
    os.close(kernels)
    store.return_fd(file.version)
