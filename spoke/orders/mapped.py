"""An order file, mapped: however long it is, memory holds only its pages in use, and those the kernel can take back.

The file is checked as a whole when it is opened, and never changed afterwards: makers write a new one and rename it.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

from xxhash import xxh3_64_intdigest

from common.errors import DamagedOrder, DiskError
from spoke.orders.layout import FILE, HEADER_BYTES, ROW_BYTES, RUN, SEGMENT, Header, decode_about, decode_header
from spoke.orders.segment import PAGES_MAX, ROWS_MAX, Numbers, Segment, pages_of
from spoke.prefetch.orders import FileFacts, Reader, Reason, Step

__all__ = ["ORIGIN", "READER", "MappedOrder", "open_order"]

READER = "reader"
"""The note by which an order's maker says how its files will be read."""

ORIGIN = "origin"
"""The note on where an order came from that was not made here, for people."""


class FileTable(Sequence[FileFacts]):
    """The files of an order, read from the mapping one by one."""

    def __init__(self, view: memoryview, header: Header) -> None:
        self._view = view
        self._header = header

    def __len__(self) -> int:
        return self._header.files

    @overload
    def __getitem__(self, number: int) -> FileFacts: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[FileFacts]: ...
    def __getitem__(self, number: int | slice) -> FileFacts | Sequence[FileFacts]:
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"file {number} of {len(self)}")
        version, size_bytes, _, path_at, path_bytes, _ = self.record(number)
        start = self._header.paths_at + path_at
        return FileFacts(bytes(self._view[start : start + path_bytes]), version, size_bytes)

    def record(self, number: int) -> tuple[bytes, int, int, int, int, int]:
        """version, size, first page, offset in the paths, bytes of the path, longest step."""
        found: tuple[bytes, int, int, int, int, int] = FILE.unpack_from(
            self._view, self._header.files_at + number * FILE.size
        )
        return found


