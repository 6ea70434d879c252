"""The spoke's own memory against its limit: shares for what holds data, what happens as it runs short, and who waits.

The limit is on anonymous memory (RssAnon: page cache and mapped files are the kernel's to take back) without what grows with
the dataset itself: its names, and what is known of each cached file. Two measures serve it. What holds data counts its bytes
and keeps to its share; and the process is looked at a few times a second, for what no account sees (the allocator's leftovers).
Pure but for :func:`anonymous_bytes`.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from common import limits
from common.cgroup import CgroupLimit
from common.runtime import settle
from common.units import format_size

MIB = 1 << 20


class MemoryLimit(NamedTuple):
    """``origin``: where it comes from, for people."""

    limit_bytes: int
    origin: str


def choose_limit(setting_bytes: int, source: str, cgroup: CgroupLimit | None) -> MemoryLimit:
    """An explicit setting wins; the default is MEMORY_LIMIT_BYTES or a share of the control group's limit, what is less."""
    if source != "default":
        return MemoryLimit(setting_bytes, source)
    if cgroup is None or cgroup.limit_bytes // limits.MEMORY_CGROUP_SHARE >= limits.MEMORY_LIMIT_BYTES:
        return MemoryLimit(limits.MEMORY_LIMIT_BYTES, "default")
    share_bytes = cgroup.limit_bytes // limits.MEMORY_CGROUP_SHARE
    origin = f"1/{limits.MEMORY_CGROUP_SHARE} of {format_size(cgroup.limit_bytes)} in {cgroup.file}"
    if share_bytes < limits.MEMORY_LIMIT_MIN_BYTES:
        return MemoryLimit(
            limits.MEMORY_LIMIT_MIN_BYTES, f"the least there is; {origin} would be {format_size(share_bytes)}"
        )
    return MemoryLimit(share_bytes, origin)


class Level(IntEnum):
    """How short memory is, and what stops; each level includes those before it."""

    EASE = 0
    NO_PREFETCH = 1
    DROP_IDLE = 2
    DEMAND_WAITS = 3


