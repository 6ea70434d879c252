"""An order in memory that gets longer at one end and forgets at the other: a declared plan, a sequence being learned."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from common import limits
from common.errors import OrderError, PlanTooLong
from spoke.orders.segment import PAGE_SHIFT, PAGES_MAX, Segment, check_step, pages_of, sorted_index
from spoke.prefetch.orders import FileFacts, Reader, Reason, Step


class _Lane:
    """Sorted ``segments``, each from the position in ``starts`` on, then the tail, found by the page its steps begin at."""

    __slots__ = ("by_page", "first", "segments", "starts", "tail_files", "tail_lengths", "tail_offsets", "tail_start")

    def __init__(self) -> None:
        self.first = 0
        self.segments: list[Segment] = []
        self.starts: list[int] = []
        self.tail_start = 0
        self.new_tail()

    def new_tail(self) -> None:
        self.tail_files = array("I")
        self.tail_offsets = array("Q")
        self.tail_lengths = array("I")
        self.by_page: dict[int, list[int]] = {}

    @property
    def length(self) -> int:
        return self.tail_start + len(self.tail_files)


class GrowingOrder:
    """An :class:`~spoke.prefetch.orders.Order`. ``max_steps``: held at once, over all lanes; lanes begin with their first step."""

    reader: Reader | None = None
    origin = ""

    def __init__(self, name: str, reason: Reason, *, max_steps: int = limits.ORDER_GROWING_MAX_STEPS) -> None:
        if not 0 < len(name.encode()) <= limits.ORDER_NAME_MAX_BYTES:
            raise OrderError(f"an order's name has 1 to {limits.ORDER_NAME_MAX_BYTES} bytes, not {len(name.encode())}")
        self.name = name
        self.reason = reason
        self.files: list[FileFacts] = []
        self.held_steps = 0
        """Steps in memory: those not forgotten, and some forgotten ones that share a sorted piece with others."""
        self._max_steps = max_steps
        self._sizes = array("Q")
        self._first_pages = array("Q")
        self._longest = array("I")
        self._next_page = 0
        self._by_version: dict[bytes, int] = {}
        self._lanes: list[_Lane] = []

    @property
    def lane_count(self) -> int:
        return len(self._lanes)

    # --- making it longer --------------------------------------------------------------------------------

    def add_file(self, file: FileFacts) -> int:
        """The index to name this file by; the one it has if its version is known. Raises PlanTooLong."""
        known = self._by_version.get(file.version)
        if known is not None:
            return known
        if len(self.files) >= min(limits.ORDER_MAX_FILES, self._max_steps):
            raise PlanTooLong(f"order {self.name!r} has {len(self.files)} files, which is the limit")
        pages = pages_of(file.size_bytes)
        if self._next_page + pages > PAGES_MAX:
            raise PlanTooLong(f"the files of order {self.name!r} exceed {PAGES_MAX << PAGE_SHIFT} bytes together")
        number = self._by_version[file.version] = len(self.files)
        self.files.append(file)
        self._sizes.append(file.size_bytes)
        self._first_pages.append(self._next_page)
        self._longest.append(0)
        self._next_page += pages
        return number

    def append(self, lane: int, file: int, offset_bytes: int, length_bytes: int) -> None:
        """Add a step at the end of a lane. Raises PlanTooLong at ``max_steps``, OrderError for a step outside its file."""
        if not 0 <= lane < limits.ORDER_MAX_LANES:
            raise PlanTooLong(f"order {self.name!r}: lane {lane}; lanes are 0 to {limits.ORDER_MAX_LANES - 1}")
        check_step(file, offset_bytes, length_bytes, self._sizes)
        if self.held_steps >= self._max_steps:
            raise PlanTooLong(f"order {self.name!r} holds {self.held_steps} steps, which is the limit")
        while lane >= len(self._lanes):
            self._lanes.append(_Lane())
        found = self._lanes[lane]
        if len(found.tail_files) >= limits.ORDER_GROWING_TAIL_STEPS:
            self._seal(found)
        self._longest[file] = max(self._longest[file], length_bytes)
        page = self._first_pages[file] + (offset_bytes >> PAGE_SHIFT)
        found.by_page.setdefault(page, []).append(len(found.tail_files))
        found.tail_files.append(file)
        found.tail_offsets.append(offset_bytes)
        found.tail_lengths.append(length_bytes)
        self.held_steps += 1

    def forget(self, lane: int, before_position: int) -> None:
        """Steps of the lane before this position are not needed any more; their memory goes piece by piece."""
        found = self._lanes[lane]
        found.first = max(found.first, min(before_position, found.length))
        if found.first == found.length and found.tail_files:
            self._seal(found)
        gone = 0
        ends = [*found.starts[1:], found.tail_start]
        while gone < len(found.segments) and ends[gone] <= found.first:
            self.held_steps -= len(found.segments[gone].files)
            gone += 1
        del found.segments[:gone], found.starts[:gone]

    def _seal(self, lane: _Lane) -> None:
        index = sorted_index(lane.tail_files, lane.tail_offsets, self._first_pages)
        lane.segments.append(Segment(lane.tail_files, lane.tail_offsets, lane.tail_lengths, index))
        lane.starts.append(lane.tail_start)
        lane.tail_start += len(lane.tail_files)
        lane.new_tail()

    # --- the Order ---------------------------------------------------------------------------------------

    def length(self, lane: int) -> int:
        return self._lanes[lane].length

    def first(self, lane: int) -> int:
        return self._lanes[lane].first

    def step(self, lane: int, position: int) -> Step:
        found = self._lanes[lane]
        row = position - found.tail_start
        if not found.first <= position < found.tail_start + len(found.tail_files):
            raise IndexError(f"lane {lane} of order {self.name!r} holds steps {found.first} to {found.length - 1}")
        if row >= 0:
            return Step(found.tail_files[row], found.tail_offsets[row], found.tail_lengths[row])
        number = bisect_right(found.starts, position) - 1
        segment, row = found.segments[number], position - found.starts[number]
        return Step(segment.files[row], segment.offsets[row], segment.lengths[row])

    def file_of(self, version: bytes) -> int | None:
        return self._by_version.get(version)

    def find(self, file: int, start_bytes: int, end_bytes: int, limit: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        if limit <= 0 or end_bytes <= start_bytes:
            return found
        first_page, longest_bytes = self._first_pages[file], self._longest[file]
        for number, lane in enumerate(self._lanes):
            for start, segment in zip(lane.starts, lane.segments, strict=True):
                for row in segment.rows_at(file, first_page, longest_bytes, start_bytes, end_bytes):
                    if start + row >= lane.first:
                        found.append((number, start + row))
                        if len(found) == limit:
                            return found
            for row in self._tail_rows(lane, file, start_bytes, end_bytes):
                if lane.tail_start + row >= lane.first:
                    found.append((number, lane.tail_start + row))
                    if len(found) == limit:
                        return found
        return found

    def next_position(self, lane: int, file: int, start_bytes: int, end_bytes: int, from_position: int) -> int | None:
        if not 0 <= lane < len(self._lanes) or end_bytes <= start_bytes:
            return None
        found = self._lanes[lane]
        from_position = max(from_position, found.first)
        first_page, longest_bytes = self._first_pages[file], self._longest[file]
        for number in range(max(0, bisect_right(found.starts, from_position) - 1), len(found.starts)):
            start = found.starts[number]
            rows = found.segments[number].rows_at(file, first_page, longest_bytes, start_bytes, end_bytes)
            best = min((row for row in rows if start + row >= from_position), default=None)
            if best is not None:
                return start + best
        rows_left = self._tail_rows(found, file, start_bytes, end_bytes)
        best = min((row for row in rows_left if found.tail_start + row >= from_position), default=None)
        return None if best is None else found.tail_start + best

    def _tail_rows(self, lane: _Lane, file: int, start_bytes: int, end_bytes: int) -> Sequence[int]:
        """Rows of the lane's tail that overlap these bytes."""
        low_page = max(0, start_bytes - self._longest[file] + 1) >> PAGE_SHIFT
        base, high_page = self._first_pages[file], end_bytes - 1 >> PAGE_SHIFT
        by_page, files, offsets, lengths = lane.by_page, lane.tail_files, lane.tail_offsets, lane.tail_lengths
        candidates: Sequence[int]
        if high_page - low_page >= len(by_page):
            candidates = range(len(files))
        else:
            candidates = [row for page in range(low_page, high_page + 1) for row in by_page.get(base + page, ())]
        return [
            row
            for row in candidates
            if files[row] == file and offsets[row] < end_bytes and offsets[row] + lengths[row] > start_bytes
        ]
