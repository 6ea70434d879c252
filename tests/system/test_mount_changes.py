"""Versions that change under open files, names that come and go, and the switch to passthrough."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from fuse_support import Dataset, Mount, mounted, needs_mount, python, read_file, run

from spoke.fuse.device import MountOptions

pytestmark = needs_mount


async def _open(path: Path) -> int:
    return await asyncio.to_thread(os.open, path, os.O_RDONLY)


async def _close(*fds: int) -> None:
    for fd in fds:
        await asyncio.to_thread(os.close, fd)


async def test_an_open_handle_keeps_its_version(tmp_path: Path) -> None:
    dataset = Dataset()
    old, new = os.urandom(300_000), os.urandom(200_000)
    dataset.put(b"f", old)
    async with mounted(dataset, tmp_path) as mount:
        path = mount.path / "f"
        fd = await _open(path)
        try:
            assert await asyncio.to_thread(os.pread, fd, 4096, 0) == old[:4096]
            number = (await asyncio.to_thread(os.fstat, fd)).st_ino
            await mount.changed(dataset.put(b"f", new))
            assert await read_file(path) == new
            # Never a mix, also not of sizes: cached and uncached parts of the old version, to its own end.
            assert await asyncio.to_thread(os.pread, fd, 400_000, 0) == old
            assert (await asyncio.to_thread(os.fstat, fd)).st_size == len(old)
            status = await asyncio.to_thread(os.stat, path)
            assert (status.st_size, status.st_ino) == (len(new), number)
        finally:
            await _close(fd)


async def test_an_open_sees_the_new_version_before_the_kernel_is_told(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.put(b"f", b"old")
    async with mounted(dataset, tmp_path) as mount:
        assert await read_file(mount.path / "f") == b"old"
        dataset.put(b"f", b"newer")
        assert await read_file(mount.path / "f") == b"newer"
        dataset.remove(b"f")
        with pytest.raises(FileNotFoundError):
            await read_file(mount.path / "f")


async def test_names_appear_vanish_and_change_kind(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.mkdir(b"d")
    dataset.put(b"d/f", b"one")
    dataset.link(b"l", b"d/f")
    async with mounted(dataset, tmp_path) as mount:
        path = mount.path
        exists = lambda name: asyncio.to_thread(os.path.lexists, path / name)  # noqa: E731
        assert not await exists("d/new")  # remembered by the kernel
        await mount.changed(dataset.put(b"d/new", b"two"))
        assert await read_file(path / "d/new") == b"two"
        assert await asyncio.to_thread(os.readlink, path / "l") == "d/f"
        await mount.changed(dataset.link(b"l", b"d/new"))
        assert await asyncio.to_thread(os.readlink, path / "l") == "d/new"
        assert await read_file(path / "l") == b"two"

        fd = await _open(path / "d/f")
        try:
            await mount.changed(dataset.remove(b"d/f"))
            assert not await exists("d/f")
            assert (await asyncio.to_thread(os.fstat, fd)).st_nlink == 0
            assert await asyncio.to_thread(os.pread, fd, 10, 0) == b"one"
        finally:
            await _close(fd)

        inside = await _open(path / "d/new")
        try:
            await mount.changed(dataset.remove(b"d"))  # with an open file below: cannot be deleted in the kernel
            assert not await exists("d")
            assert not await exists("d/new")
            assert await asyncio.to_thread(os.pread, inside, 10, 0) == b"two"
        finally:
            await _close(inside)
        await mount.changed(dataset.put(b"d", b"now a file"))
        assert await read_file(path / "d") == b"now a file"
        await mount.changed(dataset.mkdir(b"d"))
        assert await asyncio.to_thread(os.listdir, path / "d") == []


async def test_changes_while_many_look_do_not_deadlock(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.mkdir(b"d")
    for number in range(200):
        dataset.put(b"d/f%d" % number, b"0")
    script = """
import os, sys, time
end = time.monotonic() + 1.0
count = 0
while time.monotonic() < end:
    for entry in os.scandir(sys.argv[1]):
        try:
            os.stat(entry.path); open(entry.path, "rb").close(); os.path.exists(entry.path + "x")
        except FileNotFoundError:
            pass
    count += 1
