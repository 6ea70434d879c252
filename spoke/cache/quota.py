"""How much the cache may hold: the configured capacity against what the disk has left. Pure arithmetic over bytes and inodes."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import CacheDirectoryError
from common.limits import CACHE_MIN_BYTES
from common.units import format_size

PAGE_BYTES = 4096
DIRECTORY_BYTES = 4096
"""Charged for each of the up to 256 directories under ``versions/``."""

NAME_BYTES = 256
"""Charged for the two directory entries of a version: names of 37 and 38 bytes in half-full directory blocks."""

FILE_OVERHEAD_BYTES = 4 * PAGE_BYTES + NAME_BYTES + DIRECTORY_BYTES
"""Reserved for the first write to a file: index header, a presence page, a digest page, the file system's own map block, the names."""

WRITE_OVERHEAD_BYTES = 5 * PAGE_BYTES
"""Reserved for any later write: at most two digest pages and two presence pages newly touched per extent, and a map block."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator set. The floors are left to others: free bytes and inodes the cache never goes below."""

    capacity_bytes: int
    free_floor_bytes: int = 0
    free_floor_inodes: int = 0


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """What statvfs says: for this process, not for root. ``free_inodes`` is None where the file system has no fixed number."""

    total_bytes: int
    free_bytes: int
    free_inodes: int | None
    total_inodes: int | None = None


def check_limits(limits: Limits, total_bytes: int) -> None:
    """Refuse, with the numbers, a capacity that can never work on this disk (CacheDirectoryError)."""
    if limits.capacity_bytes < CACHE_MIN_BYTES:
        raise CacheDirectoryError(
            f"cache capacity is {format_size(limits.capacity_bytes)} ({limits.capacity_bytes} bytes); "
            f"at least {format_size(CACHE_MIN_BYTES)} ({CACHE_MIN_BYTES} bytes) are needed"
        )
    if total_bytes - limits.free_floor_bytes < CACHE_MIN_BYTES:
        raise CacheDirectoryError(
            f"the cache disk has {format_size(total_bytes)} and {format_size(limits.free_floor_bytes)} must stay free: less than the "
            f"{format_size(CACHE_MIN_BYTES)} a cache needs are left; use a larger disk or a lower --cache-free-floor"
        )


class Ledger:
    """What the cache takes and may still take, in bytes and inodes.

    Between two looks at the disk the limit stays right whatever the cache itself writes or frees: used + free does not
    change by that, only by what others do.
    """

    def __init__(self, limits: Limits, space: FreeSpace) -> None:
        self.limits = limits
        self.used_bytes = 0
        self.reserved_bytes = 0
        self.reserved_inodes = 0
        self._inodes_left: int | None = None
        self.capacity_bytes = 0
        self.space = space
        self.look(space)

    def look(self, space: FreeSpace, used_before_bytes: int | None = None) -> None:
        """Take in a fresh statvfs: effective capacity = min(configured, used + free - floor).

        ``used_before_bytes``: what was used before the disk was asked. What was charged since is not in what it said was free.
        """
        self.space = space
        used_bytes = self.used_bytes if used_before_bytes is None else min(self.used_bytes, used_before_bytes)
        room_bytes = used_bytes + space.free_bytes - self.limits.free_floor_bytes
        self.capacity_bytes = max(0, min(self.limits.capacity_bytes, room_bytes))
        self._inodes_left = None if space.free_inodes is None else space.free_inodes - self.limits.free_floor_inodes

    def excess_bytes(self, need_bytes: int = 0) -> int:
        """Bytes that must be freed before ``need_bytes`` more fit; not above 0 when they fit."""
        return self.used_bytes + self.reserved_bytes + need_bytes - self.capacity_bytes

    def excess_inodes(self, need_inodes: int) -> int:
        """Inodes that must be freed before ``need_inodes`` more fit."""
        if self._inodes_left is None or need_inodes == 0:
            return 0
        return self.reserved_inodes + need_inodes - self._inodes_left

    def reserve(self, need_bytes: int, need_inodes: int) -> None:
        self.reserved_bytes += need_bytes
        self.reserved_inodes += need_inodes

    def release(self, need_bytes: int, need_inodes: int) -> None:
        """End a reservation, whether or not it was used."""
        self.reserved_bytes -= need_bytes
        self.reserved_inodes -= need_inodes

    def charge(self, delta_bytes: int, delta_inodes: int = 0) -> None:
        """The cache grew (or shrank, negative) by so much on disk."""
        self.used_bytes += delta_bytes
        if self._inodes_left is not None:
            self._inodes_left -= delta_inodes
