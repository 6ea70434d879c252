"""Daemons that die, stop, hang or lose their state: what is cached stays readable, nothing wrong is read, nobody hangs."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from pair import Pair, Spoke, eventually

from common import limits
from spoke.fuse.mountpoint import mounts_at

pytestmark = pytest.mark.mount

MIB = 1024 * 1024

READ = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print("open", flush=True)
try:
    os.pread(fd, 4096, int(sys.argv[2]))
except OSError as error:
    sys.exit(error.errno)
"""
READ_ALL = "import sys; file = open(sys.argv[1], 'rb'); print('open', flush=True); file.read()"
FAULT = """
import mmap, os, sys
pages = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)
print("open", flush=True)
pages[int(sys.argv[2])]
"""


def write(path: Path, size_bytes: int, seed: int) -> bytes:
    """A file in which no two blocks are alike; its bytes."""
    data = Random(seed).randbytes(size_bytes)
    path.write_bytes(data)
    return data


def is_mounted(spoke: Spoke) -> bool:
    return bool(mounts_at(str(spoke.mountpoint.resolve())))


def direct_sha256(path: Path) -> str:
    """Read past the kernel's page cache of the mount, so that the spoke has to answer."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        digest = hashlib.sha256()
        for offset_bytes in range(0, os.fstat(fd).st_size, MIB):
            digest.update(os.pread(fd, MIB, offset_bytes))
        return digest.hexdigest()
    finally:
        os.close(fd)


def cached_bytes(path: Path) -> int:
    return round(float(os.getxattr(path, "user.headrace.cached")) * path.stat().st_size)


@contextlib.contextmanager
def reader(script: str, path: Path, offset_bytes: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the file open and is about to read."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, path, str(offset_bytes)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def test_a_spoke_killed_during_a_fill_serves_what_it_had(pair: Pair) -> None:
    whole = [write(pair.data / f"whole{number}", 2 * MIB + number, number) for number in range(4)]
    filling = write(pair.data / "filling", 24 * MIB + 5, 99)
    hub = pair.hub(extra=["--rate-limit", "300mbit"])
    spoke = pair.spoke(hub.address)
    for number, data in enumerate(whole):
        assert (spoke.mountpoint / f"whole{number}").read_bytes() == data
    spoke.settled()

    with reader(READ_ALL, spoke.mountpoint / "filling", 0) as process:
        eventually(lambda: cached_bytes(spoke.mountpoint / "filling") > 6 * MIB)
        committed_bytes = cached_bytes(spoke.mountpoint / "filling")
        spoke.kill()
        assert process.wait(10) != 0
    assert is_mounted(spoke)
    with pytest.raises(OSError, match="not connected"):
        os.listdir(spoke.mountpoint)

    assert hub.terminate() == 0
    spoke = pair.spoke(hub.address, extra=["--read-timeout", "1s"])
    path = spoke.mountpoint / "filling"
    assert committed_bytes * 0.99 <= cached_bytes(path) < len(filling)
    for number, data in enumerate(whole):
        assert (spoke.mountpoint / f"whole{number}").read_bytes() == data

    fd = os.open(path, os.O_RDONLY)

    piece_bytes = MIB // 4  # extents come in pieces of 128 KiB and more, in no order

    def read(offset_bytes: int) -> tuple[bytes, int]:
        """What of this piece can be had in one run from its start, and the error that ended it."""
        data = b""
        try:
            while len(data) < min(piece_bytes, len(filling) - offset_bytes):
                more = os.pread(fd, piece_bytes - len(data), offset_bytes + len(data))
                assert more, "the end of the file, too early"
                data += more
        except OSError as error:
            return data, error.errno
        return data, 0

    # Random access keeps the kernel from reading ahead over the edge of what is cached.
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    offsets = range(0, len(filling), piece_bytes)
    with ThreadPoolExecutor(256) as readers:
        found = dict(zip(offsets, readers.map(read, offsets), strict=True))
    os.close(fd)
    assert {code for _, code in found.values()} == {0, errno.EIO}
    assert all(filling.startswith(data, offset_bytes) for offset_bytes, (data, _) in found.items())
    assert sum(len(data) for data, _ in found.values()) >= committed_bytes * 0.97 - MIB
    assert spoke.facts()["cache"]["corrupt_blocks"] == 0

    hub = pair.hub(port=hub.port)
    eventually(lambda: spoke.facts()["hub"]["connected"])
    assert path.read_bytes() == filling
    assert spoke.settled().metrics()["headrace_spoke_fetched_bytes_total"] <= len(filling) - committed_bytes * 0.99


class Swallower:
    """Takes connections and bytes, and never says a word."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._taken.append(self._listener.accept()[0])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for connection in self._taken:
            connection.close()


