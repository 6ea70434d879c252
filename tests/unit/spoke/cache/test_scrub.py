"""The scrub: all of the cache, at its rate, from where it was, without a trace in the page cache."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from cache_support import BLOCK_BYTES, EXTENT_BYTES, BlocksMissing, File

from common.blocks import BlockRange
from spoke.cache import scrub as scrub_module
from spoke.cache.disk import Disk
from spoke.cache.scrub import NOTE_NAME, Scrub
from spoke.cache.store import Bad, Store

FAST = 1e12


def scrub_of(store: Store, cache: Path, rate_bytes_per_s: float = FAST) -> Scrub:
    return Scrub(store, cache / NOTE_NAME, rate_bytes_per_s, time.monotonic, time.time)


async def until(condition, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def damage(file: File, cache: Path, block: int) -> None:
    with open(file.path(cache), "r+b") as data:
        data.seek(block * BLOCK_BYTES)
        data.write(bytes(100))


async def filled(open_store, files: list[File]) -> Store:
    """What the next life of a spoke finds: nothing of it is loaded."""
    store = open_store()
    for file in files:
        await file.put(store)
    await store.close()
    return open_store()


async def test_it_goes_through_everything_and_takes_in_only_what_is_bad(open_store, tmp_path: Path) -> None:
    files = [File(number << 24 | number, 300_000 + number) for number in range(6)]
    store = await filled(open_store, files)
    damage(files[3], tmp_path / "cache", 5)
    told: list[Bad] = []
    store.on_bad = told.append
    scrub = scrub_of(store, tmp_path / "cache")
    scrub.start()
    await until(lambda: scrub.passes_total == 1)
    await scrub.close()
    assert scrub.checked_bytes_total == sum(file.size_bytes for file in files)
    assert scrub.bad_blocks_total == store.usage().corrupt_blocks_total == 1
    assert [(bad.version, bad.blocks, bad.lent) for bad in told] == [(files[3].version, [BlockRange(5, 1)], False)]
    loaded = [file.version for file in store._shelf.files.values() if file.blocks is not None]
    assert loaded == [files[3].version]
    assert scrub.facts()["last_pass"]["bad_blocks"] == 1
    with pytest.raises(BlocksMissing):
        await files[3].check(store)
    for file in files[:3] + files[4:]:
        await file.check(store)


async def test_a_file_with_a_damaged_index_is_dropped_by_it(open_store, tmp_path: Path) -> None:
    file = File(1, 300_000)
    store = await filled(open_store, [file])
    os.truncate(file.path(tmp_path / "cache", "index"), 5000)
    scrub = scrub_of(store, tmp_path / "cache")
    scrub.start()
    await until(lambda: store.usage().damaged_files_total == 1)
    await scrub.close()
    assert file.state(store) == "absent"


async def test_it_goes_on_where_it_was(open_store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [File(number << 24 | number, EXTENT_BYTES) for number in range(4)]
    store = await filled(open_store, files)
    first = scrub_of(store, tmp_path / "cache", 8 * EXTENT_BYTES)
    first.start()
    await until(lambda: first.checked_bytes_total >= 1.5 * EXTENT_BYTES)
    await first.close()
    note = json.loads((tmp_path / "cache" / NOTE_NAME).read_text())
    assert note["version"] in {file.version.hex() for file in files}
    second = scrub_of(store, tmp_path / "cache")
    second.start()
    await until(lambda: second.passes_total == 1)
    await second.close()
    both = first.checked_bytes_total + second.checked_bytes_total
    assert 4 * EXTENT_BYTES <= both <= 4.5 * EXTENT_BYTES
    assert second.facts()["last_pass"]["checked_bytes"] >= 4 * EXTENT_BYTES


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 2}',
        b'{"format": 1, "version": 7}',
        b"\xff",
        b'{"format":1,"version":"zz","block":0,"last_pass":null,"pass_began_at":1,"pass_bytes":0,"pass_bad":0}',
    ],
)
async def test_a_note_that_cannot_be_read_begins_anew(open_store, tmp_path: Path, note: bytes) -> None:
    file = File(1, 300_000)
    store = await filled(open_store, [file])
    (tmp_path / "cache" / NOTE_NAME).write_bytes(note)
    scrub = scrub_of(store, tmp_path / "cache")
    scrub.start()
    await until(lambda: scrub.passes_total == 1)
    await scrub.close()
    assert scrub.checked_bytes_total == file.size_bytes


async def test_it_keeps_its_rate(open_store, tmp_path: Path) -> None:
    file = File(1, 2 * EXTENT_BYTES)
    store = await filled(open_store, [file])
    scrub = scrub_of(store, tmp_path / "cache", 4 * EXTENT_BYTES)
    began_s = time.monotonic()
    scrub.start()
    await until(lambda: scrub.passes_total == 1)
    await scrub.close()
    assert time.monotonic() - began_s >= 0.4  # 2 MiB at 4 MiB/s, less the 256 KiB it begins with


async def test_off_it_looks_only_at_what_others_changed(open_store, tmp_path: Path) -> None:
    quiet, changed = File(1, 300_000), File(2, 300_000)
    store = await filled(open_store, [quiet, changed])
    await changed.check(store)
    scrub = scrub_of(store, tmp_path / "cache", 0)
    store.on_doubt = lambda version, size_bytes: scrub.suspect(version)
    scrub.start()
    damage(changed, tmp_path / "cache", 70)
    assert store.read_nowait(changed.version, changed.size_bytes, 0, 100) is None
    await until(lambda: scrub.bad_blocks_total == 1)
    await scrub.close()
    assert scrub.checked_bytes_total == changed.size_bytes
    assert changed.missing(store) == [BlockRange(70, 1)]
    assert not (tmp_path / "cache" / NOTE_NAME).exists()


async def test_a_failure_of_its_own_ends_nothing(open_store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub_module, "_AFTER_FAILURE_S", 0.01)
    store = await filled(open_store, [File(1, 300_000)])
    examine, failures = store.examine, [RuntimeError("unforeseen")]

    async def failing(version: bytes, block: int):
        if failures:
            raise failures.pop()
        return await examine(version, block)

    monkeypatch.setattr(store, "examine", failing)
    scrub = scrub_of(store, tmp_path / "cache")
    scrub.start()
    await until(lambda: scrub.passes_total == 1)
    await scrub.close()


async def test_the_page_cache_is_left_as_it_was(open_store, tmp_path: Path) -> None:
    file = File(1, EXTENT_BYTES)
    store = await filled(open_store, [file])
    fd = os.open(file.path(tmp_path / "cache"), os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        disk = Disk()
        if any(page & 1 for page in disk.resident(fd, 0, EXTENT_BYTES)):
            pytest.skip("this file system keeps its pages (tmpfs)")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(fd, 16 * BLOCK_BYTES, 0)  # a reader's
        before = disk.resident(fd, 0, EXTENT_BYTES)
        assert 16 <= sum(page & 1 for page in before) < 256
        scrub = scrub_of(store, tmp_path / "cache")
        scrub.start()
        await until(lambda: scrub.passes_total == 1)
        await scrub.close()
        assert disk.resident(fd, 0, EXTENT_BYTES) == before
    finally:
        os.close(fd)
