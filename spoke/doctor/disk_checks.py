"""Judging the disk under a cache directory: what it is, whether it can be written, what is left, how fast. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator

from common import limits
from common.units import format_rate, format_size
from spoke.doctor.facts import DiskFacts, Facts, FilesystemKind
from spoke.doctor.findings import Finding, Level
from spoke.doctor.path_checks import percent

KUBELET_FREE_SHARE = 0.10
"""kubelet's default nodefs.available: below it pods are evicted."""

_STACKED = frozenset({"overlay", "aufs", "ecryptfs", "unionfs"})
_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "virtiofs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
        "afs",
        "wekafs",
    }
)
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs"})


def kind_of(fs_type: str | None) -> FilesystemKind:
    """A file system by its name in mountinfo."""
    if fs_type is None:
        return FilesystemKind.UNKNOWN
    if fs_type in _STACKED:
        return FilesystemKind.STACKED
    if fs_type in _MEMORY:
        return FilesystemKind.MEMORY
    if fs_type in _NETWORK or fs_type.startswith("fuse"):
        return FilesystemKind.NETWORK
    return FilesystemKind.LOCAL if fs_type in _LOCAL else FilesystemKind.UNKNOWN


def disk_findings(facts: Facts) -> Iterator[Finding]:
    """Where cached blocks go: can it be written, what is it, how much is left, how fast."""
    disk = facts.disk
    if disk is None:
        return
    if disk.hung:
        yield Finding(
            "cache disk",
            Level.PROBLEM,
            f"{disk.wanted} did not answer within {limits.DOCTOR_DISK_TIMEOUT_S:g} s",
            "cached reads wait for it",
            "look at dmesg; put the cache on a local disk",
        )
        return
    if disk.error:
        yield Finding(
            "cache disk",
            Level.PROBLEM,
            f"{disk.directory} cannot be written: {disk.error}",
            "nothing is cached: every read crosses the link again",
            "give a directory this user may write, on a disk that works",
        )
    where = disk.directory if disk.exists else f"{disk.wanted} is not there yet; looked at {disk.directory}"
    yield _kind_finding(disk, where)
    yield from _space_findings(facts, disk)
    yield from _speed_findings(facts, disk)
    if disk.punches_holes is False:
        yield Finding(
            "hole punching",
            Level.WARNING,
            f"{disk.fs_type or 'the file system'} cannot give back part of a file",
            "only whole files can be evicted: a large one goes at once, with all that was fetched of it",
            "use ext4, xfs, btrfs or f2fs for the cache",
        )


def _kind_finding(disk: DiskFacts, where: str) -> Finding:
    match kind_of(disk.fs_type):
        case FilesystemKind.STACKED:
            return Finding(
                "cache file system",
                Level.WARNING,
                f"{where}: {disk.fs_type}",
                "no passthrough from a stacked file system, and the cache dies with its container",
                "mount a volume on a local disk there (hostPath, local PV), or give another --cache-dir",
            )
        case FilesystemKind.MEMORY:
            return Finding(
                "cache file system",
                Level.WARNING,
                f"{where}: {disk.fs_type}",
                f"cached data is memory: up to {format_size(disk.capacity_bytes or disk.total_bytes)} of it, gone at a reboot",
                "give --cache-dir on local NVMe",
            )
        case FilesystemKind.NETWORK:
            return Finding(
                "cache file system",
                Level.WARNING,
                f"{where}: {disk.fs_type}",
                "each hit crosses a network again, and hangs with it",
                "give --cache-dir on local NVMe",
            )
        case FilesystemKind.UNKNOWN:
            return Finding("cache file system", Level.NOTE, f"{where}: {disk.fs_type or 'unknown'}, never tried by us")
        case FilesystemKind.LOCAL:
            return Finding("cache file system", Level.OK, f"{where}: {disk.fs_type}")


def _space_findings(facts: Facts, disk: DiskFacts) -> Iterator[Finding]:
    if disk.total_bytes == 0:
        return
    usable = max(0, disk.free_bytes - disk.floor_bytes) + disk.used_bytes
    seen = f"{format_size(disk.free_bytes)} of {format_size(disk.total_bytes)} free, {format_size(disk.floor_bytes)} of it stay so"
    figures = {"free_bytes": disk.free_bytes, "usable_bytes": usable}
    mend = "free space, lower --cache-free-floor, or use a larger disk"
    if usable < limits.CACHE_MIN_BYTES:
        yield Finding("cache space", Level.PROBLEM, seen, "nothing can be cached", mend, figures)
    elif disk.capacity_bytes is not None and usable < disk.capacity_bytes * 0.9:
        yield Finding(
            "cache space",
            Level.WARNING,
            seen,
            f"the cache may hold {format_size(disk.capacity_bytes)} and gets {format_size(usable)}, "
            f"{percent(usable / disk.capacity_bytes)}",
            mend,
            figures,
        )
    else:
        yield Finding("cache space", Level.OK, seen, figures=figures)
    inodes = disk.free_inodes
    if inodes is not None and inodes <= limits.CACHE_FREE_FLOOR_INODES:
        yield Finding(
            "cache inodes",
            Level.PROBLEM,
            f"{inodes:,} inodes free, {limits.CACHE_FREE_FLOOR_INODES:,} stay so",
            "no further file can be cached",
            "remove small files there, or make the file system with more inodes",
        )
    elif inodes is not None and facts.mount is not None and facts.mount.status is not None:
        names = facts.mount.status["names"]["entries"]
        room = (inodes - limits.CACHE_FREE_FLOOR_INODES) // 2 + facts.mount.status["cache"]["files"]
        if room < names:
            yield Finding(
                "cache inodes",
                Level.NOTE,
                f"{inodes:,} inodes free; a cached file takes two",
                f"room for {room:,} files of {names:,} names",
                "use a file system with more inodes (xfs makes them as needed)",
                {"files": room},
            )
    if facts.host.in_kubernetes and disk.capacity_bytes is not None:
        left = max(disk.floor_bytes, disk.free_bytes - max(0, disk.capacity_bytes - disk.used_bytes))
        if left < KUBELET_FREE_SHARE * disk.total_bytes:
            yield Finding(
                "node disk",
                Level.WARNING,
                f"a full cache leaves {format_size(left)} of {format_size(disk.total_bytes)} free",
                f"if this is the node's own disk, kubelet evicts pods below {KUBELET_FREE_SHARE:.0%} free",
                f"--cache-free-floor {int(KUBELET_FREE_SHARE * 1.5 * disk.total_bytes) >> 30}GiB, or a disk of its own",
                {"left_bytes": left},
            )


def _speed_findings(facts: Facts, disk: DiskFacts) -> Iterator[Finding]:
    write, read, rate = disk.write_bytes_per_s, disk.read_bytes_per_s, facts.path.rate_bytes_per_s
    if write is None:
        return
    seen = f"writes {format_size(write)}/s with a sync, reads {format_size(read or 0)}/s (a few MiB, roughly)"
    figures = {"write_bytes_per_s": write, "read_bytes_per_s": read or 0.0}
    if write >= rate:
        yield Finding("cache speed", Level.OK, seen, figures=figures)
        return
    share = write / rate
    yield Finding(
        "cache speed",
        Level.WARNING if share < 0.5 else Level.NOTE,
        seen,
        f"the link brings {format_rate(rate)} ({facts.path.rate_source.value}): what lands beyond {percent(share)} of that "
        "for long is not cached and crosses the link again",
        "put the cache on local NVMe",
        {**figures, "share": share},
    )
