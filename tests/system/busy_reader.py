"""``python -m busy_reader DIRECTORY FILES FILE_BYTES SECONDS BYTES``: keeps all files open and reads them in order and at random, from
many threads, checking every byte, until the time has passed or so much was read; prints how many bytes it read."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from pathlib import Path
from random import Random

THREADS = 24


def pattern(size_bytes: int) -> bytes:
    """What all files are cut from: file number N begins at byte N of it."""
    return Random(5).randbytes(size_bytes)


def write_files(directory: Path, count: int, file_bytes: int) -> None:
    source = memoryview(pattern(file_bytes + count))
    for number in range(count):
        (directory / f"{number:05d}.bin").write_bytes(source[number : number + file_bytes])


def main() -> None:
    directory, count, file_bytes, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    enough_bytes = int(sys.argv[5])
    source = pattern(file_bytes + count)
    files = [os.open(directory / f"{number:05d}.bin", os.O_RDONLY) for number in range(count)]
    end_s = time.monotonic() + seconds
    turn = itertools.count()
    read_bytes, wrong = [0] * THREADS, []

    def check(number: int, offset: int, length: int, thread: int) -> None:
        got = os.pread(files[number], length, offset)
        length = min(length, file_bytes - offset)
        if got != source[number + offset : number + offset + length]:
            wrong.append((number, offset, len(got)))
        read_bytes[thread] += len(got)

    def work(thread: int) -> None:
        dice = Random(thread)
        while time.monotonic() < end_s and sum(read_bytes) < enough_bytes and not wrong:
            if thread % 2:
                check(dice.randrange(count), dice.randrange(file_bytes), dice.choice((4096, 65536, 1 << 20)), thread)
            else:
                number = next(turn) * 7 % count
                for offset in range(0, file_bytes, 1 << 18):
                    check(number, offset, 1 << 18, thread)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        sys.exit(f"wrong bytes: {wrong[:5]}")
    print(sum(read_bytes))


if __name__ == "__main__":
    main()