@pytest.mark.parametrize(
    ("silent", "script", "ends_with"),
    [
        ("stopped hub", READ, errno.EIO),
        ("stopped hub", FAULT, -signal.SIGBUS),
        ("swallowing socket", READ, errno.EIO),
    ],
    ids=["stopped-read", "stopped-fault", "swallowing-read"],
)
def test_sigterm_with_a_blocked_reader(pair: Pair, silent: str, script: str, ends_with: int) -> None:
    data = write(pair.data / "data", 64 * MIB, 1)
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    swallower = Swallower()
    try:
        assert (spoke.mountpoint / "data").open("rb").read(10) == data[:10]
        if silent == "stopped hub":
            hub.popen.send_signal(signal.SIGSTOP)
        else:
            assert spoke.terminate() == 0
            spoke = pair.spoke(swallower.address, extra=["--connect-timeout", "1s"])
        with reader(script, spoke.mountpoint / "data", 60 * MIB) as process:
            eventually(lambda: spoke.facts()["reads"]["waiting"] > 0)
            assert process.poll() is None
            began_s = time.monotonic()
            assert spoke.terminate() == 0
            assert time.monotonic() - began_s < 10
            assert process.wait(5) == ends_with
        assert not is_mounted(spoke)
        assert os.listdir(spoke.mountpoint) == []
    finally:
        hub.popen.send_signal(signal.SIGCONT)
        swallower.close()


def test_a_hub_restarts_under_a_running_spoke(pair: Pair) -> None:
    (pair.data / "dir").mkdir()
    old = write(pair.data / "dir/old", 3 * MIB, 1)
    long = write(pair.data / "long", 40 * MIB, 4)
    hub = pair.hub(extra=["--rate-limit", "800mbit"])
    spoke = pair.spoke(hub.address, extra=["--read-timeout", "60s"])
    assert (spoke.mountpoint / "dir/old").read_bytes() == old
    spoke.settled()
    reading = subprocess.Popen(["md5sum", spoke.mountpoint / "long"], stdout=subprocess.PIPE)
    eventually(lambda: cached_bytes(spoke.mountpoint / "long") > MIB)
    hub.kill()
    eventually(lambda: not spoke.facts()["hub"]["connected"])
    assert cached_bytes(spoke.mountpoint / "long") < len(long)

    new = write(pair.data / "dir/new", MIB, 2)
    (pair.data / "dir/moved").mkdir()
    assert direct_sha256(spoke.mountpoint / "dir/old") == hashlib.sha256(old).hexdigest()
    assert sorted(os.listdir(spoke.mountpoint / "dir")) == ["old"]

    hub = pair.hub(port=hub.port)
    eventually(lambda: spoke.facts()["hub"]["connected"])
    eventually((spoke.mountpoint / "dir/new").exists)
    assert (spoke.mountpoint / "dir/new").read_bytes() == new
    assert sorted(os.listdir(spoke.mountpoint / "dir")) == ["moved", "new", "old"]
    eventually(lambda: len(spoke.facts()["hub"]["links"]) == limits.BULK_LINKS_MIN + 1)
    printed, _ = reading.communicate(timeout=30)  # it only saw a pause
    assert printed.split()[0].decode() == hashlib.md5(long, usedforsecurity=False).hexdigest()

    # The feed is live again, not only resumed once.
    newer = write(pair.data / "dir/new", 2 * MIB, 3)
    (pair.data / "dir/old").rename(pair.data / "dir/moved/old")
    eventually((spoke.mountpoint / "dir/moved/old").exists)
    eventually(lambda: (spoke.mountpoint / "dir/new").stat().st_size == len(newer))
    assert (spoke.mountpoint / "dir/new").read_bytes() == newer
    fetched_bytes = spoke.settled().metrics()["headrace_spoke_fetched_bytes_total"]
    assert (spoke.mountpoint / "dir/moved/old").read_bytes() == old
    assert spoke.metrics()["headrace_spoke_fetched_bytes_total"] == fetched_bytes


def test_a_hub_that_lost_its_state_leaves_the_cache_valid(pair: Pair) -> None:
    files = {f"f{number}": write(pair.data / f"f{number}", number * 700_001, number) for number in range(6)}
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    for name, data in files.items():
        assert (spoke.mountpoint / name).read_bytes() == data
    fetched_bytes = spoke.settled().metrics()["headrace_spoke_fetched_bytes_total"]
    versions = {name: os.getxattr(spoke.mountpoint / name, "user.headrace.version") for name in files}

    hub.kill()
    shutil.rmtree(pair.work_dir / "hub-state")
    hub = pair.hub(port=hub.port)
    fresh = write(pair.data / "fresh", 5000, 50)  # seen only when the new catalog has been taken over
    eventually((spoke.mountpoint / "fresh").exists)
    assert (spoke.mountpoint / "fresh").read_bytes() == fresh
    assert {name: os.getxattr(spoke.mountpoint / name, "user.headrace.version") for name in files} == versions
    for name, data in files.items():
        assert cached_bytes(spoke.mountpoint / name) == len(data)
        assert direct_sha256(spoke.mountpoint / name) == hashlib.sha256(data).hexdigest()
    assert spoke.settled().metrics()["headrace_spoke_fetched_bytes_total"] == fetched_bytes + len(fresh)

    # The same for a spoke that starts anew on that cache.
    assert spoke.terminate() == 0
    spoke = pair.spoke(hub.address)
    for name, data in files.items():
        assert (spoke.mountpoint / name).read_bytes() == data
    assert spoke.metrics()["headrace_spoke_fetched_bytes_total"] == 0
