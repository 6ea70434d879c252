"""Without descriptors neither daemon spins, dies or forgets to go on: real processes under a small RLIMIT_NOFILE."""

from __future__ import annotations

import os
import resource
import socket
import time

import pytest
from pair import Hub, Pair, Process, eventually

from bench.cpu_time import cpu_time


def descriptors(process: Process) -> int:
    return len(os.listdir(f"/proc/{process.popen.pid}/fd"))


def allow_only(process: Process, more: int) -> None:
    """So many descriptors beyond those it has."""
    most = max(int(name) for name in os.listdir(f"/proc/{process.popen.pid}/fd")) + 1 + more
    hard = resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (most, hard))


def dial(hub: Hub) -> socket.socket:
    return socket.create_connection(("127.0.0.1", hub.port), timeout=5)


@pytest.mark.mount
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_hub_without_descriptors_neither_spins_nor_stops_for_ever(pair: Pair, workers: int) -> None:
    (pair.data / "f").write_bytes(b"x" * 5000)
    hub = pair.hub(extra=["--workers", str(workers)] if workers > 1 else [])
    allow_only(hub, 10)
    held = [dial(hub) for _ in range(60)]
    try:
        eventually(lambda: descriptors(hub) >= 10)
        before_s = cpu_time(hub.popen.pid).total_s
        time.sleep(1)
        assert cpu_time(hub.popen.pid).total_s - before_s < 0.5, "it waits instead of trying again and again"
    finally:
        for connection in held:
            connection.close()
    eventually(lambda: has_room(hub), 15)
    hard = resource.prlimit(hub.popen.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(hub.popen.pid, resource.RLIMIT_NOFILE, (hard, hard))  # a spoke takes more than ten
    spoke = pair.spoke(hub.address)
    assert (spoke.mountpoint / "f").read_bytes() == b"x" * 5000


def has_room(hub: Hub) -> bool:
    """It takes a connection and keeps it."""
    try:
        with dial(hub) as connection:
            connection.settimeout(0.3)
            return bool(connection.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


@pytest.mark.mount
def test_a_spoke_without_descriptors_serves_right_bytes_from_the_hub(pair: Pair) -> None:
    for number in range(200):
        (pair.data / f"{number:03d}").write_bytes(number.to_bytes(2, "big") * 40_000)
    hub = pair.hub()
    spoke = pair.spoke(hub.address, extra=["--links", "2"])
    allow_only(spoke, 6)
    opened = []
    try:
        for number in range(200):
            file = open(spoke.mountpoint / f"{number:03d}", "rb")  # noqa: SIM115 (all are open at once)
            opened.append(file)
            assert file.read() == number.to_bytes(2, "big") * 40_000
    finally:
        for file in opened:
            file.close()
    assert (spoke.mountpoint / "007").read_bytes() == (7).to_bytes(2, "big") * 40_000


def test_the_soft_limit_is_raised_to_the_hard_one(pair: Pair) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    try:
        hub = pair.hub()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(hub.popen.pid, resource.RLIMIT_NOFILE) == (hard, hard)
