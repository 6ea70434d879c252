"""What comes next, known from the trace itself: the order in which a job on local data wants its READs, and each extent's next use."""

from __future__ import annotations

from array import array

import numpy as np

from bench.replay.evictors import FILE_SHIFT
from bench.replay.simulator import Simulation
from bench.replay.trace import Trace
from common.blocks import EXTENT_BYTES

NEVER = 1 << 60
_NUMBER_MASK = (1 << 40) - 1


class Future:
    """``order``: process << 40 | number of each READ, as a job on local data wants them. ``done``: those made by now."""

    def __init__(self, trace: Trace, order: array[int]) -> None:
        self.order = order
        self.done = bytearray(len(order))
        self._first = 0
        codes = np.frombuffer(order, dtype=np.uint64)
        sizes = np.zeros(len(codes), dtype=np.uint64)
        self._places = [array("Q", bytes(8 * process.read_count)) for process in trace.processes]
        extents, places = [], []
        positions = np.arange(len(codes), dtype=np.uint64)
        for number, process in enumerate(trace.processes):
            mine = positions[codes >> np.uint64(40) == number]
            reads = (codes[mine] & np.uint64(_NUMBER_MASK)).astype(np.int64)
            by_read = np.zeros(process.read_count, dtype=np.uint64)
            by_read[reads] = mine
            self._places[number] = array("Q", by_read.tobytes())
            offsets = np.frombuffer(process.offsets, dtype=np.uint64)[reads].astype(np.int64)
            lengths = np.frombuffer(process.lengths, dtype=np.uint32)[reads].astype(np.int64)
            sizes[mine.astype(np.int64)] = lengths.astype(np.uint64)
            files = np.frombuffer(process.files, dtype=np.uint32)[reads].astype(np.int64)
            first, last = offsets // EXTENT_BYTES, (offsets + lengths - 1) // EXTENT_BYTES
            for step in range(int((last - first).max(initial=0)) + 1):
                touched = first + step <= last
                extents.append((files[touched] << FILE_SHIFT) | (first[touched] + step))
                places.append(mine[touched])
        self._bytes_before = array("Q", np.concatenate(([0], np.cumsum(sizes))).astype(np.uint64).tobytes())
        all_extents = np.concatenate(extents) if extents else np.zeros(0, dtype=np.int64)
        all_places = np.concatenate(places) if places else np.zeros(0, dtype=np.uint64)
        sorting = np.lexsort((all_places, all_extents))
        self._uses = array("Q", all_places[sorting].astype(np.uint64).tobytes())
        names, starts = np.unique(all_extents[sorting], return_index=True)
        ends = np.append(starts[1:], len(self._uses))
        self._spans = {name: [at, end] for name, at, end in zip(names.tolist(), starts.tolist(), ends.tolist(), strict=True)}  # fmt: skip

    def consumed(self, process: int, number: int) -> None:
        self.done[self._places[process][number]] = 1

    def bytes_until(self, place: int) -> int:
        """What is read between the first READ not made yet and the one at ``place``."""
        first, done = self._first, self.done
        while first < len(done) and done[first]:
            first += 1
        self._first = first
        return self._bytes_before[place] - self._bytes_before[min(first, place)]

    def next_use(self, extent: int) -> int:
        """The place in the order of the next READ of this extent that was not made yet; NEVER if none."""
        span = self._spans.get(extent)
        if span is None:
            return NEVER
        at, end = span
        done, uses = self.done, self._uses
        while at < end and done[uses[at]]:
            at += 1
        span[0] = at
        return uses[at] if at < end else NEVER


def local_order(trace: Trace) -> array[int]:
    """READs by when their batch is consumed, then as they are made: what the job waits for first comes first."""
    outcome = Simulation(trace, None, keep_order=True).run()
    assert outcome.order is not None
    assert outcome.consumed_s is not None
    codes = np.frombuffer(outcome.order, dtype=np.uint64)
    due_s = np.zeros(len(codes))
    for number, (process, consumed_s) in enumerate(zip(trace.processes, outcome.consumed_s, strict=True)):
        mine = np.flatnonzero(codes >> np.uint64(40) == number)
        reads = (codes[mine] & np.uint64(_NUMBER_MASK)).astype(np.int64)
        batches = np.searchsorted(np.frombuffer(process.batch_ends, dtype=np.uint64), reads, side="right")
        due_s[mine] = np.frombuffer(consumed_s, dtype=np.float64)[batches]
    return array("Q", codes[np.argsort(due_s, kind="stable")].tobytes())
