"""Which pages of an order's files the kernel has, and how far beyond a record it reads where it takes exact reads for a stream. Pure.

Linux reads a cache miss by ``read`` or ``pread`` as it is, unless more pages than were asked for are in its page cache just before it, by
whatever came about: then it takes them for the trace of a stream and reads as many again, up to its readahead (mm/readahead.c,
page_cache_sync_ra). In a shuffled epoch over records of 64 KiB that is one read in twelve, all epoch long: two records before it were read
by then, the one behind it was not, and the reader waits for that too. A read of a file's beginning is always taken so. What it reads on in
mapped files is :mod:`spoke.prefetch.kernel_marks`.
"""

from __future__ import annotations

from collections import OrderedDict

from common import limits

PAGE_SHIFT = 12
_GROUP_SHIFT = 8
_GROUP = 1 << _GROUP_SHIFT


class KernelPages:
    """Pages of an order's files that the kernel has, or, of those read exactly, will have once what is foretold was read.

    Those read longest ago are forgotten. Pages are numbered from a file's start.
    """

    def __init__(self, groups_max: int | None = None) -> None:
        """``groups_max``: MiB of which something is known (default ORDER_PAGE_GROUPS_MAX)."""
        self._bits: OrderedDict[int, int] = OrderedDict()
        self._groups_max = limits.ORDER_PAGE_GROUPS_MAX if groups_max is None else groups_max

    def add(self, file: int, start_bytes: int, end_bytes: int) -> None:
        """These bytes were read, or will be."""
        first, end = start_bytes >> PAGE_SHIFT, -(-end_bytes >> PAGE_SHIFT)
        while first < end:
            group, bit = first >> _GROUP_SHIFT, first & _GROUP - 1
            count = min(_GROUP - bit, end - first)
            key = file << 40 | group
            self._bits[key] = self._bits.get(key, 0) | ((1 << count) - 1) << bit
            self._bits.move_to_end(key)
            first += count
        while len(self._bits) > self._groups_max:
            self._bits.popitem(last=False)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._bits.clear()

    def has(self, file: int, page: int) -> bool:
        """The page was read, or will be."""
        return bool(self._bits.get(file << 40 | page >> _GROUP_SHIFT, 0) >> (page & _GROUP - 1) & 1)

    def goes_on(self, file: int, start_bytes: int) -> bool:
        """The page before is there: so begins what the kernel reads on by itself, and few faults do."""
        page = start_bytes >> PAGE_SHIFT
        return page > 0 and self.has(file, page - 1)

    def first_missing(self, file: int, first: int, end: int) -> int | None:
        """The first page from ``first`` up to ``end`` that is not there."""
        while first < end:
            bit = first & _GROUP - 1
            rest = self._bits.get(file << 40 | first >> _GROUP_SHIFT, 0) >> bit
            present = (~rest & rest + 1).bit_length() - 1
            if present < _GROUP - bit:
                first += present
                return first if first < end else None
            first += _GROUP - bit
        return None

    def first_present(self, file: int, first: int, end: int) -> int | None:
        """The first page from ``first`` up to ``end`` that is there."""
        while first < end:
            bit = first & _GROUP - 1
            rest = self._bits.get(file << 40 | first >> _GROUP_SHIFT, 0) >> bit
            if rest:
                first += (rest & -rest).bit_length() - 1
                return first if first < end else None
            first += _GROUP - bit
        return None

    def discard(self, file: int, page: int) -> None:
        """It is not there any more."""
        key = file << 40 | page >> _GROUP_SHIFT
        left = self._bits.get(key, 0) & ~(1 << (page & _GROUP - 1))
        if left:
            self._bits[key] = left
        else:
            self._bits.pop(key, None)

    def read_end_bytes(self, file: int, start_bytes: int, end_bytes: int, readahead_bytes: int) -> int:
        """Where the READ ends that the kernel sends for an exact read of these bytes: at ``end_bytes`` or later.

        What it has of them it does not ask for.
        """
        end = -(-end_bytes >> PAGE_SHIFT)
        first = self.first_missing(file, start_bytes >> PAGE_SHIFT, end)
        if first is None:
            return end_bytes
        last = self.sync_end(file, first, end, readahead_bytes >> PAGE_SHIFT)
        for page in range(end, last):
            if self.has(file, page):
                last = page
                break
        return max(end_bytes, last << PAGE_SHIFT) if last > end else end_bytes

    def sync_end(self, file: int, first: int, end: int, most: int) -> int:
        """Up to which page the kernel reads where ``first`` is missing, pages up to ``end`` are asked for and its readahead is
        ``most`` pages: ``end`` or further. It leaves out what it has."""
        asked = end - first
        if asked >= most:
            return end
        if not first:  # get_init_ra_size
            size = 1 << (asked - 1).bit_length()
            return size * 4 if size <= most // 32 else size * 2 if size <= most // 4 else most
        before = self._before(file, first, most)
        if before <= asked:
            return end
        if before == first:  # from the beginning of the file on
            before *= 2
        return first + min(before + asked, most)

    def _before(self, file: int, page: int, most: int) -> int:
        """Pages without a gap just before this one, counted up to ``most``."""
        count = 0
        while page and count < most:
            bit = (page - 1 & _GROUP - 1) + 1
            absent = ~self._bits.get(file << 40 | page - 1 >> _GROUP_SHIFT, 0) & (1 << bit) - 1
            run = bit - absent.bit_length()
            count += run
            page -= run
            if run < bit:
                break
        return min(count, most)
