"""Buffers of one extent, used again and again: no zeroing, no page faults, and their blocks sliced once.

A buffer is free when nothing refers to it any more, which the interpreter knows: nobody gives one back, so nobody can
give one back too early. Whoever holds the buffer, or a view of it, keeps it.
"""

from __future__ import annotations

from collections import deque
from sys import getrefcount
from threading import Lock

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES


class ExtentBuffer(bytearray):
    """EXTENT_BYTES long, for ever. ``blocks``: a view of each block, in order; they do not keep the buffer, whoever uses them must."""

    __slots__ = ("blocks",)
    blocks: tuple[memoryview, ...]

    @classmethod
    def make(cls) -> ExtentBuffer:
        buffer = cls(EXTENT_BYTES)
        view = memoryview(buffer)
        buffer.blocks = tuple([view[at : at + BLOCK_BYTES] for at in range(0, EXTENT_BYTES, BLOCK_BYTES)])
        return buffer


class ExtentBuffers:
    """At most ``capacity`` buffers are kept; beyond that each is made anew. May be used from any thread."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._guard = Lock()
        self._kept: deque[ExtentBuffer] = deque()
        self._free_references = 0

    def take(self) -> bytearray:
        """EXTENT_BYTES that nobody else has; what they hold means nothing."""
        with self._guard:
            kept = self._kept
            for _ in range(min(2, len(kept))):  # the longest in use come first: when they are not free, few are
                buffer = kept[0]
                kept.rotate(-1)
                if getrefcount(buffer) == self._free_references:
                    return buffer
            if len(kept) >= self.capacity:
                return bytearray(EXTENT_BYTES)
            buffer = ExtentBuffer.make()
            kept.append(buffer)
            self._free_references = getrefcount(buffer)
            return buffer

    @property
    def idle_bytes(self) -> int:
        """Of the buffers kept that nobody uses now."""
        with self._guard:
            free = 0
            for _ in range(len(self._kept)):
                buffer = self._kept[0]
                self._kept.rotate(-1)
                free += getrefcount(buffer) == self._free_references
            return free * EXTENT_BYTES

    def forget(self) -> None:
        """Keep none, until they are needed again; those in use stay with their users. For a process that has become idle."""
        with self._guard:
            self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


EXTENT_BUFFERS = ExtentBuffers(limits.EXTENT_BUFFERS_KEPT)
"""This process's: what receives, reads and unpacks extents takes its memory here."""
