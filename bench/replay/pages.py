"""The kernel's part of a trace: what a page fault, a small read and a sequential reader make of themselves on the way to the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.replay.trace import Numbers, Process, TraceFile
from common.units import format_size

KIB, MIB = 1024, 1 << 20
PAGE = 4096
READ = 128 * KIB
LADDER = (16 * KIB, 32 * KIB, 64 * KIB)
"""What readahead begins with when a file is read by small reads from a place it does not know."""


@dataclass(frozen=True)
class Scale:
    """How large a trace is made. ``reads``: about so many READs in all; ``data_bytes``: about so much in files.

    ``processes``: ranks of the job on this node. ``batch``: samples a batch.
    """

    seed: int = 1
    data_bytes: int = 2048 * MIB
    reads: int = 16000
    processes: int = 2
    workers: int = 4
    epochs: int = 2
    batch: int = 8

    def dice(self, *more: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *more])

    def __str__(self) -> str:
        return f"{format_size(self.data_bytes)}, about {self.reads:,} READs, {self.processes} processes x {self.workers} workers"


def fault_starts(offsets: Numbers) -> Numbers:
    """Where the READ of a fault at each of these bytes begins: half a READ before its page (LOADERS fact 4)."""
    starts: Numbers = np.maximum(offsets // PAGE * PAGE - READ // 2, 0)
    return starts


def fault_lengths(starts: Numbers, size_bytes: int) -> Numbers:
    lengths: Numbers = np.minimum(READ, size_bytes - starts)
    return lengths


def fault(offset_bytes: int, size_bytes: int) -> tuple[int, int]:
    """Start and length of the READ of one fault."""
    start = max(0, offset_bytes // PAGE * PAGE - READ // 2)
    return start, min(READ, size_bytes - start)


def page_rounded(offset_bytes: int, length_bytes: int, size_bytes: int) -> tuple[int, int]:
    """Start and length of the exact READ that a read of this span becomes."""
    start = offset_bytes // PAGE * PAGE
    return start, min(-(-(offset_bytes + length_bytes) // PAGE) * PAGE, size_bytes) - start


class PageCache:
    """Pages of one file that the kernel has: which faults and small reads still reach the daemon."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._pages = bytearray(-(-size_bytes // PAGE))

    def fault(self, offset_bytes: int) -> tuple[int, int] | None:
        """The READ (start, length) of a fault at this byte, or None."""
        page = offset_bytes // PAGE
        if self._pages[page]:
            return None
        first = max(0, page - READ // 2 // PAGE)
        end = min(first + READ // PAGE, len(self._pages))
        start = self._pages.rfind(1, first, page) + 1 or first  # the kernel asks only for pages it has not
        end = self._pages.find(1, page, end) if self._pages.find(1, page, end) >= 0 else end
        self._pages[start:end] = b"\1" * (end - start)
        return start * PAGE, min(end * PAGE, self.size_bytes) - start * PAGE

    def read(self, offset_bytes: int, length_bytes: int) -> tuple[int, int] | None:
        """The READ of an exact read, or None when all its pages are there."""
        page, end = offset_bytes // PAGE, -(-(offset_bytes + length_bytes) // PAGE)
        end = min(end, len(self._pages))
        if self._pages.find(0, page, end) < 0:
            return None
        self._pages[page:end] = b"\1" * (end - page)
        return page * PAGE, min(end * PAGE, self.size_bytes) - page * PAGE

    def read_in_context(self, offset_bytes: int, length_bytes: int) -> tuple[int, int] | None:
        """The READ of an exact read as Linux sends it where more pages than are asked for are here just before it: it goes on beyond."""
        page, end = offset_bytes // PAGE, -(-(offset_bytes + length_bytes) // PAGE)
        page = self._pages.find(0, page, end)
        if page < 0:
            return None
        before = page - (self._pages.rfind(0, max(0, page - READ // PAGE), page) + 1 or max(0, page - READ // PAGE))
        if before > end - page:
            longest = page + min(READ // PAGE, (2 * before if before == page else before) + end - page)
            held = self._pages.find(1, end, longest)
            end = min(longest if held < 0 else held, len(self._pages))
        self._pages[page:end] = b"\1" * (end - page)
        return page * PAGE, min(end * PAGE, self.size_bytes) - page * PAGE

    def forget(self) -> None:
        self._pages = bytearray(len(self._pages))


def ladder(size_bytes: int, start_bytes: int = 0) -> Iterator[tuple[int, int]]:
    """READs of a reader that goes from ``start_bytes`` to the end of a file by small reads."""
    at = start_bytes
    for length in LADDER:
        if at < size_bytes:
            yield at, min(length, size_bytes - at)
        at += length
    while at < size_bytes:
        yield at, min(READ, size_bytes - at)
        at += READ


def sweep(process: Process, file: int, start_bytes: int, end_bytes: int, length_bytes: int = READ) -> None:
    """READs of one pass over a stretch of a file."""
    starts = np.arange(start_bytes, end_bytes, length_bytes)
    process.extend(file, starts, np.minimum(length_bytes, end_bytes - starts))


def shard_files(prefix: str, suffix: str, count: int, size_bytes: int) -> list[TraceFile]:
    return [TraceFile(f"{prefix}{number:05d}{suffix}".encode(), size_bytes) for number in range(count)]
