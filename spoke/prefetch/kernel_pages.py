"""What the kernel reads by itself in files of an order, beside what their readers want. Pure.

A page fault reads the pages around it that are missing, and leaves a mark on the page three quarters in. Whoever comes to that page
later finds it there and waits for nobody, but the kernel then reads on behind it: from the first page that is missing, as much as
a fault moves, with a mark on the first of these pages (page_cache_sync_ra and page_cache_async_ra of Linux 6.x). In a file
that is large against what was read of it nobody comes to a mark by chance; in a small one every fiftieth READ is such a one.

A read() of a record reads what it wants and no more, unless the pages before it are there and are more: every tenth READ when a third of
a shard was read.
"""

from __future__ import annotations

from collections import OrderedDict

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS

_SHIFT = 40
_MEMORY = 1024
_ON_TRIALS = 16
_ON_SHARE = 8  # that place is known only once somebody comes to it, which may be seconds after it was foretold
_EXTENT_SHIFT = EXTENT_BLOCKS.bit_length() - 1


class KernelPages:
    """Pages are numbered from a file's start. ``fault_pages``: what a fault moves; a READ is never longer."""

    def __init__(self) -> None:
        self._asked: OrderedDict[int, int] = OrderedDict()
        self._marks: OrderedDict[int, None] = OrderedDict()
        self._foretold: OrderedDict[int, None] = OrderedDict()
        self._on_foretold = self._on_came = 0
        self._longer_foretold = self._longer_came = 0

    @property
    def goes_on_as_foretold(self) -> bool:
        """Enough of what it was to read on by itself did come (at first it is believed): not so where pages were dropped meanwhile."""
        return self._on_foretold < _ON_TRIALS or _ON_SHARE * self._on_came >= self._on_foretold

    @property
    def is_longer_as_foretold(self) -> bool:
        """READs of records were longer where they had to be, at least as often as not."""
        return 0 < self._longer_foretold <= 2 * self._longer_came

    def exact(self, file: int, start_bytes: int, end_bytes: int, wanted_end_bytes: int, fault_bytes: int) -> None:
        """A READ came of who wants the pages up to ``wanted_end_bytes``: learn whether it is as long as it was to be."""
        first, end, wanted_end = (-(-offset // BLOCK_BYTES) for offset in (start_bytes, end_bytes, wanted_end_bytes))
        if first < wanted_end and self.exact_end(file, first, wanted_end, fault_bytes // BLOCK_BYTES) > wanted_end:
            self._longer_foretold += 1
            self._longer_came += end > wanted_end
            if self._longer_foretold > _MEMORY:
                self._longer_foretold, self._longer_came = self._longer_foretold // 2, self._longer_came // 2

    def note(self, file: int, start_bytes: int, end_bytes: int) -> None:
        """A READ came."""
        self._add(file, start_bytes // BLOCK_BYTES, -(-end_bytes // BLOCK_BYTES))

    def read(
        self, file: int, start_bytes: int, end_bytes: int, fault_bytes: int, wanted_bytes: int | None
    ) -> int | None:
        """A READ of a mapped file came, of a fault on the page at ``wanted_bytes`` or just behind; None: nobody is known to have
        wanted it. Returns the page now marked."""
        first, end = start_bytes // BLOCK_BYTES, -(-end_bytes // BLOCK_BYTES)
        if wanted_bytes is None:
            mark = first
        else:
            mark = self._mark_of_fault(file, first, end, fault_bytes // BLOCK_BYTES, wanted_bytes // BLOCK_BYTES)
        self._add(file, first, end)
        if self._foretold.pop(file << _SHIFT | first, 0) is None:
            self._on_came += 1
        if not first <= mark < end:
            return None
        self._marks[file << _SHIFT | mark] = None
        if len(self._marks) > limits.ORDER_KERNEL_EXTENTS_MAX:
            self._marks.popitem(last=False)
        return mark

    def beyond(self, file: int, first_page: int, last_page: int, fault_bytes: int) -> tuple[int, int] | None:
        """Somebody will come to these pages: the pages (first, end) that the kernel then reads on, if one of them is marked.

        It is so once for each mark."""
        marks, base = self._marks, file << _SHIFT
        for page in range(first_page, last_page + 1):
            if base | page in marks:
                del marks[base | page]
                fault_pages = fault_bytes // BLOCK_BYTES
                missing = self._first_missing(file, page + 1, page + 1 + fault_pages)
                if missing is None:
                    return None
                self._foretell(base | missing)
                return missing, missing + fault_pages
        return None

    def _foretell(self, place: int) -> None:
        self._foretold[place] = None
        if len(self._foretold) > _MEMORY:
            self._foretold.popitem(last=False)
        self._on_foretold += 1
        if self._on_foretold > _MEMORY:
            self._on_foretold, self._on_came = self._on_foretold // 2, self._on_came // 2

    def goes_on(self, file: int, start_bytes: int) -> bool:
        """The page before was asked for: so begins what the kernel reads on, and few faults do."""
        page = start_bytes // BLOCK_BYTES
        return page > 0 and self.has(file, page - 1)

    def _mark_of_fault(self, file: int, first: int, end: int, fault_pages: int, wanted: int) -> int:
        """The READ may lack a beginning or an end that were there, and which page of a step was wanted is seldom known."""
        quarter = fault_pages // 4
        if not self.has(file, end):
            return end - quarter
        if not first or not self.has(file, first - 1):
            return first + fault_pages - quarter
        return max(0, wanted - fault_pages // 2) + fault_pages - quarter

    def exact_end(self, file: int, first: int, end: int, most_pages: int) -> int:
        """Where the READ of who wants the pages ``first`` to ``end`` by read() ends, at ``most_pages`` after its beginning or sooner.

        It begins with the first page that is missing. If more pages just before that are there than are wanted, the kernel
        takes the reader for one who reads in order, and reads as many more.
        """
        while first < end and self.has(file, first):
            first += 1
        wanted = end - first
        if wanted <= 0 or not first or not self.has(file, first - 1):
            return end
        before = 1
        while before < most_pages and before < first and self.has(file, first - before - 1):
            before += 1
        return end if before <= wanted else first + max(wanted, min(before + wanted, most_pages))

    def has(self, file: int, page: int) -> bool:
        """The page was asked for."""
        return bool(self._asked.get(file << _SHIFT | page >> _EXTENT_SHIFT, 0) >> (page & EXTENT_BLOCKS - 1) & 1)

    def _add(self, file: int, first: int, end: int) -> None:
        asked = self._asked
        while first < end:
            extent, at = first >> _EXTENT_SHIFT, first & EXTENT_BLOCKS - 1
            count = min(EXTENT_BLOCKS - at, end - first)
            key = file << _SHIFT | extent
            asked[key] = asked.get(key, 0) | ((1 << count) - 1) << at
            first += count
        if len(asked) > limits.ORDER_KERNEL_EXTENTS_MAX:
            asked.popitem(last=False)

    def _first_missing(self, file: int, first: int, end: int) -> int | None:
        """The first page from ``first`` up to ``end`` that the kernel did not ask for."""
        while first < end:
            extent, at = first >> _EXTENT_SHIFT, first & EXTENT_BLOCKS - 1
            rest = self._asked.get(file << _SHIFT | extent, 0) >> at
            present = (~rest & rest + 1).bit_length() - 1
            if present < EXTENT_BLOCKS - at:
                first += present
                return first if first < end else None
            first += EXTENT_BLOCKS - at
        return None
