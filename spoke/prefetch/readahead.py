"""Which kernel readahead a mount wants, from the READs it sees. Pure.

The kernel's readahead decides the size of READs: a page fault moves all of it, the wanted page in its middle, whether or not its
neighbours are wanted; a sequential reader sends READs of that size, and each costs both sides the same whatever it carries.
So three values are of use: 128 KiB, which hurts nobody much; 16 KiB where random faults are all there is and an order fetches
ahead of them anyhow; 1,024 KiB where everybody reads in order. The kernel gives a file the value in force at its open, so a
choice is for the opens that follow.

READs are counted in units of 128 KiB read in order, or of one fault, so that the choice does not move its own grounds. Old ones
fade. Each choice is left at another share than the one at which it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from common.blocks import EXTENT_BYTES
from common.limits import READAHEAD_DECIDE_READS, READAHEAD_RUNS_MAX

FAULTS_KIB = 16
DEFAULT_KIB = 128
STREAMS_KIB = 1024

_UNIT_BYTES = DEFAULT_KIB * 1024
_RUN_MIN_BYTES = EXTENT_BYTES  # shorter ones are records, or the beginning of something
_FEWEST_UNITS = 256.0
_FAULTS_FROM, _FAULTS_UNTIL = 0.6, 0.3  # not near 1: some faults find neighbours cached and look like something else
_STREAMS_BESIDE_FAULTS, _STREAMS_END_FAULTS = 0.1, 0.25
_STREAMS_FROM, _STREAMS_UNTIL = 0.9, 0.75
_FAULTS_BESIDE_STREAMS, _FAULTS_END_STREAMS = 0.005, 0.02  # one fault then costs as much as eight units of a stream


class Seen(NamedTuple):
    """Fading counts, in units. ``ordered_faults``: those of ``faults`` that an order foretells."""

    streams: float
    faults: float
    ordered_faults: float
    other: float

    @property
    def total(self) -> float:
        return self.streams + self.faults + self.other


class Choice(NamedTuple):
    kib: int
    reason: str


START = Choice(DEFAULT_KIB, "until enough is seen")


def choose(now: Choice, seen: Seen) -> Choice:
    """The value for files opened from now on."""
    total = seen.total
    if total < _FEWEST_UNITS:
        return now
    streams, faults, ordered = seen.streams / total, seen.faults / total, seen.ordered_faults / total
    in_faults, in_streams = now.kib == FAULTS_KIB, now.kib == STREAMS_KIB
    if ordered >= (_FAULTS_UNTIL if in_faults else _FAULTS_FROM) and streams <= (
        _STREAMS_END_FAULTS if in_faults else _STREAMS_BESIDE_FAULTS
    ):
        return Choice(FAULTS_KIB, f"{ordered:.0%} of READs are random page faults that an order foretells")
    if streams >= (_STREAMS_UNTIL if in_streams else _STREAMS_FROM) and faults <= (
        _FAULTS_END_STREAMS if in_streams else _FAULTS_BESIDE_STREAMS
    ):
        return Choice(
            STREAMS_KIB, f"{streams:.0%} of what is read is read in order, {faults:.1%} by random page faults"
        )
    return Choice(
        DEFAULT_KIB,
        f"{streams:.0%} read in order, {faults:.0%} random page faults ({ordered:.0%} foretold): no one kind",
    )


class ReadAheadChooser:
    """``choice``: what it holds best now. ``foretold(version)``: whether an order explains what is read of a file."""

    def __init__(self, foretold: Callable[[bytes], bool]) -> None:
        self.choice = START
        self._foretold = foretold
        self._runs: dict[tuple[int, int], int] = {}
        self._reads = 0
        self._streams = self._faults = self._ordered_faults = self._other = 0.0

    @property
    def seen(self) -> Seen:
        return Seen(self._streams, self._faults, self._ordered_faults, self._other)

    def read_all(self, reads: Sequence[tuple[int, bytes, int, int, int]]) -> bool:
        """Count these, each a handle, version, offset, length and the bytes of its faults: as :meth:`read`."""
        changed = False
        for handle_id, version, offset_bytes, length_bytes, fault_bytes in reads:
            changed |= self.read(handle_id, version, offset_bytes, length_bytes, fault_bytes)
        return changed

    def read(
        self, handle_id: int, version: bytes, offset_bytes: int, length_bytes: int, fault_bytes: int, reads: int = 1
    ) -> bool:
        """Count a READ of a handle whose faults are of ``fault_bytes``, or ``reads`` that went on in one piece.

        True when ``choice`` has another value now.
        """
        runs, end_bytes = self._runs, offset_bytes + length_bytes
        before_bytes = runs.pop((handle_id, offset_bytes), -1)
        run_bytes = length_bytes + before_bytes if before_bytes > 0 else length_bytes
        runs[handle_id, end_bytes] = run_bytes
        if len(runs) > READAHEAD_RUNS_MAX:
            del runs[next(iter(runs))]
        if before_bytes > 0:
            if run_bytes >= _RUN_MIN_BYTES:
                if reads > 1:  # of several, those with which the run was long enough
                    each_bytes = length_bytes // reads
                    length_bytes = min(
                        length_bytes, (run_bytes - _RUN_MIN_BYTES) // each_bytes * each_bytes + each_bytes
                    )
                self._streams += length_bytes / _UNIT_BYTES
        elif before_bytes < 0:
            if length_bytes == fault_bytes and offset_bytes % fault_bytes:
                self._faults += 1.0
                if self._foretold(version):
                    self._ordered_faults += 1.0
            elif offset_bytes:
                self._other += 1.0
        self._reads += reads
        return self._reads >= READAHEAD_DECIDE_READS and self._decide()

    def _decide(self) -> bool:
        self._reads = 0
        before, self.choice = self.choice, choose(self.choice, self.seen)
        if self.seen.total >= 2 * _FEWEST_UNITS:
            self._streams, self._faults = self._streams / 2, self._faults / 2
            self._ordered_faults, self._other = self._ordered_faults / 2, self._other / 2
        return self.choice.kib != before.kib