print(count)
"""
    async with mounted(dataset, tmp_path) as mount:
        lookers = [asyncio.create_task(python(script, mount.path / "d")) for _ in range(4)]
        edits = 0
        while not all(looker.done() for looker in lookers):
            for number in range(edits % 7, 200, 7):
                mount.operations.changed(dataset.remove(b"d/f%d" % number))
                mount.operations.changed(dataset.put(b"d/f%d" % number, b"%d" % edits))
            edits += 1
            await asyncio.sleep(0.005)
        assert all(int(looker.result()) >= 1 for looker in lookers)
        await mount.told()
        for number in range(0, 200, 37):
            name = f"d/f{number}"
            assert await read_file(mount.path / name) == dataset.reader.data[dataset.version(name.encode())]
        await run("ls", "-lR", mount.path)


async def test_a_flood_of_changes_falls_back_to_forgetting_every_name(tmp_path: Path) -> None:
    dataset = Dataset()
    for number in range(100):
        dataset.put(b"f%02d" % number, b"old")
    for epoch in (True, False):
        async with mounted(dataset, tmp_path) as mount:
            notifier = mount.device.notifier
            notifier.limit(8)
            if not epoch:
                notifier.forbid_epoch()
            for number in range(100):
                await asyncio.to_thread(os.stat, mount.path / f"f{number:02}")
            size = 10 if epoch else 20
            for number in range(100):  # without a pause: the event loop never lets the thread win for long
                mount.operations.changed(dataset.put(b"f%02d" % number, b"x" * size))
            await mount.told()
            for number in range(100):
                assert (await asyncio.to_thread(os.stat, mount.path / f"f{number:02}")).st_size == size
            assert notifier.overflows_total


def _back(dataset: Dataset, path: bytes, file: Path) -> None:
    """The version is whole and verified: its bytes stand in a file."""
    file.write_bytes(dataset.reader.data[dataset.version(path)])
    dataset.reader.whole[dataset.version(path)] = file


def _needs_passthrough(mount: Mount) -> None:
    status = mount.device.passthrough.status()
    if not status.live:
        pytest.skip(f"no passthrough here: {status.reason}")


async def test_passthrough_reads_the_same_bytes_without_us(tmp_path: Path) -> None:
    dataset = Dataset()
    data = os.urandom(3 * 1024 * 1024 + 11)
    dataset.put(b"f", data)
    _back(dataset, b"f", tmp_path / "backing")
    async with mounted(dataset, tmp_path, MountOptions(cache_dir=tmp_path)) as mount:
        _needs_passthrough(mount)
        assert await read_file(mount.path / "f") == data
        script = "import mmap,sys;f=open(sys.argv[1],'rb');assert mmap.mmap(f.fileno(),0,prot=1)[:]==open(sys.argv[2],'rb').read()"
        await python(script, mount.path / "f", tmp_path / "backing")
        fds = [await _open(mount.path / "f") for _ in range(3)]
        assert mount.device.passthrough.open_versions == 1
        await _close(*fds)
        await _released(mount)
        assert dataset.reader.reads == 0
        assert mount.device.passthrough.open_versions == 0


async def test_a_file_switches_to_passthrough_while_it_is_open_the_plain_way(tmp_path: Path) -> None:
    dataset = Dataset()
    data = os.urandom(1024 * 1024)
    dataset.put(b"f", data)
    async with mounted(dataset, tmp_path, MountOptions(cache_dir=tmp_path)) as mount:
        _needs_passthrough(mount)
        path = mount.path / "f"
        plain = await _open(path)
        try:
            assert await asyncio.to_thread(os.pread, plain, 4096, 0) == data[:4096]
            _back(dataset, b"f", tmp_path / "backing")
            # Not told yet: the same node id, open the plain way, so this open must be plain too.
            also_plain = await _open(path)
            mount.operations.became_whole(dataset.version(b"f"))
            await mount.told()
            fast = await _open(path)
            reads = dataset.reader.reads
            assert await asyncio.to_thread(os.pread, fast, len(data), 0) == data
            assert dataset.reader.reads == reads
            assert mount.device.passthrough.open_versions == 1
            assert await asyncio.to_thread(os.pread, plain, len(data), 0) == data
            assert dataset.reader.reads > reads
            numbers = {(await asyncio.to_thread(os.fstat, fd)).st_ino for fd in (plain, also_plain, fast)}
            assert len(numbers) == 1
            await _close(also_plain, fast)
        finally:
            await _close(plain)
        # Once evicted, the same name opens the plain way again.
        await _released(mount)
        dataset.reader.whole.clear()
        assert await read_file(path) == data


async def test_a_version_that_was_whole_is_replaced(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.put(b"f", b"old" * 5000)
    _back(dataset, b"f", tmp_path / "old")
    async with mounted(dataset, tmp_path, MountOptions(cache_dir=tmp_path)) as mount:
        _needs_passthrough(mount)
        fd = await _open(mount.path / "f")
        try:
            await mount.changed(dataset.put(b"f", b"new" * 4000))
            assert await read_file(mount.path / "f") == b"new" * 4000
            assert await asyncio.to_thread(os.pread, fd, 20_000, 0) == b"old" * 5000
        finally:
            await _close(fd)


async def test_a_backing_file_on_a_stacked_file_system_turns_passthrough_off(tmp_path: Path) -> None:
    where = {name: tmp_path / name for name in ("lower", "upper", "work", "merged")}
    for path in where.values():
        path.mkdir()
    options = ",".join(f"{name}dir={where[name]}" for name in ("lower", "upper", "work"))
    code, _, _ = await run("mount", "-t", "overlay", "overlay", "-o", options, where["merged"], check=False)
    if code:
        pytest.skip("overlayfs cannot be mounted here")
    try:
        dataset = Dataset()
        dataset.put(b"f", b"data")
        async with mounted(dataset, tmp_path, MountOptions(cache_dir=where["merged"])) as mount:
            status = mount.device.passthrough.status()
            assert not status.live
            assert status.reason
            assert await read_file(mount.path / "f") == b"data"
    finally:
        await run("umount", where["merged"])


async def test_passthrough_off_by_configuration(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.put(b"f", b"data")
    _back(dataset, b"f", tmp_path / "backing")
    async with mounted(dataset, tmp_path, MountOptions(cache_dir=tmp_path, passthrough=False)) as mount:
        assert await read_file(mount.path / "f") == b"data"
        assert mount.device.passthrough.status() == (False, "turned off by configuration")
        assert dataset.reader.reads


async def _released(mount: Mount) -> None:
    """RELEASE follows a close in its own time."""
    async with asyncio.timeout(10):
        while mount.operations.open_files:
            await asyncio.sleep(0.002)


async def test_stale_handles_of_another_version_are_refused_not_mixed(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.put(b"f", b"old")
    async with mounted(dataset, tmp_path) as mount:
        fd = await _open(mount.path / "f")
        try:
            await mount.changed(dataset.put(b"f", b"new"))
            with pytest.raises(OSError) as caught:  # opens the old node id itself: no path to look up again
                await _open(Path(f"/proc/self/fd/{fd}"))
            assert caught.value.errno == errno.ESTALE
        finally:
            await _close(fd)
