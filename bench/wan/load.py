"""What uses the mount while it is measured: readers of whole files in order, and a prober of single cold pages.

``python -m bench.wan.load`` runs them in a process of their own and prints JSON: a prober must not wait for the
interpreter of whoever reads a gigabyte. Times are seconds since the start of the load.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import xxhash

READ_BYTES = 1 << 20
PAGE_BYTES = 4096
BUCKET_S = 0.05


def probe_pages(size_bytes: int) -> list[int]:
    """Offsets of all pages but the first, in an order that no predictor follows; everybody takes the next ones of it."""
    pages = list(range(1, size_bytes // PAGE_BYTES))
    Random(7).shuffle(pages)
    return [page * PAGE_BYTES for page in pages]


class Reader(threading.Thread):
    """One file from its first byte to its last."""

    def __init__(self, path: Path, origin_s: float) -> None:
        super().__init__(name=f"reader of {path.name}", daemon=True)
        self.path = path
        self.read_bytes = 0
        self.buckets: dict[int, int] = {}
        self.ended_s = 0.0
        self.digest = ""
        self.error = ""
        self._origin_s = origin_s

    def run(self) -> None:
        try:
            self._read()
        except OSError as error:
            self.error = str(error)

    def _read(self) -> None:
        buffer = bytearray(READ_BYTES)
        view = memoryview(buffer)
        hashed = xxhash.xxh3_64()
        fd = os.open(self.path, os.O_RDONLY)
        try:
            while count := os.readv(fd, [buffer]):
                now_s = time.perf_counter() - self._origin_s
                hashed.update(view[:count])
                self.read_bytes += count
                bucket = int(now_s / BUCKET_S)
                self.buckets[bucket] = self.buckets.get(bucket, 0) + count
                self.ended_s = now_s
        finally:
            os.close(fd)
        self.digest = hashed.hexdigest()


def probe(path: Path, skip: int, most: int, gap_s: float, origin_s: float, stop: threading.Event) -> list[list[float]]:
    """Read cold pages one by one; ``[when, how long]`` for each."""
    seen: list[list[float]] = []
    buffer = bytearray(PAGE_BYTES)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for offset_bytes in probe_pages(path.stat().st_size)[skip : skip + most]:
            started_s = time.perf_counter()
            if os.preadv(fd, [buffer], offset_bytes) != PAGE_BYTES:
                raise OSError(f"a short read at {offset_bytes}")
            seen.append([started_s - origin_s, time.perf_counter() - started_s])
            if stop.wait(gap_s):
                break
    finally:
        os.close(fd)
    return seen


def run(files: list[Path], probed: Path | None, skip: int, most: int, gap_s: float) -> dict[str, Any]:
    """All readers at once, the prober beside them until they are done (without readers: until it is)."""
    origin_s = time.perf_counter()
    readers = [Reader(path, origin_s) for path in files]
    stop = threading.Event()

    def wait_for_readers() -> None:
        for reader in readers:
            reader.join()
        stop.set()

    for reader in readers:
        reader.start()
    if readers:
        threading.Thread(target=wait_for_readers, name="end of the readers", daemon=True).start()
    probes = probe(probed, skip, most, gap_s, origin_s, stop) if probed is not None else []
    for reader in readers:
        reader.join()
    buckets: dict[int, int] = {}
    for reader in readers:
        for bucket, size_bytes in reader.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + size_bytes
    return {
        "bucket_s": BUCKET_S,
        "bytes_by_bucket": [buckets.get(bucket, 0) for bucket in range(max(buckets, default=-1) + 1)],
        "probes": probes,
        "readers": [
            {"file": reader.path.name, "bytes": reader.read_bytes, "ended_s": reader.ended_s,
             "digest": reader.digest, "error": reader.error}
            for reader in readers
        ],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.wan.load", description="Readers and a prober.")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--probe", type=Path, help="the file to read single pages of")
    parser.add_argument("--skip", type=int, default=0, help="pages that were read before")
    parser.add_argument("--most", type=int, default=1000, help="pages to read at most")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between two pages")
    arguments = parser.parse_args()
    print(json.dumps(run(arguments.files, arguments.probe, arguments.skip, arguments.most, arguments.gap)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
