"""Reads of 4 KiB beside what else is measured: of a cold and of a cached file, again and again, in a process of their own
(``python -m bench.metadata.reads COLD WARM``), each one's time kept."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.lab import LabError
from bench.path import ROOT
from bench.quantiles import quantile

COLD_FILE_BYTES = 64 << 20
READ_BYTES = 4096


class Reads:
    """Use as a context manager; afterwards the times of either kind, in seconds. Raises LabError."""

    def __init__(self, cold: Path, warm: Path) -> None:
        self.cold_s: list[float] = []
        self.warm_s: list[float] = []
        self._command = [sys.executable, "-m", "bench.metadata.reads", str(cold), str(warm)]

    def __enter__(self) -> Reads:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *_error: object) -> None:
        out, _ = self._process.communicate("stop\n", timeout=60)
        if self._process.returncode:
            raise LabError("a read at the mount failed")
        self.cold_s, self.warm_s = json.loads(out)


def summary(times_s: Sequence[float]) -> dict[str, float | int]:
    return {
        "count": len(times_s),
        "median_ms": 1000 * statistics.median(times_s),
        "p99_ms": 1000 * quantile(times_s, 0.99),
        "max_ms": 1000 * max(times_s),
    }


def read_until_told(cold: str, warm: str) -> tuple[list[float], list[float]]:
    """Until a line comes on stdin; the times of either kind, in seconds."""
    cold_s: list[float] = []
    warm_s: list[float] = []
    cold_fd, warm_fd = os.open(cold, os.O_RDONLY), os.open(warm, os.O_RDONLY)
    os.posix_fadvise(cold_fd, 0, 0, os.POSIX_FADV_RANDOM)
    offset_bytes = 0
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        started_s = time.perf_counter()
        os.pread(cold_fd, READ_BYTES, offset_bytes)
        cold_s.append(time.perf_counter() - started_s)
        os.posix_fadvise(warm_fd, 0, 0, os.POSIX_FADV_DONTNEED)
        started_s = time.perf_counter()
        os.pread(warm_fd, READ_BYTES, 0)
        warm_s.append(time.perf_counter() - started_s)
        # Far apart, so that nothing is fetched ahead, and never twice the same.
        offset_bytes = (offset_bytes + 5 * (1 << 20) + READ_BYTES) % (COLD_FILE_BYTES - READ_BYTES)
    return cold_s, warm_s


if __name__ == "__main__":
    print(json.dumps(read_until_told(*sys.argv[1:])))
