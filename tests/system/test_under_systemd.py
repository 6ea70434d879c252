"""Daemons with a NOTIFY_SOCKET as systemd gives them: READY once they serve, STOPPING when told to stop, gone in time."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pair import Hub, Pair, Process, Spoke, eventually, is_running


class Systemd:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.stored: dict[str, int] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._said: queue.Queue[tuple[bytes, list[int]]] = queue.Queue()
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        """Always at once, as systemd does: the kernel keeps ten messages that nobody takes, and then none."""
        while True:
            data, fds, _, _ = socket.recv_fds(self._socket, 4096, 4)
            self._said.put((data, fds))
            if not data:
                return

    def until(self, field: str) -> dict[str, str]:
        """The first message with this field; those before it may only be signs of life and requests for time."""
        while True:
            data, fds = self._said.get(timeout=30)
            said = dict(line.split("=", 1) for line in data.decode().split("\n"))
            if "FDSTORE" in said:
                (self.stored[said["FDNAME"]],) = fds
            if "FDSTOREREMOVE" in said and said["FDNAME"] in self.stored:
                os.close(self.stored.pop(said["FDNAME"]))
            if field in said:
                return said
            assert said.keys() <= {"WATCHDOG", "EXTEND_TIMEOUT_USEC", "FDSTORE", "FDSTOREREMOVE", "FDNAME", "STATUS"}, (
                said
            )

    def give_back(self) -> list[str]:
        """In front of a command: the descriptors as systemd hands them to the next start."""
        names = list(self.stored)
        script = (
            "import os, sys; kept = [os.dup(int(fd)) for fd in sys.argv[2].split(',')];"
            "kept = [os.dup2(os.dup(fd), 100 + at) for at, fd in enumerate(kept)];"
            "[os.dup2(fd, 3 + at) for at, fd in enumerate(kept)]; os.closerange(5, 200);"
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2', LISTEN_FDNAMES=sys.argv[1]);"
            "os.execv(sys.executable, [sys.executable, *sys.argv[3:]])"
        )
        return ["-c", script, ":".join(names), ",".join(str(self.stored[name]) for name in names)]

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", str(self.path))
        self._thread.join(10)
        self._socket.close()
        for fd in self.stored.values():
            os.close(fd)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    made = Systemd(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(made.path))
    monkeypatch.setenv("WATCHDOG_USEC", "600000")
    yield made
    made.close()


def stop(process: Process, systemd: Systemd) -> float:
    began_s = time.monotonic()
    process.popen.send_signal(signal.SIGTERM)
    assert systemd.until("STOPPING")["STATUS"] == "stopping"
    assert process.popen.wait(10) == 0
    return time.monotonic() - began_s


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_hub_says_ready_lives_and_stops(pair: Pair, systemd: Systemd, workers: str) -> None:
    hub: Hub = pair.hub(extra=("--workers", workers))
    assert systemd.until("READY")["STATUS"] == f"listening on {hub.address}, metrics on {hub.metrics}"
    systemd.until("WATCHDOG")
    assert stop(hub, systemd) < 9


@pytest.mark.mount
def test_a_spoke_stops_with_the_hub_dead_and_a_reader_blocked(pair: Pair, systemd: Systemd) -> None:
    (pair.data / "f").write_bytes(os.urandom(4 << 20))
    hub = pair.hub()
    systemd.until("READY")
    spoke: Spoke = pair.spoke(hub.address)
    assert systemd.until("READY")["STATUS"] == f"mounted data on {spoke.mountpoint}"
    assert (spoke.mountpoint / "f").stat().st_size == 4 << 20
    hub.kill()
    reader = subprocess.Popen(
        [sys.executable, "-c", "import sys; open(sys.argv[1], 'rb', 0).read(1)", str(spoke.mountpoint / "f")],
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: spoke.facts()["reads"]["waiting"] > 0)
        for _ in range(4):  # waiting for a hub is no hanging
            systemd.until("WATCHDOG")
        assert stop(spoke, systemd) < 7
        assert reader.wait(5) != 0, "it was told an error"
    finally:
        reader.kill()
        reader.wait()
    assert not os.path.ismount(spoke.mountpoint)


def test_a_start_that_fails_says_why(tmp_path: Path, systemd: Systemd) -> None:
    (tmp_path / "state").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "hub.cli", "serve", "--dataset", f"d={tmp_path}/state", "--listen", "192.0.2.1:1",
         "--insecure", "--metrics", "127.0.0.1:0", "--state-dir", str(tmp_path / "hub")],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    systemd.until("STOPPING")
    assert systemd.until("STATUS")["STATUS"].startswith("failed: cannot listen on 192.0.2.1:1")


class Restarted(Spoke):
    """Started as systemd does it after a restart."""

    def __init__(self, before: Spoke, systemd: Systemd) -> None:
        self.mountpoint = before.mountpoint
        self.log_path = before.log_path
        self._log = before.log_path.open("ab")
        self.popen = subprocess.Popen(
            [sys.executable, *systemd.give_back(), *before.popen.args[1:]],  # type: ignore[misc]
            stdout=subprocess.PIPE, stderr=self._log, stdin=subprocess.DEVNULL, pass_fds=list(systemd.stored.values()),
        )  # fmt: skip


@pytest.mark.mount
@pytest.mark.parametrize("how", ["restart", "killed", "stop"])
def test_a_restart_keeps_the_mount_and_a_stop_does_not(
    pair: Pair, systemd: Systemd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    (pair.data / "f").write_bytes(os.urandom(4 << 20))
    data = (pair.data / "f").read_bytes()
    hub = pair.hub()
    systemd.until("READY")
    monkeypatch.setenv("FDSTORE", "8")
    monkeypatch.setenv("HEADRACE_UNIT", "headrace-spoke@data.service")
    (tmp_path / "bin").mkdir()
    told = tmp_path / "bin" / "systemctl"
    told.write_text(f"#!/bin/sh\necho '41 headrace-spoke@data.service {how} running'\n")
    told.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    spoke: Spoke = pair.spoke(hub.address, extra=["--no-prefetch"])
    systemd.until("READY")
    assert sorted(systemd.stored) == ["headrace-device", "headrace-ledger"]
    fd = os.open(spoke.mountpoint / "f", os.O_RDONLY)
    assert os.pread(fd, 4096, 0) == data[:4096]
    try:
        if how == "killed":
            worker = spoke.worker_pid()
            spoke.popen.kill()
            spoke.popen.wait(10)
            eventually(lambda: not is_running(worker))
        else:
            assert stop(spoke, systemd) < 9
        if how == "stop":
            assert not os.path.ismount(spoke.mountpoint)
            while systemd.stored:
                systemd.until("FDSTOREREMOVE")
            return
        reader = subprocess.Popen(
            [sys.executable, "-c", "import os,sys; sys.stdout.buffer.write(os.pread(int(sys.argv[1]), 1 << 20, 1 << 20))", str(fd)],
            pass_fds=[fd], stdout=subprocess.PIPE,
        )  # fmt: skip
        after = Restarted(spoke, systemd)
        pair._spokes.append(after)
        after.ready()
        assert reader.communicate(timeout=20)[0] == data[1 << 20 : 2 << 20]
        systemd.until("READY")
        assert (after.mountpoint / "f").read_bytes() == data
        told.write_text("#!/bin/sh\n")
        os.close(fd)
        fd = -1
        assert stop(after, systemd) < 9
        assert not os.path.ismount(after.mountpoint)
    finally:
        if fd >= 0:
            os.close(fd)


@pytest.mark.mount
def test_a_worker_that_hangs_is_replaced_and_systemd_sees_a_live_service(pair: Pair, systemd: Systemd) -> None:
    hub = pair.hub()
    systemd.until("READY")
    spoke: Spoke = pair.spoke(hub.address)
    assert systemd.until("READY")["MAINPID"] == str(spoke.popen.pid)
    hanging = spoke.worker_pid()
    os.kill(hanging, signal.SIGSTOP)
    began_s = time.monotonic()
    while is_running(hanging):
        systemd.until("WATCHDOG")
        assert time.monotonic() - began_s < 30
    assert "gives no sign of life" in spoke.log()
    while not systemd.until("WATCHDOG") or "is served again" not in spoke.log():
        assert time.monotonic() - began_s < 60
    assert spoke.worker_pid() != hanging
