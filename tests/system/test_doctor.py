"""``headrace-spoke doctor`` on a real pair: healthy, with the hub stopped, the spoke stopped, the spoke dead, and nobody there."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.system.pair import Pair, run

pytestmark = [pytest.mark.mount, pytest.mark.slow]

MOST_S = 8.0
"""What doctor may take, whatever hangs; starting an interpreter on a busy machine comes on top."""


def findings(*arguments: str, code: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole JSON, and its findings by name."""
    answer = run("spoke.cli", "doctor", *arguments, "--json")
    assert answer.returncode == code, answer.stdout + answer.stderr
    told = json.loads(answer.stdout)
    assert told["took_s"] < MOST_S
    return told, {found["check"]: found for found in told["findings"]}


def test_a_healthy_pair(pair: Pair) -> None:
    (pair.data / "a").write_bytes(b"x" * 100)
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    told, found = findings(str(spoke.mountpoint), code=0)
    assert told["hub"] == hub.address
    assert told["path"]["rtt_s"] < 0.1
    for check in ("mount", "hub", "tcp buffers", "read-ahead", "cache space", "open files"):
        assert found[check]["level"] == "ok", found[check]
    assert "'data' at revision" in found["hub"]["seen"]
    assert str(pair.work_dir / "cache") in found["cache file system"]["seen"]
    here = {entry.name for entry in (pair.work_dir / "cache").iterdir()}
    # Nothing of the doctor's; the scrub notes where it is when it has gone round once, which may be by now.
    assert here - {"scrub.json"} == {"headrace-cache.json", "lock", "names", "orders", "versions"}

    # A far and fast link by hand: the same limits no longer do.
    told, found = findings(str(spoke.mountpoint), "--rtt", "900ms", "--rate", "400gbit", code=1)
    assert told["worst"] == "problem"
    assert found["tcp buffers"]["figures"]["share"] < 0.5
    assert "tcp_rmem" in found["tcp buffers"]["mend"] + found["tcp buffers"]["seen"]

    people = run("spoke.cli", "doctor", str(spoke.mountpoint))
    assert people.stdout.splitlines()[0].startswith(f"{spoke.mountpoint} hub {hub.address}: ")
    assert "ok" in people.stdout


def test_a_stopped_hub_and_a_stopped_spoke(pair: Pair) -> None:
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    hub.popen.send_signal(signal.SIGSTOP)
    try:
        _, found = findings(str(spoke.mountpoint), code=1)
        assert found["mount"]["level"] == "ok"
        assert "does not answer HELLO" in found["hub"]["seen"]
        worker = spoke.worker_pid()
        os.kill(worker, signal.SIGSTOP)
        try:
            _, found = findings(str(spoke.mountpoint), code=1)
        finally:
            os.kill(worker, signal.SIGCONT)
        assert found["mount"]["level"] == "problem"
        assert f"process {spoke.popen.pid}" in found["mount"]["seen"]
        # Its command line still tells where the hub and the cache are.
        assert "does not answer HELLO" in found["hub"]["seen"]
        assert str(pair.work_dir / "cache") in found["cache file system"]["seen"]
    finally:
        hub.popen.send_signal(signal.SIGCONT)


def test_a_dead_spoke(pair: Pair) -> None:
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    spoke.kill(signal.SIGKILL)
    _, found = findings(str(spoke.mountpoint), "--hub", hub.address, code=1)
    assert "has died" in found["mount"]["seen"]
    assert "headrace-spoke umount" in found["mount"]["mend"]
    assert found["hub"]["level"] == "ok"  # the mount's source still names the dataset


def test_before_any_mount(pair: Pair, tmp_path: Path) -> None:
    hub = pair.hub()
    _, found = findings("--hub", hub.address, "--cache-dir", str(tmp_path / "new"), code=0)
    assert "served: data" in found["hub"]["seen"]
    assert not (tmp_path / "new").exists()
    _, found = findings("--hub", hub.address, "--dataset", "data", code=0)
    assert found["hub"]["level"] == "ok"
    findings(code=0)


def test_addresses_that_never_answer() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        _, found = findings("--hub", address, "--dataset", "data", code=1)
        assert "does not answer HELLO" in found["hub"]["seen"]
        waiting = [socket.socket() for _ in range(3)]
        try:
            for client in waiting:  # the backlog is full: further SYNs are dropped
                client.setblocking(False)
                client.connect_ex(silent.getsockname())
            _, found = findings("--hub", address, "--dataset", "data", code=1)
        finally:
            for client in waiting:
                client.close()
        assert "no answer to SYN" in found["hub"]["seen"]
