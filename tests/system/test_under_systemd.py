"""Daemons with a NOTIFY_SOCKET as systemd gives them: READY once they serve, STOPPING when told to stop, gone in time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pair import Hub, Pair, Process, Spoke, eventually


class Systemd:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(20)

    def until(self, field: str) -> dict[str, str]:
        """The first message with this field; those before it may only be signs of life and requests for time."""
        while True:
            said = dict(line.split("=", 1) for line in self._socket.recv(4096).decode().split("\n"))
            if field in said:
                return said
            assert said.keys() <= {"WATCHDOG", "EXTEND_TIMEOUT_USEC"}, said

    def close(self) -> None:
        self._socket.close()


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
         "--metrics", "127.0.0.1:0", "--state-dir", str(tmp_path / "hub")],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    systemd.until("STOPPING")
    assert systemd.until("STATUS")["STATUS"].startswith("failed: cannot listen on 192.0.2.1:1")
