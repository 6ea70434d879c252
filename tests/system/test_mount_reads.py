"""What readers see through a real mount: names, bytes, attributes, refusals."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import select
import threading
import time
from pathlib import Path

import pytest
import uvloop
from fuse_support import Dataset, Failure, Mount, mounted, needs_mount, python, read_file, run

from common.errors import StaleVersion
from spoke.fuse.attributes import Ownership
from spoke.fuse.virtual import VirtualFile

pytestmark = needs_mount

MIB = 1 << 20
SIZES = [0, 1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1]
ODD_NAMES = [
    b"a space",
    b"quote'\"",
    b"new\nline",
    b"\xff\xfe not utf-8",
    b"-dash",
    b"*?[x]",
    "ünï".encode(),
    b"x" * 255,
]


def _fill(dataset: Dataset, plain: Path) -> None:
    """The same tree in the dataset and in a plain directory."""
    dice = random.Random(7)
    base = os.fsencode(plain)

    def put(path: bytes, data: bytes) -> None:
        dataset.put(path, data)
        Path(os.fsdecode(base + b"/" + path)).write_bytes(data)

    def mkdir(path: bytes) -> None:
        dataset.mkdir(path)
        os.mkdir(base + b"/" + path)

    def link(path: bytes, target: bytes) -> None:
        dataset.link(path, target)
        os.symlink(target, base + b"/" + path)

    for size in SIZES:
        put(b"size-%d" % size, dice.randbytes(size))
    mkdir(b"odd")
    for name in ODD_NAMES:
        put(b"odd/" + name, dice.randbytes(100))
    mkdir(b"odd/" + b"d" * 200)
    deep = b"deep"
    mkdir(deep)
    for level in range(12):
        deep += b"/level %d" % level
        mkdir(deep)
        put(deep + b"/file", dice.randbytes(level))
    link(b"inside", b"size-4097")
    link(b"odd/up", b"../deep/level 0")
    link(b"outside", b"/etc/hostname")
    link(b"dangling", b"nowhere")


@pytest.mark.parametrize("road", ["now", "later"])
async def test_a_whole_tree_reads_back_identical(tmp_path: Path, road: str) -> None:
    dataset, plain = Dataset(), tmp_path / "plain"
    plain.mkdir()
    _fill(dataset, plain)
    if road == "later":
        dataset.reader.later.update(dataset.reader.data)
    async with mounted(dataset, tmp_path) as mount:
        for _ in range(2):  # cold, and from the kernel's caches
            await run("diff", "-r", "--no-dereference", plain, mount.path)
        _, theirs, _ = await run("find", plain, "-printf", "%P %y %s %l\\0")
        _, ours, _ = await run("find", mount.path, "-printf", "%P %y %s %l\\0")
        as_set = [
            {line for line in found.split(b"\0") if b" d " not in line} for found in (theirs, ours)
        ]  # a directory's size is the file system's own
        assert as_set[0] == as_set[1]
        walk = "import os,sys;print(sorted((os.path.relpath(d,sys.argv[1]),sorted(n),sorted(f)) for d,n,f in os.walk(sys.argv[1])))"
        assert await python(walk, plain) == await python(walk, mount.path)
    assert dataset.reader.releases == dataset.reader.opens


async def test_mmap_by_many_threads(tmp_path: Path) -> None:
    dataset = Dataset()
    data = random.Random(1).randbytes(3 * MIB + 77)
    dataset.put(b"tokens.bin", data)
    dataset.reader.later.add(dataset.version(b"tokens.bin"))
    (tmp_path / "copy").write_bytes(data)
    script = """
import mmap, random, sys, threading
want = open(sys.argv[2], "rb").read()
with open(sys.argv[1], "rb") as file:
    seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
bad = []
def work(seed):
    dice = random.Random(seed)
    for _ in range(200):
        at = dice.randrange(len(want))
        if seen[at:at + 5000] != want[at:at + 5000]:
            bad.append(at)
threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(seen) == len(want) and not bad, bad
print("right")
"""
    async with mounted(dataset, tmp_path) as mount:
        assert await python(script, mount.path / "tokens.bin", tmp_path / "copy") == b"right\n"


async def test_a_large_directory_is_listed_while_it_changes(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.mkdir(b"d")
    for number in range(20_000):
        dataset.put(b"d/f%05d" % number, b"")
    script = """
