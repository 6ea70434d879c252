"""What doctor says about a host, its mount and its cache disk, on made-up facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common import limits
from spoke.doctor.examine import judged
from spoke.doctor.facts import Facts
from spoke.doctor.findings import Level
from spoke.doctor.host_checks import NAME_BYTES, PROCESS_BYTES
from spoke.fuse.mountpoint import Answer
from tests.unit.spoke.doctor.doctor_support import DISK, GIB, MIB, MOUNT, SOUND, UNMOUNTED, of, status, with_path


def with_host(facts: Facts = SOUND, **changes: Any) -> Facts:
    return replace(facts, host=replace(facts.host, **changes))


def with_fuse(facts: Facts = UNMOUNTED, **changes: Any) -> Facts:
    return replace(facts, fuse=replace(facts.fuse, **changes))


def with_disk(facts: Facts = SOUND, **changes: Any) -> Facts:
    return replace(facts, disk=replace(DISK, **changes))


def with_mount(**changes: Any) -> Facts:
    return replace(SOUND, mount=replace(MOUNT, **changes))


@pytest.mark.parametrize(
    ("told", "level", "seen"),
    [
        ({"metrics": None, "metrics_served_by": None}, Level.WARNING, "is taken"),
        ({"metrics": "127.0.0.1:9421", "metrics_served_by": None}, Level.OK, "at http://127.0.0.1:9421/metrics"),
        ({"metrics": "127.0.0.1:9421", "metrics_served_by": "/mnt/a"}, Level.OK, "by the spoke of /mnt/a"),
    ],
)
def test_where_the_figures_are(told: dict[str, Any], level: Level, seen: str) -> None:
    found = of(with_mount(status={**status(), **told}), "metrics")
    assert found.level is level
    assert seen in found.seen


# --- kernel and FUSE -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "levels"),
    [
        ((5, 3), {"kernel": Level.PROBLEM, "passthrough": Level.WARNING, "re-send": Level.NOTE}),
        ((6, 8), {"kernel": Level.OK, "passthrough": Level.WARNING, "re-send": Level.NOTE}),
        ((6, 9), {"kernel": Level.OK, "passthrough": Level.OK, "re-send": Level.OK}),
    ],
)
def test_what_a_kernel_has(kernel: tuple[int, int], levels: dict[str, Level]) -> None:
    facts = with_host(UNMOUNTED, kernel=kernel, kernel_release="{}.{}.0".format(*kernel))
    assert {check: of(facts, check).level for check in levels} == levels


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (with_fuse(passthrough_built_in=False), "CONFIG_FUSE_PASSTHROUGH"),
        (with_fuse(has_admin=False), "CAP_SYS_ADMIN"),
        (with_fuse(in_initial_user_namespace=False), "initial user namespace"),
        (with_disk(UNMOUNTED, fs_type="overlay"), "overlay"),
    ],
)
def test_why_no_passthrough(facts: Facts, reason: str) -> None:
    found = of(facts, "passthrough")
    assert found.level is Level.WARNING
    assert reason in found.seen
    assert "1 GB/s" in found.cost


def test_a_running_mount_knows_better_about_passthrough() -> None:
    off = {"passthrough": False, "reason": "CAP_SYS_ADMIN is needed", "passthrough_opens": 0, "open_files": 1}
    found = of(with_mount(status=status(data_path=off)), "passthrough")
    assert (found.level, found.seen) == (Level.WARNING, "off: CAP_SYS_ADMIN is needed")
    chosen = status(data_path={**off, "reason": "turned off by configuration"}, settings__passthrough={"value": False})
    assert of(with_mount(status=chosen), "passthrough").level is Level.NOTE


def test_small_requests() -> None:
    found = of(with_fuse(max_pages_limit=32), "request size")
    assert (found.level, found.figures["requests_per_mib"]) == (Level.WARNING, 8)
    assert "128 KiB" in found.seen
    assert not [found for found in judged(with_fuse(max_pages_limit=None)) if found.check == "request size"]


def test_read_ahead_of_the_mount() -> None:
    found = of(with_mount(read_ahead_kb=4096), "read-ahead")
    assert (found.level, found.figures["factor"]) == (Level.WARNING, 32)
    # 3,968 KiB more at 1 Gbit/s.
    assert found.figures["more_s"] == pytest.approx(3968 * 1024 / 125e6)
    assert "4096 KiB, 32 times" in found.cost
    assert "32.5 ms more of the link" in found.cost
    small = of(with_mount(read_ahead_kb=16), "read-ahead")
    assert (small.level, small.figures["requests_per_mib"]) == (Level.NOTE, 64)
    none = of(with_mount(read_ahead_kb=0), "read-ahead")
    assert (none.level, none.figures["requests_per_mib"]) == (Level.WARNING, 256)
    chosen = status(data_path={"passthrough": True, "reason": "", "passthrough_opens": 0, "open_files": 0,
                               "read_ahead": {"kib": 1024, "wished_kib": 1024}})  # fmt: skip
    assert of(with_mount(status=chosen, read_ahead_kb=1024), "read-ahead").level is Level.OK, "by what is read in order"
    assert of(with_mount(status=chosen, read_ahead_kb=4096), "read-ahead").level is Level.WARNING, "somebody else's"


def test_who_may_mount() -> None:
    assert of(with_fuse(device_error="/dev/fuse does not exist"), "/dev/fuse").level is Level.PROBLEM
    user = {"is_root": False, "has_admin": False}
    assert of(with_fuse(**user), "/dev/fuse").level is Level.OK
    assert "package fuse3" in of(with_fuse(**user, helper=None), "/dev/fuse").mend
    assert of(with_fuse(**user, helper_is_setuid=False), "/dev/fuse").level is Level.PROBLEM
    assert not [found for found in judged(SOUND) if found.check == "/dev/fuse"]  # it is mounted


# --- the mount -----------------------------------------------------------------------------------------------


def test_mounts_that_do_not_answer() -> None:
    dead = of(with_mount(answer=Answer.DISCONNECTED, status=None, control_error="nobody listens"), "mount")
    assert (dead.level, "has died" in dead.seen) == (Level.PROBLEM, True)
    stuck = of(with_mount(answer=Answer.SILENT, status=None, control_error="silent for 2 s"), "mount")
    assert stuck.level is Level.PROBLEM
    assert "process 4711" in stuck.seen
    assert "umount --force /mnt/c4" in stuck.mend
    another = of(with_mount(status=None, control_error="the spoke runs as another user"), "mount")
    assert another.level is Level.WARNING
    assert of(with_mount(is_mounted=False, answer=None, status=None), "mount").level is Level.NOTE


def test_what_the_spoke_complains_about() -> None:
    lost = of(with_mount(status=status(hub__connected=False, hub__error="no route")), "link")
    assert (lost.level, "no route" in lost.seen) == (Level.PROBLEM, True)
    assert of(with_mount(status=status(names__suspicious="lost 9 of 10 names")), "names").level is Level.PROBLEM
    assert of(with_mount(status=status(notes=["the cache is bypassed: EIO"])), "spoke").level is Level.WARNING
    assert of(with_mount(status=status(cache__corrupt_blocks=3)), "cache blocks").figures == {"corrupt_blocks": 3}


# --- the cache disk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fs_type", "level"),
    [
        ("ext4", Level.OK), ("xfs", Level.OK), ("overlay", Level.WARNING), ("tmpfs", Level.WARNING),
        ("nfs4", Level.WARNING), ("fuse.sshfs", Level.WARNING), ("lustre", Level.WARNING), ("vfat", Level.NOTE), (None, Level.NOTE),
    ],
)  # fmt: skip
def test_file_systems(fs_type: str | None, level: Level) -> None:
    assert of(with_disk(fs_type=fs_type), "cache file system").level is level


def test_a_disk_that_hangs_or_refuses() -> None:
    assert of(with_disk(hung=True), "cache disk").level is Level.PROBLEM
    found = of(with_disk(error="Read-only file system"), "cache disk")
    assert (found.level, "Read-only" in found.seen) == (Level.PROBLEM, True)


def test_space() -> None:
    full = of(with_disk(free_bytes=GIB, used_bytes=0), "cache space")
    assert (full.level, full.figures["usable_bytes"]) == (Level.PROBLEM, 0)
    tight = of(with_disk(free_bytes=31 * GIB), "cache space")
    assert tight.level is Level.WARNING
    assert "may hold 80 GiB and gets 40 GiB, 50.0 %" in tight.cost
    assert of(with_disk(free_bytes=31 * GIB, capacity_bytes=None), "cache space").level is Level.OK


def test_inodes() -> None:
    assert of(with_disk(free_inodes=limits.CACHE_FREE_FLOOR_INODES), "cache inodes").level is Level.PROBLEM
    few = of(with_disk(free_inodes=110_000), "cache inodes")
    assert (few.level, few.figures["files"]) == (Level.NOTE, 50_100)
    assert "room for 50,100 files of 1,000,000 names" in few.cost
    assert not [found for found in judged(with_disk(free_inodes=None)) if found.check == "cache inodes"]


def test_speed_against_the_link() -> None:
    slow = of(with_disk(write_bytes_per_s=50e6), "cache speed")
    assert (slow.level, slow.figures["share"]) == (Level.WARNING, 0.4)
    assert of(with_disk(write_bytes_per_s=100e6), "cache speed").level is Level.NOTE
    assert of(with_path(0.06, 10), "cache speed").figures["share"] == 0.8


def test_no_holes() -> None:
    assert of(with_disk(punches_holes=False), "hole punching").level is Level.WARNING


def test_a_cache_that_would_make_kubelet_evict() -> None:
    facts = with_host(with_disk(capacity_bytes=95 * GIB), in_kubernetes=True)
    found = of(facts, "node disk")
    assert found.figures == {"left_bytes": 5 * GIB}
    assert found.mend.startswith("--cache-free-floor 15GiB")
    assert not [found for found in judged(with_disk(capacity_bytes=95 * GIB)) if found.check == "node disk"]
    assert not [found for found in judged(with_host(in_kubernetes=True)) if found.check == "node disk"]


# --- the process ---------------------------------------------------------------------------------------------


def test_open_files() -> None:
    assert of(SOUND, "open files").figures["wanted"] == 2 * 256 + 33 + 64
    assert of(with_host(open_files_max=256), "open files").level is Level.WARNING
    assert of(with_host(open_files_max=64), "open files").level is Level.PROBLEM
    many = status(data_path__open_files=5000)
    found = of(with_mount(status=many), "open files")
    assert (found.level, found.figures["wanted"]) == (Level.WARNING, 10_097)


def test_memory_of_its_cgroup() -> None:
    wanted = PROCESS_BYTES + 1_000_000 * NAME_BYTES
    assert of(with_host(memory_limit_bytes=wanted), "memory").level is Level.OK
    assert of(with_host(memory_limit_bytes=wanted - 1), "memory").level is Level.WARNING
    found = of(with_host(memory_limit_bytes=512 * MIB), "memory")
    assert (found.level, found.figures["wanted_bytes"]) == (Level.PROBLEM, wanted)
    assert "1,000,000 names" in found.cost


def test_memory_before_a_mount() -> None:
    assert of(with_host(UNMOUNTED, memory_available_bytes=PROCESS_BYTES), "memory").level is Level.OK
    assert of(with_host(UNMOUNTED, memory_available_bytes=PROCESS_BYTES // 3), "memory").level is Level.PROBLEM
    assert of(with_host(memory_available_bytes=MIB), "memory").level is Level.OK  # a running spoke has its own already


def test_clocks() -> None:
    assert of(with_host(monotonic_went_back=True), "clock").level is Level.PROBLEM
    assert of(with_host(clocksource="acpi_pm"), "clock").level is Level.NOTE
    assert of(with_host(clock_synchronised=False), "clock").level is Level.NOTE
    assert of(with_host(clock_synchronised=None), "clock").level is Level.OK


def test_probes_given_up_are_named() -> None:
    assert of(replace(SOUND, unanswered=("the look at /proc and /sys",)), "probe").level is Level.WARNING


def test_the_worst_comes_first() -> None:
    levels = [finding.level for finding in judged(with_host(with_disk(hung=True), clocksource="hpet"))]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] is Level.PROBLEM
