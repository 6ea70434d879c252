import asyncio
import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hub_support import Served, tree, version

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange, byte_length, split_at_extents, whole_file
from common.digest import first_mismatch
from common.errors import ProtocolError, SourceReadError, StaleVersion
from hub import reader
from hub.source import HubSource


async def read(source: HubSource, name: bytes, size_bytes: int) -> bytes:
    parts = []
    for blocks in split_at_extents(whole_file(size_bytes)):
        extent = await source.read_extent(name, blocks)
        assert extent.blocks == blocks
        assert len(extent.data) == byte_length(blocks, size_bytes)
        assert first_mismatch(name, blocks.first_block, extent.data, extent.digests) is None
        parts.append(bytes(extent.data))
    return b"".join(parts)


@pytest.mark.parametrize("size_bytes", [1, 4095, 4096, 4097, EXTENT_BYTES - 1, EXTENT_BYTES + 1, 3 * EXTENT_BYTES])
async def test_all_bytes_come_with_their_digests(root: Path, served: Served, size_bytes: int) -> None:
    content = os.urandom(size_bytes)
    (root / "f").write_bytes(content)
    source = await served.start()
    name = await version(source, b"f")
    assert await read(source, name, size_bytes) == content
    assert await read(source, name, size_bytes) == content


async def test_ranges_outside_the_file_or_across_extents_are_refused(root: Path, served: Served) -> None:
    (root / "f").write_bytes(bytes(2 * EXTENT_BYTES))
    (root / "empty").write_bytes(b"")
    source = await served.start()
    name, empty = await version(source, b"f"), await version(source, b"empty")
    for blocks in (BlockRange(511, 2), BlockRange(0, 0), BlockRange(-1, 1), BlockRange(255, 2)):
        with pytest.raises(ProtocolError):
            await source.read_extent(name, blocks)
    with pytest.raises(ProtocolError):
        await source.read_extent(empty, BlockRange(0, 1))


async def test_old_and_unknown_versions_are_stale(root: Path, served: Served) -> None:
    (root / "f").write_bytes(b"old bytes")
    source = await served.start()
    old = await version(source, b"f")
    assert await read(source, old, 9) == b"old bytes"
    (root / "f").write_bytes(b"new bytes")
    await source.settled()
    for name in (old, os.urandom(16)):
        with pytest.raises(StaleVersion):
            await source.read_extent(name, BlockRange(0, 1))
    assert await read(source, await version(source, b"f"), 9) == b"new bytes"


async def test_an_edit_not_yet_noticed_is_never_served_and_noticed_by_reading(root: Path, served: Served) -> None:
    (root / "f").write_bytes(b"old bytes")
    source = await served.start(settle_s=0.05, max_delay_s=0.05)
    old, head = await version(source, b"f"), source.head_revision
    assert await read(source, old, 9) == b"old bytes"
    seen = (root / "f").stat()
    with (root / "f").open("r+b") as file:
        file.write(b"new bytes")
    os.utime(root / "f", ns=(seen.st_atime_ns, seen.st_mtime_ns))
    with pytest.raises(StaleVersion):
        await source.read_extent(old, BlockRange(0, 1))
    assert source.head_revision > head  # looked at again before the answer was given


async def test_a_rename_in_the_midst_of_reading_is_followed(root: Path, served: Served) -> None:
    (root / "f").write_bytes(b"the bytes")
    (root / "d").mkdir()
    source = await served.start()
    name = await version(source, b"f")
    for step in range(3):
        path = next(found for found, entry in (await tree(source)).items() if entry.version == name)
        (root / os.fsdecode(path)).rename(root / "d" / f"f{step}")
        assert await read(source, name, 9) == b"the bytes"
    (root / "d").rename(root / "e")
    assert await read(source, name, 9) == b"the bytes"


async def test_a_young_file_is_read_only_when_a_further_edit_would_show(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "f").write_bytes(b"x" * 10)
    source = await served.start()
    name = await version(source, b"f")
    ctime_ns = (root / "f").stat().st_ctime_ns
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        if delay_s:  # 0 only lets others go on
            slept.append(delay_s)

    for now_ns, expected in (
        (ctime_ns, [0.02]),
        (ctime_ns + 15_000_000, [0.005]),
        (ctime_ns + 20_000_000, []),
        (ctime_ns - 3_600_000_000_000, []),  # the clock was set back: no edit carries this stamp again
    ):
        slept.clear()
        young = reader.Reader(source._export, source, lambda now_ns=now_ns: now_ns)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", sleep)
            await young.read_extent(name, BlockRange(0, 1))
        await young.close()
        assert slept == pytest.approx(expected)


