"""``.headrace/`` at the mount's root: files whose bytes are made when they are opened.

The directory is found by name and never listed, so a loader that walks the dataset does not meet it; an entry of the
dataset with this name is hidden by it. A file may also take ioctls, the one way to say something through a
read-only mount without a library.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spoke.fuse.kernel import PAGE_BYTES, Fields

DIRECTORY_NAME = b".headrace"
DIRECTORY_ID = 2
_FIRST_FILE_ID = 3
_INODE_NUMBER_BASE = 1 << 62  # far from the tree's serials


@dataclass(frozen=True, slots=True)
class VirtualFile:
    """``content``: the bytes of one open. ``ioctl(command, data, out_size_bytes, task_id)``: what the call returns (0, or an errno below
    it) and the answer's bytes, which the caller gets in both cases; or None for ENOTTY.

    Both are called in the event loop and must return at once; a HeadraceError becomes the caller's errno.
    """

    content: Callable[[], bytes]
    ioctl: Callable[[int, bytes, int, int], tuple[int, bytes] | None] | None = None


class VirtualDirectory:
    """The files by name, with fixed node ids."""

    def __init__(self, files: Mapping[bytes, VirtualFile], uid: int, gid: int) -> None:
        self._names = sorted(files)
        self._files = [files[name] for name in self._names]
        self._uid = uid
        self._gid = gid

    @property
    def names(self) -> list[bytes]:
        return list(self._names)

    def owns(self, node_id: int) -> bool:
        return DIRECTORY_ID <= node_id < _FIRST_FILE_ID + len(self._files)

    def find(self, name: bytes) -> int | None:
        """The node id of a file in the directory."""
        return _FIRST_FILE_ID + self._names.index(name) if name in self._names else None

    def file(self, node_id: int) -> VirtualFile | None:
        position = node_id - _FIRST_FILE_ID
        return self._files[position] if 0 <= position < len(self._files) else None

    def fields(self, node_id: int) -> Fields:
        """Size 0, as in /proc: the content is made at open, and the handle bypasses the page cache."""
        mode = stat.S_IFDIR | 0o555 if node_id == DIRECTORY_ID else stat.S_IFREG | 0o444
        number = _INODE_NUMBER_BASE + node_id
        return (number, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, self._uid, self._gid, 0, PAGE_BYTES, 0)
