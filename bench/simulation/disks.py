"""Disks under faults: the spoke's (its cache and its names) and the hub's (the dataset), over real files in a scratch directory.

What the real machine would let in is kept out: inode numbers, timestamps, free space and what is in the page cache are
the simulation's own. Each disk belongs to one life of a process, and after a kill it closes what that had open.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from bench.simulation.trace import Trace
from spoke.cache.disk import Disk
from spoke.namespace.files import Files

DISK_BYTES = 256 << 20
"""How large the simulated cache disk says it is."""

TICK_NS = 4_000_000
"""The kernel stamps files with a clock that moves every 4 ms (CONFIG_HZ=250): two edits within one look alike."""


@dataclass(slots=True)
class Faults:
    """What a disk does wrong now; shares of the calls. ``slow_s``: what each piece of work in a thread takes besides."""

    read_error_share: float = 0.0
    write_error_share: float = 0.0
    short_share: float = 0.0
    full: bool = False
    slow_s: float = 0.0

    def heal(self) -> None:
        self.read_error_share = self.write_error_share = self.short_share = self.slow_s = 0.0
        self.full = False

    @property
    def any(self) -> bool:
        return bool(self.read_error_share or self.write_error_share or self.short_share or self.full or self.slow_s)


class SimStat(NamedTuple):
    """The part of a stat_result that is looked at."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_nlink: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_blocks: int


