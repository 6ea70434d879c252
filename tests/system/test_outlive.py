"""The mount outlives its worker: killed, exchanged, in a crash loop, without its supervisor; readers see a pause, or one clear end."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pair import Pair, Spoke, children, eventually, is_running, run

from spoke import control
from spoke.fuse.mountpoint import mounts_at
from spoke.places import runtime_dir
from tests.outlive_job import WARM_BYTES

pytestmark = pytest.mark.mount

MIB = 1024 * 1024
PAUSE_MAX_S = 60.0
"""A new worker imports everything (0.6 s on an idle core), many tests may share this one, and one read may meet several kills.
bench/RESULTS.md has the real pauses."""


def write(path: Path, size_bytes: int, seed: int) -> bytes:
    data = Random(seed).randbytes(size_bytes)
    path.write_bytes(data)
    return data


def make_dataset(data: Path) -> None:
    write(data / "warm", 8 * MIB + 5, 1)
    write(data / "whole", 8 * MIB + 7, 2)
    for number in (0, 8):
        write(data / f"cold-{number}", 24 * MIB, 100 + number)
    (data / "names").mkdir()
    for number in range(3000):
        (data / "names" / f"name-{number:05}").write_bytes(b"x" * (number % 50))


def served(spoke: Spoke) -> bool:
    with contextlib.suppress(Exception):
        return spoke.facts()["supervision"]["worker_pid"] > 0
    return False


def kill_worker(spoke: Spoke) -> int:
    pid = spoke.worker_pid()
    os.kill(pid, signal.SIGKILL)
    return pid


def back(spoke: Spoke, after_pid: int) -> float:
    """Once another worker serves; the seconds it took."""
    began_s = time.monotonic()

    def another() -> bool:
        with contextlib.suppress(Exception):
            return spoke.worker_pid() != after_pid
        return False

    eventually(another, 60)
    return time.monotonic() - began_s


class Job:
    """Sixteen readers of every kind."""

    def __init__(self, mount: Path, truth: Path) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.outlive_job", str(mount), str(truth)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == "reading\n"

    def report(self) -> dict[str, Any]:
        out, _ = self.popen.communicate(timeout=100)
        found: dict[str, Any] = json.loads(out)
        print(json.dumps(found))
        return found


@contextlib.contextmanager
def job(spoke: Spoke, pair: Pair) -> Iterator[Job]:
    with (spoke.mountpoint / "warm").open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert len(os.pread(file.fileno(), WARM_BYTES + MIB, 0)) == WARM_BYTES + MIB
    (spoke.mountpoint / "whole").read_bytes()
    spoke.settled()
    eventually(lambda: float(os.getxattr(spoke.mountpoint / "whole", "user.headrace.cached")) == 1)
    running = Job(spoke.mountpoint, pair.data)
    try:
        if spoke.facts()["data_path"]["passthrough"]:
            assert spoke.facts()["data_path"]["passthrough_opens"] > 4
        yield running
    finally:
        if running.popen.poll() is None:
            running.popen.kill()
            running.popen.communicate()


def check(report: dict[str, Any], pause_max_s: float = PAUSE_MAX_S) -> None:
    assert report["errors"] == []
    assert report["readers"] == 16
    assert all(done > 0 for done, _ in report["kinds"].values()), report
    assert max(longest_s for _, longest_s in report["kinds"].values()) < pause_max_s


# --- killed ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [3, 20])
def test_sixteen_readers_see_a_pause_and_right_bytes_when_the_worker_is_killed_again_and_again(
    pair: Pair, kills: int
) -> None:
    make_dataset(pair.data)
    spoke = pair.spoke(pair.hub(extra=["--rate-limit", "100mbit"]).address, extra=["--no-prefetch"])
    dice, pauses_s = Random(kills), []
    with job(spoke, pair) as running:
        for _ in range(kills):
            pid = kill_worker(spoke)
            pauses_s.append(back(spoke, pid))
            time.sleep(dice.random() * 0.5)  # a seeded point of whatever the new worker is doing
        report = running.report()
    print("pauses", [round(pause_s, 2) for pause_s in pauses_s])
    check(report)
    facts = spoke.facts()
    assert facts["supervision"]["restarts"] == kills
    assert facts["supervision"]["last_end"] == "killed by SIGKILL"
    assert facts["supervision"]["supervisor_pid"] == spoke.popen.pid
    assert spoke.metrics()["headrace_spoke_worker_restarts_total"] == kills
    assert facts["cache"]["corrupt_blocks"] == 0
    eventually(lambda: spoke.facts()["data_path"]["open_files"] == 0)
    assert spoke.terminate() == 0
    assert not os.path.ismount(spoke.mountpoint)


@pytest.mark.slow
def test_a_worker_killed_while_it_is_starting_is_started_again(pair: Pair) -> None:
    data = write(pair.data / "f", MIB, 1)
    spoke = pair.spoke(pair.hub().address)
    fd = os.open(spoke.mountpoint / "f", os.O_RDONLY)
    pid = kill_worker(spoke)
    for _ in range(2):
        eventually(lambda pid=pid: any(child != pid for child in children(spoke.popen.pid)))
        pid = next(child for child in children(spoke.popen.pid) if child != pid)
        os.kill(pid, signal.SIGKILL)
    assert os.pread(fd, MIB, 0) == data
    os.close(fd)
    eventually(lambda: served(spoke))
    assert spoke.facts()["supervision"]["restarts"] == 3


def test_an_open_file_that_changed_at_the_hub_keeps_its_version_over_a_restart(pair: Pair) -> None:
    old = write(pair.data / "f", 8 * MIB, 1)
    hub = pair.hub()
    spoke = pair.spoke(hub.address, extra=["--no-prefetch"])
    path = spoke.mountpoint / "f"
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    assert os.pread(fd, MIB, 0) == old[:MIB]
    pages = mmap.mmap(fd, MIB, prot=mmap.PROT_READ)
    number = os.fstat(fd).st_ino
    version = os.getxattr(path, "user.headrace.version")
    spoke.settled()
    new = write(pair.data / "f.new", 8 * MIB, 2)
    (pair.data / "f.new").rename(pair.data / "f")
    eventually(lambda: os.getxattr(path, "user.headrace.version") != version)
    assert path.read_bytes() == new
    spoke.settled()
    back(spoke, kill_worker(spoke))
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    pages.madvise(mmap.MADV_DONTNEED)
    assert os.pread(fd, MIB, 0) == old[:MIB]
    assert pages[:] == old[:MIB]
    with pytest.raises(OSError) as refused:
        os.pread(fd, MIB, 4 * MIB)
    assert refused.value.errno == errno.ESTALE
    assert path.read_bytes() == new
    assert os.fstat(fd).st_ino == number
    pages.close()
    os.close(fd)


@pytest.mark.slow
def test_what_changes_while_no_worker_serves_is_seen_by_the_next(pair: Pair) -> None:
    write(pair.data / "gone", 1000, 1)
    write(pair.data / "changed", 1000, 2)
    spoke = pair.spoke(pair.hub().address)
    numbers = {name: os.stat(spoke.mountpoint / name).st_ino for name in ("gone", "changed")}
    assert not (spoke.mountpoint / "new").exists()  # the kernel remembers that
    (spoke.mountpoint / "changed").read_bytes()
    pid = kill_worker(spoke)
    (pair.data / "gone").unlink()
    changed = write(pair.data / "changed", 3000, 3)
    new = write(pair.data / "new", 500, 4)
    back(spoke, pid)
    eventually(lambda: not (spoke.mountpoint / "gone").exists())
    eventually(lambda: (spoke.mountpoint / "changed").read_bytes() == changed)
    eventually((spoke.mountpoint / "new").exists)
    assert (spoke.mountpoint / "new").read_bytes() == new
    assert os.stat(spoke.mountpoint / "changed").st_ino == numbers["changed"]


def test_a_memory_limit_that_is_reached_ends_the_worker_alone(pair: Pair) -> None:
    groups = Path("/sys/fs/cgroup")
    group = groups / "memory" if (groups / "memory").is_dir() else groups
    group = group / f"headrace-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if (groups / "memory").is_dir() else "memory.max"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory group can be made: {error}")
    try:
        if not (group / limit).exists():
            pytest.skip("the memory controller is not to be had here")
        data = write(pair.data / "f", 64 * MIB, 1)
        spoke = pair.spoke(pair.hub().address)
        fd = os.open(spoke.mountpoint / "f", os.O_RDONLY)
        pid = spoke.worker_pid()
        (group / "cgroup.procs").write_text(str(pid))
        (group / limit).write_text(str(2 * MIB))
        assert b"".join(os.pread(fd, MIB, at) for at in range(0, len(data), MIB)) == data
        os.close(fd)
        eventually(lambda: spoke.facts()["supervision"]["restarts"] >= 1, 30)
        assert spoke.worker_pid() != pid
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text().split(), 30)
        group.rmdir()


# --- a crash loop ----------------------------------------------------------------------------------------


def configured(pair: Pair, hub_address: str, extra: str = "") -> tuple[Spoke, Path, Callable[[str], None]]:
    """A spoke with its settings in a file, and what writes that file."""
    config = pair.work_dir / "spoke.toml"

    def rewrite(more: str) -> None:
        config.write_text(f'hub = "{hub_address}"\n{more}')

    rewrite(extra)
    return pair.spoke(hub_address, extra=["--config", str(config)]), config, rewrite


@pytest.mark.slow
def test_a_crash_loop_has_a_clear_end(pair: Pair) -> None:
    data = write(pair.data / "f", 4 * MIB, 1)
    hub = pair.hub()
    spoke, _, rewrite = configured(pair, hub.address)
    fd = os.open(spoke.mountpoint / "f", os.O_RDONLY)
    rewrite("no such setting = [\n")
    kill_worker(spoke)
    reader = subprocess.Popen(
        [sys.executable, "-c", "import os,sys\ntry: os.pread(int(sys.argv[1]), 4096, 1<<20)\nexcept OSError as e: sys.exit(e.errno)",
         str(fd)], pass_fds=[fd],
    )  # fmt: skip
    began_s = time.monotonic()
    said = run("spoke.cli", "status", str(spoke.mountpoint))
    assert said.returncode == 2
    assert "no worker serves" in said.stderr
    assert reader.wait(100) == errno.EIO
    assert spoke.popen.wait(20) == 1
    print("given up after", time.monotonic() - began_s)
    line = next(line for line in spoke.log().splitlines() if "is given up" in line)
    assert "5 starts in a row failed" in line
    assert "then mount again" in line
    with pytest.raises(OSError, match="not connected"):
        os.listdir(spoke.mountpoint)
    os.close(fd)
    rewrite("")
    again = pair.spoke(hub.address)
    assert (again.mountpoint / "f").read_bytes() == data


def test_umount_and_sigterm_between_two_workers(pair: Pair) -> None:
    write(pair.data / "f", MIB, 1)
    hub = pair.hub()
    spoke, _, rewrite = configured(pair, hub.address)
    rewrite("no such setting = [\n")
    kill_worker(spoke)
    done = run("spoke.cli", "umount", str(spoke.mountpoint))
    assert (done.returncode, done.stderr) == (0, "")
    assert spoke.popen.wait(20) == 0
    assert not mounts_at(str(spoke.mountpoint))
    rewrite("")
    spoke = pair.spoke(hub.address)
    os.kill(spoke.worker_pid(), signal.SIGKILL)
    assert spoke.terminate() == 0
    assert not mounts_at(str(spoke.mountpoint))


# --- upgrades --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hangups_count")
def test_upgrades_under_load_are_a_short_pause(pair: Pair) -> None:
    make_dataset(pair.data)
    spoke = pair.spoke(pair.hub(extra=["--rate-limit", "100mbit"]).address, extra=["--no-prefetch"])
    first = spoke.worker_pid()
    with job(spoke, pair) as running:
        done = run("spoke.cli", "upgrade", str(spoke.mountpoint), timeout_s=100)
        assert (done.returncode, done.stderr) == (0, "")
        assert "a new worker serves" in done.stdout
        second = spoke.worker_pid()
        spoke.popen.send_signal(signal.SIGHUP)
        back(spoke, second)
        eventually(lambda: spoke.facts()["supervision"]["upgrades"] == 2)
        report = running.report()
    check(report)
    pauses_s = [json.loads(line)["paused_s"] for line in spoke.log().splitlines() if '"paused_s"' in line]
    print("upgrade pauses", pauses_s)
    assert len(pauses_s) == 2
    assert max(pauses_s) < 3
    supervision = spoke.facts()["supervision"]
    assert (supervision["upgrades"], supervision["restarts"]) == (2, 0)
    eventually(lambda: not is_running(first) and not is_running(second))
    assert len(children(spoke.popen.pid)) == 1


def test_an_upgrade_with_a_silent_hub_is_a_short_pause_too(pair: Pair) -> None:
    data = write(pair.data / "f", 4 * MIB, 1)
    write(pair.data / "cold", MIB, 2)
    hub = pair.hub()
    spoke = pair.spoke(hub.address, extra=["--no-prefetch", "--read-timeout", "20s"])
    assert (spoke.mountpoint / "f").read_bytes() == data
    hub.popen.send_signal(signal.SIGSTOP)
    try:
        with subprocess.Popen(["cat", str(spoke.mountpoint / "cold")], stdout=subprocess.DEVNULL) as waiting:
            eventually(lambda: spoke.facts()["reads"]["waiting"] == 1)
            done = run("spoke.cli", "upgrade", str(spoke.mountpoint), timeout_s=100)
            assert done.returncode == 0, done.stderr
            assert (spoke.mountpoint / "f").read_bytes() == data
            hub.popen.send_signal(signal.SIGCONT)
            assert waiting.wait(15) == 0
    finally:
        hub.popen.send_signal(signal.SIGCONT)
    pauses_s = [json.loads(line)["paused_s"] for line in spoke.log().splitlines() if '"paused_s"' in line]
    assert len(pauses_s) == 1
    assert pauses_s[0] < 3


@pytest.mark.slow
def test_a_new_worker_that_cannot_start_leaves_the_old_one(pair: Pair) -> None:
    data = write(pair.data / "f", 4 * MIB, 1)
    hub = pair.hub()
    spoke, _, rewrite = configured(pair, hub.address)
    fd = os.open(spoke.mountpoint / "f", os.O_RDONLY)
    pid = spoke.worker_pid()
    rewrite("no such setting = [\n")
    done = run("spoke.cli", "upgrade", str(spoke.mountpoint), timeout_s=100)
    assert done.returncode == 1
    assert "the old one serves on" in done.stderr
    assert spoke.worker_pid() == pid
    assert os.pread(fd, MIB, 0) == data[:MIB]
    os.close(fd)


@pytest.mark.slow
def test_a_new_worker_that_cannot_serve_gives_the_mount_back(pair: Pair) -> None:
    data = write(pair.data / "f", 4 * MIB, 1)
    other = pair.work_dir / "other"
    other.mkdir()
    hub = pair.hub(extra=["--dataset", f"other={other}"])
    config = pair.work_dir / "spoke.toml"
    config.write_text('dataset = "data"\n')
    spoke = FromFile(pair.work_dir / "mnt", hub.address, pair.work_dir / "cache", config)
    pair._spokes.append(spoke)
    spoke.ready()
    fd = os.open(spoke.mountpoint / "f", os.O_RDONLY)
    pid = spoke.worker_pid()
    config.write_text('dataset = "other"\n')
    done = run("spoke.cli", "upgrade", str(spoke.mountpoint), timeout_s=100)
    assert done.returncode == 1
    assert "the running mount has the dataset 'data'" in done.stderr
    assert "took the mount back" in done.stderr
    assert os.pread(fd, MIB, MIB) == data[MIB : 2 * MIB]
    assert spoke.worker_pid() == pid
    os.close(fd)
    assert (spoke.mountpoint / "f").read_bytes() == data
    config.write_text('dataset = "data"\n')
    assert run("spoke.cli", "upgrade", str(spoke.mountpoint), timeout_s=100).returncode == 0
    assert spoke.terminate() == 0


class FromFile(Spoke):
    """A spoke whose dataset stands in a file."""

    def __init__(self, mountpoint: Path, hub_address: str, cache_dir: Path, config: Path) -> None:
        super().__init__(mountpoint, hub_address, cache_dir, dataset=None, extra=["--config", str(config)])


# --- without the supervisor ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_whose_supervisor_is_killed_unmounts_and_ends(pair: Pair) -> None:
    write(pair.data / "f", MIB, 1)
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    pid = spoke.worker_pid()
    fd = os.open(spoke.mountpoint / "f", os.O_RDONLY)
    spoke.popen.kill()
    assert spoke.popen.wait(10) == -signal.SIGKILL
    eventually(lambda: not is_running(pid))
    assert not mounts_at(str(spoke.mountpoint))
    with pytest.raises(OSError):
        os.pread(fd, 4096, 0)
    os.close(fd)
    assert (pair.spoke(hub.address).mountpoint / "f").stat().st_size == MIB


def test_commands_without_a_mount_say_so(tmp_path: Path) -> None:
    done = run("spoke.cli", "upgrade", str(tmp_path))
    assert done.returncode == 2
    assert "no spoke" in done.stderr


def test_the_supervisor_answers_for_itself(pair: Pair) -> None:
    spoke = pair.spoke(pair.hub().address)
    path = control.supervisor_socket_path(runtime_dir(), str(spoke.mountpoint.resolve()))
    state = control.ask_once(path, {"command": "state"})
    assert (state["supervisor_pid"], state["worker_pid"], state["serving"]) == (
        spoke.popen.pid,
        spoke.worker_pid(),
        True,
    )
    with pytest.raises(control.ControlRefused, match="known: state, stop, upgrade"):
        control.ask_once(path, {"command": "dance"})
    memory_kib = int(next(line.split()[1] for line in Path(f"/proc/{spoke.popen.pid}/status").read_text().splitlines()
                          if line.startswith("VmRSS:")))  # fmt: skip
    assert memory_kib < 32 * 1024
    loaded = Path(f"/proc/{spoke.popen.pid}/maps").read_text()
    assert [name for name in ("uvloop", "pydantic", "msgpack", "xxhash") if name in loaded] == []
    assert len(children(spoke.popen.pid)) == 1


def test_a_read_waits_one_read_timeout_however_many_workers_it_has(pair: Pair) -> None:
    (pair.data / "f.bin").write_bytes(os.urandom(MIB))
    hub = pair.hub()
    spoke = pair.spoke(hub.address, extra=["--read-timeout", "6s"])
    fd = os.open(spoke.mountpoint / "f.bin", os.O_RDONLY)
    ended: list[tuple[float, int | None]] = []

    def read() -> None:
        began_s = time.monotonic()
        code = None
        try:
            os.pread(fd, 4096, 0)
        except OSError as error:
            code = error.errno
        ended.append((time.monotonic() - began_s, code))

    hub.popen.send_signal(signal.SIGSTOP)
    try:
        reader = threading.Thread(target=read)
        start_s = time.monotonic()
        reader.start()
        for _ in range(2):
            eventually(lambda: spoke.facts()["reads"]["waiting"] == 1)
            time.sleep(1.5)  # which it has had of its time
            back(spoke, kill_worker(spoke))
        back_s = time.monotonic() - start_s
        reader.join(60)
    finally:
        hub.popen.send_signal(signal.SIGCONT)
    os.close(fd)
    ((took_s, code),) = ended
    assert code == errno.EIO
    assert took_s > 5.0
    assert took_s - back_s < 4.0, "at most 3 s were left of it when the last worker came, not all 6"


def test_a_stop_ends_a_mount_whose_worker_hangs(pair: Pair) -> None:
    (pair.data / "f.bin").write_bytes(b"x")
    spoke = pair.spoke(pair.hub().address)
    os.kill(spoke.worker_pid(), signal.SIGSTOP)
    spoke.popen.send_signal(signal.SIGTERM)
    assert spoke.popen.wait(30) == 0, "and no other worker takes its place"
    assert not mounts_at(str(spoke.mountpoint))
    assert "the mount is served again" not in spoke.log()
