"""A READ is told from others by where it begins, and where the kernel cut it, by what comes about now."""

from __future__ import annotations

from spoke.prefetch.cursor import Cursor, Item, Run, State
from spoke.prefetch.matching import Match, fulfilled, fulfilled_exactly

FAULT = 128 * 1024
PAGE = 4096


def predicted(cursor: Cursor, position: int, start_bytes: int, end_bytes: int) -> Item:
    return Item(cursor, position, 0, start_bytes, end_bytes, FAULT, Run(0, start_bytes, end_bytes), State.ASKED)


def place(front: int = 100, spread: float = 0.0) -> Cursor:
    cursor = Cursor(0.0, 0, front, 1 << 20)
    cursor.spread = spread
    return cursor


def test_a_whole_fault_is_known_by_the_page_in_its_middle_wherever_the_reader_was() -> None:
    cursor = place()
    near, far = predicted(cursor, 101, 40 * PAGE, 40 * PAGE + 100), predicted(cursor, 5000, 50 * PAGE, 50 * PAGE + 100)
    start_bytes = 50 * PAGE - FAULT // 2
    match = fulfilled([near, far], start_bytes, start_bytes + FAULT, fault_bytes=FAULT, is_mapped=True)
    assert match is not None
    assert match.item is far
    assert match.vote == 1


def test_the_kernels_own_reading_on_is_nobodys() -> None:
    """It is as long as a fault, and begins where an earlier READ ended: what lies in it was not asked for by a reader."""
    cursor = place()
    items = [predicted(cursor, 101, 40 * PAGE, 40 * PAGE + 100), predicted(cursor, 7000, 32 * PAGE, 32 * PAGE + 100)]
    assert fulfilled(items, 32 * PAGE, 64 * PAGE, fault_bytes=FAULT, is_mapped=True) is None


def test_where_the_kernel_may_read_on_the_page_in_the_middle_of_a_read_shows_nothing_far_away() -> None:
    far = predicted(place(), 5000, 50 * PAGE, 50 * PAGE + 100)
    start_bytes = 50 * PAGE - FAULT // 2
    assert fulfilled([far], start_bytes, start_bytes + FAULT, fault_bytes=FAULT, is_mapped=True, goes_on=True) is None


def test_a_fault_that_the_kernel_cut_is_what_comes_about_now() -> None:
    cursor = place(spread=50.0)
    near, far = predicted(cursor, 90, 44 * PAGE, 44 * PAGE + 100), predicted(cursor, 7000, 32 * PAGE, 32 * PAGE + 100)
    match = fulfilled([near, far], 32 * PAGE, 50 * PAGE, fault_bytes=FAULT, is_mapped=True)
    assert match is not None
    assert match.item is near, "that it begins as a prediction far ahead does is chance"
    assert fulfilled([far], 32 * PAGE, 50 * PAGE, fault_bytes=FAULT, is_mapped=True) is None


def test_a_record_whose_first_page_the_kernel_had_is_known() -> None:
    cursor = place()
    record = predicted(cursor, 104, 10 * PAGE + 100, 13 * PAGE)
    match = fulfilled([record], 11 * PAGE, 13 * PAGE, fault_bytes=FAULT, is_mapped=False)
    assert match is not None
    assert match.item is record
    assert not match.is_sure, "it may be chance"
    far = predicted(cursor, 900, 10 * PAGE + 100, 13 * PAGE)
    assert fulfilled([far], 11 * PAGE, 13 * PAGE, fault_bytes=FAULT, is_mapped=False) is None
    assert fulfilled([record], 9 * PAGE, 13 * PAGE, fault_bytes=FAULT, is_mapped=False) is None, "it begins before"


def test_an_exact_read_that_the_kernel_may_have_read_on_by_itself_shows_nothing_far_away() -> None:
    cursor = place()
    far = predicted(cursor, 900, 10 * PAGE, 13 * PAGE)
    match = fulfilled([far], 10 * PAGE, 13 * PAGE, fault_bytes=FAULT, is_mapped=False)
    assert match is not None
    assert match.is_sure
    assert fulfilled([far], 10 * PAGE, 13 * PAGE, fault_bytes=FAULT, is_mapped=False, goes_on=True) is None
    far.run.start_bytes = 8 * PAGE
    match = fulfilled([far], 10 * PAGE, 13 * PAGE, fault_bytes=FAULT, is_mapped=False, goes_on=True)
    assert match is not None, "what lies before it is the order's own"
    assert match.is_sure


def test_exact_reads_show_themselves_where_faults_were_expected() -> None:
    cursor = place()
    record = predicted(cursor, 900, 10 * PAGE + 100, 13 * PAGE)
    match = fulfilled([record], 10 * PAGE, 13 * PAGE, fault_bytes=FAULT, is_mapped=True)
    assert match is not None
    assert match.vote == -1


def test_of_steps_that_read_the_same_bytes_the_first_that_nobody_read_is_taken() -> None:
    """An index read beside each record by all workers: taken for the furthest worker's, it would lead the place away from the others."""
    cursor = place(spread=50.0)
    index = [predicted(cursor, position, 8192 * PAGE, 8193 * PAGE) for position in (60, 80, 101, 120)]
    index[0].state = State.READ
    match = fulfilled(index, 8192 * PAGE, 8193 * PAGE, fault_bytes=FAULT, is_mapped=False)
    assert match is not None
    assert match.item is index[1]
    elsewhere = predicted(place(front=3), 4, 8192 * PAGE, 8193 * PAGE)
    match = fulfilled([elsewhere, *index[2:]], 8192 * PAGE, 8193 * PAGE, fault_bytes=FAULT, is_mapped=False)
    assert match is not None
    assert match.item is elsewhere, "another place is another reader's"


def test_what_the_kernel_may_have_read_by_itself_is_a_steps_where_it_is_that_to_the_page() -> None:
    cursor = place()
    step = predicted(cursor, 101, 8 * 4096, 16 * 4096 - 100)
    assert fulfilled_exactly([step], 8 * 4096, 16 * 4096) == Match(step, 0, is_sure=False)
    assert fulfilled_exactly([step], 8 * 4096, 17 * 4096) is None
    assert fulfilled_exactly([step], 7 * 4096, 16 * 4096) is None
    far = predicted(cursor, 200, 64 * 4096, 72 * 4096)
    assert fulfilled_exactly([far], 64 * 4096, 72 * 4096) is None
    step.state = State.READ
    assert fulfilled_exactly([step], 8 * 4096, 16 * 4096) is None
