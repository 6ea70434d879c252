"""What a job reads, as plain columns: files, and for each process its READs in the order of its batches.

A process is a PyTorch-like loader: batch ``b`` is read by worker ``b mod workers``, up to ``prefetch_batches`` batches a worker
ahead of the one being consumed, and each batch is consumed in ``step_s``. A READ is what reaches the daemon, so the kernel's
part (128 KiB faults, page rounding, what its page cache already has) is in the trace. 17 bytes a READ.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

OPEN, CLOSE, NOWAIT = 1, 2, 4
"""Flags of a READ: a handle of its own is opened before it, closed after it; nobody waits for it (a WILLNEED hint)."""

Numbers = NDArray[Any]


class TraceFile(NamedTuple):
    path: bytes
    size_bytes: int


@dataclass
class Process:
    """``files``, ``offsets``, ``lengths``, ``flags``: one entry a READ. ``batch_ends``: where each batch ends in them.

    ``depth``: READs a worker has in flight (2: the kernel's readahead of a sequential reader). ``read_s``: what a worker spends
    on a READ; ``thinks_us``: besides, for each READ. ``pauses``: batch to seconds without reads before it is consumed.
    ``epochs``: batches at which a new epoch begins: the loader drains and starts again. ``phase``: processes of the next
    phase begin when all of this one are done.
    """

    files: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    flags: array[int] = field(default_factory=lambda: array("B"))
    batch_ends: array[int] = field(default_factory=lambda: array("Q"))
    thinks_us: array[int] | None = None
    workers: int = 1
    prefetch_batches: int = 2
    depth: int = 1
    step_s: float = 0.0
    read_s: float = 50e-6
    pauses: dict[int, float] = field(default_factory=dict)
    epochs: tuple[int, ...] = ()
    phase: int = 0

    @property
    def read_count(self) -> int:
        return len(self.files)

    @property
    def batch_count(self) -> int:
        return len(self.batch_ends)

    def add(self, file: int, offset_bytes: int, length_bytes: int, flags: int = 0) -> None:
        self.files.append(file)
        self.offsets.append(offset_bytes)
        self.lengths.append(length_bytes)
        self.flags.append(flags)

    def extend(self, files: Numbers | int, offsets: Numbers, lengths: Numbers | int, flags: Numbers | int = 0) -> None:
        """Columns of equal length; a plain number stands for all."""
        count = len(offsets)
        for column, values, kind in (
            (self.files, files, "<u4"),
            (self.offsets, offsets, "<u8"),
            (self.lengths, lengths, "<u4"),
            (self.flags, flags, "u1"),
        ):
            column.frombytes(np.ascontiguousarray(np.broadcast_to(np.asarray(values), count), dtype=kind).tobytes())

    def end_batch(self) -> None:
        """What was added since the last end is a batch (none if nothing was)."""
        if self.read_count > (self.batch_ends[-1] if self.batch_ends else 0):
            self.batch_ends.append(self.read_count)

    def end_batches(self, every_reads: int) -> None:
        """Cut what was added since the last end into batches of so many READs."""
        start = self.batch_ends[-1] if self.batch_ends else 0
        self.batch_ends.extend(range(start + every_reads, self.read_count + 1, every_reads))
        self.end_batch()

    def new_epoch(self) -> None:
        self.end_batch()
        if self.batch_count:
            self.epochs = (*self.epochs, self.batch_count)

    def batch(self, number: int) -> range:
        """The READs of a batch."""
        return range(self.batch_ends[number - 1] if number else 0, self.batch_ends[number])

    def like(self, **changes: Any) -> Process:
        """An empty process with the same settings."""
        columns = ("files", "offsets", "lengths", "flags", "batch_ends")
        fresh = {name: array(kind) for name, kind in zip(columns, "IQIBQ", strict=True)}
        return replace(self, **{**fresh, "thinks_us": None, "pauses": {}, "epochs": (), **changes})

    def take(self, source: Process, numbers: Iterable[int]) -> None:
        """Append whole batches of another process."""
        for number in numbers:
            reads = source.batch(number)
            span = slice(reads.start, reads.stop)
            self.files += source.files[span]
            self.offsets += source.offsets[span]
            self.lengths += source.lengths[span]
            self.flags += source.flags[span]
            self.batch_ends.append(self.read_count)


@dataclass
class Trace:
    """``ordered``: the files' directory order may be used to anticipate (they are named as a real dataset is)."""

    name: str
    files: list[TraceFile]
    processes: list[Process]

    @property
    def read_count(self) -> int:
        return sum(process.read_count for process in self.processes)

    @property
    def read_bytes(self) -> int:
        return sum(sum(process.lengths) for process in self.processes)

    @property
    def data_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def phases(self) -> Sequence[int]:
        return sorted({process.phase for process in self.processes})

    def at_load(self, rate_bytes_per_s: float) -> Self:
        """Set every step so that the READs of each phase ask for ``rate_bytes_per_s`` in all, its processes at equal pace."""
        for phase in self.phases:
            together = [process for process in self.processes if process.phase == phase and process.batch_count]
            for process in together:
                batch_bytes = sum(process.lengths) / process.batch_count
                process.step_s = batch_bytes * len(together) / rate_bytes_per_s
        return self

    def check(self) -> None:
        """Raise ValueError with the first READ that no mount could have seen."""
        sizes = np.array([file.size_bytes for file in self.files], dtype=np.uint64)
        for number, process in enumerate(self.processes):
            files = np.frombuffer(process.files, dtype=np.uint32)
            ends = np.frombuffer(process.offsets, dtype=np.uint64) + np.frombuffer(process.lengths, dtype=np.uint32)
            wrong = np.flatnonzero((files >= len(sizes)) | (ends > sizes[np.minimum(files, len(sizes) - 1)]))
            if len(wrong) or 0 in process.lengths:
                at = int(wrong[0]) if len(wrong) else process.lengths.index(0)
                raise ValueError(
                    f"{self.name}: READ {at} of process {number} is {process.lengths[at]} bytes at {process.offsets[at]} "
                    f"of file {process.files[at]}; it must lie inside one of {len(self.files)} files and not be empty"
                )
            if process.read_count != (process.batch_ends[-1] if process.batch_ends else 0):
                raise ValueError(f"{self.name}: READs of process {number} belong to no batch")
