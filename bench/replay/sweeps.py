"""A DataLoader that reads a file in order, as recorded on a mount: batch by batch by worker after worker, and at the start all at once.

A loader of W workers hands out 2 W batches when it starts, so the union of what its workers read is one sequential stream that begins in
2 W places: the job waits for the first of them, the workers for all.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.replay.pages import KIB, MIB, Scale
from bench.replay.trace import Process, Trace, TraceFile

WORKERS = (1, 4, 16, 64)
BATCH_BYTES = 512 * KIB
_BATCH_READS = tuple(length * KIB for length in (64, 128, 128, 128, 64))
"""Eight records of 64 KiB: the first as it is, and then what the kernel's readahead makes of them."""


def sweep_of(workers: int, size_bytes: int) -> Process:
    """``size_bytes`` of file 0 by a loader of so many workers."""
    process = Process(workers=workers, read_s=500e-6)
    for start in range(0, size_bytes // BATCH_BYTES * BATCH_BYTES, BATCH_BYTES):
        at = start
        for length in _BATCH_READS:
            process.add(0, at, length)
            at += length
        process.end_batch()
    return process


def _sweep(workers: int) -> Callable[[Scale], Trace]:
    def make(scale: Scale) -> Trace:
        size_bytes = max(32 * MIB, min(scale.data_bytes, scale.reads * BATCH_BYTES // len(_BATCH_READS)))
        return Trace(f"sweep-{workers}", [TraceFile(b"records.bin", size_bytes)], [sweep_of(workers, size_bytes)])

    return make


SWEEPS = {f"sweep-{workers}": _sweep(workers) for workers in WORKERS}
