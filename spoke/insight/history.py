"""What was decided about each extent, the last eight things, for ``explain``: asked for, arrived, evicted and for whom.

Noted once for each fetch and eviction, never for a read that found its bytes. Pure, and bounded: the extents noted
longest ago are forgotten.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from common import limits
from common.blocks import EXTENT_BLOCKS, BlockRange

_NOTE = struct.Struct("<dBxxxI")
_KIND_AT = 8
_RING_BYTES = limits.HISTORY_NOTES_KEPT * _NOTE.size


class What(IntEnum):
    """``detail`` of AHEAD is the number of the reason, of EVICTED leads to the version that came in its place (0: none in
    particular); of the others it counts how often that happened since the extent was last taken out."""

    ASKED = 1
    """A reader waits for some of it."""
    AHEAD = 2
    """Nobody waited yet."""
    JOINED = 3
    """A reader came for what was on its way."""
    LANDED = 4
    AGAIN = 5
    """It failed, or came damaged, and is asked for again."""
    FAILED = 6
    EVICTED = 7
    """To make room."""
    OUTDATED = 8
    """No name has this version any more: it went first."""
    DROPPED = 9
    """Damaged, unreadable, or taken out by command."""


GONE = (What.EVICTED, What.OUTDATED, What.DROPPED)


class Note(NamedTuple):
    at_s: float
    what: What
    detail: int


class History:
    """By (version, extent). ``now_s`` of the daemon's clock."""

    def __init__(self) -> None:
        self._notes: dict[tuple[bytes, int], bytes] = {}
        self._whom: dict[int, bytes] = {}
        self._whom_numbers: dict[bytes, int] = {}
        self._next_whom = 1

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, now_s: float, version: bytes, extent: int, what: What, detail: int = 0) -> None:
        """Of several of one kind since it was last taken out the newest is kept, with their number."""
        notes = self._notes
        key = (version, extent)
        before = notes.pop(key, b"")
        if not before:
            if len(notes) >= limits.HISTORY_EXTENTS_MAX:
                del notes[next(iter(notes))]
        elif what not in GONE:
            for at in range(len(before) - _NOTE.size, -1, -_NOTE.size):
                kind = before[at + _KIND_AT]
                if kind >= What.EVICTED:
                    break
                if kind == what:
                    if what is not What.AHEAD:
                        detail = _NOTE.unpack_from(before, at)[2] + 1
                    before = before[:at] + before[at + _NOTE.size :]
                    break
        if not detail and what not in (What.AHEAD, What.EVICTED):
            detail = 1
        notes[key] = (before + _NOTE.pack(now_s, what, detail))[-_RING_BYTES:]

    def note_blocks(self, now_s: float, version: bytes, blocks: BlockRange, what: What, detail: int = 0) -> None:
        """Each extent that ``blocks`` touch."""
        if blocks.block_count:
            first, last = blocks.first_block // EXTENT_BLOCKS, (blocks.end_block - 1) // EXTENT_BLOCKS
            for extent in range(first, last + 1):
                self.note(now_s, version, extent, what, detail)

    def whom(self, version: bytes) -> int:
        """A number for a version, for ``detail`` of EVICTED; 0 for none."""
        if not version:
            return 0
        number = self._whom_numbers.get(version)
        if number is None:
            number = self._next_whom
            self._next_whom += 1
            self._whom_numbers[version], self._whom[number] = number, version
            if len(self._whom) > limits.HISTORY_WHOM_MAX:
                oldest = next(iter(self._whom))
                del self._whom_numbers[self._whom.pop(oldest)]
        return number

    def version_of(self, number: int) -> bytes | None:
        """None: none in particular, or forgotten."""
        return self._whom.get(number)

    def of(self, version: bytes, extent: int) -> list[Note]:
        """Oldest first."""
        return [
            Note(at_s, What(what), detail)
            for at_s, what, detail in _NOTE.iter_unpack(self._notes.get((version, extent), b""))
        ]

    def extents(self, version: bytes) -> Iterator[int]:
        """The extents of a version of which something is known; looks at all (some ms): for people's questions alone."""
        return (extent for known, extent in list(self._notes) if known == version)
