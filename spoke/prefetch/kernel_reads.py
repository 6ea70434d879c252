"""What the kernel asks for where records of an order are read exactly, one after another as the order says. Pure.

Where it takes a read for a stream (:mod:`spoke.prefetch.kernel_pages`) it reads more than was asked for, and marks the last page that
it reads so (of a file's beginning the first page beyond the record). Whoever comes to a mark waits for nobody, but the kernel then
reads on by itself behind it: from the first page that is missing, twice or four times as much as lies between, with a mark on the
first of these pages (page_cache_async_ra). Pages that it has it leaves out, so that one such reading is several READs. In shards of
8 MiB of which a fifth was read already that is one READ in thirty, of records that nobody may read for a long time: who takes their
reader to be there looks for him thousands of steps astray.
"""

from __future__ import annotations

from collections import OrderedDict

from common import limits
from spoke.prefetch.kernel_pages import PAGE_SHIFT, KernelPages

_SHIFT = 40
_ALIGNED_PAGES = 4  # since Linux 6.16 what is read on ends at such a place; with folios larger than pages at others, but FUSE has none
_VOTES_MAX = 4
_OWN_MAX = 1024
Pages = tuple[int, int]
"""The first page, and the one after the last."""


class KernelReads:
    """``pages``: those the kernel has once what is foretold was read, which this adds to. Marks are bounded; the oldest is forgotten."""

    def __init__(self, pages: KernelPages) -> None:
        self._pages = pages
        self._marks = KernelPages(limits.ORDER_KERNEL_MARKS_MAX)
        self._own: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By first page: where it ends if ends are aligned, and if they are not."""
        self._aligned_votes = 0

    def clear(self) -> None:
        """Nothing is known any more."""
        self._marks.clear()
        self._own.clear()

    def is_own(self, file: int, start_bytes: int, end_bytes: int) -> bool:
        """A READ of these bytes was foretold as one that nobody asked the kernel for. It is so once."""
        foretold = self._own.pop(file << _SHIFT | start_bytes >> PAGE_SHIFT, None)
        if foretold is None:
            return False
        aligned, plain = foretold
        if aligned != plain:
            end = -(-end_bytes >> PAGE_SHIFT)
            vote = (end == aligned) - (end == plain)
            self._aligned_votes = max(-_VOTES_MAX, min(_VOTES_MAX, self._aligned_votes + vote))
        return True

    def foretell(
        self, file: int, start_bytes: int, end_bytes: int, readahead_bytes: int, size_bytes: int
    ) -> tuple[int, list[Pages]]:
        """The record at these bytes of a file of ``size_bytes`` will be read, after all that was foretold before.

        Returns where the READ for it ends, at ``end_bytes`` or later, and what the kernel asks for beside it.
        """
        pages, most = self._pages, readahead_bytes >> PAGE_SHIFT
        page, end, file_end = start_bytes >> PAGE_SHIFT, -(-end_bytes >> PAGE_SHIFT), -(-size_bytes >> PAGE_SHIFT)
        read_end_bytes, beside = end_bytes, []
        ahead: tuple[int, int, int] | None = None  # what was read last: its first page, how many, the one marked
        while page < end:
            missing = pages.first_missing(file, page, end)
            mark = self._first_mark(file, page, end if missing is None else missing)
            if mark is not None:
                page = mark + 1
                if ahead is not None and mark == ahead[2]:
                    gap, size = ahead[0] + ahead[1], max(ahead[1], _next_size(ahead[1], most))
                else:
                    found = pages.first_missing(file, page, page + most)
                    if found is None:
                        continue
                    gap, size = found, _next_size(found - mark + end - mark, most)
                last = plain = gap + size
                aligned = last & -_ALIGNED_PAGES
                if self._aligned_votes >= 0 and aligned > gap:
                    last = aligned
                ahead = gap, last - gap, gap
                for first, run_end in self._read(file, gap, min(last, file_end), gap):
                    ends = (aligned, plain) if run_end == last and aligned > first else (run_end, run_end)
                    beside.append((first, min(max(run_end, ends[1]), file_end)))
                    if first >= end:
                        self._own[file << _SHIFT | first] = ends
            elif missing is None:
                break
            else:
                last = max(end, pages.sync_end(file, missing, end, most))
                mark = -1 if last == end else last - 1 if missing else end
                ahead = missing, last - missing, mark
                for first, run_end in self._read(file, missing, min(last, file_end), mark):
                    if first >= end:
                        beside.append((first, run_end))
                        self._own[file << _SHIFT | first] = run_end, run_end
                    elif run_end > end:
                        read_end_bytes = min(run_end << PAGE_SHIFT, size_bytes)
                page = missing if missing < file_end else end
        while len(self._own) > _OWN_MAX:
            self._own.popitem(last=False)
        return read_end_bytes, beside

    def _first_mark(self, file: int, first: int, end: int) -> int | None:
        """The first marked page of these, whose mark goes."""
        page = self._marks.first_present(file, first, end)
        if page is not None:
            self._marks.discard(file, page)
        return page

    def _read(self, file: int, first: int, end: int, mark: int) -> list[Pages]:
        """What of these pages is missing comes, in READs without a gap. ``mark``: is set, if its page is one of them."""
        pages, runs = self._pages, []
        while first < end and (begin := pages.first_missing(file, first, end)) is not None:
            present = pages.first_present(file, begin + 1, end)
            first = end if present is None else present
            runs.append((begin, first))
            if begin <= mark < first:
                self._marks.add(file, mark << PAGE_SHIFT, mark + 1 << PAGE_SHIFT)
        for begin, run_end in runs:
            pages.add(file, begin << PAGE_SHIFT, run_end << PAGE_SHIFT)
        return runs


def _next_size(pages: int, most: int) -> int:
    """How much the kernel reads after so much (get_next_ra_size)."""
    if pages < most // 16:
        return 4 * pages
    return 2 * pages if pages <= most // 2 else most
