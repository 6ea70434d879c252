"""The probes against made-up /proc and /sys trees, a disk that fails, and hubs that are silent, absent or something else."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import limits
from common.serving.server import Server
from spoke.cache.disk import Disk
from spoke.doctor.examine import Probe
from spoke.doctor.facts import HubState
from spoke.doctor.probe_disk import disk_facts, fs_type_of
from spoke.doctor.probe_host import fuse_facts, host_facts, kernel_version, tcp_facts
from spoke.doctor.probe_hub import hub_facts, least_rtt_s
from spoke.doctor.probe_mount import is_understood, read_ahead_kb, started_with
from tests.fakes.memory_source import MemorySource
from tests.unit.spoke.doctor.doctor_support import status

now_s = time.monotonic


def tree(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return root


# --- /proc and /sys ------------------------------------------------------------------------------------------


def test_tcp_limits_are_read(tmp_path: Path) -> None:
    ipv4 = "proc/sys/net/ipv4/"
    facts = tcp_facts(
        tree(
            tmp_path,
            {
                ipv4 + "tcp_rmem": "4096\t131072\t6291456\n",
                ipv4 + "tcp_wmem": "4096 16384 4194304",
                ipv4 + "tcp_mem": "1 2 3",
                ipv4 + "tcp_moderate_rcvbuf": "1\n",
                ipv4 + "tcp_window_scaling": "0\n",
                ipv4 + "tcp_slow_start_after_idle": "nonsense",
                ipv4 + "tcp_congestion_control": "cubic\n",
                ipv4 + "tcp_available_congestion_control": "reno cubic\n",
            },
        )
    )
    assert (facts.rmem_bytes, facts.mem_pages) == ((4096, 131072, 6291456), (1, 2, 3))
    assert (facts.moderate_rcvbuf, facts.window_scaling, facts.sack) == (1, 0, None)
    assert (facts.slow_start_after_idle, facts.congestion_control) == (None, "cubic")
    assert facts.available == ("reno", "cubic")


def test_an_empty_proc_is_no_error(tmp_path: Path) -> None:
    assert tcp_facts(tmp_path).rmem_bytes is None
    assert fuse_facts(tmp_path).max_pages_limit is None
    facts = host_facts(now_s, 4711, tmp_path)
    assert (facts.kernel, facts.memory_limit_bytes, facts.clocksource) == (None, None, None)


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.18.44-aws", (6, 18)), ("5.4.0", (5, 4)), ("6.1-rc3", (6, 1)), ("", None), ("plan9", None)],
)
def test_kernel_releases(release: str, version: tuple[int, int] | None) -> None:
    assert kernel_version(release) == version


def test_limits_are_those_of_the_spokes_process(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/4711/limits": "Limit   Soft Limit   Hard Limit   Units\nMax open files            1024    524288    files\n",
            "proc/4711/cgroup": "0::/kubepods/pod7/spoke\n",
            "proc/self/limits": "Max open files            99    99    files\n",
            "sys/fs/cgroup/kubepods/pod7/spoke/memory.max": "max\n",
            "sys/fs/cgroup/kubepods/pod7/memory.max": "2147483648\n",
            "sys/fs/cgroup/kubepods/memory.max": "9999999999\n",
            "proc/meminfo": "MemTotal: 8 kB\nMemAvailable:   4096 kB\n",
            "proc/sys/kernel/osrelease": "6.9.1\n",
        },
    )
    facts = host_facts(now_s, 4711, root)
    assert (facts.open_files_max, facts.memory_limit_bytes) == (1024, 2147483648)
    assert (facts.memory_available_bytes, facts.kernel) == (4096 * 1024, (6, 9))
    assert host_facts(now_s, 815, root).open_files_max == 99


def test_cgroups_of_version_1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:devices:/\n4:memory:/a/b\n0::/\n",
            "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1048576\n",
        },
    )
    assert host_facts(now_s, None, root).memory_limit_bytes == 1048576


def test_a_clock_that_goes_back_is_noticed(tmp_path: Path) -> None:
    readings = iter([*range(500), 100.0, *range(600)])
    assert host_facts(lambda: float(next(readings)), None, tmp_path).monotonic_went_back
    assert not host_facts(now_s, None, tmp_path).monotonic_went_back


def test_what_the_kernel_was_built_with(tmp_path: Path) -> None:
    config = "CONFIG_FUSE_FS=y\n# CONFIG_FUSE_PASSTHROUGH is not set\n"
    root = tree(
        tmp_path,
        {
            "proc/config.gz": gzip.compress(config.encode()),
            "proc/self/uid_map": "         0       1000          1\n",
            "proc/sys/fs/fuse/max_pages_limit": "32\n",
            "dev/fuse": "no device",
        },
    )
    facts = fuse_facts(root)
    assert (facts.passthrough_built_in, facts.in_initial_user_namespace, facts.max_pages_limit) == (False, False, 32)
    assert "not a device" in facts.device_error
    (root / "proc/config.gz").write_bytes(b"broken")
    tree(
        root,
        {"proc/sys/kernel/osrelease": "6.9.1", "boot/config-6.9.1": "CONFIG_FUSE_FS=m\nCONFIG_FUSE_PASSTHROUGH=y\n"},
    )
    assert fuse_facts(root).passthrough_built_in is True


def test_the_mounts_own_facts(tmp_path: Path) -> None:
    words = [
        "python",
        "-m",
        "spoke.cli",
        "mount",
        "/mnt/c4",
        "--hub=10.0.1.5:7420",
        "--cache-dir",
        "/nvme/h",
        "--dataset",
    ]
    root = tree(
        tmp_path,
        {
            "sys/class/bdi/0:57/read_ahead_kb": "1024\n",
            "proc/4711/cmdline": "\0".join(words).encode() + b"\0",
        },
    )
    assert (read_ahead_kb(57, root), read_ahead_kb(58, root)) == (1024, None)
    assert started_with(4711, root) == {"--hub": "10.0.1.5:7420", "--cache-dir": "/nvme/h"}
    assert started_with(1, root) == {}


def test_a_status_of_another_version_is_not_taken_apart() -> None:
    assert is_understood(status())
    for part in status():
        assert not is_understood({name: value for name, value in status().items() if name != part})
    assert not is_understood(status(hub={"address": "10.0.1.5:7420"}))
    assert not is_understood("stopping")


# --- the disk ------------------------------------------------------------------------------------------------

MOUNTINFO = b"""\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
30 21 0:40 / /nvme rw - xfs /dev/nvme0 rw
31 30 0:41 / /nvme/over rw - tmpfs none rw
32 30 0:42 / /nvme/over rw - overlay none rw
"""


@pytest.mark.parametrize(
    ("path", "fs_type"),
    [("/nvme/headrace", "xfs"), ("/nvme", "xfs"), ("/nvmeother", "ext4"), ("/nvme/over/x", "overlay"), ("/", "ext4")],
)
def test_the_file_system_of_a_path(path: str, fs_type: str) -> None:
    assert fs_type_of(path, MOUNTINFO) == fs_type


def test_a_real_directory_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    facts = disk_facts(tmp_path, now_s)
    assert (facts.error, facts.exists, facts.hung) == ("", True, False)
    assert facts.total_bytes >= facts.free_bytes > 0
    assert facts.write_bytes_per_s
    assert facts.read_bytes_per_s
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    facts = disk_facts(tmp_path / "a" / "b", now_s)
    assert (facts.exists, facts.directory, facts.error) == (False, str(tmp_path), "")
    assert list(tmp_path.iterdir()) == []


class FullDisk(Disk):
    def pwrite(self, fd: int, data: object, offset: int, /) -> int:  # type: ignore[override]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class NoHoles(Disk):
    def punch_hole(self, fd: int, offset_bytes: int, length_bytes: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")


def test_disks_that_refuse(tmp_path: Path) -> None:
    assert disk_facts(tmp_path, now_s, FullDisk()).error == "No space left on device"
    assert disk_facts(tmp_path, now_s, NoHoles()).punches_holes is False
    assert disk_facts(Path("/proc/none"), now_s).error


def test_a_slow_disk_gets_only_its_time(tmp_path: Path) -> None:
    class Slow(Disk):
        clock_s = 0.0

        def pwrite(self, fd: int, data: bytes, offset: int, /) -> int:  # type: ignore[override]
            self.clock_s += 0.6
            return os.pwrite(fd, data, offset)

    disk = Slow()
    facts = disk_facts(tmp_path, lambda: disk.clock_s, disk)
    assert facts.write_bytes_per_s == pytest.approx(2 * 2**20 / 1.2)


def test_a_probe_that_hangs_is_given_up_and_one_that_fails_says_so() -> None:
    never = threading.Event()
    probe = Probe(never.wait)
    assert probe.result(now_s() + 0.05, now_s) is None
    never.set()
    with pytest.raises(ZeroDivisionError):
        Probe(lambda: 1 // 0).result(now_s() + 5, now_s)


# --- hubs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limits of dialling and HELLO, shortened."""
    monkeypatch.setattr("spoke.doctor.probe_hub.DOCTOR_DIAL_TIMEOUT_S", 0.3)
    monkeypatch.setattr("spoke.doctor.probe_hub.DOCTOR_HELLO_TIMEOUT_S", 0.3)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_a_hub_that_answers() -> None:
    async with Server({"memory": MemorySource()}, listen=("127.0.0.1", 0)) as server:
        port = server.port
        facts = await asyncio.to_thread(hub_facts, "127.0.0.1", port, "memory", now_s)
        assert (facts.state, facts.wire_version, facts.is_loopback) == (HubState.WELCOMED, 1, True)
        assert len(facts.pings_s) == limits.DOCTOR_PINGS
        assert (facts.mtu_bytes or 0) > 1000
        assert 0 < (least_rtt_s(facts) or 0) < 1

        wrong = await asyncio.to_thread(hub_facts, "127.0.0.1", port, "other", now_s)
        assert (wrong.state, wrong.said) == (HubState.NAMED_NO_DATASET, "no dataset 'other' here; served: memory")
        unnamed = await asyncio.to_thread(hub_facts, "127.0.0.1", port, None, now_s)
        assert (unnamed.state, unnamed.said) == (HubState.NAMED_NO_DATASET, "served: memory")


