"""What is left of a process that was killed: threads that the kernel does not let go of."""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path

_PROC = Path("/proc")
_EXCLUSIVE_FLOCK = ["FLOCK", "ADVISORY", "WRITE"]


def is_held_by_fuse(pid: int, proc: Path = _PROC) -> bool:
    """Dead, but for threads that wait inside FUSE for what only the process that serves the mount next can give.

    A thread that has the kernel forget a name waits for its directory's lock, which a lookup holds until it is answered, and no signal
    wakes it (fuse_reverse_inval_entry, fs/fuse/dir.c). Killed meanwhile, the process keeps its descriptors and locks, and its pidfd stays
    silent; but none of its instructions is run again. False where the kernel does not say where a thread waits.
    """
    if process_letter(pid, proc) != "Z":
        return False
    tasks = proc / str(pid) / "task"
    try:
        threads = os.listdir(tasks)
    except OSError:
        return False
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (tasks / thread / "wchan").read_text().startswith("fuse_"):
                return True
    return False


def process_letter(pid: int, proc: Path = _PROC) -> str:
    """The state of a process as proc(5) has it (Z: dead, D: waiting for a disk); empty when it is gone."""
    try:
        return (proc / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def is_flock_of_remains(fd: int) -> bool:
    """Who has the exclusive flock(2) of this open file is a process of our pid namespace of which :func:`is_held_by_fuse` is true.

    /proc/locks names files by the device of their superblock, which stat(2) does not show on overlayfs and btrfs; so it tells only who has
    any such lock, and the descriptors of his threads lead to the file itself.
    """
    found = os.fstat(fd)
    try:
        lines = (_PROC / "locks").read_text().splitlines()
    except OSError:
        return False
    takers = {words[4] for line in lines if (words := line.split())[1:4] == _EXCLUSIVE_FLOCK}
    return any(is_held_by_fuse(int(pid)) and _has_flock(_PROC / pid, found) for pid in takers)


def _has_flock(process: Path, file: os.stat_result) -> bool:
    for descriptor in glob.iglob(f"{process}/task/*/fdinfo/*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            lines = Path(descriptor).read_text("utf-8", "replace").splitlines()
            has_one = any(line.startswith("lock:") and line.split()[2:5] == _EXCLUSIVE_FLOCK for line in lines)
            if has_one and os.path.samestat(os.stat(descriptor.replace("/fdinfo/", "/fd/")), file):
                return True
    return False
