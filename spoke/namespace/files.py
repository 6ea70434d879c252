"""The system calls that put names on disk, in one place, so that tests can record them and cut the power between any two.

Nothing here decides anything. Errors leave as ``OSError``.
"""

from __future__ import annotations

import os
from pathlib import Path


class Files:
    """The real ones. A subclass may record or fail any of them."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)


class Output:
    """A file being written from its end on (made if it is not there; ``anew``: emptied first). ``close`` it, or use ``with``."""

    def __init__(self, files: Files, path: Path, *, anew: bool) -> None:
        self._files = files
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if anew else os.O_APPEND)
        self._fd = files.open(os.fspath(path), flags, 0o644)
        self.written_bytes = 0

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._files.close(self._fd)

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._files.write(self._fd, left) :]
        self.written_bytes += len(data)

    def sync(self) -> None:
        self._files.fsync(self._fd)


def sync_directory(files: Files, directory: Path) -> None:
    """Names made, renamed and removed in it so far outlive a power cut."""
    fd = files.open(os.fspath(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        files.fsync(fd)
    finally:
        files.close(fd)