class MemoryBudget:
    """Bytes for each purpose. ``limit_bytes`` None: only the fixed limits hold.

    ``fixed_bytes``: what the process takes with nothing under way.
    """

    def __init__(self, limit_bytes: int | None = None, fixed_bytes: int = limits.MEMORY_FIXED_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.level = Level.EASE
        self.pressed_total = 0
        """Times memory became short enough for something to be dropped."""
        self._data_bytes = self._share(fixed_bytes)

    def settled(self, fixed_bytes: int) -> None:
        """What the process takes before any data is known now."""
        self._data_bytes = self._share(fixed_bytes)

    def _share(self, fixed_bytes: int) -> int | None:
        if self.limit_bytes is None:
            return None
        left_bytes = int((self.limit_bytes - fixed_bytes) * limits.MEMORY_DATA_SHARE)
        return max(limits.MEMORY_DATA_MIN_BYTES, left_bytes)

    @property
    def data_bytes(self) -> int | None:
        """For all data in memory together: asked for, arrived, on the way to readers and to the disk."""
        return self._data_bytes

    def _at_most(self, most_bytes: int, part: int) -> int:
        return most_bytes if self._data_bytes is None else min(most_bytes, self._data_bytes // part)

    @property
    def write_backlog_bytes(self) -> int:
        """Arrived, and not written yet."""
        return self._at_most(limits.WRITE_BACKLOG_MAX_BYTES, 2)

    @property
    def bypass_bytes(self) -> int:
        """Kept because the disk would not take it."""
        return 0 if self.level >= Level.DROP_IDLE else self._at_most(limits.BYPASS_MEMORY_BYTES, 6)

    @property
    def recent_bytes(self) -> int:
        return self._at_most(limits.RECENT_MAX_BYTES, 12)

    @property
    def kept_buffers(self) -> int:
        """Extent buffers kept for the next use: in use or not, they are of what prefetch may hold."""
        if self._data_bytes is None:
            return limits.EXTENT_BUFFERS_KEPT
        return min(limits.PREFETCH_MAX_OUTSTANDING_BYTES, self._data_bytes * 3 // 4) // MIB

    @property
    def heap_kept_bytes(self) -> int:
        """Freed memory the allocator may keep."""
        return self._at_most(limits.HEAP_KEPT_BYTES, 6)

    @property
    def prefetch_bytes(self) -> int:
        """Prefetch asked for or not yet written; ``warm`` has half of it."""
        if self.level >= Level.NO_PREFETCH:
            return 0
        most_bytes = limits.PREFETCH_MAX_OUTSTANDING_BYTES
        return most_bytes if self._data_bytes is None else min(most_bytes, self._data_bytes * 3 // 4)

    def prefetch_room_bytes(self, held_bytes: int) -> int:
        """What prefetch may add to what all data holds now: a quarter is for demand alone."""
        if self.level >= Level.NO_PREFETCH:
            return 0
        return (
            limits.PREFETCH_MAX_OUTSTANDING_BYTES
            if self._data_bytes is None
            else self._data_bytes * 3 // 4 - held_bytes
        )

    def admits(self, held_bytes: int, need_bytes: int) -> bool:
        """A reader's blocks may be asked for now."""
        if self._data_bytes is None:
            return True
        return self.level < Level.DEMAND_WAITS and held_bytes + need_bytes <= self._data_bytes

    def measured(self, own_bytes: int) -> Level:
        """What the process takes now, without what grows with the dataset; the level that follows."""
        before = self.level
        if self.limit_bytes is not None:
            used = own_bytes / self.limit_bytes
            self.level = Level(sum(used > share for share in limits.MEMORY_LEVELS))
        if before < Level.DROP_IDLE <= self.level:
            self.pressed_total += 1
        return self.level


class Admission:
    """Where reads that need the hub wait while memory is short: first come, first served, and one is always let in.

    ``held_bytes``: what flights hold. Call ``look`` when that became less.
    """

    def __init__(self, budget: MemoryBudget, held_bytes: Callable[[], int]) -> None:
        self._budget = budget
        self._held_bytes = held_bytes
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._inside_count = 0
        self.inside_bytes = 0
        """The buffers of those let in."""
        self.waited_total = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def enter_now(self, buffer_bytes: int, fetch_bytes: int) -> bool:
        """A read of ``buffer_bytes`` may fetch ``fetch_bytes``, and is let in; ``leave`` must follow. Else it must wait."""
        if self._queue or not self._fits(buffer_bytes + fetch_bytes):
            return False
        self._inside_count += 1
        self.inside_bytes += buffer_bytes
        return True

    async def enter(self, buffer_bytes: int, fetch_bytes: int) -> None:
        """Return once it is let in; ``leave`` must follow, unless this raises."""
        self.waited_total += 1
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (buffer_bytes + fetch_bytes, place)
        self._queue.append(entry)
        self.look()
        try:
            await place  # whoever lets us in counts us
        except BaseException:
            if place.done() and not place.cancelled():
                self._inside_count -= 1
            else:
                self._queue.remove(entry)
            self.look()
            raise
        self.inside_bytes += buffer_bytes

    def leave(self, buffer_bytes: int) -> None:
        self.inside_bytes -= buffer_bytes
        self._inside_count -= 1
        if self._queue:
            self.look()

    def _fits(self, need_bytes: int) -> bool:
        return not self._inside_count or self._budget.admits(self._held_bytes() + self.inside_bytes, need_bytes)

    def look(self) -> None:
        """Let in whoever fits now, one after another: each has asked before the next is looked at."""
        if self._queue and self._fits(self._queue[0][0]):
            _, place = self._queue.popleft()
            self._inside_count += 1
            settle(place, None)
            if self._queue:
                asyncio.get_running_loop().call_soon(self.look)


_ANONYMOUS = re.compile(rb"^RssAnon:\s+(\d+) kB", re.MULTILINE)


def anonymous_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Anonymous memory of this process now; 0 where the kernel does not tell."""
    try:
        found = _ANONYMOUS.search(status.read_bytes())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
