"""Mounting, being killed, unmounting with readers blocked, stale mounts, and mountpoints that cannot work."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fuse_support import Dataset, Mount, force_unmount, mounted, needs_mount, python, read_file, run

from common.errors import MountpointError
from spoke.fuse import kernel, mountpoint
from spoke.fuse.device import Device, MountOptions
from spoke.fuse.ledger import Ledger
from spoke.fuse.operations import Operations

pytestmark = needs_mount

READ_SYNC = (
    "import os,sys; fd=os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT); os.readv(fd,[__import__('mmap').mmap(-1,4096)])"
)
READ = "import os,sys; os.read(os.open(sys.argv[1], os.O_RDONLY), 4096)"
FAULT = "import mmap,sys; f=open(sys.argv[1],'rb'); mmap.mmap(f.fileno(), 0, prot=1)[5000]"
FAULT_RANDOM = "import mmap,sys; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(), 0, prot=1); m.madvise(mmap.MADV_RANDOM); m[5000]"


@asynccontextmanager
async def _blocked(mount: Mount, script: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that waits for a read of ``held``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, mount.path / "held", stderr=subprocess.DEVNULL
    )
    try:
        await asyncio.wait_for(mount.dataset.reader.waiting.wait(), 10)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.wait_for(process.wait(), 10)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountpoint, "FUSE_ANSWER_TIMEOUT_S", 0.5)


def _held_dataset() -> Dataset:
    dataset = Dataset()
    dataset.put(b"held", b"x" * 100_000)
    dataset.put(b"free", b"free")
    dataset.reader.held.add(dataset.version(b"held"))
    return dataset


@pytest.mark.parametrize(
    "script", [READ, READ_SYNC, FAULT, FAULT_RANDOM], ids=["read", "direct", "fault", "random-fault"]
)
async def test_a_blocked_reader_can_be_killed(tmp_path: Path, script: str) -> None:
    async with mounted(_held_dataset(), tmp_path) as mount, _blocked(mount, script) as process:
        assert await read_file(mount.path / "free") == b"free"  # nobody else waits
        began = time.monotonic()
        process.kill()
        assert await asyncio.wait_for(process.wait(), 5) == -signal.SIGKILL
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("script", [READ_SYNC, FAULT_RANDOM], ids=["direct", "random-fault"])
async def test_a_signal_does_not_end_a_read_but_a_later_kill_does(tmp_path: Path, script: str) -> None:
    handled = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None);"
    dataset = _held_dataset()
    async with mounted(dataset, tmp_path) as mount:
        async with _blocked(mount, handled + script) as process:
            process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(0.1)
            dataset.reader.gate.set()
            assert await asyncio.wait_for(process.wait(), 10) == 0
        assert dataset.reader.cancelled == 0
        dataset.reader.gate.clear()
        dataset.reader.waiting.clear()
        await mount.changed(dataset.put(b"held", b"y" * 100_000))
        dataset.reader.held.add(dataset.version(b"held"))
        async with _blocked(mount, handled + script) as process:
            process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(0.1)
            began = time.monotonic()
            process.kill()
            assert await asyncio.wait_for(process.wait(), 5) == -signal.SIGKILL
            assert time.monotonic() - began < 1


@pytest.mark.parametrize("script", [READ, READ_SYNC, FAULT], ids=["read", "direct", "fault"])
async def test_close_with_readers_blocked(tmp_path: Path, script: str) -> None:
    dataset = _held_dataset()
    async with mounted(dataset, tmp_path) as mount, _blocked(mount, script) as process:
        began = time.monotonic()
        await mount.device.close()
        assert time.monotonic() - began < 5
        assert await asyncio.wait_for(process.wait(), 5) in (1, -signal.SIGBUS)
        assert not mountpoint.mounts_at(str(mount.path))
        assert await mount.device.wait_ended()
        assert dataset.reader.opens == dataset.reader.releases
    assert os.listdir(tmp_path / "run") == []


async def test_close_with_a_file_open_and_a_shell_inside(tmp_path: Path) -> None:
    dataset = Dataset()
    dataset.mkdir(b"d")
    dataset.put(b"d/f", b"data" * 5000)
    async with mounted(dataset, tmp_path) as mount:
        script = "import os,sys; os.chdir(sys.argv[1]); f=open('f','rb'); print(flush=True); input()"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, mount.path / "d", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), 10)
        began = time.monotonic()
        await mount.device.close()
        assert time.monotonic() - began < 5
        assert not mountpoint.mounts_at(str(mount.path))
        await asyncio.wait_for(process.communicate(b"\n"), 10)


async def test_unmounted_by_hand(tmp_path: Path) -> None:
    async with mounted(_held_dataset(), tmp_path) as mount:
        await run("umount", mount.path)
        assert await asyncio.wait_for(mount.device.wait_ended(), 10) == "unmounted"


async def test_a_descriptor_can_be_handed_to_another_device(tmp_path: Path) -> None:
    """The first server vanishes with a READ in hand; the second one takes over the same connection and answers it."""
    dataset = _held_dataset()
    async with (
        mounted(dataset, tmp_path) as mount,
        _blocked(mount, "import sys;print(len(open(sys.argv[1],'rb').read(8192)))") as process,
    ):
        terms = mount.device.negotiated
        assert terms is not None
        fd = os.dup(mount.device.fileno())
        mount.device.pause()
        second = Device.from_fd(fd, MountOptions())
        try:
            dataset.reader.held.clear()
            await second.serve(mount.operations, resume=terms)
            assert await asyncio.wait_for(process.wait(), 10) == 0
            assert await read_file(mount.path / "free") == b"free"
        finally:
            await second.close()


@pytest.mark.parametrize("resend", [True, False], ids=["re-send", "no re-send"])
async def test_the_next_worker_knows_what_was_open_and_what_was_in_hand(
    tmp_path: Path, resend: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a kernel without re-send the READ that the dead worker had in hand is EIO, and never hangs; all else goes on."""
    dataset = _held_dataset()
    dataset.put(b"old", b"first" * 1000)
    script = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)  # of readahead that fails, the kernel asks again for what is wanted
