"""Signals, dead spokes and silent hubs, as an operator meets them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from common.errors import HeadraceError
from spoke import control
from spoke.places import runtime_dir
from tests.system.pair import Pair, eventually, run

pytestmark = pytest.mark.mount


def facts(mountpoint: Path) -> dict[str, Any]:
    return control.ask_once(control.socket_path(runtime_dir(), str(mountpoint.resolve())), {"command": "status"})


def upgrades(mountpoint: Path) -> int:
    """-1 while one worker hands over to the next."""
    try:
        count: int = facts(mountpoint)["supervision"]["upgrades"]
    except HeadraceError:
        return -1
    return count


def serving(mountpoint: Path, restarts: int = 0) -> bool:
    """After so many of its workers died."""
    try:
        state = control.ask_once(
            control.supervisor_socket_path(runtime_dir(), str(mountpoint.resolve())), {"command": "state"}
        )
    except HeadraceError:
        return False
    return bool(state["serving"] and state["restarts"] == restarts)


@pytest.mark.usefixtures("hangups_count")
def test_a_terminal_that_hangs_up_unmounts_and_a_background_spoke_does_not_care(pair: Pair) -> None:
    hub = pair.hub()
    mountpoint = pair.work_dir / "mnt"
    mountpoint.mkdir()
    here, terminal = os.openpty()
    shell = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-m", "spoke.cli", "mount", str(mountpoint), "--hub", hub.address,
         "--dataset", "data", "--cache-dir", str(pair.work_dir / "cache"), "--metrics", "127.0.0.1:0"],
        stdin=terminal, stdout=terminal, stderr=terminal, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    os.close(terminal)
    eventually(lambda: serving(mountpoint), 30)  # before that it is a start that was broken off, exit code 1
    os.close(here)
    assert shell.wait(20) == 0
    assert not os.path.ismount(mountpoint)

    mountpoint = pair.work_dir / "quiet"
    mountpoint.mkdir()
    try:
        answer = run(
            "spoke.cli", "mount", str(mountpoint), "--hub", hub.address, "--dataset", "data",
            "--cache-dir", str(pair.work_dir / "cache2"), "--metrics", "127.0.0.1:0", "--background",
        )  # fmt: skip
        assert (answer.returncode, answer.stdout.startswith(f"mounted data on {mountpoint}; log: /")) == (0, True)
        pid = facts(mountpoint)["pid"]
        os.kill(pid, signal.SIGHUP)
        assert facts(mountpoint)["pid"] == pid
        os.kill(
            facts(mountpoint)["supervision"]["supervisor_pid"], signal.SIGHUP
        )  # a stray one: no more than an upgrade
        eventually(lambda: upgrades(mountpoint) == 1, 60)
        os.kill(facts(mountpoint)["pid"], signal.SIGKILL)
        eventually(lambda: serving(mountpoint, restarts=1), 60)
    finally:
        run("spoke.cli", "umount", str(mountpoint), "--force")
    log = Path(answer.stdout.rpartition("log: ")[2].strip())
    assert "the worker died" in log.read_text(), "kept for whoever wants to know why"
    log.unlink()


def test_commands_say_that_the_spoke_of_a_mount_has_died(pair: Pair) -> None:
    spoke = pair.spoke(pair.hub().address)
    spoke.kill(signal.SIGKILL)
    for command in ("status", "warm", "accept"):
        answer = run("spoke.cli", command, str(spoke.mountpoint))
        assert answer.returncode == 2
        assert f"the spoke of {spoke.mountpoint} has died" in answer.stderr
        assert "headrace-spoke umount" in answer.stderr
    assert run("spoke.cli", "umount", str(spoke.mountpoint)).returncode == 0


def test_a_reader_waits_for_one_read_timeout_though_the_kernel_asks_twice(pair: Pair) -> None:
    (pair.data / "big").write_bytes(os.urandom(4 << 20))
    hub = pair.hub()
    spoke = pair.spoke(hub.address, extra=["--read-timeout", "3s", "--no-prefetch"])
    eventually((spoke.mountpoint / "big").exists)
    hub.popen.send_signal(signal.SIGSTOP)
    try:
        started_s = time.monotonic()
        dd = ["dd", f"if={spoke.mountpoint}/big", "of=/dev/null", "bs=1M", "count=1", "skip=2"]
        answer = subprocess.run(dd, capture_output=True, text=True, timeout=60, check=False)
        waited_s = time.monotonic() - started_s
    finally:
        hub.popen.send_signal(signal.SIGCONT)
    assert "Input/output error" in answer.stderr
    assert 2.9 < waited_s < 5.5
    told = [line for line in spoke.log().splitlines() if "read failed" in line and "offset_bytes" not in line]
    assert told == []  # the line that names the file and the place is enough
