"""What the chaos files hold, and which of a path's states a reader can have seen. Pure.

Every 16 bytes hold a stamp (which write put them there) and their own offset, so any block tells where it is from. A *state* is
what a path was between two system calls of the writer: its size, and which ranges came from which write; or that there was no
such path. A handle may see one state only: each read narrows the states it can be, and when none is left the bytes were wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

RECORD = struct.Struct("<QQ")
RECORD_BYTES = RECORD.size
_RECORDS = np.dtype([("stamp", "<u8"), ("offset", "<u8")])

Run = tuple[int, int, int]
"""(start, end, stamp): bytes [start, end) were put there by that write."""


@dataclass(frozen=True, slots=True)
class State:
    """``size_bytes`` None: there is no such path. Times: CLOCK_MONOTONIC; ``begun_s`` before the call that made it, ``ended_s`` after
    the call that ended it (None: it lasts)."""

    path: str
    number: int
    size_bytes: int | None
    runs: tuple[Run, ...]
    begun_s: float
    ended_s: float | None = None


class WrongBytes(Exception):
    """Bytes that no state of the path explains; the message says what was there and what could have been."""


def generate(stamp: int, start: int, end: int) -> bytes:
    """The bytes that write ``stamp`` puts at [start, end)."""
    first = start // RECORD_BYTES
    count = -(-end // RECORD_BYTES) - first
    records = np.empty(count, _RECORDS)
    records["stamp"] = stamp
    records["offset"] = (np.arange(count, dtype="<u8") + first) * RECORD_BYTES
    skipped = start - first * RECORD_BYTES
    return records.tobytes()[skipped : skipped + end - start]


def overwrite(runs: Iterable[Run], start: int, end: int, stamp: int) -> tuple[Run, ...]:
    """``runs`` after a write of [start, end)."""
    kept: list[Run] = []
    for low, high, owner in runs:
        if low < start:
            kept.append((low, min(high, start), owner))
        if high > end:
            kept.append((max(low, end), high, owner))
    return _joined(sorted([*kept, (start, end, stamp)]))


def clip(runs: Iterable[Run], start: int, end: int) -> tuple[Run, ...]:
    """What of ``runs`` lies in [start, end)."""
    return tuple((max(low, start), min(high, end), owner) for low, high, owner in runs if low < end and high > start)


def _joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    joined: list[Run] = []
    for low, high, owner in runs:
        if low >= high:
            continue
        if joined and joined[-1][1] == low and joined[-1][2] == owner:
            joined[-1] = (joined[-1][0], high, owner)
        else:
            joined.append((low, high, owner))
    return tuple(joined)


def describe(data: bytes, offset: int) -> str:
    """For people: which write the bytes say they are from, and where they say they belong."""
    skipped = -offset % RECORD_BYTES
    records = np.frombuffer(data, _RECORDS, max(len(data) - skipped, 0) // RECORD_BYTES, min(skipped, len(data)))
    if not len(records):
        return data.hex()
    first = offset + skipped
    misplaced = np.flatnonzero(records["offset"] != np.arange(len(records), dtype="<u8") * RECORD_BYTES + first)
    stamps = records["stamp"]
    edges = [0, *(np.flatnonzero(stamps[1:] != stamps[:-1]) + 1).tolist(), len(records)]
    runs = [
        (first + low * RECORD_BYTES, first + high * RECORD_BYTES, int(stamps[low])) for low, high in pairwise(edges)
    ]
    if not len(misplaced):
        return str(runs[:6])
    at = int(misplaced[0])
    return f"{runs[:6]}, {len(misplaced)} records out of place, the first at {first + at * RECORD_BYTES}: {records[at].tobytes().hex()}"


def _size_fits(state: State, offset: int, end: int, *, at_end: bool) -> bool:
    if state.size_bytes is None:
        return False
    if offset >= state.size_bytes:
        return end == offset and at_end
    return end == state.size_bytes if at_end else end <= state.size_bytes


def _holds(runs: Iterable[Run], data: bytes, offset: int) -> bool:
    """Piece by piece: most that differ do so in the first bytes."""
    for low, high, stamp in runs:
        head = min(high, low + RECORD_BYTES)
        if generate(stamp, low, head) != data[low - offset : head - offset]:
            return False
    return all(generate(stamp, low, high) == data[low - offset : high - offset] for low, high, stamp in runs)


def narrow(states: Sequence[State], data: bytes, offset: int, *, at_end: bool) -> list[State]:
    """Those of ``states`` that can have given this read. ``at_end``: the kernel then said that the file ends here.

    Raises WrongBytes when none can.
    """
    end = offset + len(data)
    answers: dict[tuple[Run, ...], bool] = {}
    left = []
    for state in states:
        if not _size_fits(state, offset, end, at_end=at_end):
            continue
        runs = clip(state.runs, offset, end)
        if runs not in answers:
            answers[runs] = _holds(runs, data, offset)
        if answers[runs]:
            left.append(state)
    if not left:
        said = ", ".join(
            f"#{state.number} ({state.size_bytes} bytes, {list(clip(state.runs, offset, max(end, offset + 1)))[:4]})"
            for state in states[-4:]
        )
        raise WrongBytes(
            f"{len(data)} bytes at {offset}{' and then the end' if at_end else ''} hold {describe(data, offset)}; "
            f"of {len(states)} states none fits, the last are {said}"
        )
    return left


def ended(state: State, at_s: float) -> State:
    return replace(state, ended_s=at_s)
