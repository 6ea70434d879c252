"""Real, tiny files by the million, made and changed; knows nothing of Headrace."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path


def directory_name(number: int) -> str:
    return f"part-{number:05d}"


def file_name(directory: int, number: int) -> str:
    return f"shard-{directory:05d}-{number:06d}.bin"


def make_tree(root: Path, files: int, directories: int) -> float:
    """Real files of a few bytes each, spread evenly; seconds it took."""
    started_s = time.perf_counter()
    for directory in range(directories):
        path = root / directory_name(directory)
        path.mkdir(parents=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for number in range(files * directory // directories, files * (directory + 1) // directories):
                _write_at(fd, file_name(directory, number), b"%d\n" % number)
        finally:
            os.close(fd)
    return time.perf_counter() - started_s


def listing(root: Path) -> dict[str, tuple[int, int]]:
    """Path to (size, mtime in ns) of every regular file below ``root``."""
    found: dict[str, tuple[int, int]] = {}
    stack = [""]
    while stack:
        directory = stack.pop()
        with os.scandir(root / directory) as entries:
            for entry in entries:
                path = f"{directory}/{entry.name}" if directory else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if path != ".headrace":
                        stack.append(path)
                else:
                    seen = entry.stat(follow_symlinks=False)
                    found[path] = (seen.st_size, seen.st_mtime_ns)
    return found


def change_some(root: Path, count: int, tag: str) -> list[str]:
    """Write files all over the tree; their paths."""
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    changed = []
    for number in range(count):
        directory = names[number % len(names)]
        path = f"{directory}/{tag}-{number // len(names):06d}.new"
        (root / path).write_text(f"{tag} {number}\n")
        changed.append(path)
    return changed


def make_burst(root: Path, count: int) -> set[str]:
    """So many changes as fast as they can be made: half new files in ``burst``, a quarter rewritten, a quarter removed again;
    last ``burst-end``. The names that are left in ``burst``."""
    target = root / "burst"
    target.mkdir()
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number in range(count // 2):
            _write_at(fd, f"b{number:06d}", b"1\n")
        for number in range(count // 4):
            _write_at(fd, f"b{number:06d}", b"two\n")
        for number in range(count // 4):
            os.unlink(f"b{count // 2 - 1 - number:06d}", dir_fd=fd)
    finally:
        os.close(fd)
    (root / "burst-end").write_text("end\n")
    return {f"b{number:06d}" for number in range(count // 2 - count // 4)}


def clean(root: Path) -> None:
    """Take away what the stages added, so that a kept tree serves again."""
    shutil.rmtree(root / "burst", ignore_errors=True)
    for pattern in ("*/*-away-*.new", "*/latency.txt", "*.bin", "burst-end"):
        for path in root.glob(pattern):
            if not path.name.startswith("shard-"):
                path.unlink()


def _write_at(fd: int, name: str, data: bytes) -> None:
    file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644, dir_fd=fd)
    os.write(file, data)
    os.close(file)
