"""Steps in columns with an index sorted by place: what a mapped and a growing order are made of. Pure.

A segment holds rows of one or several lanes. The index has one 64-bit number a row: the page the step begins at, counted
over all files of the order, and the row in the low 20 bits; so all steps at a place are neighbours, found by bisection.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from itertools import count
from typing import TypeAlias

from common import limits
from common.errors import OrderError

ROW_BITS = 20
ROWS_MAX = 1 << ROW_BITS
PAGE_SHIFT = 12
PAGES_MAX = 1 << (64 - ROW_BITS)
STEP_MAX_BYTES = (1 << 32) - 1
_ROW_MASK = ROWS_MAX - 1
_SLICE_ROWS = 4096

Numbers: TypeAlias = "array[int] | memoryview"


class Segment:
    """``files`` and ``lengths`` of 32 bits, ``offsets`` and the sorted ``index`` of 64, a row each."""

    __slots__ = ("files", "index", "lengths", "offsets")

    def __init__(self, files: Numbers, offsets: Numbers, lengths: Numbers, index: Numbers) -> None:
        self.files = files
        self.offsets = offsets
        self.lengths = lengths
        self.index = index

    def rows_at(
        self, file: int, first_page: int, longest_bytes: int, start_bytes: int, end_bytes: int
    ) -> Iterator[int]:
        """Rows that overlap these bytes of a file whose pages begin at ``first_page``, the nearest to the end first.

        ``longest_bytes``: of all steps in that file.
        """
        index, files, offsets, lengths = self.index, self.files, self.offsets, self.lengths
        low_page = max(0, start_bytes - longest_bytes + 1) >> PAGE_SHIFT
        high = bisect_left(index, (first_page + (end_bytes - 1 >> PAGE_SHIFT) + 1) << ROW_BITS)
        low = bisect_left(index, (first_page + low_page) << ROW_BITS, 0, high)
        for place in range(high - 1, max(low, high - limits.ORDER_FIND_SCAN_STEPS) - 1, -1):
            row = index[place] & _ROW_MASK
            offset_bytes = offsets[row]
            if files[row] != file:
                continue  # the bytes asked for reach beyond the file's end
            if offset_bytes < end_bytes and offset_bytes + lengths[row] > start_bytes:
                yield row


def sorted_index(files: array[int], offsets: array[int], first_pages: array[int]) -> array[int]:
    """The index of these rows (at most 2^20). ``first_pages``: of each file."""
    assert len(files) <= ROWS_MAX
    return array(
        "Q",
        sorted(
            (first_pages[file] + (offset_bytes >> PAGE_SHIFT)) << ROW_BITS | row
            for file, offset_bytes, row in zip(files, offsets, count(), strict=False)
        ),
    )


def sorted_index_in_slices(files: array[int], offsets: array[int], first_pages: array[int]) -> array[int]:
    """The same, for a thread beside an event loop: sorting 2^18 rows at once keeps Python's lock for 0.1 s, this 1 ms at a time."""
    keys = list[list[int]]()
    for start in range(0, len(files), _SLICE_ROWS):
        end = min(len(files), start + _SLICE_ROWS)
        keys.append(
            sorted(
                (first_pages[files[row]] + (offsets[row] >> PAGE_SHIFT)) << ROW_BITS | row for row in range(start, end)
            )
        )
    index = array("Q")
    index.extend(merge(*keys))
    return index


def check_step(file: int, offset_bytes: int, length_bytes: int, sizes: array[int]) -> None:
    """Raises OrderError for a step that is not within its file. ``sizes``: of each file, in bytes."""
    if not 0 <= file < len(sizes):
        raise OrderError(f"a step names file {file}; there are {len(sizes)} files, counted from 0")
    if not (offset_bytes >= 0 and 1 <= length_bytes <= STEP_MAX_BYTES and offset_bytes + length_bytes <= sizes[file]):
        raise OrderError(
            f"a step of {length_bytes} bytes at {offset_bytes} in file {file}; the file has {sizes[file]} bytes, "
            f"and a step has between 1 and {STEP_MAX_BYTES}"
        )


def pages_of(size_bytes: int) -> int:
    """Pages a file takes in the count over all files: at least one, so that no two files begin at the same."""
    return max(1, -(-size_bytes >> PAGE_SHIFT))
