"""The kernel's readahead of a real mount: set, chosen by what is read, shown; and only a wish where sysfs cannot be written."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from spoke.fuse.mountpoint import mounts_at
from spoke.fuse.readahead import KernelReadAhead
from spoke.prefetch.readahead import Choice
from spoke.read_ahead import ReadAhead
from tests.system.pair import Pair, Spoke, ask, run

pytestmark = [pytest.mark.mount]
MIB = 1 << 20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="another kernel readahead needs root")


def kernel_kib(spoke: Spoke) -> int | None:
    return KernelReadAhead(mounts_at(str(spoke.mountpoint.resolve()))[-1].minor).kib()


def steps(count: int) -> Iterator[int]:
    dice = Random(4)
    for _ in range(count):
        yield dice.randrange(1, 1024 * MIB // 4096 - 2) * 4096 + 100


def touch_all(path: Path, offsets: list[int]) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        for offset in offsets:
            view[offset]


@needs_root
def test_a_setting_is_in_force_for_what_is_opened(pair: Pair) -> None:
    (pair.data / "a").write_bytes(bytes(4096))
    address = pair.hub().address
    for number, kib in enumerate((16, 512)):
        spoke = pair.spoke(address, f"mnt{number}", f"cache{number}", ["--read-ahead", str(kib)])
        assert kernel_kib(spoke) == kib
        facts = spoke.facts()["data_path"]["read_ahead"]
        assert (facts["kib"], facts["setting"], facts["failure"]) == (kib, kib, None)
        assert f"readahead  {kib} KiB" in ask("status", str(spoke.mountpoint)).stdout


@needs_root
@pytest.mark.slow
def test_it_is_chosen_by_what_is_read(pair: Pair) -> None:
    with (pair.data / "a").open("wb") as sparse:
        sparse.truncate(1024 * MIB)
    for name in "bc":
        (pair.data / name).write_bytes(Random(name).randbytes(64 * MIB))
    spoke = pair.spoke(pair.hub().address, extra=["--no-passthrough"])
    assert kernel_kib(spoke) == 128
    offsets = list(steps(1200))
    plan = pair.work_dir / "plan"
    plan.write_text("".join(f"a {offset} 4\n" for offset in offsets))
    assert ask("plan", str(spoke.mountpoint), "declare", str(plan)).returncode == 0
    touch_all(spoke.mountpoint / "a", offsets)
    facts = spoke.facts()["data_path"]["read_ahead"]
    assert facts["kib"] == 16, facts
    assert kernel_kib(spoke) == 16
    for name in "bc":
        assert (spoke.mountpoint / name).read_bytes() == (pair.data / name).read_bytes()
    assert kernel_kib(spoke) != 16, spoke.facts()["data_path"]["read_ahead"]


def test_what_the_setting_may_be(pair: Pair) -> None:
    (pair.work_dir / "mnt").mkdir()
    for wrong in ("much", "0", "2048", "10"):
        refused = run(
            "spoke.cli", "mount", str(pair.work_dir / "mnt"), "--hub", "h:1", "--dataset", "d", "--cache-dir",
            str(pair.work_dir / "c"), "--read-ahead", wrong,
        )  # fmt: skip
        assert refused.returncode == 2
        assert "neither auto nor a number of KiB from 4 to 1024" in refused.stderr


def test_without_the_right_to_set_it_it_stays_and_says_so(tmp_path: Path) -> None:
    ahead = ReadAhead(1024, lambda _version: False)
    ahead.mounted(KernelReadAhead(7, tmp_path))
    facts = ahead.facts()
    assert facts["wished_kib"] == 1024
    assert facts["failure"] is not None
    assert "cannot be written" in facts["failure"]
    (tmp_path / "0:8").mkdir()
    (tmp_path / "0:8" / "read_ahead_kb").write_text("128\n")
    allowed = ReadAhead(1024, lambda _version: False)
    allowed.mounted(KernelReadAhead(8, tmp_path))
    assert (allowed.kib, allowed.facts()["failure"]) == (1024, None)
    assert Choice(1024, "as set").kib == allowed.facts()["wished_kib"]