try:
    os.readv(fd, [mmap.mmap(-1, 4096)])
except OSError as error:
    sys.exit(error.errno)
"""
    (tmp_path / "mnt").mkdir()
    first = await Device.mount(tmp_path / "mnt", "tests", tmp_path / "run", MountOptions(), outlives_us=True)
    assert first.ledger is not None
    try:
        reader = dataset.reader
        operations = Operations(
            dataset.tree,
            reader,
            first.notifier,
            first.passthrough,
            ledger=first.ledger,
            request_id=lambda: first.request_id,
        )
        await first.serve(operations)
        mount = Mount(tmp_path / "mnt", dataset, first, operations)
        old = await asyncio.to_thread(os.open, mount.path / "old", os.O_RDONLY)
        async with _blocked(mount, script) as process:
            kept = os.dup(first.fileno()), os.dup(first.ledger.fd)
            first.pause()  # from here on it is as good as dead
            invalidations = dataset.put(b"old", b"second" * 1000)
            assert invalidations
            ledger = Ledger.adopt(kept[1])
            terms = ledger.terms
            assert terms is not None
            if not resend:
                terms = replace(terms, flags=terms.flags & ~kernel.Init.HAS_RESEND)
            reader.held.clear()
            second = Device.take_over(kept[0], ledger, tmp_path / "run", MountOptions())
            taken = Operations(
                dataset.tree,
                reader,
                second.notifier,
                second.passthrough,
                ledger=ledger,
                request_id=lambda: second.request_id,
            )
            assert taken.open_files == 2
            try:
                await second.serve(taken, terms)
                assert await asyncio.wait_for(process.wait(), 10) == (0 if resend else errno.EIO)
                assert await asyncio.to_thread(os.pread, old, 5000, 0) == b"first" * 1000
                assert await read_file(mount.path / "old") == b"second" * 1000
                assert await read_file(mount.path / "free") == b"free"
                assert ("got EIO" in capsys.readouterr().out) is not resend
            finally:
                await asyncio.to_thread(os.close, old)
                await second.close()
        assert not mountpoint.mounts_at(str(mount.path))
    finally:
        first._mounted = None  # the second has unmounted
        await first.close()
        force_unmount(tmp_path / "mnt")


# --- stale mounts ----------------------------------------------------------------------------------------

SERVER = """
import asyncio, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from common.log import configure
from fuse_support import Dataset
from spoke.fuse.device import Device, MountOptions
from spoke.fuse.operations import Operations

