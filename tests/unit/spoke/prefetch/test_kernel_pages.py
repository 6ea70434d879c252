"""The model of the kernel's context readahead, against what a 6.18 kernel was seen to send."""

from __future__ import annotations

import pytest

from common import limits
from spoke.prefetch.kernel_pages import KernelPages

KIB = 1024
RECORD = 64 * KIB
READAHEAD = 128 * KIB


def pages_with(*records: int) -> KernelPages:
    pages = KernelPages()
    for record in records:
        pages.add(0, record * RECORD, (record + 1) * RECORD)
    return pages


def read_end(pages: KernelPages, record: int) -> int:
    return pages.read_end_bytes(0, record * RECORD, (record + 1) * RECORD, READAHEAD) // RECORD


@pytest.mark.parametrize(
    ("read_before", "end"),
    [
        ((), 171),
        ((169,), 171),  # as much as is asked for is no trace of a stream
        ((168, 169), 172),
        ((167, 168, 169), 172),  # never beyond the readahead
        ((168, 169, 171), 171),  # the next one is there already
        ((167, 168), 171),  # a gap
    ],
)
def test_two_records_before_a_read_make_it_longer(read_before: tuple[int, ...], end: int) -> None:
    assert read_end(pages_with(*read_before), 170) == end


def test_what_was_read_from_the_beginning_of_the_file_counts_twice() -> None:
    assert read_end(pages_with(0), 1) == 2, "sixteen pages: no more than are asked for"
    assert read_end(pages_with(0, 1), 2) == 4


def test_the_beginning_of_a_file_is_taken_for_a_stream() -> None:
    assert read_end(KernelPages(), 0) == 2
    assert KernelPages().read_end_bytes(0, 0, 4096, READAHEAD) == 4 * 4096
    assert KernelPages().read_end_bytes(0, 0, 3 * 4096, READAHEAD) == 8 * 4096
    assert KernelPages().read_end_bytes(0, 0, READAHEAD, READAHEAD) == READAHEAD


def test_a_record_that_is_there_in_part_is_read_from_where_it_is_not() -> None:
    pages = pages_with(168, 169)
    pages.add(0, 170 * RECORD, 170 * RECORD + 16 * KIB)
    assert pages.read_end_bytes(0, 170 * RECORD, 171 * RECORD, READAHEAD) == 170 * RECORD + 16 * KIB + READAHEAD
    pages.add(0, 170 * RECORD, 171 * RECORD)
    assert read_end(pages, 170) == 171, "nothing is read at all"


def test_small_records_and_other_files() -> None:
    pages = KernelPages()
    pages.add(1, 0, 8 * 4096)
    pages.add(0, 100 * 4096, 103 * 4096)
    assert pages.read_end_bytes(0, 103 * 4096, 105 * 4096, READAHEAD) == 108 * 4096, "three pages before, two asked for"
    assert pages.read_end_bytes(1, 103 * 4096, 105 * 4096, READAHEAD) == 105 * 4096
    assert pages.read_end_bytes(0, 1023 * 1024, 1025 * 1024, READAHEAD) == 1025 * 1024


def test_pages_before_an_extent_count_too() -> None:
    pages = KernelPages()
    pages.add(0, 254 * 4096, 256 * 4096)
    assert pages.read_end_bytes(0, 256 * 4096, 257 * 4096, READAHEAD) == 259 * 4096


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDER_PAGE_GROUPS_MAX", 2)
    pages = KernelPages()
    for extent in range(4):
        pages.add(0, extent << 20, (extent << 20) + 3 * 4096)
    assert pages.read_end_bytes(0, 3 * 4096, 4 * 4096, READAHEAD) == 4 * 4096, "forgotten"
    start = (3 << 20) + 3 * 4096
    assert pages.read_end_bytes(0, start, start + 4096, READAHEAD) == start + 4 * 4096
