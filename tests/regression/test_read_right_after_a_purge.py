"""A purge was answered before the kernel had heard of it: a read right behind it came out of the kernel's memory, one time in five."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.system.pair import ask, eventually, pair_in

pytestmark = pytest.mark.mount
ROUNDS = 25


def test_a_read_right_after_a_purge_is_fetched_again(tmp_path: Path) -> None:
    with pair_in(tmp_path) as pair:
        (pair.data / "a").write_bytes(os.urandom(1 << 20))
        spoke = pair.spoke(pair.hub().address, extra=["--no-prefetch"])
        for _ in range(ROUNDS):
            assert (spoke.mountpoint / "a").read_bytes() == (pair.data / "a").read_bytes()
            eventually(lambda: len(list((pair.work_dir / "cache" / "versions").rglob("*.data"))) == 1)
            done = ask("purge", str(spoke.mountpoint), "a", "--yes")
            assert done.stdout.startswith("erased 1 files,"), done.stderr
