"""The memory budget: where the limit comes from, what each purpose may have, who waits and in which order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import limits
from common.cgroup import CgroupLimit, memory_limit
from spoke.memory import Admission, Level, MemoryBudget, anonymous_bytes, choose_limit

MIB = 1 << 20


@pytest.mark.parametrize(
    ("setting", "source", "cgroup", "expected", "said"),
    [
        (512 * MIB, "default", None, 512 * MIB, "default"),
        (512 * MIB, "default", CgroupLimit(64 << 30, "/f"), 512 * MIB, "default"),
        (512 * MIB, "default", CgroupLimit(600 * MIB, "/f/memory.max"), 300 * MIB, "1/2 of 600 MiB in /f/memory.max"),
        (512 * MIB, "default", CgroupLimit(100 * MIB, "/f"), 128 * MIB, "the least there is"),
        (2 << 30, "flag", CgroupLimit(600 * MIB, "/f"), 2 << 30, "flag"),
        (512 * MIB, "file", CgroupLimit(600 * MIB, "/f"), 512 * MIB, "file"),
    ],
)
def test_where_the_limit_comes_from(
    setting: int, source: str, cgroup: CgroupLimit | None, expected: int, said: str
) -> None:
    chosen = choose_limit(setting, source, cgroup)
    assert chosen.limit_bytes == expected
    assert said in chosen.origin


class Proc:
    """A made-up /proc/self and the control groups it names."""

    def __init__(self, base: Path, groups: str, mounts: list[str]) -> None:
        self.base = base
        (base / "cgroup").write_text(groups)
        (base / "mountinfo").write_text("".join(line.replace("TOP", str(base)) + "\n" for line in mounts))

    def put(self, path: str, text: str) -> Path:
        file = self.base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return file


V2 = "30 23 0:26 {root} TOP/cg2 rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "31 23 0:27 {root} TOP/cg1 rw - cgroup cgroup rw,memory"


def test_version_2_the_tightest_above_counts_and_so_does_high(tmp_path: Path) -> None:
    proc = Proc(tmp_path, "0::/a/b\n", [V2.format(root="/")])
    proc.put("cg2/a/b/memory.max", "max")
    assert memory_limit(tmp_path) is None
    proc.put("cg2/a/memory.max", str(3 << 30))
    high = proc.put("cg2/a/b/memory.high", str(1 << 30))
    assert memory_limit(tmp_path) == CgroupLimit(1 << 30, str(high))
    above = proc.put("cg2/a/memory.max", str(1 << 29))
    assert memory_limit(tmp_path) == CgroupLimit(1 << 29, str(above))


def test_version_1_and_the_number_that_means_none(tmp_path: Path) -> None:
    proc = Proc(tmp_path, "4:cpu,memory:/x\n1:name=systemd:/\n0::/\n", [V1.format(root="/"), V2.format(root="/")])
    proc.put("cg1/memory.limit_in_bytes", "9223372036854771712")
    assert memory_limit(tmp_path) is None
    file = proc.put("cg1/x/memory.limit_in_bytes", str(256 * MIB))
    assert memory_limit(tmp_path) == CgroupLimit(256 * MIB, str(file))


def test_a_container_is_shown_its_own_group_as_the_root(tmp_path: Path) -> None:
    proc = Proc(tmp_path, "0::/docker/abc/inner\n", [V2.format(root="/docker/abc")])
    file = proc.put("cg2/memory.max", str(1 << 28))
    proc.put("cg2/inner/memory.max", "max")
    assert memory_limit(tmp_path) == CgroupLimit(1 << 28, str(file))


def test_a_mount_of_somebody_else_has_any_name(tmp_path: Path) -> None:
    """A name that is no UTF-8 kept every spoke of the host from starting."""
    proc = Proc(tmp_path, "0::/a\n", [V2.format(root="/")])
    file = proc.put("cg2/a/memory.max", str(1 << 28))
    other = b"32 23 0:28 / /mnt/odd\xff\x0c\xc2\x85name rw - fuse.other other rw\n"
    (tmp_path / "mountinfo").write_bytes(other + (tmp_path / "mountinfo").read_bytes())
    assert memory_limit(tmp_path) == CgroupLimit(1 << 28, str(file))


@pytest.mark.parametrize("groups", ["", "nonsense", "0::/../../x\n", "4:memory:\n"])
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, groups: str) -> None:
    Proc(tmp_path, groups, ["", "nonsense - x", V2.format(root="/")])
    assert memory_limit(tmp_path) is None
    assert memory_limit(tmp_path / "nothing") is None


def test_without_a_limit_only_the_fixed_ones_hold() -> None:
    budget = MemoryBudget()
    assert budget.write_backlog_bytes == limits.WRITE_BACKLOG_MAX_BYTES
    assert budget.prefetch_bytes == limits.PREFETCH_MAX_OUTSTANDING_BYTES
    assert budget.admits(1 << 40, 1 << 40)
    assert budget.measured(1 << 40) is Level.EASE


@given(st.integers(limits.MEMORY_LIMIT_MIN_BYTES, 8 << 30), st.integers(0, 1 << 30))
def test_the_shares_leave_room_for_demand(limit_bytes: int, fixed_bytes: int) -> None:
    budget = MemoryBudget(limit_bytes)
    budget.settled(fixed_bytes)
    data_bytes = budget.data_bytes
    assert data_bytes is not None
    assert data_bytes >= limits.MEMORY_DATA_MIN_BYTES
    # On a disk that never answers all of this stays: what is left takes a READ of 1 MiB and its flight.
    assert budget.write_backlog_bytes + budget.bypass_bytes + budget.recent_bytes <= data_bytes - 4 * MIB
    assert budget.prefetch_room_bytes(0) <= data_bytes * 3 // 4
    assert budget.kept_buffers >= 1


def test_what_stops_as_memory_runs_short() -> None:
    budget = MemoryBudget(512 * MIB)
    levels = [budget.measured(int(share * 512 * MIB)) for share in (0.5, 0.85, 0.9, 0.97, 0.5)]
    assert levels == [Level.EASE, Level.NO_PREFETCH, Level.DROP_IDLE, Level.DEMAND_WAITS, Level.EASE]
    assert budget.pressed_total == 1
    budget.measured(int(0.85 * 512 * MIB))
    assert (budget.prefetch_bytes, budget.prefetch_room_bytes(0)) == (0, 0)
    assert budget.bypass_bytes > 0
    budget.measured(int(0.9 * 512 * MIB))
    assert budget.bypass_bytes == 0
    assert budget.admits(0, MIB)
    budget.measured(int(0.97 * 512 * MIB))
    assert not budget.admits(0, MIB)


class Held:
    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self) -> int:
        return self.bytes


async def test_first_come_first_served_and_one_always_goes_on() -> None:
    budget, held = MemoryBudget(128 * MIB), Held()
    assert budget.data_bytes is not None
    admission = Admission(budget, held)
    held.bytes = budget.data_bytes
    assert admission.enter_now(MIB, MIB), "nobody is inside: one goes on whatever is held"
    assert not admission.enter_now(MIB, MIB)
    order: list[int] = []

    async def reader(number: int) -> None:
        await admission.enter(MIB, MIB)
        order.append(number)
        held.bytes += MIB

    readers = [asyncio.create_task(reader(number)) for number in range(4)]
    await asyncio.sleep(0)
    assert admission.waiting == 4
    readers[1].cancel()
    await asyncio.gather(readers[1], return_exceptions=True)
    admission.leave(MIB)
    await asyncio.sleep(0)
    assert order == [0]
    held.bytes = budget.data_bytes - 4 * MIB  # room for one more and its buffer
    admission.look()
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == [0, 2]
    held.bytes = 0
    admission.look()
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == [0, 2, 3]
    assert (admission.waiting, admission.inside_bytes, admission.waited_total) == (0, 3 * MIB, 4)


async def test_one_cancelled_as_it_is_let_in_leaves_its_place_to_the_next() -> None:
    budget, held = MemoryBudget(128 * MIB), Held()
    held.bytes = 1 << 40
    admission = Admission(budget, held)
    assert admission.enter_now(1, 1)
    first, second = (asyncio.create_task(admission.enter(1, 1)) for _ in range(2))
    await asyncio.sleep(0)
    admission.leave(1)  # lets the first in
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    async with asyncio.timeout(5):
        await second
    assert admission.inside_bytes == 1


def test_the_kernel_is_asked_for_anonymous_memory(tmp_path: Path) -> None:
    assert anonymous_bytes() > 4 * MIB
    assert anonymous_bytes(tmp_path / "nothing") == 0
