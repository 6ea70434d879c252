"""When an order uses bytes of a file next, as seen from the places that are followed in it: what eviction asks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange
from common.limits import NEVER_STEPS
from spoke.prefetch.cursor import Cursor, Marks
from spoke.prefetch.orders import Order

NEVER = NEVER_STEPS

_USED_ALREADY_MAX = 8
_USES_MAX = (
    1024  # of one extent, looked at one by one: records of 1 KiB; with more its soonest use stands for all of it
)


class Use(NamedTuple):
    """Blocks of one extent, and the steps until the first of them is used."""

    steps: int
    blocks: BlockRange


def steps_until(
    order: Order, cursors: Sequence[Cursor], marks: Marks, file: int, start_bytes: int, end_bytes: int, *, again: bool
) -> int:
    """Steps until the soonest use over all lanes with cursors (at least one). ``again``: the order comes again after its end."""
    best = NEVER
    for lane in {cursor.lane for cursor in cursors}:
        here = [cursor for cursor in cursors if cursor.lane == lane]
        best = min(best, _in_lane(order, lane, here, marks, file, start_bytes, end_bytes, again=again))
    return best


def _in_lane(
    order: Order, lane: int, cursors: Sequence[Cursor], marks: Marks, file: int, start_bytes: int, end_bytes: int,
    *, again: bool,
) -> int:  # fmt: skip
    """Steps from the nearest place before it to the next use in a lane that was not read yet."""
    fronts = sorted(cursor.front for cursor in cursors)
    position = _earliest(order, lane, cursors)
    for _ in range(_USED_ALREADY_MAX):
        found = order.next_position(lane, file, start_bytes, end_bytes, position)
        if found is None:
            if not again:
                return NEVER
            found = order.next_position(lane, file, start_bytes, end_bytes, order.first(lane))
            left = order.length(lane) - fronts[0]
            return NEVER if found is None else left + found - order.first(lane)
        position = found
        if not marks.is_read(lane, found):
            break
        position += 1
    return _from_nearest(fronts, position)


def uses_of(
    order: Order, cursors: Sequence[Cursor], marks: Marks, file: int, start_bytes: int, end_bytes: int, *, again: bool
) -> list[tuple[int, int, int]] | None:
    """(steps until then, lane, position) of each step that uses these bytes and was not read yet; None: they are too many."""
    found = order.find(file, start_bytes, end_bytes, _USES_MAX)
    if len(found) >= _USES_MAX:
        return None
    lanes: dict[int, tuple[int, list[int]]] = {}
    for lane in {cursor.lane for cursor in cursors}:
        here = [cursor for cursor in cursors if cursor.lane == lane]
        lanes[lane] = _earliest(order, lane, here), sorted(cursor.front for cursor in here)
    uses: list[tuple[int, int, int]] = []
    for lane, position in found:
        if lane not in lanes:
            continue
        earliest, fronts = lanes[lane]
        if position >= earliest and not marks.is_read(lane, position):
            uses.append((_from_nearest(fronts, position), lane, position))
        elif again:
            uses.append((order.length(lane) - fronts[0] + position - order.first(lane), lane, position))
    return uses


def _earliest(order: Order, lane: int, cursors: Sequence[Cursor]) -> int:
    """The position before which nothing is read any more."""
    return max(order.first(lane), min(int(cursor.front - cursor.spread) for cursor in cursors))


def _from_nearest(fronts: Sequence[int], position: int) -> int:
    before = [front for front in fronts if front < position]
    return max(0, position - (before[-1] if before else fronts[0]))


def parts_of(extent_index: int, uses: Iterable[Use]) -> list[Use]:
    """All blocks of an extent, in runs that are used next at the same step; of several uses of a block its soonest counts."""
    base = extent_index * EXTENT_BLOCKS
    soonest = [NEVER] * EXTENT_BLOCKS
    found = list(uses)
    apart = _parts_of_disjoint(base, sorted(found, key=_first_block))
    if apart is not None:
        return apart
    for steps, blocks in sorted(found, reverse=True):
        first, end = max(0, blocks.first_block - base), min(EXTENT_BLOCKS, blocks.end_block - base)
        if first < end:
            soonest[first:end] = [steps] * (end - first)
    parts: list[Use] = []
    at = base
    for steps, run in groupby(soonest):
        count = len(list(run))
        parts.append(Use(steps, BlockRange(at, count)))
        at += count
    return parts


def _first_block(use: Use) -> int:
    return use.blocks.first_block


def _parts_of_disjoint(base: int, uses: Sequence[Use]) -> list[Use] | None:
    """The same where no two uses share a block, as records of whole blocks do not; None where some do."""
    parts: list[Use] = []
    at, end = base, base + EXTENT_BLOCKS
    for steps, blocks in uses:
        first_block, end_block = max(base, blocks.first_block), min(end, blocks.end_block)
        if first_block >= end_block:
            continue
        if first_block < at:
            return None
        if first_block > at:
            parts.append(Use(NEVER, BlockRange(at, first_block - at)))
        parts.append(Use(steps, BlockRange(first_block, end_block - first_block)))
        at = end_block
    if at < end:
        parts.append(Use(NEVER, BlockRange(at, end - at)))
    return parts


def pieces_of(start_bytes: int, end_bytes: int) -> Iterator[BlockRange]:
    """The blocks of a span of bytes, in pieces that lie in one extent each; blocks that it shares with its neighbours for themselves."""
    first_block, end_block = start_bytes // BLOCK_BYTES, -(-end_bytes // BLOCK_BYTES)
    if start_bytes % BLOCK_BYTES:
        yield BlockRange(first_block, 1)
        first_block += 1
    if end_bytes % BLOCK_BYTES and first_block < end_block:
        end_block -= 1
        yield BlockRange(end_block, 1)
    while first_block < end_block:
        cut_block = min(end_block, (first_block // EXTENT_BLOCKS + 1) * EXTENT_BLOCKS)
        yield BlockRange(first_block, cut_block - first_block)
        first_block = cut_block


Used = Callable[[bytes, BlockRange], None]
"""Told (version, blocks of one extent) that an order has used; a whole extent where what was used is not known so well."""
