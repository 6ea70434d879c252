"""Which file systems below an export are mounts of Headrace: serving one would serve the dataset inside itself, a level
deeper at each scan, and a spoke would wait for the hub that waits for it."""

from __future__ import annotations

import os
from pathlib import Path

MOUNT_TYPE = b"fuse.headrace"


def is_headrace_mount(device: int, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether the file system of this device number (``st_dev``) is one; False where that cannot be told."""
    try:
        lines = mountinfo.read_bytes().splitlines()
    except OSError:
        return False
    number = b"%d:%d" % (os.major(device), os.minor(device))
    for line in lines:  # proc_pid_mountinfo(5): id, parent, major:minor, … " - " type, source, options
        head, _, tail = line.partition(b" - ")
        fields = head.split(b" ", 3)
        if len(fields) > 2 and fields[2] == number and tail.split(b" ", 1)[0] == MOUNT_TYPE:
            return True
    return False