class MappedOrder:
    """An :class:`~spoke.prefetch.orders.Order`; make it with :func:`open_order`. ``meta``: its maker's notes.

    ``reader``: one of them, None if they do not say.
    """

    def __init__(self, view: memoryview, header: Header, segments: Sequence[tuple[int, int]]) -> None:
        about = decode_about(bytes(view[header.about_at : header.total_bytes]))
        self.name: str = about.name
        self.reason: Reason = about.reason
        self.meta: Mapping[str, str] = about.meta
        self.reader = _reader(about.meta.get(READER))
        self.origin = about.meta.get(ORIGIN, "")
        self.files = FileTable(view, header)
        self.lane_count = header.lanes
        self.step_count = header.steps
        self._view = view
        self._by_version = view[header.by_version_at : header.by_version_at + 4 * header.files].cast("I")
        self._segments = [_segment(view, at, rows) for at, rows in segments]
        # Of each lane: the position after its last; its runs by first position, with segment, first row.
        self._lengths = array("Q", bytes(8 * header.lanes))
        self._lane_runs = array("I", bytes(4 * (header.lanes + 1)))
        self._starts, self._run_segments, self._run_rows = array("Q"), array("I"), array("I")
        # Of each segment: its runs by first row, with lane and first position.
        self._rows_taken = [(array("I"), array("I"), array("Q")) for _ in segments]
        self._take_runs(header)

    # --- the Order ---------------------------------------------------------------------------------------

    def length(self, lane: int) -> int:
        return self._lengths[lane]

    def first(self, lane: int) -> int:
        return 0

    def step(self, lane: int, position: int) -> Step:
        if not 0 <= position < self._lengths[lane]:
            raise IndexError(f"lane {lane} of order {self.name!r} has steps 0 to {self._lengths[lane] - 1}")
        run = bisect_right(self._starts, position, self._lane_runs[lane], self._lane_runs[lane + 1]) - 1
        segment = self._segments[self._run_segments[run]]
        row = self._run_rows[run] + position - self._starts[run]
        return Step(segment.files[row], segment.offsets[row], segment.lengths[row])

    def file_of(self, version: bytes) -> int | None:
        low, high = 0, len(self._by_version)
        while low < high:
            middle = (low + high) // 2
            if self.files.record(self._by_version[middle])[0] < version:
                low = middle + 1
            else:
                high = middle
        if low == len(self._by_version) or self.files.record(self._by_version[low])[0] != version:
            return None
        return self._by_version[low]

    def find(self, file: int, start_bytes: int, end_bytes: int, limit: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        if limit <= 0 or end_bytes <= start_bytes:
            return found
        _, _, first_page, _, _, longest_bytes = self.files.record(file)
        for segment, taken in zip(self._segments, self._rows_taken, strict=True):
            for row in segment.rows_at(file, first_page, longest_bytes, start_bytes, end_bytes):
                run = bisect_right(taken[0], row) - 1
                found.append((taken[1][run], taken[2][run] + row - taken[0][run]))
                if len(found) == limit:
                    return found
        return found

    def next_position(self, lane: int, file: int, start_bytes: int, end_bytes: int, from_position: int) -> int | None:
        if not 0 <= lane < self.lane_count or end_bytes <= start_bytes:
            return None
        _, _, first_page, _, _, longest_bytes = self.files.record(file)
        from_position = max(0, from_position)
        first_run, end_run = self._lane_runs[lane], self._lane_runs[lane + 1]
        for run in range(max(first_run, bisect_right(self._starts, from_position, first_run, end_run) - 1), end_run):
            segment, first_row = self._segments[self._run_segments[run]], self._run_rows[run]
            end_position = self._starts[run + 1] if run + 1 < end_run else self._lengths[lane]
            end_row = first_row + end_position - self._starts[run]
            low_row = first_row + max(0, from_position - self._starts[run])
            rows = segment.rows_at(file, first_page, longest_bytes, start_bytes, end_bytes)
            best = min((row for row in rows if low_row <= row < end_row), default=None)
            if best is not None:
                return self._starts[run] + best - first_row
        return None

    def forget(self, lane: int, before_position: int) -> None:
        """Nothing: they take no memory."""

    def columns(self, lane: int) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Files, offsets and lengths of all steps of a lane in order, a piece at a time."""
        for run in range(self._lane_runs[lane], self._lane_runs[lane + 1]):
            last = run + 1 == self._lane_runs[lane + 1]
            end_position = self._lengths[lane] if last else self._starts[run + 1]
            first_row = self._run_rows[run]
            rows = slice(first_row, first_row + end_position - self._starts[run])
            segment = self._segments[self._run_segments[run]]
            yield segment.files[rows], segment.offsets[rows], segment.lengths[rows]

    # --- inside ------------------------------------------------------------------------------------------

    def _take_runs(self, header: Header) -> None:
        """Lay out which rows are which lane's. Raises DamagedOrder when they are not each row once, in order."""
        lane_before, expected = -1, 0
        by_segment: list[list[tuple[int, int, int, int]]] = [[] for _ in self._segments]
        for number in range(header.runs):
            lane, segment, position, row, rows = RUN.unpack_from(self._view, header.runs_at + number * RUN.size)
            if lane != lane_before:
                if not lane_before < lane < header.lanes:
                    raise DamagedOrder(f"piece {number} is of lane {lane}, after lane {lane_before} of {header.lanes}")
                self._lane_runs[lane_before + 1 : lane + 1] = array("I", [number]) * (lane - lane_before)
                lane_before, expected = lane, 0
            if position != expected or not 0 < rows <= ROWS_MAX or segment >= len(by_segment):
                raise DamagedOrder(f"piece {number} of lane {lane} does not follow the one before it")
            expected += rows
            self._lengths[lane] = expected
            self._starts.append(position)
            self._run_segments.append(segment)
            self._run_rows.append(row)
            by_segment[segment].append((row, lane, position, rows))
        rest = len(self._lane_runs) - lane_before - 1
        self._lane_runs[lane_before + 1 :] = array("I", [header.runs]) * rest
        for segment, runs, taken in zip(self._segments, by_segment, self._rows_taken, strict=True):
            next_row = 0
            for row, lane, position, rows in sorted(runs):
                if row != next_row:
                    raise DamagedOrder(f"rows {next_row} to {row} of a segment belong to no lane")
                next_row += rows
                for column, found in zip(taken, (row, lane, position), strict=True):
                    column.append(found)
            if next_row != len(segment.files):
                raise DamagedOrder(f"a segment of {len(segment.files)} rows of which {next_row} belong to lanes")


def open_order(path: Path) -> MappedOrder:
    """Map an order file and check all of it: reads it once, so call it in a thread.

    Raises DamagedOrder or OrderTooNew with what was seen, DiskError when it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            file_bytes = file.seek(0, 2)
            file.seek(0)
            header = decode_header(file.read(HEADER_BYTES), file_bytes)
            view = memoryview(mmap.mmap(file.fileno(), file_bytes, prot=mmap.PROT_READ))
    except DamagedOrder as error:
        raise type(error)(f"{path}: {error}") from None
    except OSError as error:
        raise DiskError(f"the order {path} cannot be read: {error.strerror}") from error
    try:
        if xxh3_64_intdigest(view[header.tables_offset_bytes :]) != header.tables_digest:
            raise DamagedOrder("its tables do not match their checksum")
        _check_files(view, header)
        return MappedOrder(view, header, list(_checked_segments(view, header)))
    except DamagedOrder as error:
        raise DamagedOrder(f"{path}: {error}") from None


def _checked_segments(view: memoryview, header: Header) -> Iterator[tuple[int, int]]:
    """Offset and rows of each segment."""
    expected, steps = HEADER_BYTES, 0
    for number in range(header.segments):
        at, rows, zero, digest = SEGMENT.unpack_from(view, header.segments_at + number * SEGMENT.size)
        end = at + rows * ROW_BYTES
        if at != expected or not 0 < rows <= ROWS_MAX or zero or end > header.tables_offset_bytes:
            raise DamagedOrder(f"segment {number} does not follow the one before it")
        if xxh3_64_intdigest(view[at:end]) != digest:
            raise DamagedOrder(f"segment {number} does not match its checksum")
        if max(_segment(view, at, rows).files) >= header.files:
            raise DamagedOrder(f"segment {number} names a file that is not there")
        expected, steps = end, steps + rows
        yield at, rows
    if steps != header.steps:
        raise DamagedOrder(f"{steps} steps in the segments, {header.steps} in the header")


def _check_files(view: memoryview, header: Header) -> None:
    page = path_at = 0
    for number in range(header.files):
        _, size_bytes, first_page, path, path_bytes, _ = FILE.unpack_from(view, header.files_at + number * FILE.size)
        if first_page != page or path != path_at:
            raise DamagedOrder(f"file {number} does not follow the one before it")
        page += pages_of(size_bytes)
        path_at += path_bytes
    if path_at != header.paths_bytes or page > PAGES_MAX:
        raise DamagedOrder("the files' sums contradict the header")
    by_version = view[header.by_version_at : header.by_version_at + 4 * header.files].cast("I")
    if any(number >= header.files for number in by_version):
        raise DamagedOrder("the files by version name a file that is not there")


def _reader(note: str | None) -> Reader | None:
    return Reader(note) if note in (Reader.EXACT.value, Reader.MAPPED.value) else None


def _segment(view: memoryview, at: int, rows: int) -> Segment:
    offsets_at, index_at, files_at, lengths_at = at, at + 8 * rows, at + 16 * rows, at + 20 * rows
    return Segment(
        view[files_at:lengths_at].cast("I"),
        view[offsets_at:index_at].cast("Q"),
        view[lengths_at : lengths_at + 4 * rows].cast("I"),
        view[index_at:files_at].cast("Q"),
    )