import os, sys
seen = []
with os.scandir(sys.argv[1]) as found:
    for entry in found:
        seen.append(entry.name)
        if len(seen) == 10:
            print("begun", flush=True); sys.stdin.readline()
print(len(seen), len(set(seen)), sum(name < "f10000" for name in seen), sum(name >= "f10000" for name in seen))
"""
    async with mounted(dataset, tmp_path) as mount:
        reader = await asyncio.create_subprocess_exec(
            "python3", "-c", script, mount.path / "d", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert reader.stdout is not None
        assert await reader.stdout.readline() == b"begun\n"
        for number in range(10_000, 20_000):
            mount.operations.changed(dataset.remove(b"d/f%05d" % number))
            mount.operations.changed(dataset.put(b"d/g%05d" % number, b""))
        out, _ = await asyncio.wait_for(reader.communicate(b"\n"), 30)
        total, distinct, kept, _ = map(int, out.split())
        # What was there all along is seen exactly once; what came or went may be seen or not, never twice.
        assert total == distinct
        assert kept == 10_000
        await mount.told()
        names = await asyncio.to_thread(os.listdir, mount.path / "d")
        assert len(names) == 20_000
        assert not [name for name in names if "f10000" <= name < "g"]


async def test_every_write_is_refused_with_erofs(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.put(b"f", b"data")
    dataset.mkdir(b"d")
    script = """
import errno, os, sys
os.chdir(sys.argv[1])
tries = {
    "create": lambda: os.open("new", os.O_CREAT | os.O_WRONLY),
    "write": lambda: os.open("f", os.O_WRONLY),
    "append": lambda: os.open("f", os.O_WRONLY | os.O_APPEND),
    "rdwr": lambda: os.open("f", os.O_RDWR),
    "trunc": lambda: os.open("f", os.O_WRONLY | os.O_TRUNC),
    "truncate": lambda: os.truncate("f", 0),
    "chmod": lambda: os.chmod("f", 0o600),
    "chown": lambda: os.chown("f", 1, 1),
    "utime": lambda: os.utime("f"),
    "unlink": lambda: os.unlink("f"),
    "rmdir": lambda: os.rmdir("d"),
    "mkdir": lambda: os.mkdir("e"),
    "rename": lambda: os.rename("f", "g"),
    "link": lambda: os.link("f", "g"),
    "symlink": lambda: os.symlink("f", "g"),
    "mkfifo": lambda: os.mkfifo("g"),
    "setxattr": lambda: os.setxattr("f", "user.x", b"1"),
    "removexattr": lambda: os.removexattr("f", "user.headrace.version"),
    "tmpfile": lambda: os.open(".", os.O_TMPFILE | os.O_RDWR),
}
wrong = {}
for name, act in tries.items():
    try:
        act(); wrong[name] = "done"
    except OSError as error:
        if error.errno != errno.EROFS: wrong[name] = str(error)
