"""A killed worker of which the kernel keeps a thread: it waits for a name's lock, whose holder waits for the next worker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pair import Pair, Spoke, eventually

from common.remains import is_held_by_fuse

pytestmark = pytest.mark.mount

_ASK_FOR_NAMES = """
import itertools, os, sys, threading
def ask(thread):
    for number in itertools.count():
        try: os.stat(f"{sys.argv[1]}/none-{sys.argv[2]}-{thread}-{number}")
        except OSError: pass
for thread in range(4): threading.Thread(target=ask, args=(thread,)).start()
"""


@pytest.fixture
def askers(pair: Pair) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that look names up, killed at the end."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for asker in found:
        asker.kill()
    for asker in found:
        asker.wait()


def changing(directory: Path, until: threading.Event) -> None:
    number = 0
    while not until.is_set():
        for _ in range(100):
            number += 1
            (directory / "new").write_bytes(b"%d" % number)
            (directory / "new").rename(directory / f"name-{number % 500}")
        time.sleep(0.05)  # so that the hub sees changes, not one burst


def another_serves(spoke: Spoke, than_pid: int) -> bool:
    with contextlib.suppress(Exception):  # nobody answers yet
        return spoke.worker_pid() != than_pid
    return False


def killed_in_a_notification(spoke: Spoke) -> int:
    """Kills the worker while it tells the kernel of a change and somebody looks a name up there; its pid."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        pid = spoke.worker_pid()
        threads = Path(f"/proc/{pid}/task")
        until_s = time.monotonic() + 20
        while time.monotonic() < until_s:
            if any((thread / "wchan").read_text() == "fuse_reverse_inval_entry" for thread in threads.iterdir()):
                os.kill(pid, signal.SIGKILL)
                break
        else:
            pytest.skip(
                "no notification was seen to wait: this kernel does not say where threads wait, or does not have them wait"
            )
        time.sleep(0.2)  # a thread that was let go in the same moment ends at once
        if is_held_by_fuse(pid):
            return pid
        eventually(partial(another_serves, spoke, pid), 30)
    pytest.fail("the kernel kept no thread of a killed worker")


@pytest.mark.timeout(180)
def test_the_next_worker_serves_though_the_kernel_keeps_a_thread_of_the_dead_one(
    pair: Pair, askers: list[subprocess.Popen[bytes]]
) -> None:
    directory = pair.data / "d"
    directory.mkdir()
    for number in range(500):
        (directory / f"name-{number}").write_bytes(b"x")
    spoke = pair.spoke(pair.hub().address)
    assert len(list((spoke.mountpoint / "d").iterdir())) == 500
    for number in range(2):
        askers.append(
            subprocess.Popen([sys.executable, "-c", _ASK_FOR_NAMES, str(spoke.mountpoint / "d"), str(number)])
        )
    until = threading.Event()
    changes = threading.Thread(target=changing, args=(directory, until))
    changes.start()
    try:
        pid = killed_in_a_notification(spoke)
        eventually(partial(another_serves, spoke, pid), 30)
    finally:
        until.set()
        changes.join()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), 30)
    assert "the kernel holds a thread" in spoke.log()
    expected = {path.name: path.read_bytes() for path in directory.iterdir()}
    eventually(lambda: {path.name: path.read_bytes() for path in (spoke.mountpoint / "d").iterdir()} == expected, 30)
