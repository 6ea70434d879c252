"""When an order uses bytes of a file next, as seen from the places that are followed in it: what eviction asks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spoke.prefetch.cursor import Cursor, Marks
from spoke.prefetch.orders import Order

NEVER = 1 << 40
"""Steps until the next use of what an order will not use again."""

_USED_ALREADY_MAX = 8


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
    position = max(order.first(lane), min(int(cursor.front - cursor.spread) for cursor in cursors))
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
    before = [front for front in fronts if front < position]
    return max(0, position - (before[-1] if before else fronts[0]))
