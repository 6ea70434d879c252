"""Which prediction a READ fulfils. Pure.

A READ that begins as a prediction says it will, wherever the reader was thought to be, is that one. But the kernel asks only for
pages that it has not: the READ of a fault may lack its beginning or its end, that of a record its first pages, and which page was
wanted cannot be told any more. Such a READ is taken for what comes about now at the place, and for nothing else: by chance it
touches predictions far ahead as well, and who believed those would look for the reader there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spoke.prefetch.cursor import TOGETHER_STEPS, Item, State

_FAR = 1 << 40
_PAGE = 4096


class Match(NamedTuple):
    """``vote``: 1 if the READ is a page fault's, -1 if it is exact, 0 if it shows neither.

    ``is_sure``: it shows where its reader is, however far that is from where he was thought to be.
    """

    item: Item
    vote: int
    is_sure: bool = True


def fulfilled(
    hits: Sequence[Item], start_bytes: int, end_bytes: int, *, fault_bytes: int, is_mapped: bool, goes_on: bool = False
) -> Match | None:
    """Of predictions whose pages a READ touches, the one that it was foretold by; None: it is somebody else's, or the kernel's own.

    ``is_mapped``: faults are expected here, each of which moves ``fault_bytes``. ``goes_on``: the page before was asked for, so that this
    may be what the kernel reads by itself, whose middle nobody wanted.
    """
    length_bytes = end_bytes - start_bytes
    is_whole = length_bytes == fault_bytes
    anchor_bytes = start_bytes + fault_bytes // 2 if is_whole else -1
    best: Item | None = None
    best_rank = (2, 0)
    for item in hits:
        page_bytes = item.start_bytes & -_PAGE
        distance = abs(item.position - item.cursor.front - 1)
        is_near = distance <= item.cursor.spread + TOGETHER_STEPS
        is_centre = page_bytes <= anchor_bytes < item.end_bytes and (is_near or not goes_on)
        is_begin = start_bytes == page_bytes and (
            0 <= end_bytes - item.end_bytes < _PAGE if is_mapped else is_near or not goes_on or _continues(item)
        )
        if is_centre or is_begin:
            kind = 0
        elif is_near and not (is_whole if is_mapped else start_bytes < page_bytes):
            kind = 1
        else:
            continue
        rank = (kind, distance if item.state is not State.READ else distance + _FAR)
        if rank < best_rank:
            best, best_rank = item, rank
    if best is None:
        return None
    best = _first_of_same(hits, best)
    page_bytes = best.start_bytes & -_PAGE
    vote = 0
    if not best_rank[0]:
        if page_bytes == anchor_bytes:
            vote = 1
        elif page_bytes == start_bytes and (start_bytes or not is_whole):
            vote = -1
    is_sure = is_mapped or not (best_rank[0] or (goes_on and not _continues(best)))
    return Match(best, vote, is_sure)


def fulfilled_exactly(hits: Sequence[Item], start_bytes: int, end_bytes: int) -> Match | None:
    """Of predictions that come about now, the one that a READ is to the page, where the kernel may as well have read on by itself.

    If it did not, as in files opened for random access, this is the step's READ, and no other will come; if it did, it holds all the same.
    """
    for item in hits:
        if (
            item.state is not State.READ
            and abs(item.position - item.cursor.front - 1) <= TOGETHER_STEPS
            and start_bytes == item.start_bytes & -_PAGE
            and 0 <= end_bytes - item.end_bytes < _PAGE
        ):
            return Match(item, 0, is_sure=False)
    return None


def _continues(item: Item) -> bool:
    """The order itself reads what lies before it: that the kernel has that shows nothing."""
    return item.start_bytes > item.run.start_bytes


def _first_of_same(hits: Sequence[Item], found: Item) -> Item:
    """Of steps of a place that read the same bytes, as of a file's index beside each of its records, the first that nobody read yet.

    Which of the place's readers came cannot be told. Were it the furthest, each such READ would move the place on while the others
    stay, until what they will read is given up.
    """
    for item in hits:
        if (
            item.position < found.position
            and item.cursor is found.cursor
            and (item.start_bytes, item.end_bytes) == (found.start_bytes, found.end_bytes)
            and item.state in (State.ASKED, State.SHADOW)
        ):
            found = item
    return found
