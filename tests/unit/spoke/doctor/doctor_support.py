"""Made-up facts: a sound host, 60 ms and 1 Gbit/s from a sound hub. Tests change one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spoke.doctor.examine import judged
from spoke.doctor.facts import (
    DiskFacts,
    Facts,
    FuseFacts,
    HostFacts,
    HubFacts,
    HubState,
    MountFacts,
    PathFacts,
    Source,
    TcpFacts,
)
from spoke.doctor.findings import Finding
from spoke.fuse.mountpoint import Answer

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10


def status(**changes: Any) -> dict[str, Any]:
    """What a healthy spoke answers, as far as doctor looks; keys are changed as in ``hub__connected=False``."""
    made: dict[str, Any] = {
        "pid": 4711,
        "dataset": "c4",
        "hub": {"address": "10.0.1.5:7420", "connected": True, "error": None, "rtt_s": 0.061, "rate_bytes_per_s": 9e7},
        "names": {"entries": 1_000_000, "suspicious": None},
        "cache": {
            "directory": "/nvme/headrace",
            "used_bytes": 10 * GIB,
            "capacity_bytes": 80 * GIB,
            "files": 100,
            "corrupt_blocks": 0,
        },
        "data_path": {"passthrough": True, "reason": "", "passthrough_opens": 3, "open_files": 10},
        "notes": [],
        "settings": {
            "links": {"value": 0},
            "passthrough": {"value": True},
            "cache_free_floor": {"value": GIB},
        },
    }
    for name, value in changes.items():
        first, _, second = name.partition("__")
        if second:
            made[first][second] = value
        else:
            made[first] = value
    return made


TCP = TcpFacts(
    rmem_bytes=(4096, 131072, 6 * MIB),
    wmem_bytes=(4096, 16384, 4 * MIB),
    mem_pages=(287898, 383866, 575796),
    moderate_rcvbuf=1,
    window_scaling=1,
    sack=1,
    slow_start_after_idle=0,
    mtu_probing=1,
    congestion_control="bbr",
    available=("reno", "bbr", "cubic"),
    bbr_refused="",
    default_qdisc="fq",
)
HUB = HubFacts(
    address="10.0.1.5:7420",
    dataset="c4",
    state=HubState.WELCOMED,
    connect_s=0.0604,
    pings_s=(0.0600, 0.0601, 0.0602),
    wire_version=1,
    head_revision=7,
    send_buffer_bytes=4 * MIB,
    mtu_bytes=8500,
)
DISK = DiskFacts(
    wanted="/nvme/headrace",
    directory="/nvme/headrace",
    fs_type="ext4",
    total_bytes=100 * GIB,
    free_bytes=90 * GIB,
    free_inodes=10_000_000,
    write_bytes_per_s=1e9,
    read_bytes_per_s=2e9,
    punches_holes=True,
    capacity_bytes=80 * GIB,
    used_bytes=10 * GIB,
)
MOUNT = MountFacts("/mnt/c4", is_mounted=True, answer=Answer.SERVED, owner_pid=4711, read_ahead_kb=128, status=status())
SOUND = Facts(
    path=PathFacts(0.06, Source.MEASURED, 125e6, Source.GIVEN),
    tcp=TCP,
    hub=HUB,
    fuse=FuseFacts(
        helper="/usr/bin/fusermount3",
        helper_is_setuid=True,
        is_root=True,
        has_admin=True,
        in_initial_user_namespace=True,
        max_pages_limit=256,
    ),
    host=HostFacts(
        kernel=(6, 18),
        kernel_release="6.18.1",
        open_files_max=1024,
        memory_available_bytes=64 * GIB,
        clocksource="tsc",
        clock_synchronised=True,
    ),
    disk=DISK,
    mount=MOUNT,
)
UNMOUNTED = replace(SOUND, mount=None)


def with_path(rtt_s: float | None, gbit_per_s: float, *, bulk_links: int = 0, facts: Facts = SOUND) -> Facts:
    return replace(facts, path=PathFacts(rtt_s, Source.GIVEN, gbit_per_s * 125e6, Source.GIVEN, bulk_links))


def of(facts: Facts, check: str) -> Finding:
    """The one finding of this name."""
    (found,) = [finding for finding in judged(facts) if finding.check == check]
    return found
