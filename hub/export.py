"""One exported directory: opens, stats and lists what lies below it, and nothing else.

The root is opened once; every path is walked one component at a time from that descriptor, without following
symlinks, so neither ``..`` nor a symlink nor a directory swapped for one while we walk can lead outside. Symlinks are
entries of their own. Everything else that is not a regular file or a directory is never opened.
"""

from __future__ import annotations

import errno
import os
import stat

from common.entries import is_safe_path
from common.errors import UsageError

_WALK_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a fifo that took the file's place after the lstat must not hold the thread that opens it.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def split_path(path: bytes) -> tuple[bytes, bytes]:
    """(the directory's path, the last name); the root has the name ``b""``."""
    parent, _, name = path.rpartition(b"/")
    return parent, name


def join_path(parent: bytes, name: bytes) -> bytes:
    return parent + b"/" + name if parent else name


class Export:
    """The directory ``root``, served under ``name``.

    Paths are bytes relative to the root (common.entries). Methods raise ``OSError`` as the kernel gave it, with
    ``EXDEV`` for a path that is not a plain relative one and ``EINVAL`` for a file that is not a regular one: what an
    errno means differs between reading and scanning, so the reader and the scanner translate.
    """

    def __init__(self, root: str | bytes | os.PathLike[str], name: str, root_fd: int | None = None) -> None:
        """Raises UsageError when ``root`` is not a directory that can be read. ``root_fd``: what was opened there already."""
        self.name = name
        self.root = os.path.abspath(os.fsencode(root))
        shown = os.fsdecode(self.root)
        try:
            self._root_fd = (
                os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if root_fd is None else root_fd
            )
        except NotADirectoryError:
            raise UsageError(f"dataset {name!r}: {shown} is not a directory; a dataset is a directory") from None
        except OSError as error:
            raise UsageError(f"dataset {name!r}: cannot open {shown}: {error.strerror}") from error
        seen = os.fstat(self._root_fd)
        self.device = seen.st_dev
        self.inode = seen.st_ino
        self.mtime_ns = seen.st_mtime_ns
        """Of the root, as last looked at."""

    @property
    def root_fd(self) -> int:
        """For another process of this hub: it serves this very directory, whatever stands at the path by then."""
        return self._root_fd

    def close(self) -> None:
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1

    def root_problem(self) -> str | None:
        """Why what stands at the root's path now is not the directory that was opened, or None when it is."""
        shown = os.fsdecode(self.root)
        try:
            seen = os.stat(self.root)
        except OSError as error:
            return f"{shown} cannot be reached: {error.strerror}"
        if (seen.st_dev, seen.st_ino) != (self.device, self.inode):
            return (
                f"{shown} is no longer the directory that was exported (moved away, replaced or unmounted); "
                "if it was replaced on purpose, restart the hub"
            )
        self.mtime_ns = seen.st_mtime_ns
        return None

    def open_directory(self, path: bytes, dir_fd: int | None = None) -> int:
        """A descriptor to list the directory with; the caller closes it. ``dir_fd``: walk from there instead of the root."""
        parent_fd, name, owned = self._open_parent(path, dir_fd)
        try:
            return os.open(name or b".", _LIST_FLAGS, dir_fd=parent_fd)
        finally:
            if owned:
                os.close(parent_fd)

    def open_file(self, path: bytes) -> int:
        """A descriptor to read the regular file with; the caller closes it. Never blocks on a fifo, never follows a symlink."""
        parent_fd, name, owned = self._open_parent(path, None)
        try:
            # Opening a device can have effects of its own, so look before; look again after, since names move.
            _require_regular(os.stat(name or b".", dir_fd=parent_fd, follow_symlinks=False), path)
            fd = os.open(name, _FILE_FLAGS, dir_fd=parent_fd)
        finally:
            if owned:
                os.close(parent_fd)
        try:
            _require_regular(os.fstat(fd), path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def stat(self, path: bytes) -> os.stat_result:
        """lstat of the path."""
        parent_fd, name, owned = self._open_parent(path, None)
        try:
            return os.stat(name or b".", dir_fd=parent_fd, follow_symlinks=False)
        finally:
            if owned:
                os.close(parent_fd)

    def readlink(self, path: bytes) -> bytes:
        parent_fd, name, owned = self._open_parent(path, None)
        try:
            return os.readlink(name or b".", dir_fd=parent_fd)
        finally:
            if owned:
                os.close(parent_fd)

    def scandir(self, path: bytes) -> list[bytes]:
        """The names in a directory, sorted."""
        fd = self.open_directory(path)
        try:
            return sorted(map(os.fsencode, os.listdir(fd)))
        finally:
            os.close(fd)

    def _open_parent(self, path: bytes, dir_fd: int | None) -> tuple[int, bytes, bool]:
        """(descriptor of the directory above the last name, that name, whether the caller must close it)."""
        if not is_safe_path(path):
            raise OSError(errno.EXDEV, "not a plain path below the export", path)
        *walk, name = path.split(b"/")
        fd = self._root_fd if dir_fd is None else dir_fd
        owned = False
        for component in walk:
            try:
                next_fd = os.open(component, _WALK_FLAGS, dir_fd=fd)
            finally:
                if owned:
                    os.close(fd)
            fd, owned = next_fd, True
        return fd, name, owned


def _require_regular(seen: os.stat_result, path: bytes) -> None:
    if not stat.S_ISREG(seen.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