async def main():
    configure()
    dataset = Dataset()
    dataset.put(b"f", b"from the child")
    device = await Device.mount(Path(sys.argv[1]), "child", Path(sys.argv[2]), MountOptions())
    await device.serve(Operations(dataset.tree, dataset.reader, device.notifier, device.passthrough))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(device.close()))
    print("ready", *device.notes, flush=True)
    await device.wait_ended()
    await device.close()

asyncio.run(main())
"""
ROOTS = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]


@asynccontextmanager
async def _child(
    base: Path, server: str = SERVER, inside: Sequence[str] = ()
) -> AsyncIterator[tuple[asyncio.subprocess.Process, bytes]]:
    (base / "mnt").mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *inside, sys.executable, "-c", server, base / "mnt", base / "run", *ROOTS, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        assert line.startswith(b"ready"), line
        yield process, line
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        force_unmount(base / "mnt")


async def test_a_stale_mount_is_taken_away(tmp_path: Path) -> None:
    async with _child(tmp_path) as (process, _):
        assert await read_file(tmp_path / "mnt/f") == b"from the child"
        process.kill()
        await process.wait()
        with pytest.raises(OSError):
            await read_file(tmp_path / "mnt/f")
        dataset = Dataset()
        dataset.put(b"f", b"from the next")
        async with mounted(dataset, tmp_path) as mount:
            assert await read_file(mount.path / "f") == b"from the next"
            assert len(mountpoint.mounts_at(str(mount.path))) == 1


async def test_a_stale_mount_that_hangs_is_taken_away(tmp_path: Path) -> None:
    """The daemon is dead, but somebody holds its descriptor: whoever touches the mount waits for ever."""
    keep = """
    import subprocess
    keeper = subprocess.Popen(["sleep", "60"], pass_fds=[device.fileno()], stdout=subprocess.DEVNULL)
    print("ready", keeper.pid, flush=True)
