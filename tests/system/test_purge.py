"""``headrace-spoke purge``: of a mount, of some of its files, of a cache directory that no spoke uses."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.pair import Pair, Spoke, ask, eventually, pair_in

pytestmark = pytest.mark.mount
MIB = 1 << 20


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_in(tmp_path) as made:
        (made.data / "d").mkdir()
        for name in ("d/a", "d/b", "c"):
            (made.data / name).write_bytes(os.urandom(MIB))
        yield made


def data_files(pair: Pair) -> int:
    return len(list((pair.work_dir / "cache" / "versions").rglob("*.data")))


def test_purge(pair: Pair) -> None:
    spoke = pair.spoke(pair.hub().address, extra=["--no-prefetch"])
    for name in ("d/a", "d/b", "c"):
        assert len((spoke.mountpoint / name).read_bytes()) == MIB
    spoke.settled()
    assert data_files(pair) == 3
    mountpoint, cache = str(spoke.mountpoint), str(pair.work_dir / "cache")

    done = ask("purge", mountpoint, "d")
    assert done.returncode == 2
    assert "this erases 2 cached files (2" in done.stderr
    assert "say --yes" in done.stderr
    assert data_files(pair) == 3

    done = ask("purge", mountpoint, "d", "--yes")
    assert (done.returncode, done.stdout[:15]) == (0, "erased 2 files,")
    assert data_files(pair) == 1
    assert (spoke.mountpoint / "d" / "a").read_bytes() == (pair.data / "d" / "a").read_bytes(), "fetched again"
    eventually(lambda: data_files(pair) == 2)
    spoke.settled()

    done = ask("purge", "--cache-dir", cache, "--yes")
    assert done.returncode == 2
    assert "in use by another spoke" in done.stderr
    spoke.terminate()
    done = ask("purge", "--cache-dir", cache, "--yes")
    assert (done.returncode, done.stdout[:15]) == (0, "erased 2 files,")
    assert data_files(pair) == 0
    assert not (pair.work_dir / "cache" / "names").exists()


def test_purge_over_the_death_of_a_worker(pair: Pair) -> None:
    """What the kernel reads by itself stays, also when the worker that allowed it is gone; a cache between two workers is in use."""
    spoke = pair.spoke(pair.hub().address)
    mountpoint, cache = str(spoke.mountpoint), str(pair.work_dir / "cache")
    data = (pair.data / "c").read_bytes()
    assert (spoke.mountpoint / "c").read_bytes() == data
    spoke.settled()
    eventually(lambda: float(os.getxattr(spoke.mountpoint / "c", "user.headrace.cached")) == 1)
    lent = spoke.facts()["data_path"]["passthrough"]
    with (spoke.mountpoint / "c").open("rb", buffering=0) as file:
        pid = spoke.worker_pid()
        os.kill(pid, signal.SIGKILL)
        done = ask("purge", "--cache-dir", cache, "--yes")
        assert done.returncode == 2
        assert "in use by another spoke" in done.stderr
        eventually(lambda: other_worker(spoke, pid), 60)
        done = ask("purge", mountpoint, "--all", "--yes")
        assert done.returncode == (1 if lent else 0), done.stderr
        assert ("1 files are open and stay" in done.stderr) == lent
        assert file.read() == data
    eventually(lambda: ask("purge", mountpoint, "--all", "--yes").returncode == 0)
    eventually(lambda: data_files(pair) == 0)


def other_worker(spoke: Spoke, than_pid: int) -> bool:
    with contextlib.suppress(Exception):
        return spoke.worker_pid() != than_pid
    return False