assert not os.access("f", os.W_OK) and os.access("f", os.R_OK)
assert not wrong, wrong
"""
    async with mounted(dataset, tmp_path) as mount:
        await python(script, mount.path)
        assert await read_file(mount.path / "f") == b"data"


async def test_attributes(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.put(b"a.bin", b"x" * 1025, mode=0o6777)
    dataset.put(b"a.tar", b"y", mode=0o640, mtime_ns=-1)
    dataset.mkdir(b"d")
    async with mounted(dataset, tmp_path, ownership=Ownership(12, 34)) as mount:
        plain = await asyncio.to_thread(os.stat, mount.path / "a.bin")
        assert (plain.st_mode, plain.st_size, plain.st_blocks, plain.st_blksize) == (0o106555, 1025, 3, 4096)
        assert (plain.st_uid, plain.st_gid, plain.st_nlink) == (12, 34, 1)
        assert plain.st_mtime_ns == plain.st_atime_ns == plain.st_ctime_ns == 1_700_000_000_123_456_789
        tar = await asyncio.to_thread(os.stat, mount.path / "a.tar")
        assert (tar.st_mode, tar.st_blksize, tar.st_mtime_ns) == (0o100440, MIB, -1)
        assert (await asyncio.to_thread(os.stat, mount.path / "d")).st_mode == 0o40555
        inodes = {(await asyncio.to_thread(os.stat, mount.path / name)).st_ino for name in ("a.bin", "a.tar", "d", ".")}
        assert inodes == {dataset.node(path).serial for path in (b"a.bin", b"a.tar", b"d", b"")}
        space = await asyncio.to_thread(os.statvfs, mount.path)
        assert (space.f_blocks, space.f_bavail, space.f_files, space.f_namemax) == (1, 0, 4, 255)
        mounts = Path("/proc/self/mountinfo").read_text()
        (line,) = [line for line in mounts.splitlines() if str(mount.path) in line]
        assert " - fuse.headrace headrace:tests ro" in line
        assert "ro,nosuid,nodev" in line
        await mount.changed(dataset.chmod(b"a.bin", 0o400))
        assert (await asyncio.to_thread(os.stat, mount.path / "a.bin")).st_mode == 0o100400


async def test_extended_attributes(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.put(b"f", b"data")
    dataset.mkdir(b"d")
    async with mounted(dataset, tmp_path, cached_fraction=lambda entry: 0.25) as mount:
        file, directory = mount.path / "f", mount.path / "d"
        version = dataset.version(b"f").hex().encode()
        assert await asyncio.to_thread(os.getxattr, file, "user.headrace.version") == version
        assert await asyncio.to_thread(os.getxattr, file, "user.headrace.revision") == b"2"
        assert await asyncio.to_thread(os.getxattr, file, "user.headrace.cached") == b"0.2500"
        assert sorted(await asyncio.to_thread(os.listxattr, file)) == [
            "user.headrace.cached",
            "user.headrace.revision",
            "user.headrace.version",
        ]
        assert await asyncio.to_thread(os.listxattr, directory) == ["user.headrace.revision"]
        for name, code in (("user.other", errno.ENODATA), ("security.capability", errno.EOPNOTSUPP)):
            with pytest.raises(OSError) as caught:
                await asyncio.to_thread(os.getxattr, file, name)
            assert caught.value.errno == code
        too_small = """
import ctypes, errno, os, sys
libc, room = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(4)
path = os.fsencode(sys.argv[1])
assert libc.getxattr(path, b"user.headrace.version", room, 4) == -1 and ctypes.get_errno() == errno.ERANGE
assert libc.listxattr(path, room, 4) == -1 and ctypes.get_errno() == errno.ERANGE
assert libc.getxattr(path, b"user.headrace.version", None, 0) == 32
"""
        await python(too_small, file)


async def test_the_control_directory(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.put(b"f", b"")
    dataset.mkdir(b".headrace")  # hidden by ours, also after it would have been listed
    dataset.put(b".headrace/status", b"of the dataset")
    made = iter([b"first\n", b"second\n" * 3000])
    heard: list[tuple[int, bytes]] = []

    def ioctl(command: int, data: bytes, out_size_bytes: int, task_id: int) -> tuple[int, bytes] | None:
        assert task_id > 0
        heard.append((command, data))
        return (-errno.ENOSPC if data[0] else 0), data[::-1]

    files = {b"status": VirtualFile(lambda: next(made)), b"plan": VirtualFile(lambda: b"", ioctl)}
    async with mounted(dataset, tmp_path, virtual_files=files) as mount:
        assert await asyncio.to_thread(os.listdir, mount.path) == ["f"]
        assert sorted(await asyncio.to_thread(os.listdir, mount.path / ".headrace")) == ["plan", "status"]
        assert await read_file(mount.path / ".headrace/status") == b"first\n"
        assert await read_file(mount.path / ".headrace/status") == b"second\n" * 3000
        assert not await asyncio.to_thread(os.path.exists, mount.path / ".headrace/nothing")
        command = 3 << 30 | 100 << 16 | ord("H") << 8 | 1
        script = f"""
import errno, fcntl, sys
with open(sys.argv[1], "rb") as file:
    said = bytearray(bytes(range(100)))
    fcntl.ioctl(file, {command}, said, True)
    assert bytes(said) == bytes(range(100))[::-1], said
    refused = bytearray(b"\1" + bytes(99))
    try: fcntl.ioctl(file, {command}, refused, True); raise SystemExit("taken")
    except OSError as error: assert error.errno == errno.ENOSPC
    assert refused[-1] == 1, "the answer comes with an errno too"