async def test_on_a_long_path_fewer_pings_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spoke.doctor.probe_hub.DOCTOR_PINGS_S", 0.0)
    async with Server({"memory": MemorySource()}, listen=("127.0.0.1", 0)) as server:
        facts = await asyncio.to_thread(hub_facts, "127.0.0.1", server.port, "memory", now_s)
    assert len(facts.pings_s) == 1


@pytest.mark.usefixtures("quick")
def test_a_socket_that_listens_and_never_answers(listening: socket.socket) -> None:
    facts = hub_facts("127.0.0.1", listening.getsockname()[1], "c4", now_s)
    assert (facts.state, facts.said) == (HubState.SILENT, "nothing within 0.3 s")
    assert facts.connect_s is not None


@pytest.mark.usefixtures("quick")
def test_an_address_that_swallows_everything(listening: socket.socket) -> None:
    """A full backlog: the kernel drops further SYNs, as a firewall does."""
    address = listening.getsockname()
    listening.listen(0)
    waiting = []
    try:
        for _ in range(3):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(address)
            waiting.append(client)
        facts = hub_facts(*address, "c4", now_s)
    finally:
        for client in waiting:
            client.close()
    assert (facts.state, facts.said) == (HubState.UNREACHABLE, "no answer to SYN within 0.3 s")


def test_nobody_and_no_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert hub_facts("127.0.0.1", port, "c4", now_s).state is HubState.REFUSED
    assert hub_facts("no such name", port, "c4", now_s).state is HubState.NO_NAME


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_something_else_answers(listening: socket.socket, said: bytes) -> None:
    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(said)

    thread = threading.Thread(target=answer)
    thread.start()
    facts = hub_facts("127.0.0.1", listening.getsockname()[1], "c4", now_s)
    thread.join()
    assert facts.state is HubState.OTHER_PROTOCOL