"""
    inherit = SERVER.replace('    print("ready", *device.notes, flush=True)\n', keep)
    assert inherit != SERVER
    (tmp_path / "mnt").mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", inherit, tmp_path / "mnt", tmp_path / "run", *ROOTS, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    keeper_pid = int((await asyncio.wait_for(process.stdout.readline(), 20)).split()[1])
    try:
        process.kill()
        await process.wait()
        assert await asyncio.to_thread(mountpoint.ask_mount, str(tmp_path / "mnt")) is mountpoint.Answer.SILENT
        dataset = Dataset()
        dataset.put(b"f", b"from the next")
        async with mounted(dataset, tmp_path) as mount:
            assert await read_file(mount.path / "f") == b"from the next"
    finally:
        os.kill(keeper_pid, signal.SIGKILL)
        force_unmount(tmp_path / "mnt")


async def test_a_live_mount_is_refused_with_and_without_its_record(tmp_path: Path) -> None:
    async with _child(tmp_path) as (process, _):
        with pytest.raises(MountpointError, match=rf"already mounted \(headrace:child\) by process {process.pid}"):
            await Device.mount(tmp_path / "mnt", "tests", tmp_path / "run", MountOptions())
        with pytest.raises(MountpointError, match="already mounted"):
            await Device.mount(tmp_path / "mnt", "tests", tmp_path / "elsewhere", MountOptions())
        assert await read_file(tmp_path / "mnt/f") == b"from the child"
        stopped = process.pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            with pytest.raises(MountpointError, match="does not answer"):
                await Device.mount(tmp_path / "mnt", "tests", tmp_path / "elsewhere", MountOptions())
        finally:
            os.kill(stopped, signal.SIGCONT)


async def test_a_terminated_child_leaves_nothing(tmp_path: Path) -> None:
    async with _child(tmp_path) as (process, _):
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0
    assert not mountpoint.mounts_at(str(tmp_path / "mnt"))
    assert os.listdir(tmp_path / "run") == []


# --- as an ordinary user ---------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
@pytest.mark.skipif(mountpoint.fusermount() is None, reason="fusermount3 is not installed")
@pytest.mark.skipif(not (shutil.which("unshare") and shutil.which("nsenter")), reason="needs unshare and nsenter")
async def test_an_ordinary_user_mounts_through_the_helper() -> None:
    """In a mount namespace of its own, where /dev/fuse is open to all whatever it is outside."""
    user = 65534
    if "user_allow_other" in [line.strip() for line in Path("/etc/fuse.conf").read_text().splitlines()]:
        pytest.skip("/etc/fuse.conf lets every user allow others here")
    base = Path(await asyncio.to_thread(_directory_of, user))
    # Not started as that user, who may not be able to reach the interpreter: it steps down once all is imported.
    step_down = f"import os, structlog; os.chdir('/'); os.setgroups([]); os.setgid({user}); os.setuid({user})\n"
    server = SERVER.replace("asyncio.run(main())", step_down + "asyncio.run(main())")
    open_device = 'mknod -m 666 "$0/fuse" c 10 229 && mount --bind "$0/fuse" /dev/fuse && exec "$@"'
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", open_device, os.fspath(base)]
    try:
        async with _child(base, server, inside) as (process, said):
            assert b"only user 65534 can read the mount" in said
            there = ["nsenter", "--mount", "--target", str(process.pid)]
            as_user = [*there, "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
            code, _, error = await run(*there, "cat", base / "mnt/f", check=False)
            assert (code, b"Permission denied" in error) == (1, True)
            assert (await run(*as_user, "cat", base / "mnt/f"))[1] == b"from the child"
            line = (await run(*there, "grep", f"{base}/mnt ", "/proc/self/mountinfo"))[1]
            assert b" ro,nosuid,nodev" in line
            assert b" - fuse.headrace headrace:child ro,user_id=65534" in line
            assert b"allow_other" not in line
            # The daemon's own way out, as that user: SIGTERM.
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        await run("rm", "-rf", "--one-file-system", base)


def _directory_of(user: int) -> str:
    """Below a directory that everybody may enter, which pytest's own are not."""
    import tempfile

    base = tempfile.mkdtemp(prefix="headrace-user-")
    os.chown(base, user, user)
    os.mkdir(base + "/mnt", 0o755)
    os.chown(base + "/mnt", user, user)
    return base


# --- mountpoints that cannot work ------------------------------------------------------------------------


async def test_wrong_mountpoints_are_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thing").write_text("x")
    for name, said in (
        ("missing", "does not exist; create it"),
        ("file", "is not a directory"),
        ("full", "is not empty .it holds 'thing'."),
        ("file/below", "."),
    ):
        with pytest.raises(MountpointError, match=said):
            await Device.mount(tmp_path / name, "tests", tmp_path / "run", MountOptions())
    assert not any(
        entry.path.startswith(str(tmp_path))
        for entry in mountpoint.parse_mountinfo(Path("/proc/self/mountinfo").read_bytes())
    )


async def test_a_mountpoint_behind_a_link_and_with_an_odd_name(tmp_path: Path) -> None:
    real = tmp_path / "odd \\ name, with\ttab"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    dataset = Dataset()
    dataset.put(b"f", b"data")
    device = await Device.mount(tmp_path / "link", "a,b c", tmp_path / "run", MountOptions())
    try:
        await device.serve(Operations(dataset.tree, dataset.reader, device.notifier, device.passthrough))
        assert device.path == str(real)
        assert await read_file(real / "f") == b"data"
        with pytest.raises(MountpointError, match="already mounted"):
            await Device.mount(real, "tests", tmp_path / "run", MountOptions())
    finally:
        await device.close()
    assert not mountpoint.mounts_at(str(real))


async def test_an_empty_mount_of_another_kind_can_be_mounted_on(tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    code, _, _ = await run("mount", "-t", "tmpfs", "tmpfs", tmp_path / "mnt", check=False)
    if code:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        dataset = Dataset()
        dataset.put(b"f", b"data")
        async with mounted(dataset, tmp_path) as mount:
            assert await python("import sys;print(open(sys.argv[1]).read())", mount.path / "f") == b"data\n"
        assert [entry.fs_type for entry in mountpoint.mounts_at(str(tmp_path / "mnt"))] == ["tmpfs"]
    finally:
        await run("umount", tmp_path / "mnt")
