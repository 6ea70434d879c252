"""One thread that reads many places of a file by turns, each in order: it waits for every place that nothing foretold."""

from __future__ import annotations

import numpy as np

from bench.replay.pages import KIB, MIB, PAGE, READ, Scale
from bench.replay.trace import Process, Trace, TraceFile

LANE_BYTES = 6 * MIB

_FAULT_LEAD_BYTES = 64 * KIB
_FAULT_READS = 3
"""By page faults the first turn is the READ around its page and two more, recorded on a mount; then one a turn."""

Part = tuple[int, int]


def lanes(scale: Scale) -> Trace:
    """16 equal parts."""
    return _by_turns("lanes", equal_parts(16, 16 * LANE_BYTES))


def lanes_many(scale: Scale) -> Trace:
    """64 equal parts."""
    return _by_turns("lanes-many", equal_parts(64, 64 * LANE_BYTES // 2))


def lanes_uneven(scale: Scale) -> Trace:
    """16 parts of all lengths, in no order of place."""
    return _by_turns("lanes-uneven", uneven_parts(scale, 16, 16 * LANE_BYTES))


def lanes_faults(scale: Scale) -> Trace:
    """16 equal parts, mapped."""
    return _by_turns("lanes-faults", equal_parts(16, 16 * LANE_BYTES), mapped=True)


def lanes_uneven_faults(scale: Scale) -> Trace:
    """Parts of all lengths, mapped."""
    return _by_turns("lanes-uneven-faults", uneven_parts(scale, 16, 16 * LANE_BYTES), mapped=True)


def equal_parts(count: int, size_bytes: int) -> list[Part]:
    part = size_bytes // count
    return [(number * part, (number + 1) * part) for number in range(count)]


def uneven_parts(scale: Scale, count: int, size_bytes: int) -> list[Part]:
    dice = scale.dice(22)
    cuts = np.sort(dice.choice(np.arange(1, size_bytes // PAGE), count - 1, replace=False)) * PAGE
    starts = [0, *cuts.tolist()]
    parts = list(zip(starts, [*starts[1:], size_bytes], strict=True))
    return [parts[number] for number in dice.permutation(count).tolist()]


def _by_turns(name: str, parts: list[Part], *, mapped: bool = False) -> Trace:
    size_bytes = max(end for _, end in parts)
    process = Process(workers=1)
    at = [max(0, start - _FAULT_LEAD_BYTES) if mapped else start for start, _ in parts]
    first_turn = True
    while any(place < end for place, (_, end) in zip(at, parts, strict=True)):
        for lane, (_, end) in enumerate(parts):
            for _ in range(_FAULT_READS if mapped and first_turn else 1):
                if at[lane] < end:
                    process.add(0, at[lane], min(READ, end - at[lane]))
                    at[lane] += READ
        process.end_batch()
        first_turn = False
    return Trace(name, [TraceFile(b"data.bin", size_bytes)], [process])
