"""Buffers of one extent, used again and again: no zeroing, no page faults, and their blocks sliced once.

A buffer is free when nothing refers to it any more, which the interpreter knows: nobody gives one back, so nobody can
give one back too early. Whoever holds a view of it, or of a part, keeps it.

Each is a mapping of its own: what is let go of is the kernel's at once, where the allocator would keep it.
"""

from __future__ import annotations

import mmap
from collections import deque
from sys import getrefcount
from threading import Lock

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES

# With its pages at once: 0.29 ms of the kernel's time, where 256 page faults take 0.32. Huge pages take 0.09 out of free memory, but 0.6 to
# 1.0 where the page cache has it all, as on any host that was up for a while: the kernel first moves others out of their way.
_MAPPED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE


class ExtentBuffer(mmap.mmap):
    """EXTENT_BYTES long, for ever. ``blocks``: a view of each block, in order; they do not keep the buffer, whoever uses them must."""

    __slots__ = ("blocks",)
    blocks: tuple[memoryview, ...]

    @classmethod
    def make(cls) -> ExtentBuffer:
        """Raises MemoryError."""
        try:
            buffer = cls(-1, EXTENT_BYTES, flags=_MAPPED)
        except OSError as error:
            raise MemoryError(f"the kernel does not map a buffer of {EXTENT_BYTES} bytes: {error.strerror}") from error
        view = memoryview(buffer)
        buffer.blocks = tuple([view[at : at + BLOCK_BYTES] for at in range(0, EXTENT_BYTES, BLOCK_BYTES)])
        return buffer

    def unmap(self) -> None:
        """Give its memory to the kernel. Raises BufferError if anybody has a view of it."""
        self.blocks = ()
        self.close()


def blocks_of_buffer(data: object) -> tuple[memoryview, ...] | None:
    """The blocks of the extent buffer whose whole ``data`` is, as ``take`` gave it; None for any other data."""
    if type(data) is memoryview and type(data.obj) is ExtentBuffer and len(data) == EXTENT_BYTES:
        return data.obj.blocks
    return None


class ExtentBuffers:
    """At most ``capacity`` buffers are kept; beyond that memory is made anew each time. May be used from any thread."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._guard = Lock()
        self._free: list[ExtentBuffer] = []  # the one used last is taken next: the processor's cache may hold it
        self._in_use: deque[ExtentBuffer] = deque()  # when last looked at
        self._free_references = 0
        self._idle_lately: deque[int] = deque(maxlen=limits.EXTENT_BUFFERS_IDLE_LOOKS)

    def take(self) -> bytearray | memoryview:
        """EXTENT_BYTES that nobody else has; what they hold means nothing. Raises MemoryError."""
        with self._guard:
            if not self._free:
                self._look()  # at all of them, 16 us where there are 256: one made anew costs 0.3 ms
                if not self._free:
                    if len(self._in_use) >= self.capacity:
                        return bytearray(EXTENT_BYTES)
                    buffer = ExtentBuffer.make()
                    self._free_references = getrefcount(buffer)  # our name for it, as in _look, and its blocks
                    self._free.append(buffer)
            buffer = self._free.pop()
            self._in_use.append(buffer)
            return memoryview(buffer)

    def _look(self) -> None:
        """Find those that are not in use any more. Their last user may be any thread: none can get at them again."""
        for _ in range(len(self._in_use)):
            buffer = self._in_use.popleft()
            (self._free if getrefcount(buffer) == self._free_references else self._in_use).append(buffer)

    @property
    def idle_bytes(self) -> int:
        """Of the buffers kept that nobody uses now."""
        with self._guard:
            self._look()
            return len(self._free) * EXTENT_BYTES

    def shrink(self) -> None:
        """Call at even intervals: gives back half of what was idle at each of the last EXTENT_BUFFERS_IDLE_LOOKS calls."""
        with self._guard:
            self._look()
            self._idle_lately.append(len(self._free))
            if len(self._idle_lately) == limits.EXTENT_BUFFERS_IDLE_LOOKS and min(self._idle_lately) > 1:
                self._unmap(min(self._idle_lately) // 2)

    def forget(self) -> None:
        """Keep none that is idle, until they are needed again; those in use come back. For a process that has become idle."""
        with self._guard:
            self._look()
            self._unmap(len(self._free))

    def _unmap(self, count: int) -> None:
        for buffer in self._free[:count]:  # those that lay here longest
            buffer.unmap()
        del self._free[:count]
        self._idle_lately.clear()

    def __len__(self) -> int:
        return len(self._free) + len(self._in_use)


EXTENT_BUFFERS = ExtentBuffers(limits.EXTENT_BUFFERS_KEPT)
"""This process's: what receives, reads and unpacks extents takes its memory here."""