class Marks:
    """What the spoke's disk is known by: files get numbers as they are first seen, and a count of their changes is their ctime.

    Outlives the spoke's process, as the disk does. ``cold``: ranges of a file that are not in the page cache.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._changes: dict[int, int] = {}
        self._next = 1
        self.cold: dict[int, bool] = {}

    def number(self, fd: int) -> int:
        seen = os.fstat(fd)
        key = seen.st_dev, seen.st_ino
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._next
            self._next += 1
        return found

    def gone(self, path: str) -> None:
        """Its name is removed: another file may get its inode number once nobody has it open."""
        with contextlib.suppress(OSError):
            seen = os.stat(path)
            self._numbers.pop((seen.st_dev, seen.st_ino), None)

    def changed(self, number: int) -> None:
        self._changes[number] = self._changes.get(number, 0) + 1

    def changes(self, number: int) -> int:
        return self._changes.get(number, 0)


class SpokeDisk(Disk):
    """The cache's system calls."""

    def __init__(self, faults: Faults, marks: Marks, dice: Random, trace: Trace) -> None:
        self.faults, self.marks, self.dice, self.trace = faults, marks, dice, trace
        self._numbers: dict[int, int] = {}

    def _enter(self, name: str, share: float) -> None:
        self.trace.step(name)
        if share and self.dice.random() < share:
            self.trace.counts[f"disk: {name} failed"] += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _changing(self, name: str) -> None:
        self._enter(name, self.faults.write_error_share)
        if self.faults.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        self._enter("open", self.faults.read_error_share)
        if flags & os.O_CREAT and self.faults.full and not os.path.exists(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fd = os.open(path, flags, mode)
        self._numbers[fd] = self.marks.number(fd)
        return fd

    def close(self, fd: int) -> None:
        if self._numbers.pop(fd, None) is not None:
            os.close(fd)

    def fstat(self, fd: int) -> Any:
        seen, number = os.fstat(fd), self._numbers[fd]
        return SimStat(
            seen.st_mode, number, 1, seen.st_nlink, seen.st_size, 0, self.marks.changes(number), seen.st_blocks
        )

    def statvfs(self, path: str) -> Any:  # type: ignore[override]
        self._enter("statvfs", self.faults.read_error_share)
        used_bytes = sum(
            entry.stat().st_blocks * 512
            for folder, _, _ in os.walk(path)
            for entry in os.scandir(folder)
            if entry.is_file(follow_symlinks=False)
        )
        free_bytes = 0 if self.faults.full else max(0, DISK_BYTES - used_bytes)
        return _Space(4096, DISK_BYTES // 4096, free_bytes // 4096, 1 << 20, 1 << 19)

    def mkdir(self, path: str, mode: int = 0o777) -> None:  # type: ignore[override]
        self._changing("mkdir")
        os.mkdir(path, mode)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._enter("unlink", self.faults.write_error_share)
        self.marks.gone(path)
        os.unlink(path)

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        self._changing("ftruncate")
        os.ftruncate(fd, size_bytes)
        self.marks.changed(self._numbers[fd])

    def preadv(self, fd: int, buffers: Any, offset_bytes: int, flags: int = 0) -> int:
        number = self._numbers[fd]
        if flags & os.RWF_NOWAIT and (self.marks.cold.get(number) or self.dice.random() < 0.1):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._enter("preadv", 0.0 if flags else self.faults.read_error_share)
        if self.faults.short_share and self.dice.random() < self.faults.short_share:
            first = memoryview(buffers[0])
            buffers = [first[: self.dice.randint(1, len(first))]]
        return os.preadv(fd, buffers, offset_bytes)

    def pwrite(self, fd: int, data: Any, offset_bytes: int) -> int:
        self._changing("pwrite")
        if self.faults.short_share and self.dice.random() < self.faults.short_share:
            view = memoryview(data)
            data = view[: self.dice.randint(1, len(view))]
        count = os.pwrite(fd, data, offset_bytes)
        self.marks.changed(self._numbers[fd])
        return count

    def pwritev(self, fd: int, pieces: Any, offset_bytes: int) -> int:  # type: ignore[override]
        return self.pwrite(fd, b"".join(pieces), offset_bytes)

    def punch_hole(self, fd: int, offset_bytes: int, length_bytes: int) -> None:
        self._enter("punch_hole", self.faults.write_error_share)
        super().punch_hole(fd, offset_bytes, length_bytes)
        self.marks.changed(self._numbers[fd])

    def resident(self, fd: int, offset_bytes: int, length_bytes: int) -> bytes:
        odd = 0 if self.marks.cold.get(self._numbers[fd]) else 1
        return bytes([odd]) * -(-length_bytes // 4096)

    def advise(self, fd: int, offset_bytes: int, length_bytes: int, advice: int) -> None:
        """Nothing here depends on it."""

    def open_count(self) -> int:
        return len(self._numbers)

    def die(self) -> None:
        """The process was killed: the kernel closes what it had open, and nothing it still tries has an effect."""
        for fd in self._numbers:
            os.close(fd)
        self._numbers.clear()


class _Space(NamedTuple):
    f_frsize: int
    f_blocks: int
    f_bavail: int
    f_files: int
    f_favail: int


class SpokeFiles(Files):
    """The names' system calls, on the same disk."""

    def __init__(self, disk: SpokeDisk) -> None:
        self._disk = disk
        self._fds: dict[int, None] = {}

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        self._disk._changing("open names")
        fd = os.open(path, flags, mode)
        self._fds[fd] = None
        return fd

    def close(self, fd: int) -> None:
        if self._fds.pop(fd, 0) is None:
            os.close(fd)

    def write(self, fd: int, data: Any) -> int:
        self._disk._changing("write names")
        faults, dice = self._disk.faults, self._disk.dice
        if faults.short_share and dice.random() < faults.short_share:
            view = memoryview(data)
            data = view[: dice.randint(1, len(view))]
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._disk._changing("fsync names")

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self._disk._changing("rename names")
        os.rename(source, target)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._disk._changing("unlink names")
        os.unlink(path)

    def die(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


class Stamp(NamedTuple):
    number: int
    mtime_ns: int
    ctime_ns: int


class Stamps:
    """Inode numbers and times of the dataset's files, as the simulated kernel gives them. ``now_ns``: its wall clock."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._of: dict[tuple[int, int], Stamp] = {}
        self._next = 100

    def _tick_ns(self) -> int:
        return self._now_ns() // TICK_NS * TICK_NS

    def made(self, path: bytes) -> None:
        seen = os.lstat(path)
        now_ns = self._tick_ns()
        self._of[seen.st_dev, seen.st_ino] = Stamp(self._next, now_ns, now_ns)
        self._next += 1

    def changed(self, path: bytes, *, content: bool = True) -> None:
        """Its bytes or names in it changed; without ``content`` only its attributes (a rename, a link less)."""
        seen = os.lstat(path)
        key, now_ns = (seen.st_dev, seen.st_ino), self._tick_ns()
        before = self._of[key]
        self._of[key] = Stamp(before.number, now_ns if content else before.mtime_ns, now_ns)

    def of(self, seen: os.stat_result) -> Stamp:
        return self._of[seen.st_dev, seen.st_ino]

    def translate(self, seen: os.stat_result) -> SimStat:
        stamp = self.of(seen)
        size_bytes = 4096 if stat_is_directory(seen) else seen.st_size
        return SimStat(
            seen.st_mode, stamp.number, 1, seen.st_nlink, size_bytes, stamp.mtime_ns, stamp.ctime_ns, seen.st_blocks
        )


def stat_is_directory(seen: os.stat_result) -> bool:
    return (seen.st_mode & 0o170000) == 0o040000


class HubOs:
    """Stands for the ``os`` module in the hub's rooms that touch the dataset. ``life`` begins anew with each hub process."""

    def __init__(self, stamps: Stamps, faults: Faults, dice: Random, trace: Trace) -> None:
        self._stamps, self.faults, self._dice, self._trace = stamps, faults, dice, trace
        self._open: dict[int, None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _enter(self, name: str, share: float = 0.0) -> None:
        self._trace.step(f"hub {name}")
        if share and self._dice.random() < share:
            self._trace.counts[f"hub disk: {name} failed"] += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        self._enter("open")
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
        self._open[fd] = None
        return fd

    def close(self, fd: int) -> None:
        if self._open.pop(fd, 0) is None:
            os.close(fd)

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> SimStat:
        self._enter("stat")
        return self._stamps.translate(os.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks))

    def fstat(self, fd: int) -> SimStat:
        return self._stamps.translate(os.fstat(fd))

    def preadv(self, fd: int, buffers: Any, offset_bytes: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT and self._dice.random() < 0.3:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._enter("preadv", 0.0 if flags else self.faults.read_error_share)
        if self.faults.short_share and self._dice.random() < self.faults.short_share:
            first = memoryview(buffers[0])
            buffers = [first[: self._dice.randint(1, len(first))]]
        return os.preadv(fd, buffers, offset_bytes)

    @contextlib.contextmanager
    def scandir(self, fd: int) -> Iterator[Iterator[_Item]]:
        with os.scandir(fd) as found:
            names = sorted(item.name for item in found)
        self._dice.shuffle(names)  # a directory has no order
        yield iter([_Item(name, fd, self) for name in names])

    def open_count(self) -> int:
        return len(self._open)

    def die(self) -> None:
        for fd in self._open:
            os.close(fd)
        self._open.clear()


class _Item:
    """An os.DirEntry."""

    def __init__(self, name: str, fd: int, of: HubOs) -> None:
        self.name, self._fd, self._os = name, fd, of

    def stat(self, *, follow_symlinks: bool = True) -> SimStat:
        return self._os.stat(self.name, dir_fd=self._fd, follow_symlinks=follow_symlinks)
