"""Facts of the disk a cache directory is on, by a nameless file in it: it goes with its descriptor, whatever happens.

Blocking, and a network file system may hang: the caller runs it in a thread and gives up after a time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common.limits import CACHE_MIN_BYTES, DOCTOR_DISK_TEST_BYTES, DOCTOR_DISK_TEST_S
from spoke.cache.disk import Disk, allocated_bytes
from spoke.doctor.facts import DiskFacts
from spoke.fuse.mountpoint import parse_mountinfo

_PIECE_BYTES = 1024 * 1024


def fs_type_of(path: str, mountinfo: bytes) -> str | None:
    """The type of the file system a resolved path is on."""
    on = [entry for entry in parse_mountinfo(mountinfo) if _is_below(path, entry.path)]
    # The longest mountpoint above it; of several at one place the last is on top.
    return max(enumerate(on), key=lambda found: (len(found[1].path), found[0]))[1].fs_type if on else None


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def disk_facts(cache_dir: Path, now_s: Callable[[], float], disk: Disk | None = None) -> DiskFacts:
    """What the disk is, has left and does. ``now_s``: the monotonic clock."""
    disk = disk or Disk()
    directory = os.path.realpath(cache_dir)
    exists = os.path.isdir(directory)
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    facts = DiskFacts(str(cache_dir), directory, exists=exists)
    try:
        space = disk.statvfs(directory)
        facts = replace(
            facts,
            fs_type=fs_type_of(directory, Path("/proc/self/mountinfo").read_bytes()),
            total_bytes=space.f_blocks * space.f_frsize,
            free_bytes=space.f_bavail * space.f_frsize,
            free_inodes=space.f_favail if space.f_files else None,
        )
        with tempfile.TemporaryFile(dir=directory) as file:
            if facts.free_bytes > DOCTOR_DISK_TEST_BYTES + CACHE_MIN_BYTES:
                facts = _tried(facts, file.fileno(), disk, now_s)
    except OSError as error:
        return replace(facts, error=error.strerror or str(error))
    return facts


def _tried(facts: DiskFacts, fd: int, disk: Disk, now_s: Callable[[], float]) -> DiskFacts:
    """Write and sync, drop from memory, read back, punch a hole."""
    piece = os.urandom(_PIECE_BYTES)  # a disk that compresses must not look faster than it is
    written_bytes, began_s = 0, now_s()
    while written_bytes < DOCTOR_DISK_TEST_BYTES and now_s() - began_s < DOCTOR_DISK_TEST_S:
        written_bytes += disk.pwrite(fd, piece, written_bytes)
    os.fdatasync(fd)
    write_s = now_s() - began_s
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    read_bytes, began_s = 0, now_s()
    buffer = bytearray(_PIECE_BYTES)
    while read_bytes < written_bytes and now_s() - began_s < DOCTOR_DISK_TEST_S:
        got_bytes = disk.preadv(fd, [buffer], read_bytes)
        if got_bytes == 0:
            break
        read_bytes += got_bytes
    read_s = now_s() - began_s
    return replace(
        facts,
        write_bytes_per_s=written_bytes / max(write_s, 1e-9),
        read_bytes_per_s=read_bytes / max(read_s, 1e-9),
        punches_holes=_punches(fd, disk),
    )


def _punches(fd: int, disk: Disk) -> bool:
    before_bytes = allocated_bytes(disk.fstat(fd))
    try:
        disk.punch_hole(fd, 0, _PIECE_BYTES)
    except OSError:
        return False
    return allocated_bytes(disk.fstat(fd)) < before_bytes
