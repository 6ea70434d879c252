"""The memory limit of the control group this process is in: version 1 or 2, the tightest of the group and those above it.

Reads /proc and /sys only; what cannot be read counts as no limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 says "none" with a number near 2^63."""

_FILES = {2: ("memory.max", "memory.high"), 1: ("memory.limit_in_bytes",)}


class CgroupLimit(NamedTuple):
    """``file``: where it is set, as seen from this process."""

    limit_bytes: int
    file: str


def memory_limit(proc: Path = Path("/proc/self")) -> CgroupLimit | None:
    """The least that any group from ours up to the root of what we see may use (``memory.high`` counts: beyond it we are throttled)."""
    found = [limit for version, folder in _folders(proc) for limit in _limits(version, folder)]
    return min(found, default=None)


def _limits(version: int, folder: Path) -> Iterator[CgroupLimit]:
    for name in _FILES[version]:
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isascii() and text.isdigit() and int(text) < _NO_LIMIT_BYTES:
            yield CgroupLimit(int(text), str(folder / name))


def _folders(proc: Path) -> Iterator[tuple[int, Path]]:
    """Our group and those above it, with the version of their interface."""
    try:
        groups, mounts = (_lines(proc / name) for name in ("cgroup", "mountinfo"))
    except OSError:
        return
    for line in groups:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if not controllers else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        for root, mounted_at in _mounts(mounts, version):
            top = Path(mounted_at)
            folder = top / _below(path, root)
            while True:
                yield version, folder
                if folder == top or top not in folder.parents:
                    break
                folder = folder.parent


def _lines(file: Path) -> list[str]:
    """Names of other mounts may be any bytes."""
    return [os.fsdecode(line) for line in file.read_bytes().splitlines()]


def _mounts(mountinfo: list[str], version: int) -> Iterator[tuple[str, str]]:
    """(root within the file system, mountpoint) of the mounts that show the memory controller."""
    for line in mountinfo:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if (version == 2 and kind[0] == "cgroup2") or (
            version == 1 and kind[0] == "cgroup" and "memory" in kind[2].split(",")
        ):
            yield fields[3], fields[4].replace("\\040", " ")


def _below(path: str, root: str) -> str:
    """The group's path within what is mounted: a container may be shown its own group as the root."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    elif path.startswith("/.."):
        path = "/"
    return path.lstrip("/")
