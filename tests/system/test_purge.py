"""``headrace-spoke purge``: of a mount, of some of its files, of a cache directory that no spoke uses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.pair import Pair, pair_in, run

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
    spoke = pair.spoke(pair.hub().address)
    for name in ("d/a", "d/b", "c"):
        assert len((spoke.mountpoint / name).read_bytes()) == MIB
    spoke.settled()
    assert data_files(pair) == 3
    mountpoint, cache = str(spoke.mountpoint), str(pair.work_dir / "cache")

    done = run("spoke.cli", "purge", mountpoint, "d")
    assert done.returncode == 2
    assert "this erases 2 cached files (2" in done.stderr
    assert "say --yes" in done.stderr
    assert data_files(pair) == 3

    done = run("spoke.cli", "purge", mountpoint, "d", "--yes")
    assert (done.returncode, done.stdout[:15]) == (0, "erased 2 files,")
    assert data_files(pair) == 1
    assert (spoke.mountpoint / "d" / "a").read_bytes() == (pair.data / "d" / "a").read_bytes(), "fetched again"

    done = run("spoke.cli", "purge", "--cache-dir", cache, "--yes")
    assert done.returncode == 2
    assert "in use by another spoke" in done.stderr
    spoke.terminate()
    done = run("spoke.cli", "purge", "--cache-dir", cache, "--yes")
    assert (done.returncode, done.stdout[:15]) == (0, "erased 2 files,")
    assert data_files(pair) == 0
    assert not (pair.work_dir / "cache" / "names").exists()
