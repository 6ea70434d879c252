"""What the kernel is foretold to ask for beside exact reads: its rule, and its model beside ours."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support import PAGE, ExactKernel

from common import limits
from spoke.prefetch.kernel_pages import KernelPages
from spoke.prefetch.kernel_reads import KernelReads

READAHEAD = 128 * 1024
SIZE = 400 * PAGE
Told = tuple[int, list[tuple[int, int]]]


def told(kernel: KernelReads, first: int, end: int, file: int = 0) -> Told:
    """In pages."""
    read_end_bytes, beside = kernel.foretell(file, first * PAGE, end * PAGE, READAHEAD, SIZE)
    return read_end_bytes // PAGE, beside


def with_a_mark() -> KernelReads:
    """At page 107, the last of a READ that was longer than what was asked for."""
    kernel = KernelReads(KernelPages())
    assert told(kernel, 100, 103) == (103, [])
    assert told(kernel, 103, 105) == (108, [])
    return kernel


def test_who_comes_to_a_mark_has_the_kernel_read_on_once() -> None:
    kernel = with_a_mark()
    assert told(kernel, 106, 108) == (108, [(108, 112)]), "twice what lies from the mark to the record's end"
    assert told(kernel, 106, 108) == (108, [])
    assert told(with_a_mark(), 107, 108, file=1) == (108, [])


def test_a_record_beyond_the_mark_has_it_read_on_twice() -> None:
    """Six pages end at 114, of which 112 is whole; the page marked anew is the record's too, and then it is twice as much."""
    read_end, beside = told(with_a_mark(), 107, 109)
    assert read_end == 109
    assert [first for first, _ in beside] == [108, 112]
    assert beside[1][1] == 120
    assert 112 <= beside[0][1] <= 114, "older kernels read up to there"


def test_what_it_has_is_left_out() -> None:
    kernel = with_a_mark()
    told(kernel, 110, 111)
    assert told(kernel, 107, 108) == (108, [(108, 110), (111, 112)])


def test_a_longer_read_goes_on_behind_what_is_there() -> None:
    kernel = KernelReads(KernelPages())
    for first, end in ((20, 28), (32, 34)):
        told(kernel, first, end)
    assert told(kernel, 28, 30) == (32, [(34, 38)])
    kernel = KernelReads(KernelPages())
    told(kernel, 390, 398)
    assert told(kernel, 398, 399) == (400, []), "no further than the file"


def test_what_nobody_asked_for_is_known_once() -> None:
    kernel = with_a_mark()
    told(kernel, 106, 108)
    assert not kernel.is_own(1, 108 * PAGE, 112 * PAGE)
    assert kernel.is_own(0, 108 * PAGE, 112 * PAGE)
    assert not kernel.is_own(0, 108 * PAGE, 112 * PAGE)
    assert not kernel.is_own(0, 103 * PAGE, 108 * PAGE), "somebody asked for its beginning"


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDER_KERNEL_MARKS_MAX", 4)
    kernel = KernelReads(KernelPages())
    for file in range(20):
        told(kernel, 100, 103, file)
        told(kernel, 103, 105, file)
    assert len(kernel._marks._bits) == 4
    assert told(kernel, 106, 108, 19) == (108, [(108, 112)])
    assert told(kernel, 106, 108, 1) == (108, []), "forgotten"


records = st.lists(st.tuples(st.integers(0, 395), st.integers(1, 5)), min_size=1, max_size=300)


@settings(max_examples=60)
@given(records, st.booleans())
def test_it_foretells_what_the_kernel_sends(read: list[tuple[int, int]], aligns: bool) -> None:
    """Of an older kernel once some READs showed where they end: then the same, and before no more than three pages too many."""
    pages = KernelPages()
    model, kernel = KernelReads(pages), ExactKernel(400, aligns=aligns)
    if not aligns:
        model._aligned_votes = -4
    for first, count in read:
        end = first + count
        sent = kernel.read(first * PAGE, count * PAGE)
        read_end, beside = told(model, first, end)
        asked = {page for begin, last, _ in sent for page in range(begin, last) if page >= end}
        foretold = {page for begin, last in [(end, read_end), *beside] for page in range(begin, last) if page >= end}
        assert asked <= foretold
        assert len(foretold - asked) <= 3 * len(beside)
        assert [pages.has(0, page) for page in range(400)] == [bool(page) for page in kernel.pages]
        for begin, last, waits in sent:
            if begin >= end or not waits:
                model.is_own(0, begin * PAGE, last * PAGE)


def test_where_reads_end_is_learned() -> None:
    """A kernel that does not align is believed as soon as a READ showed the contrary, and the other way round."""
    model = KernelReads(KernelPages())

    def read_on(file: int) -> tuple[list[tuple[int, int]], bool]:
        told(model, 101, 104, file)
        told(model, 104, 106, file)
        _, beside = told(model, 107, 109, file)
        return beside, model._pages.has(file, 112)

    assert read_on(0) == ([(109, 113)], False), "up to 112, and a page more is asked for"
    assert model.is_own(0, 109 * PAGE, 113 * PAGE)
    assert read_on(1) == ([(109, 113)], True)
    assert model.is_own(1, 109 * PAGE, 112 * PAGE)
    assert read_on(2) == ([(109, 113)], False)
