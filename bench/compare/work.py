"""The work that is timed on each directory: what is read, in which order, and how fast it was.

Every kind of work has files of its own, so that none warms another's. The choice depends on names and sizes alone and on
a seed, so that every directory does the same.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from common.errors import UsageError

READ_BYTES = 1 << 20
PAGE_BYTES = 4096
SMALL_FILE_BYTES = 128 * 1024
SEED = 1


@dataclass(frozen=True)
class Choice:
    """Names relative to the directory. Reads at random are spread over ``random`` by their sizes."""

    sequential: tuple[str, ...]
    random: tuple[str, ...]
    small: tuple[str, ...]


class Outcome(NamedTuple):
    """``amount``: bytes, reads, files or names, as ``unit`` says; ``checksum`` of what was read, the same everywhere."""

    amount: float
    seconds: float
    checksum: int


UNITS = {"sequential": "MB/s", "random": "reads/s", "small files": "files/s", "metadata walk": "names/s"}
SCALES = {"sequential": 1e6, "random": 1.0, "small files": 1.0, "metadata walk": 1.0}


def sizes_below(directory: Path) -> dict[str, int]:
    """Size of every regular file by its name. Raises UsageError for an empty directory."""
    found = {
        os.path.relpath(Path(folder, name), directory): Path(folder, name).stat().st_size
        for folder, _, names in os.walk(directory)
        for name in names
        if Path(folder, name).is_file()
    }
    if not found:
        raise UsageError(f"{directory} holds no files")
    return found


def choose(sizes: Mapping[str, int], most_bytes: int, most_files: int) -> Choice:
    """Large files by turns for reads in order and at random, up to ``most_bytes`` each; small ones up to ``most_files``.

    Raises UsageError when there are fewer than two large files or no small one.
    """
    large = sorted((name for name in sizes if sizes[name] > SMALL_FILE_BYTES), key=lambda name: (-sizes[name], name))
    small = sorted(name for name in sizes if 0 < sizes[name] <= SMALL_FILE_BYTES)
    if len(large) < 2 or not small:
        raise UsageError(
            f"needed: two files above {SMALL_FILE_BYTES // 1024} KiB and one that is not; found {len(large)} and {len(small)}. "
            "--prepare DIR writes such a dataset"
        )
    return Choice(
        _until(large[0::2], sizes, most_bytes), _until(large[1::2], sizes, most_bytes), tuple(small[:most_files])
    )


def _until(names: Sequence[str], sizes: Mapping[str, int], most_bytes: int) -> tuple[str, ...]:
    """From the front, while they fit; one at least."""
    taken = [names[0]]
    for name in names[1:]:
        if sum(sizes[other] for other in taken) + sizes[name] <= most_bytes:
            taken.append(name)
    return tuple(taken)


def kinds(
    choice: Choice, sizes: Mapping[str, int], most_bytes: int, reads: int
) -> dict[str, Callable[[Path], Outcome]]:
    """What to run on a directory, by name."""
    return {
        "metadata walk": walk,
        "sequential": lambda directory: in_order(directory, choice.sequential, most_bytes),
        "random": lambda directory: at_random(directory, choice.random, sizes, reads),
        "small files": lambda directory: whole_files(directory, choice.small),
    }


def in_order(directory: Path, names: Sequence[str], most_bytes: int) -> Outcome:
    """One reader, 1 MiB a read, ``most_bytes`` at most."""
    buffer = bytearray(READ_BYTES)
    view = memoryview(buffer)
    done_bytes = checksum = 0
    began_s = time.perf_counter()
    for name in names:
        with (directory / name).open("rb", buffering=0) as file:
            while done_bytes < most_bytes and (count := file.readinto(buffer)):
                checksum = zlib.adler32(view[: min(count, PAGE_BYTES)], checksum)
                done_bytes += count
    return Outcome(done_bytes, time.perf_counter() - began_s, checksum)


def at_random(directory: Path, names: Sequence[str], sizes: Mapping[str, int], reads: int) -> Outcome:
    """Single pages of 4 KiB, one after the other."""
    dice = Random(SEED)
    wanted = [
        (name, dice.randrange(sizes[name] // PAGE_BYTES) * PAGE_BYTES)
        for name in dice.choices(names, [sizes[name] for name in names], k=reads)
    ]
    checksum = 0
    files = {name: os.open(directory / name, os.O_RDONLY) for name in names}
    try:
        began_s = time.perf_counter()
        for name, offset in wanted:
            checksum = zlib.adler32(os.pread(files[name], PAGE_BYTES, offset), checksum)
        return Outcome(reads, time.perf_counter() - began_s, checksum)
    finally:
        for fd in files.values():
            os.close(fd)


def whole_files(directory: Path, names: Sequence[str]) -> Outcome:
    """Open, read, close, in an order that is not the directory's."""
    order = list(names)
    Random(SEED).shuffle(order)
    checksum = 0
    began_s = time.perf_counter()
    for name in order:
        checksum = zlib.adler32((directory / name).read_bytes(), checksum)
    return Outcome(len(order), time.perf_counter() - began_s, checksum)


def walk(directory: Path) -> Outcome:
    """Every name listed and its size asked for."""
    count = checksum = 0
    began_s = time.perf_counter()
    for folder, below, names in os.walk(directory):
        below.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            checksum = zlib.adler32(f"{os.path.relpath(path, directory)} {os.stat(path).st_size}".encode(), checksum)
            count += 1
        count += len(below)
    return Outcome(count, time.perf_counter() - began_s, checksum)


def prepare(directory: Path, large_bytes: int, small_files: int) -> None:
    """A dataset to serve by each system: four large files of random bytes and many small ones in folders."""
    dice = Random(SEED)
    for number in range(4):
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f"shard-{number}.bin").open("wb") as file:
            for start in range(0, large_bytes, READ_BYTES):
                file.write(dice.randbytes(min(READ_BYTES, large_bytes - start)))
    for number in range(small_files):
        path = directory / f"small-{number // 100:04d}" / f"{number:06d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(dice.randbytes(dice.randrange(4_000, 60_000)))
