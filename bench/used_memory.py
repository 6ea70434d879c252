"""Memory as it is on a host that has been up for a while: none of it free, the page cache full of what nobody needs.

A virtual machine may have to ask its host for a free page (one with free page reporting gives them back within seconds): up to
3 s of kernel time per GB, seen 2026-11-30, where a page that the kernel takes out of a full page cache costs next to nothing.
A benchmark that fills a cache would measure that, and a second run in the same minute would not.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from random import Random

from bench.path import ROOT

HOLES = ROOT / "bench/out/holes"
"""A file without a byte on the disk, whose pages take memory once they are read."""
HOLES_BYTES = 1 << 40
PIECE_BYTES = 1 << 20
STEP_BYTES = 256 << 20


def free_bytes() -> int:
    words = Path("/proc/meminfo").read_text().split()
    return int(words[words.index("MemFree:") + 1]) * 1024


def fill(path: Path = HOLES) -> int:
    """Read holes until that leaves no less memory free than before; returns how many bytes it read.

    ``path`` must be on a file system with a page cache of its own (tmpfs reads holes without it), and stays: what is removed is
    free again. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = memoryview(bytearray(PIECE_BYTES))
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    read_bytes = 0
    try:
        os.ftruncate(fd, HOLES_BYTES)
        # Anywhere: what an earlier call read may be in memory still.
        offset_bytes = Random().randrange(HOLES_BYTES // STEP_BYTES // 2) * STEP_BYTES
        before_bytes = free_bytes()
        while True:
            for start_bytes in range(offset_bytes, offset_bytes + STEP_BYTES, PIECE_BYTES):
                read_bytes += os.preadv(fd, [buffer], start_bytes)
            offset_bytes += STEP_BYTES
            left_bytes = free_bytes()
            if before_bytes - left_bytes < STEP_BYTES // 2:
                return read_bytes
            before_bytes = left_bytes
    finally:
        os.close(fd)


def add_memory_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--used-memory",
        action="store_true",
        help="before each load leave no memory free, as on a host that has been up for a while",
    )
