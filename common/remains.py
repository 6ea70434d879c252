"""What is left of a process that was killed: threads that the kernel does not let go of."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PROC = Path("/proc")


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


def flock_holders(fd: int, proc: Path = _PROC) -> list[int]:
    """Processes (of our pid namespace) that took the exclusive flock(2) of this open file's inode."""
    found = os.fstat(fd)
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    holders = []
    with contextlib.suppress(OSError):
        for line in (proc / "locks").read_text().splitlines():
            words = line.split()
            if words[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and words[5] == inode:
                holders.append(int(words[4]))
    return holders
