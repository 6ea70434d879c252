"""What the kernel reads on by itself in mapped files of an order, beside what their readers want. Pure.

A page fault reads the pages around it that are missing, and leaves a mark on the page three quarters in. Whoever comes to that page
later finds it there and waits for nobody, but the kernel then reads on behind it: from the first page that is missing, as much as
a fault moves, with a mark on the first of these pages (page_cache_sync_ra and page_cache_async_ra of Linux 6.x). In a file
that is large against what was read of it nobody comes to a mark by chance; in a small one every fiftieth READ is such a one.
"""

from __future__ import annotations

from collections import OrderedDict

from common import limits
from common.blocks import BLOCK_BYTES
from spoke.prefetch.kernel_pages import KernelPages

_SHIFT = 40
_MEMORY = 1024
_ON_TRIALS = 16
_ON_SHARE = 8  # that place is known only once somebody comes to it, which may be seconds after it was foretold


class KernelMarks:
    """``pages``: those the kernel asked for, which this adds to. A READ is never longer than what a fault moves."""

    def __init__(self, pages: KernelPages) -> None:
        self._pages = pages
        self._marks: OrderedDict[int, None] = OrderedDict()
        self._foretold: OrderedDict[int, None] = OrderedDict()
        self._on_foretold = self._on_came = 0

    @property
    def goes_on_as_foretold(self) -> bool:
        """Enough of what it was to read on by itself did come (at first it is believed): not so where pages were dropped meanwhile."""
        return self._on_foretold < _ON_TRIALS or _ON_SHARE * self._on_came >= self._on_foretold

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
        self._pages.add(file, start_bytes, end_bytes)
        if self._foretold.pop(file << _SHIFT | first, 0) is None:
            self._on_came += 1
        if not first <= mark < end:
            return None
        self._marks[file << _SHIFT | mark] = None
        if len(self._marks) > limits.ORDER_KERNEL_MARKS_MAX:
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
                missing = self._pages.first_missing(file, page + 1, page + 1 + fault_pages)
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

    def _mark_of_fault(self, file: int, first: int, end: int, fault_pages: int, wanted: int) -> int:
        """The READ may lack a beginning or an end that were there, and which page of a step was wanted is seldom known."""
        quarter = fault_pages // 4
        if not self._pages.has(file, end):
            return end - quarter
        if not first or not self._pages.has(file, first - 1):
            return first + fault_pages - quarter
        return max(0, wanted - fault_pages // 2) + fault_pages - quarter
