"""What the guesses know of one file version, and how far a window in it reaches. Pure."""

from __future__ import annotations

from typing import NamedTuple

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, count_blocks
from spoke.prefetch.chains import Chain, FileFacts
from spoke.prefetch.gate import ReadBytes, Trust
from spoke.prefetch.scorecard import Reason
from spoke.prefetch.streams import Run, RunTable
from spoke.prefetch.strides import StrideTable
from spoke.prefetch.throughout import kind_of

WHOLE_EXTENTS_FROM_BYTES = EXTENT_BYTES * 3 // 2
_WINDOW_PIECES, _PIECE_MAX_EXTENTS = 16, 16


class KnownFile:
    """What is known of one version: its runs and progressions, and whether they pay.

    ``whole``: the plan of one that is fetched as a whole. ``following``: beginnings of the files after it, anticipated.
    """

    __slots__ = ("block_count", "chain", "facts", "following", "kind", "paused_until_s", "read", "runs", "strides", "trust", "whole",
                 "whole_reason")  # fmt: skip

    def __init__(self, facts: FileFacts) -> None:
        self.facts = facts
        self.kind = kind_of(facts)
        self.block_count = count_blocks(facts.size_bytes)
        self.runs = RunTable(self.block_count)
        self.strides = StrideTable(self.block_count)
        self.read = ReadBytes()
        self.trust = Trust(self.read)
        self.paused_until_s = 0.0
        self.chain: Chain | None = None
        self.whole: Run | None = None
        self.whole_reason = Reason.SMALL_FILE
        self.following: list[Job] = []


class Job(NamedTuple):
    """Room to fill: a file's blocks up to the end its stream's window allows."""

    file: KnownFile
    run: Run
    reason: Reason


def window_end(file: KnownFile, next_block: int, window_bytes: int) -> int:
    """Where a window ends: with the file, or (unless it is small) with a whole extent, so that none is fetched in pieces."""
    end_block = next_block + window_bytes // BLOCK_BYTES
    if end_block >= file.block_count:
        return file.block_count
    return end_block - end_block % EXTENT_BLOCKS if window_bytes >= WHOLE_EXTENTS_FROM_BYTES else end_block


def piece_blocks(window_bytes: int) -> int:
    """What is planned at a time in a window of this size, in whole extents: in a large one several, so that most READs plan nothing."""
    if window_bytes < 2 * _WINDOW_PIECES * EXTENT_BYTES:
        return EXTENT_BLOCKS
    return EXTENT_BLOCKS * min(_PIECE_MAX_EXTENTS, window_bytes // _WINDOW_PIECES // EXTENT_BYTES)


def first_bytes(file: KnownFile) -> int:
    """What the first read of a file from its first byte on is answered with: little beside the file, in case it was only a look."""
    return min(limits.PREFETCH_FIRST_BYTES, file.facts.size_bytes // limits.PREFETCH_FIRST_SHARE)


def reason_of(run: Run) -> Reason:
    """A stream that was anticipated and never read is its directory order's mistake."""
    return Reason.NEXT_FILE if run.next_block == 0 else Reason.SEQUENTIAL
