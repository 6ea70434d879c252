"""Writes an order file, in memory that does not grow with its length: rows are gathered, sorted and written a segment at a time."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from xxhash import xxh3_64

from common import limits
from common.entries import VERSION_BYTES
from common.errors import OrderError, PlanTooLong
from spoke.orders.layout import (
    FILE,
    HEADER_BYTES,
    ROW_BYTES,
    RUN,
    SEGMENT,
    About,
    Header,
    encode_about,
    encode_header,
)
from spoke.orders.segment import PAGE_SHIFT, PAGES_MAX, check_step, pages_of, sorted_index, sorted_index_in_slices
from spoke.prefetch.orders import FileFacts, Reason

_FILES_PER_WRITE = 4096


class _Rows:
    """The steps of one lane that are not written yet."""

    __slots__ = ("files", "first_position", "lengths", "offsets")

    def __init__(self, first_position: int) -> None:
        self.first_position = first_position
        self.files = array("I")
        self.offsets = array("Q")
        self.lengths = array("I")


class OrderWriter:
    """Blocks: use it in a thread or a process of its own (sorting a segment takes 0.1 s). ``finish`` or leave the ``with`` block.

    Raises OrderError for what cannot be an order, PlanTooLong beyond limits.py, OSError as the disk does. Until ``finish``
    there is only ``<path>.new``. ``gently``: slower, but for a thread beside an event loop, which it never holds up for long.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        reason: Reason,
        files: Sequence[FileFacts],
        lane_count: int,
        meta: Mapping[str, str] | None = None,
        segment_steps: int | None = None,
        gently: bool = False,
    ) -> None:
        if not 1 <= lane_count <= limits.ORDER_MAX_LANES:
            raise PlanTooLong(f"an order has 1 to {limits.ORDER_MAX_LANES} lanes, not {lane_count}")
        if len(files) > limits.ORDER_MAX_FILES:
            raise PlanTooLong(f"an order has at most {limits.ORDER_MAX_FILES} files, not {len(files)}")
        self._about = encode_about(About(name, reason, meta or {}))
        self._path = path
        self._temporary = path.with_name(path.name + ".new")
        self._files = files
        self._lane_count = lane_count
        self._segment_steps = segment_steps or limits.ORDER_SEGMENT_STEPS
        self._sorted_index = sorted_index_in_slices if gently else sorted_index
        self._sizes = array("Q", (file.size_bytes for file in files))
        self._first_pages = array("Q")
        self._longest = array("I", bytes(4 * len(files)))
        self._same = self._number_files()
        self._lengths = array("Q", bytes(8 * lane_count))
        self._open_rows: dict[int, _Rows] = {}
        self._open_count = 0
        self._steps = 0
        self._segments: list[tuple[int, int, int]] = []
        self._runs: list[tuple[int, int, int, int, int]] = []
        self._out = open(self._temporary, "wb")  # noqa: SIM115 (closed by finish or abandon)
        self._out.write(bytes(HEADER_BYTES))

    def __enter__(self) -> OrderWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Forget what was written, unless it is finished."""
        if not self._out.closed:
            self._out.close()
            self._temporary.unlink(missing_ok=True)

    def add(self, lane: int, file: int, offset_bytes: int, length_bytes: int) -> None:
        """Add a step at the end of a lane. ``file``: index into ``files``."""
        check_step(file, offset_bytes, length_bytes, self._sizes)
        rows = self._rows_of(lane)
        file = self._same[file]
        rows.files.append(file)
        rows.offsets.append(offset_bytes)
        rows.lengths.append(length_bytes)
        self._longest[file] = max(self._longest[file], length_bytes)
        self._added(1)

    def extend(self, lane: int, files: array[int], offsets_bytes: array[int], lengths_bytes: array[int]) -> None:
        """Add steps at the end of a lane, given in columns ('I', 'Q', 'I') of one length."""
        if not len(files) == len(offsets_bytes) == len(lengths_bytes):
            raise OrderError(f"columns of {len(files)}, {len(offsets_bytes)} and {len(lengths_bytes)} steps")
        at = 0
        while at < len(files):
            rows = self._rows_of(lane)
            stop = min(len(files), at + self._segment_steps - self._open_count)
            sizes, longest, same = self._sizes, self._longest, self._same
            for file, offset_bytes, length_bytes in zip(
                files[at:stop], offsets_bytes[at:stop], lengths_bytes[at:stop], strict=True
            ):
                check_step(file, offset_bytes, length_bytes, sizes)
                kept = same[file]
                rows.files.append(kept)
                longest[kept] = max(longest[kept], length_bytes)
            rows.offsets.extend(offsets_bytes[at:stop])
            rows.lengths.extend(lengths_bytes[at:stop])
            self._added(stop - at)
            at = stop

    def finish(self) -> None:
        """Write what is left and the tables, sync, and give the file its name."""
        self._write_segment()
        tables_at = HEADER_BYTES + self._steps * ROW_BYTES
        tables_digest = xxh3_64()
        paths = self._write_tables(tables_digest)
        header = Header(
            lanes=self._lane_count,
            files=len(self._files),
            steps=self._steps,
            segments=len(self._segments),
            runs=len(self._runs),
            tables_offset_bytes=tables_at,
            paths_bytes=paths,
            about_bytes=len(self._about),
            total_bytes=self._out.tell(),
            tables_digest=tables_digest.intdigest(),
        )
        self._out.seek(0)
        self._out.write(encode_header(header))
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()
        self._temporary.replace(self._path)

    # --- inside ------------------------------------------------------------------------------------------

    def _number_files(self) -> array[int]:
        """Lay the files' pages out; for each file the first one of the same version, which stands for it."""
        same, by_version, page = array("I"), dict[bytes, int](), 0
        for number, file in enumerate(self._files):
            if len(file.version) != VERSION_BYTES:
                raise OrderError(f"{file.path!r}: a version has {VERSION_BYTES} bytes, not {len(file.version)}")
            same.append(by_version.setdefault(file.version, number))
            self._first_pages.append(page)
            page += pages_of(file.size_bytes)
        if page > PAGES_MAX:
            raise PlanTooLong(f"the files of an order may hold {PAGES_MAX << PAGE_SHIFT} bytes together")
        return same

    def _rows_of(self, lane: int) -> _Rows:
        rows = self._open_rows.get(lane)
        if rows is None:
            if not 0 <= lane < self._lane_count:
                raise OrderError(f"lane {lane}; this order has lanes 0 to {self._lane_count - 1}")
            rows = self._open_rows[lane] = _Rows(self._lengths[lane])
        return rows

    def _added(self, count: int) -> None:
        self._open_count += count
        if self._open_count >= self._segment_steps:
            self._write_segment()

    def _write_segment(self) -> None:
        if not self._open_count:
            return
        self._steps += self._open_count
        if self._steps > limits.ORDER_MAX_STEPS or len(self._runs) + len(self._open_rows) > limits.ORDER_MAX_RUNS:
            raise PlanTooLong(
                f"an order has at most {limits.ORDER_MAX_STEPS} steps in {limits.ORDER_MAX_RUNS} pieces of lanes"
            )
        files, offsets, lengths = array("I"), array("Q"), array("I")
        for lane, rows in sorted(self._open_rows.items()):
            self._runs.append((lane, len(self._segments), rows.first_position, len(files), len(rows.files)))
            self._lengths[lane] += len(rows.files)
            files.extend(rows.files)
            offsets.extend(rows.offsets)
            lengths.extend(rows.lengths)
        self._open_rows.clear()
        self._open_count = 0
        index = self._sorted_index(files, offsets, self._first_pages)
        digest = xxh3_64()
        at = self._out.tell()
        for column in (offsets, index, files, lengths):
            digest.update(column)
            self._out.write(column)
        self._segments.append((at, len(files), digest.intdigest()))

    def _write_tables(self, digest: xxh3_64) -> int:
        """Segments, runs, files, their order by version, paths, about. Returns the bytes of all paths."""

        def write(packed: bytes) -> None:
            digest.update(packed)
            self._out.write(packed)

        write(b"".join(SEGMENT.pack(at, rows, 0, found) for at, rows, found in self._segments))
        self._runs.sort(key=lambda run: (run[0], run[2]))
        for start in range(0, len(self._runs), _FILES_PER_WRITE):
            write(b"".join(RUN.pack(*run) for run in self._runs[start : start + _FILES_PER_WRITE]))
        path_at = 0
        for start in range(0, len(self._files), _FILES_PER_WRITE):
            packed = bytearray()
            for number in range(start, min(len(self._files), start + _FILES_PER_WRITE)):
                file = self._files[number]
                packed += FILE.pack(
                    file.version,
                    file.size_bytes,
                    self._first_pages[number],
                    path_at,
                    len(file.path),
                    self._longest[number],
                )
                path_at += len(file.path)
            write(bytes(packed))
        by_version = array(
            "I", sorted(range(len(self._files)), key=lambda number: (self._files[number].version, number))
        )
        by_version.extend([0] * (len(by_version) % 2))
        write(by_version.tobytes())
        for start in range(0, len(self._files), _FILES_PER_WRITE):
            write(b"".join(file.path for file in self._files[start : start + _FILES_PER_WRITE]))
        write(self._about)
        return path_at
