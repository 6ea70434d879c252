"""How far beyond a record the kernel reads when it takes scattered exact reads for a stream: a model of its context readahead. Pure.

Linux reads a cache miss by ``read`` or ``pread`` as it is, unless more pages than were asked for are in its page cache just before it, by
whatever came about: then it takes them for the trace of a stream and reads as many again, up to its readahead (mm/readahead.c,
page_cache_sync_ra). In a shuffled epoch over records of 64 KiB that is one read in twelve, all epoch long: two records before it were read
by then, the one behind it was not, and the reader waits for that too. A read of a file's beginning is always taken so.
"""

from __future__ import annotations

from collections import OrderedDict

from common import limits

PAGE_SHIFT = 12
_GROUP_SHIFT = 8
_GROUP = 1 << _GROUP_SHIFT


class KernelPages:
    """Pages of an order's files that the kernel has, or will have once what is foretold was read; those read longest ago are forgotten."""

    def __init__(self) -> None:
        self._bits: OrderedDict[int, int] = OrderedDict()

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
        while len(self._bits) > limits.ORDER_PAGE_GROUPS_MAX:
            self._bits.popitem(last=False)

    def read_end_bytes(self, file: int, start_bytes: int, end_bytes: int, readahead_bytes: int) -> int:
        """Where the READ ends that the kernel sends for these bytes: at ``end_bytes`` or later. What it has of them it does not ask for."""
        first, end = start_bytes >> PAGE_SHIFT, -(-end_bytes >> PAGE_SHIFT)
        while first < end and self._has(file, first):
            first += 1
        if first == end:
            return end_bytes
        most, asked = readahead_bytes >> PAGE_SHIFT, end - first
        if asked >= most:
            return end_bytes
        if not first:  # get_init_ra_size
            size = 1 << (asked - 1).bit_length()
            last = size * 4 if size <= most // 32 else size * 2 if size <= most // 4 else most
        else:
            before = self._before(file, first, most)
            if before <= asked:
                return end_bytes
            if before == first:  # from the beginning of the file on
                before *= 2
            last = first + min(before + asked, most)
        for page in range(end, last):
            if self._has(file, page):
                last = page
                break
        return max(end_bytes, last << PAGE_SHIFT)

    def _has(self, file: int, page: int) -> bool:
        return bool(self._bits.get(file << 40 | page >> _GROUP_SHIFT, 0) >> (page & _GROUP - 1) & 1)

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