@pytest.mark.parametrize("moment", ["before", "between", "after"])
async def test_a_file_cut_short_under_the_reader_is_stale(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    (root / "f").write_bytes(os.urandom(3 * BLOCK_BYTES))
    source = await served.start()
    name = await version(source, b"f")
    real = os.preadv
    calls: list[int] = []

    def cutting(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        calls.append(offset)
        if len(calls) > 1:
            return real(fd, buffers, offset, flags)
        if moment == "after":
            count = real(fd, buffers, offset, flags)
            os.truncate(root / "f", 10)
            return count
        if moment == "between":
            half = real(fd, [memoryview(buffers[0])[:BLOCK_BYTES]], offset, flags)
            os.truncate(root / "f", 10)
            return half
        os.truncate(root / "f", 10)
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", cutting)
    with pytest.raises(StaleVersion):
        await source.read_extent(name, BlockRange(0, 3))
    assert calls


@pytest.mark.parametrize(
    ("code", "text"), [(errno.EIO, "Input/output error"), (errno.EACCES, "let the hub's user read it")]
)
async def test_a_failing_disk_is_told_and_not_taken_for_a_change(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch, code: int, text: str
) -> None:
    (root / "f").write_bytes(b"bytes")
    source = await served.start()
    name = await version(source, b"f")

    def failing(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(SourceReadError, match=text):
        await source.read_extent(name, BlockRange(0, 1))
    monkeypatch.undo()
    assert await read(source, name, 5) == b"bytes"


async def test_cached_pages_are_read_at_once_and_the_rest_in_threads(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(2 * BLOCK_BYTES)
    (root / "f").write_bytes(content)
    source = await served.start()
    name = await version(source, b"f")
    the_reader = source._reader_opened
    assert the_reader is not None
    assert await read(source, name, len(content)) == content
    assert (the_reader.inline_reads, the_reader.thread_reads) == (1, 0)  # a thread has only opened it
    real = os.preadv
    refusals = iter([BlockingIOError(errno.EAGAIN, ""), OSError(errno.EOPNOTSUPP, "")])

    def refusing(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise next(refusals)
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", refusing)
    for reads in (1, 2, 3):  # not in the page cache; not supported; not tried again
        assert await read(source, name, len(content)) == content
        assert the_reader.thread_reads == reads


async def test_open_files_are_bounded_and_deleted_ones_let_go(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HUB_OPEN_FILES_MAX", 3)
    for number in range(8):
        (root / str(number)).write_bytes(bytes([number]))
    source = await served.start()

    def held() -> list[str]:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        names = [os.readlink(link) for link in links if os.path.islink(link)]
        return sorted(name for name in names if name.startswith(f"{root}/"))

    names = {path: entry.version for path, entry in (await tree(source)).items()}
    reads = [read(source, name, 1) for name in names.values()]
    assert await asyncio.gather(*reads) == [bytes([number]) for number in range(8)]
    assert len(held()) == 3
    for number in range(8):
        (root / str(number)).unlink()
    await source.settled()
    assert held() == []


async def test_the_first_reads_of_a_file_end_in_the_order_they_came_whatever_opening_takes(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "f").write_bytes(os.urandom(64 * BLOCK_BYTES))
    source = await served.start()
    name = await version(source, b"f")
    the_reader = source._reader_opened
    assert the_reader is not None
    opening, go_on = threading.Event(), threading.Event()
    real = the_reader._open_ahead

    def slow(*arguments: Any) -> None:
        opening.set()
        assert go_on.wait(10)
        real(*arguments)

    monkeypatch.setattr(the_reader, "_open_ahead", slow)
    ended: list[int] = []

    async def read_one(block: int) -> None:
        await source.read_extent(name, BlockRange(block, 1))
        ended.append(block)

    async with asyncio.TaskGroup() as tasks:
        for block in range(32):
            tasks.create_task(read_one(block))
        assert await asyncio.to_thread(opening.wait, 10)
        go_on.set()
        while not ended:  # these come while the first are going on
            await asyncio.sleep(0)
        for block in range(32, 64):
            tasks.create_task(read_one(block))
    assert ended == list(range(64))


async def test_the_first_reads_of_a_file_just_written_end_in_the_order_they_came(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "f").write_bytes(os.urandom(64 * BLOCK_BYTES))
    source = await served.start()
    name = await version(source, b"f")
    the_reader = source._reader_opened
    assert the_reader is not None
    written_ns, began_ns = (root / "f").stat().st_ctime_ns, time.monotonic_ns()
    monkeypatch.setattr(the_reader, "_wall_clock_ns", lambda: written_ns + time.monotonic_ns() - began_ns)
    ended: list[int] = []

    async def read_one(block: int) -> None:
        await source.read_extent(name, BlockRange(block, 1))
        ended.append(block)

    async with asyncio.TaskGroup() as tasks:
        for block in range(64):
            tasks.create_task(read_one(block))
    assert ended == list(range(64))


async def test_reads_that_wait_for_a_file_end_when_the_reader_closes(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "f").write_bytes(b"bytes")
    source = await served.start()
    name = await version(source, b"f")
    the_reader = source._reader_opened
    assert the_reader is not None
    opening, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(the_reader, "_open_ahead", lambda *_: (opening.set(), go_on.wait(10)))
    waiting = asyncio.create_task(source.read_extent(name, BlockRange(0, 1)))
    assert await asyncio.to_thread(opening.wait, 10)
    closing = asyncio.create_task(the_reader.close())
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    await closing
