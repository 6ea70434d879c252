"""Real mounts on a cache disk in trouble: each read succeeds from the hub, one log line, status and metric say what it is, and
the cache goes on by itself when the disk does."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pair import Pair, Process, Spoke, eventually, pair_in

from tests.faulty_spoke import CALLS

MIB = 1 << 20
FILES = 120
BLOB = Random(3).randbytes(2 * MIB)

pytestmark = pytest.mark.mount


def content(number: int) -> bytes:
    return BLOB[number:] + BLOB[:number]


class FaultySpoke(Spoke):
    """A spoke whose cache disk does as told."""

    def __init__(self, mountpoint: Path, hub: str, cache_dir: Path, faults: Path, extra: tuple[str, ...] = ()) -> None:
        self.mountpoint, self.faults = mountpoint, faults
        mountpoint.mkdir(exist_ok=True)
        Process.__init__(
            self,
            ["tests.faulty_spoke", "mount", str(mountpoint), "--hub", hub, "--dataset", "data", "--cache-dir", str(cache_dir),
             "--cache-size", "64MiB", "--cache-free-floor", "4MiB", "--metrics", "127.0.0.1:0", "--log-format", "json", *extra],
            mountpoint.with_suffix(".log"),
            {"DISK_FAULTS": str(faults)},
        )  # fmt: skip

    def say(self, faults: dict[str, Any]) -> None:
        new = self.faults.with_suffix(".new")
        new.write_text(json.dumps(faults))
        new.rename(self.faults)

    def trouble(self) -> str | None:
        found = self.facts()["cache"]["trouble"]
        return None if found is None else found["kind"]

    def trouble_metric(self, kind: str) -> float:
        with urllib.request.urlopen(f"http://{self.facts()['metrics']}/metrics", timeout=10) as response:
            text = response.read().decode()
        return float(text.split(f'headrace_spoke_cache_trouble{{trouble="{kind}"}} ')[1].split()[0])


def require_root() -> None:
    if os.geteuid():
        pytest.skip("mounting file systems needs root")


def sh(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


class Bench:
    """One hub and one spoke whose cache is on a small file system of its own."""

    def __init__(self, pair: Pair, spoke: FaultySpoke, disk: Path, cache: Path) -> None:
        self.pair, self.spoke, self.disk, self.cache = pair, spoke, disk, cache
        self._next = 0

    def read_another(self) -> Path:
        """A file nobody has read yet; its bytes must be right."""
        number, self._next = self._next, self._next + 1
        path = self.spoke.mountpoint / f"{number:03d}"
        assert path.read_bytes() == content(number)
        return path

    def is_cached(self, path: Path) -> bool:
        return float(os.getxattr(path, "user.headrace.cached")) == 1


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    require_root()
    base = tmp_path_factory.mktemp("trouble")
    disk, cache = base / "disk", base / "cache"
    disk.mkdir()
    cache.mkdir()
    sh("mount", "-t", "tmpfs", "-o", "size=96m,nr_inodes=4000", "tmpfs", disk)
    try:
        (disk / "cache").mkdir()
        sh("mount", "--bind", disk / "cache", cache)
        with pair_in(base) as pair:
            for number in range(FILES):
                (pair.data / f"{number:03d}").write_bytes(content(number))
            hub = pair.hub()
            spoke = FaultySpoke(base / "mnt", hub.address, cache, base / "faults.json", ("--no-prefetch",))
            pair._spokes.append(spoke)
            spoke.ready()
            yield Bench(pair, spoke, disk, cache)
    finally:
        for where in (cache, disk):
            subprocess.run(["umount", "-l", str(where)], capture_output=True, check=False)


@contextlib.contextmanager
def full(bench: Bench) -> Iterator[None]:
    """Somebody else takes all of the disk."""
    ballast = bench.disk / "ballast"
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(MIB))
            file.flush()
    try:
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def no_inodes(bench: Bench) -> Iterator[None]:
    litter = bench.disk / "litter"
    litter.mkdir()
    with contextlib.suppress(OSError):
        for number in range(10_000):
            (litter / str(number)).touch()
    try:
        yield
    finally:
        sh("rm", "-r", litter)


@contextlib.contextmanager
def unmounted(bench: Bench) -> Iterator[None]:
    sh("umount", "-l", bench.cache)
    try:
        yield
        assert os.listdir(bench.cache) == [], "nothing is written to what lies below"
    finally:
        sh("mount", "--bind", bench.disk / "cache", bench.cache)


def injected(call: str, code: int) -> Callable[[Bench], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def fault(bench: Bench) -> Iterator[None]:
        bench.spoke.say({call: {"errno": code}})
        try:
            yield
        finally:
            bench.spoke.say({})

    return fault


@contextlib.contextmanager
def file_size_limit(bench: Bench) -> Iterator[None]:
    worker = bench.spoke.worker_pid()
    before = resource.prlimit(worker, resource.RLIMIT_FSIZE, (64 * 1024, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(worker, resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("full", full),
        ("inodes", no_inodes),
        ("gone", unmounted),
        ("quota", injected("pwrite", errno.EDQUOT)),
        ("failing", injected("pwrite", errno.EIO)),
        ("read-only", injected("pwrite", errno.EROFS)),
        ("file-size", file_size_limit),
    ],
    ids=["full", "inodes", "unmounted", "quota", "eio", "erofs", "efbig"],
)
def test_reads_go_on_it_is_said_once_and_it_ends_by_itself(
    bench: Bench, kind: str, fault: Callable[[Bench], contextlib.AbstractContextManager[None]]
) -> None:
    spoke = bench.spoke
    before = bench.read_another()
    eventually(lambda: bench.is_cached(before))
    logged = len(spoke.log())
    with fault(bench):
        bench.read_another()

        def is_told() -> bool:
            # The first write may have found room with what the spoke let go for it; trouble is what a later one has then.
            return spoke.trouble() == kind or not bench.read_another()

        eventually(is_told)
        assert spoke.trouble_metric(kind) == 1
        assert any("cache" in note for note in spoke.facts()["notes"])
        for _ in range(4):
            bench.read_another()
    lines = [json.loads(line) for line in spoke.log()[logged:].splitlines()]
    said = [line for line in lines if "bypassed" in line["event"] or "no room" in line["event"]]
    assert len(said) <= 1, said
    eventually(lambda: spoke.trouble() is None)
    assert spoke.trouble_metric(kind) == 0
    after = bench.read_another()
    eventually(lambda: bench.is_cached(after))
    assert not list(bench.cache.glob("probe"))


def test_a_disk_that_takes_seconds_a_call_slows_no_miss_and_holds_no_memory(tmp_path: Path) -> None:
    require_root()
    with pair_in(tmp_path) as pair:
        for number in range(70):
            (pair.data / f"{number:03d}").write_bytes(content(number))
        hub = pair.hub()
        spoke = FaultySpoke(
            tmp_path / "mnt", hub.address, tmp_path / "cache", tmp_path / "faults.json", ("--memory-limit", "128MiB")
        )
        pair._spokes.append(spoke)
        spoke.ready()
        known = spoke.mountpoint / "000"
        assert known.read_bytes() == content(0)
        spoke.settled()
        spoke.say({call: {"delay_s": 2} for call in CALLS})
        slowest_s, most_bytes = 0.0, 0
        for number in range(1, 70):
            began_s = time.monotonic()
            with open(spoke.mountpoint / f"{number:03d}", "rb", buffering=0) as file:
                assert file.read(4096) == content(number)[:4096]
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            assert (spoke.mountpoint / f"{number:03d}").read_bytes() == content(number)
            most_bytes = max(most_bytes, spoke.facts()["memory"]["own_bytes"])
        assert slowest_s < 1.0, "a miss waits for the hub, not for the disk"
        assert most_bytes < 128 * MIB
        began_s = time.monotonic()
        os.listdir(spoke.mountpoint)
        os.stat(spoke.mountpoint / "007")
        assert time.monotonic() - began_s < 0.5
        eventually(lambda: spoke.trouble() == "slow")
        assert spoke.trouble_metric("slow") == 1
        events = [json.loads(line)["event"] for line in spoke.log().splitlines()]
        assert sum("slower than the link" in event for event in events) <= 1
        began_s = time.monotonic()
        spoke.popen.send_signal(signal.SIGTERM)
        assert spoke.popen.wait(15) == 0
        assert time.monotonic() - began_s < 10, "nor does the end wait for it"


@pytest.mark.slow
def test_an_ext4_that_turned_read_only_is_read_past(tmp_path: Path) -> None:
    """For real: the kernel stops writing after an error in the file system. Only a new mount of it could end that."""
    require_root()
    image, cache = tmp_path / "image", tmp_path / "cachefs"
    cache.mkdir()
    sh("truncate", "-s", "128M", image)
    sh("mkfs.ext4", "-q", "-F", "-e", "remount-ro", image)
    sh("mount", "-o", "loop", image, cache)
    try:
        device = Path(
            next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if str(cache) in line)
        )
        with pair_in(tmp_path) as pair:
            for number in range(20):
                (pair.data / f"{number:03d}").write_bytes(content(number))
            spoke = FaultySpoke(
                tmp_path / "mnt", pair.hub().address, cache / "c", tmp_path / "faults.json", ("--no-prefetch",)
            )
            pair._spokes.append(spoke)
            spoke.ready()
            kept = spoke.mountpoint / "000"
            assert kept.read_bytes() == content(0)
            eventually(lambda: float(os.getxattr(kept, "user.headrace.cached")) == 1)
            Path(f"/sys/fs/ext4/{device.name}/trigger_fs_error").write_text("1")
            for number in range(20):
                assert (spoke.mountpoint / f"{number:03d}").read_bytes() == content(number)
            eventually(lambda: spoke.trouble() in ("read-only", "failing"))
            assert sum("bypassed" in json.loads(line)["event"] for line in spoke.log().splitlines()) == 1
    finally:
        subprocess.run(["umount", "-l", str(cache)], capture_output=True, check=False)
