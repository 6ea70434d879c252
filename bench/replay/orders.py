"""A trace as the orders a planner can be told: one a phase, a lane for each of its processes, in the order of their batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from bench.replay.trace import Process, Trace
from spoke.prefetch.orders import FileFacts, Order, Reader, Reason, Step


class TraceOrder:
    """An order (spoke.prefetch.orders) over the columns of a trace, of the processes of one phase. Nothing is copied."""

    reader: Reader | None = None

    def __init__(self, name: str, reason: Reason, facts: Sequence[FileFacts], processes: Sequence[Process]) -> None:
        self.name = name
        self.reason = reason
        self.files = facts
        self.lane_count = len(processes)
        self.origin = ""
        self._lanes = processes
        self._by_version = {file.version: number for number, file in enumerate(facts)}
        self._sorted: dict[tuple[int, int], tuple[list[int], list[int]]] | None = None
        self._longest = max((max(process.lengths, default=0) for process in processes), default=0)

    def length(self, lane: int) -> int:
        return self._lanes[lane].read_count

    def first(self, lane: int) -> int:
        return 0

    def step(self, lane: int, position: int) -> Step:
        process = self._lanes[lane]
        return Step(process.files[position], process.offsets[position], process.lengths[position])

    def file_of(self, version: bytes) -> int | None:
        return self._by_version.get(version)

    def find(self, file: int, start_bytes: int, end_bytes: int, limit: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for lane in range(self.lane_count):
            for position in self._overlapping(lane, file, start_bytes, end_bytes):
                found.append((lane, position))
                if len(found) >= limit:
                    return found
        return found

    def next_position(self, lane: int, file: int, start_bytes: int, end_bytes: int, from_position: int) -> int | None:
        places = (at for at in self._overlapping(lane, file, start_bytes, end_bytes) if at >= from_position)
        return min(places, default=None)

    def forget(self, lane: int, before_position: int) -> None:
        """A trace keeps all."""

    def _overlapping(self, lane: int, file: int, start_bytes: int, end_bytes: int) -> Iterator[int]:
        if self._sorted is None:
            self._sorted = self._sort()
        starts, positions = self._sorted.get((lane, file), ([], []))
        process = self._lanes[lane]
        at = bisect_left(starts, start_bytes - self._longest)
        while at < len(starts) and starts[at] < end_bytes:
            position = positions[at]
            if starts[at] + process.lengths[position] > start_bytes:
                yield position
            at += 1

    def _sort(self) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
        """Steps of each lane and file by where they begin."""
        grouped: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for lane, process in enumerate(self._lanes):
            for position, (file, offset_bytes) in enumerate(zip(process.files, process.offsets, strict=True)):
                grouped.setdefault((lane, file), []).append((offset_bytes, position))
        result = {}
        for key, pairs in grouped.items():
            pairs.sort()
            result[key] = ([offset for offset, _ in pairs], [position for _, position in pairs])
        return result


def orders_of(trace: Trace, facts: Sequence[FileFacts]) -> dict[int, Order]:
    """The order of each phase of the trace, as its job would declare it."""
    return {
        phase: TraceOrder(f"trace-{phase}", Reason.PLAN, facts, [one for one in trace.processes if one.phase == phase])
        for phase in trace.phases
    }