with open(sys.argv[2], "rb") as other:
    try: fcntl.ioctl(other, {command}, bytearray(100), True); raise SystemExit("answered")
    except OSError as error: assert error.errno == errno.ENOTTY
"""
        await python(script, mount.path / ".headrace/plan", mount.path / "f")
        assert heard == [(command, bytes(range(100))), (command, b"\1" + bytes(99))]


async def test_errors_of_the_reader_reach_the_caller_and_never_a_short_read(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.put(b"stale", b"x" * 5000)
    dataset.put(b"broken", b"x" * 5000)
    dataset.put(b"bug", b"x" * 5000)
    reader = dataset.reader
    reader.failing[dataset.version(b"stale")] = StaleVersion("gone")
    reader.failing[dataset.version(b"broken")] = Failure(errno.EIO)
    reader.failing[dataset.version(b"bug")] = ValueError("a bug")
    async with mounted(dataset, tmp_path) as mount:
        for road in ("now", "later"):
            if road == "later":
                reader.later.update(reader.data)
            for name, code in ((b"stale", errno.ESTALE), (b"broken", errno.EIO), (b"bug", errno.EIO)):
                with pytest.raises(OSError) as caught:
                    await read_file(mount.path / name.decode())
                assert caught.value.errno == code, (road, name)
        reader.failing.clear()
        reader.later.clear()
        reader.short_by_bytes = 1
        with pytest.raises(OSError) as caught:
            await read_file(mount.path / "bug")
        assert caught.value.errno == errno.EIO
        reader.short_by_bytes = 0
        # The size was not lowered and the file reads whole once the fault is gone.
        assert await read_file(mount.path / "bug") == b"x" * 5000


async def test_requests_that_cost_nothing(tmp_path: Path) -> None:
    """Re-opening, re-reading and listing again are answered by the kernel or cost one OPEN: the lifetimes work."""
    dataset = Dataset()
    for number in range(50):
        dataset.put(b"f%02d" % number, b"x" * 100)
    async with mounted(dataset, tmp_path) as mount:
        await run("ls", "-l", "--color=always", mount.path)
        before = mount.device.requests_total
        await run("ls", "-l", "--color=always", mount.path)
        again = mount.device.requests_total - before
        assert again < 20, again  # not one per file: no attribute, capability or ACL is asked for again
        await read_file(mount.path / "f00")
        reads = dataset.reader.reads
        for _ in range(5):
            await read_file(mount.path / "f00")
        assert dataset.reader.reads == reads
        assert not await asyncio.to_thread(os.path.exists, mount.path / "no")
        before = mount.device.requests_total
        for _ in range(5):
            assert not await asyncio.to_thread(os.path.exists, mount.path / "no")
        assert mount.device.requests_total == before


async def test_requests_are_taken_within_a_long_step_of_the_loop(tmp_path: Path) -> None:
    """A step that takes what a dozen links brought is 10 to 25 ms: readers are looked after in between."""
    dataset, got = Dataset(), []
    data = os.urandom(MIB + 5)
    dataset.put(b"f", data)
    async with mounted(dataset, tmp_path) as mount:
        reader = threading.Thread(target=lambda: got.append((mount.path / "f").read_bytes()))
        reader.start()
        until_s = time.monotonic() + 10
        while reader.is_alive() and time.monotonic() < until_s:  # and nothing is awaited
            select.select([mount.device.fileno()], [], [], 0.01)
            mount.device.look()
        assert got == [data]
        reader.join()


def test_the_faster_event_loop_serves_as_well(tmp_path: Path) -> None:
    async def check() -> None:
        dataset = Dataset()
        data = os.urandom(MIB + 5)
        dataset.put(b"f", data)
        async with mounted(dataset, tmp_path) as mount:
            assert await read_file(mount.path / "f") == data
            dataset.reader.later.add(dataset.version(b"f"))
            await mount.changed(dataset.put(b"f", data[::-1]))
            dataset.reader.later.add(dataset.version(b"f"))
            assert await read_file(mount.path / "f") == data[::-1]
            await _unmounted_by_hand(mount)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())


async def _unmounted_by_hand(mount: Mount) -> None:
    await run("umount", mount.path)
    assert await asyncio.wait_for(mount.device.wait_ended(), 10) == "unmounted"
