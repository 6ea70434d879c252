"""In which order to send what is wanted in the order of its place: within a file by place, between files by equal turns. Pure.

Each file's places are laid side by side: what comes first of a file counts as being where the others have got to. So a place asked for
late that lies before the others is next, and no file waits for the end of another.
"""

from __future__ import annotations


class PlaceOrder:
    """Keys for a heap: the lowest is next. :meth:`enter` and :meth:`leave` are called in pairs."""

    __slots__ = ("_files", "_reached")

    def __init__(self) -> None:
        self._files: dict[bytes, list[int]] = {}  # what to add to its places; how many wait
        self._reached = 0

    def enter(self, version: bytes, first_block: int) -> int:
        """The key of what waits from now on."""
        file = self._files.setdefault(version, [self._reached - first_block, 0])
        file[1] += 1
        return file[0] + first_block

    def leave(self, version: bytes, key: int) -> None:
        """It was sent, or is wanted no more."""
        self._reached = max(self._reached, key)
        file = self._files[version]
        file[1] -= 1
        if not file[1]:
            del self._files[version]
