"""Where the kernel reads on by itself: its rule, and a model of its pages beside ours."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import limits
from spoke.prefetch.kernel_marks import KernelMarks
from spoke.prefetch.kernel_pages import KernelPages

PAGE = 4096
FAULT = 128 * 1024


def test_who_comes_to_a_mark_has_the_kernel_read_on_once() -> None:
    kernel = KernelMarks(KernelPages())
    assert kernel.read(3, 84 * PAGE, 116 * PAGE, FAULT, 100 * PAGE) == 108
    assert kernel.beyond(3, 100, 107, FAULT) is None
    assert kernel.beyond(4, 108, 108, FAULT) is None, "another file"
    assert kernel.beyond(3, 107, 108, FAULT) == (116, 148)
    assert kernel.beyond(3, 108, 108, FAULT) is None
    assert kernel.read(3, 116 * PAGE, 148 * PAGE, FAULT, None) == 116, (
        "what it read by itself is marked at its beginning"
    )
    assert kernel.beyond(3, 116, 116, FAULT) == (148, 180)


def test_it_begins_behind_what_is_there_and_not_far_behind() -> None:
    kernel = KernelMarks(KernelPages())
    kernel.read(0, 0, 32 * PAGE, FAULT, 10 * PAGE)
    kernel.read(0, 32 * PAGE, 40 * PAGE, FAULT, None)
    assert kernel.beyond(0, 24, 24, FAULT) == (40, 72)
    kernel = KernelMarks(KernelPages())
    kernel.read(0, 0, 32 * PAGE, FAULT, 10 * PAGE)
    kernel.read(0, 32 * PAGE, 64 * PAGE, FAULT, 48 * PAGE)
    assert kernel.beyond(0, 24, 24, FAULT) is None


def test_a_fault_whose_mark_was_there_already_leaves_none() -> None:
    kernel = KernelMarks(KernelPages())
    kernel.read(0, 105 * PAGE, 137 * PAGE, FAULT, 121 * PAGE)
    assert kernel.read(0, 84 * PAGE, 105 * PAGE, FAULT, 100 * PAGE) is None


def test_a_fault_whose_beginning_was_there_is_marked_by_its_end() -> None:
    kernel = KernelMarks(KernelPages())
    kernel.read(0, 60 * PAGE, 92 * PAGE, FAULT, 76 * PAGE)
    assert kernel.read(0, 92 * PAGE, 116 * PAGE, FAULT, 92 * PAGE) == 108, "the step began before; page 100 was wanted"


def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDER_KERNEL_MARKS_MAX", 10)
    monkeypatch.setattr(limits, "ORDER_PAGE_GROUPS_MAX", 10)
    pages = KernelPages()
    kernel = KernelMarks(pages)
    for number in range(100):
        kernel.read(0, number << 20, (number << 20) + FAULT, FAULT, None)
    assert len(pages._bits) <= 10
    assert len(kernel._marks) <= 10


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 40)), max_size=40),
    st.integers(0, 1500),
    st.integers(1, 600),
)
def test_the_first_missing_page_is_the_models(reads: list[tuple[int, int]], first: int, count: int) -> None:
    pages = KernelPages()
    kernel = KernelMarks(pages)
    model: set[int] = set()
    for start, length in reads:
        kernel.read(7, start * PAGE, (start + length) * PAGE, FAULT, start * PAGE)
        model.update(range(start, start + length))
    expected = next((page for page in range(first, first + count) if page not in model), None)
    assert pages.first_missing(7, first, first + count) == expected
