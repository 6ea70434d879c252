"""A disk whose power can be cut: it records what is done to a directory, and makes any state that may be left of it.

What may be left, without an fsync that says otherwise (POSIX promises no more, whatever a given file system does):
of what was written since the last sync each 512-byte sector is old or new by itself, so writes are lost, torn and
reordered; a file's length is any that it had; of a directory's changes any subset is kept, a rename whole or not at all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from spoke.cache.disk import Disk

SECTOR_BYTES = 512


class Op(NamedTuple):
    """``kind``: write, size, sync (of ``inode``); link, unlink, rename, mkdir, syncdir (of ``path``, and ``other``)."""

    kind: str
    inode: int = -1
    offset_bytes: int = 0
    data: bytes = b""
    path: str = ""
    other: str = ""


class RecordingDisk(Disk):
    """The real disk, for the cache and for the names; what is done below ``root`` from now on is in ``ops``."""

    def __init__(self, root: Path) -> None:
        self.root = os.fspath(root)
        self.ops: list[Op] = []
        self._lock = threading.Lock()
        self._fds: dict[int, int] = {}
        self._appends: set[int] = set()
        self._directories: dict[int, str] = {}
        self._sizes: list[int] = []
        self._names: dict[str, int] = {}
        self.base: list[tuple[str, bytes | None]] = []
        for folder, folders, names in os.walk(self.root):
            self.base.extend((self._inside(os.path.join(folder, name)), None) for name in folders)
            for name in names:
                path = os.path.join(folder, name)
                content = Path(path).read_bytes()
                self.base.append((self._inside(path), content))
                self._names[self._inside(path)] = len(self._sizes)
                self._sizes.append(len(content))

    def _inside(self, path: str | os.PathLike[str]) -> str:
        return os.path.relpath(path, self.root)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        with self._lock:
            fd = os.open(path, flags, mode)
            name = self._inside(path)
            if flags & os.O_DIRECTORY:
                self._directories[fd] = name
                return fd
            if name not in self._names:
                self._names[name] = len(self._sizes)
                self._sizes.append(0)
                self.ops.append(Op("link", self._names[name], path=name))
            inode = self._fds[fd] = self._names[name]
            if flags & os.O_TRUNC and self._sizes[inode]:
                self._sizes[inode] = 0
                self.ops.append(Op("size", inode, 0))
            if flags & os.O_APPEND:
                self._appends.add(fd)
            return fd

    def close(self, fd: int) -> None:  # type: ignore[override]
        with self._lock:
            self._fds.pop(fd, None)
            self._directories.pop(fd, None)
            self._appends.discard(fd)
            os.close(fd)

    def mkdir(self, path: str, mode: int = 0o777) -> None:  # type: ignore[override]
        with self._lock:
            os.mkdir(path, mode)
            self.ops.append(Op("mkdir", path=self._inside(path)))

    def unlink(self, path: str) -> None:  # type: ignore[override]
        with self._lock:
            os.unlink(path)
            self._names.pop(self._inside(path), None)
            self.ops.append(Op("unlink", path=self._inside(path)))

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            os.rename(source, target)
            inode = self._names[self._inside(target)] = self._names.pop(self._inside(source))
            self.ops.append(Op("rename", inode, path=self._inside(source), other=self._inside(target)))

    def ftruncate(self, fd: int, size_bytes: int) -> None:  # type: ignore[override]
        with self._lock:
            os.ftruncate(fd, size_bytes)
            self._sizes[self._fds[fd]] = size_bytes
            self.ops.append(Op("size", self._fds[fd], size_bytes))

    def pwrite(self, fd: int, data: Any, offset_bytes: int) -> int:  # type: ignore[override]
        with self._lock:
            return self._write(fd, data, offset_bytes)

    def pwritev(self, fd: int, pieces: Any, offset_bytes: int) -> int:  # type: ignore[override]
        return self.pwrite(fd, b"".join(pieces), offset_bytes)

    def write(self, fd: int, data: Any) -> int:
        with self._lock:
            # Whoever writes without a place writes at the end: the names do, into files they made or append to.
            return self._write(fd, data, self._sizes[self._fds[fd]])

    def _write(self, fd: int, data: Any, offset_bytes: int) -> int:
        inode = self._fds[fd]
        count = os.write(fd, data) if fd in self._appends else os.pwrite(fd, data, offset_bytes)
        self._sizes[inode] = max(self._sizes[inode], offset_bytes + count)
        self.ops.append(Op("write", inode, offset_bytes, bytes(data[:count])))
        return count

    def punch_hole(self, fd: int, offset_bytes: int, length_bytes: int) -> None:
        with self._lock:
            super().punch_hole(fd, offset_bytes, length_bytes)
            length_bytes = min(length_bytes, self._sizes[self._fds[fd]] - offset_bytes)
            self.ops.append(Op("write", self._fds[fd], offset_bytes, bytes(max(0, length_bytes))))

    def fsync(self, fd: int) -> None:
        with self._lock:
            os.fsync(fd)
            if fd in self._directories:
                self.ops.append(Op("syncdir", path=self._directories[fd]))
            else:
                self.ops.append(Op("sync", self._fds[fd]))


@dataclass(slots=True)
class _Image:
    """What is on the platter."""

    folders: set[str] = field(default_factory=set)
    names: dict[str, int] = field(default_factory=dict)
    contents: dict[int, bytearray] = field(default_factory=dict)

    def apply(self, op: Op) -> None:
        """All of it."""
        if op.kind == "write":
            content = self.content(op.inode)
            if len(content) < op.offset_bytes:
                content.extend(bytes(op.offset_bytes - len(content)))
            content[op.offset_bytes : op.offset_bytes + len(op.data)] = op.data
        elif op.kind == "size":
            content = self.content(op.inode)
            del content[op.offset_bytes :]
            content.extend(bytes(op.offset_bytes - len(content)))
        elif op.kind == "link":
            self.names[op.path] = op.inode
        elif op.kind == "unlink":
            self.names.pop(op.path, None)
        elif op.kind == "rename":
            self.names.pop(op.path, None)
            self.names[op.other] = op.inode
        elif op.kind == "mkdir":
            self.folders.add(op.path)

    def content(self, inode: int) -> bytearray:
        return self.contents.setdefault(inode, bytearray())

    def write_to(self, target: Path) -> None:
        target.mkdir(mode=0o700, parents=True)
        for folder in sorted(self.folders):
            (target / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, inode in self.names.items():
            path = target / name
            if path.parent.is_dir():  # else the directory itself did not make it
                with open(path, "wb") as file:
                    _write_sparse(file, self.content(inode))


def _write_sparse(file: Any, content: bytearray) -> None:
    view = memoryview(content)
    for start in range(0, len(view), 65536):
        piece = view[start : start + 65536]
        if any(piece):
            file.seek(start)
            file.write(piece)
    file.truncate(len(view))


def _started(disk: RecordingDisk) -> _Image:
    image = _Image()
    for inode, (name, content) in enumerate(found for found in disk.base if found[1] is not None):
        assert content is not None
        image.names[name] = inode
        image.contents[inode] = bytearray(content)
    image.folders = {name for name, content in disk.base if content is None}
    return image


def killed(disk: RecordingDisk, count: int, dice: Random, target: Path) -> None:
    """What a process leaves that was killed after ``count`` operations, in the middle of the next write."""
    image = _started(disk)
    for op in disk.ops[:count]:
        image.apply(op)
    if count < len(disk.ops) and disk.ops[count].kind == "write":
        op = disk.ops[count]
        image.apply(op._replace(data=op.data[: dice.randrange(len(op.data) + 1)]))
    image.write_to(target)


def power_cut(disk: RecordingDisk, count: int, synced: int, dice: Random, target: Path) -> None:
    """What the power leaves that failed after ``count`` operations; the kernel had written out the first ``synced`` of them."""
    image = _started(disk)
    for op in disk.ops[:synced]:
        image.apply(op)
    pending = _without_durable(disk.ops[synced:count], image)
    keep = _chooser(dice)
    by_inode: dict[int, list[Op]] = {}
    for op in pending:
        if op.kind in ("write", "size"):
            by_inode.setdefault(op.inode, []).append(op)
        elif op.kind != "sync" and op.kind != "syncdir" and keep():
            image.apply(op)
    for inode, ops in by_inode.items():
        _tear(image.content(inode), ops, dice, keep)
    image.write_to(target)


def _without_durable(ops: list[Op], image: _Image) -> list[Op]:
    """Apply what a later fsync made durable; the rest, in order."""
    synced_inode = {op.inode: place for place, op in enumerate(ops) if op.kind == "sync"}
    synced_folder = {op.path: place for place, op in enumerate(ops) if op.kind == "syncdir"}
    left: list[Op] = []
    for place, op in enumerate(ops):
        if op.kind in ("write", "size"):
            durable = place < synced_inode.get(op.inode, -1)
        else:
            durable = place < synced_folder.get(os.path.dirname(op.path) or ".", -1)
        if durable:
            image.apply(op)
        else:
            left.append(op)
    return left


def _chooser(dice: Random) -> Callable[[], bool]:
    """How much of what was not synced reached the platter: nothing, little, most, all; drawn once for each cut."""
    share = dice.choice((0.0, 0.1, 0.5, 0.9, 0.99, 1.0))
    return lambda: dice.random() < share


def _tear(content: bytearray, ops: list[Op], dice: Random, keep: Callable[[], bool]) -> None:
    sizes = [len(content)]
    for op in ops:
        sizes.append(op.offset_bytes if op.kind == "size" else max(sizes[-1], op.offset_bytes + len(op.data)))
    size_bytes = dice.choice(sizes)
    content.extend(bytes(max(0, max(sizes) - len(content))))
    by_sector = dice.random() < 0.5
    for op in ops:
        if op.kind == "size":
            if keep():
                content[op.offset_bytes :] = bytes(len(content) - op.offset_bytes)
            continue
        step_bytes = SECTOR_BYTES if by_sector else 4096
        start = op.offset_bytes
        while start < op.offset_bytes + len(op.data):
            end = min(start - start % step_bytes + step_bytes, op.offset_bytes + len(op.data))
            if keep():
                content[start:end] = op.data[start - op.offset_bytes : end - op.offset_bytes]
            start = end
    del content[size_bytes:]
