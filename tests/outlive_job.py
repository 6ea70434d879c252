"""``python -m tests.outlive_job MOUNT TRUTH``: sixteen processes read the mount in every way, and compare each byte with TRUTH.

Reads until its stdin closes, then prints one JSON line: operations and longest operation of each kind, and every error. TRUTH
holds ``warm`` (its first WARM_BYTES are cached: never whole, so opened the plain way), ``whole`` (passthrough), ``cold-N``
(fetched as they are read) and ``names/``.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

PIECE_BYTES = 128 * 1024
WARM_BYTES = 6 * 1024 * 1024


class Reader:
    def __init__(self, mount: Path, truth: Path, number: int) -> None:
        self.mount, self.truth, self.number = mount, truth, number
        self.dice = Random(number)

    def truth_of(self, name: str) -> bytes:
        data = (self.truth / name).read_bytes()
        return data[:WARM_BYTES] if name == "warm" else data

    def cold(self) -> Callable[[], None]:
        name = f"cold-{self.number}"
        right = self.truth_of(name)
        fd = os.open(self.mount / name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        places = list(range(0, len(right), PIECE_BYTES))
        self.dice.shuffle(places)

        def once() -> None:
            at = places.pop() if places else self.dice.randrange(len(right))
            same(os.pread(fd, PIECE_BYTES, at), right[at : at + PIECE_BYTES], name, at)

        return once

    def pread(self, name: str) -> Callable[[], None]:
        right = self.truth_of(name)
        fd = os.open(self.mount / name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

        def once() -> None:
            at = self.dice.randrange(len(right) - PIECE_BYTES)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            same(os.pread(fd, PIECE_BYTES, at), right[at : at + PIECE_BYTES], name, at)

        return once

    def mapped(self, name: str) -> Callable[[], None]:
        right = self.truth_of(name)
        fd = os.open(self.mount / name, os.O_RDONLY)
        pages = mmap.mmap(fd, len(right), prot=mmap.PROT_READ)

        def once() -> None:
            at = self.dice.randrange(len(right) - PIECE_BYTES)
            pages.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            same(pages[at : at + 4096], right[at : at + 4096], name, at)

        return once

    def opened(self, name: str) -> Callable[[], None]:
        right = self.truth_of(name)

        def once() -> None:
            with (self.mount / name).open("rb", buffering=0) as file:
                at = self.dice.randrange(len(right) - PIECE_BYTES)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                file.seek(at)
                same(file.read(4096), right[at : at + 4096], name, at)

        return once

    def names(self) -> Callable[[], None]:
        right = sorted(os.listdir(self.truth / "names"))

        def once() -> None:
            found = sorted(entry.name for entry in os.scandir(self.mount / "names"))
            if found != right:
                raise AssertionError(f"{len(found)} names listed, {len(set(found) ^ set(right))} of them wrong")
            chosen = self.dice.choice(right)
            if os.stat(self.mount / "names" / chosen).st_size != os.stat(self.truth / "names" / chosen).st_size:
                raise AssertionError(f"the size of {chosen}")

        return once


def same(found: bytes, right: bytes, name: str, at: int) -> None:
    if found != right:
        raise AssertionError(f"{name} at {at}: {len(found)} bytes, not the right ones")


def kinds(reader: Reader) -> list[tuple[str, Callable[[], Callable[[], None]]]]:
    return [
        ("cold", reader.cold),
        ("warm", lambda: reader.pread("warm")),
        ("mmap", lambda: reader.mapped("warm")),
        ("passthrough", lambda: reader.pread("whole")),
        ("mmap passthrough", lambda: reader.mapped("whole")),
        ("open", lambda: reader.opened("warm")),
        ("open whole", lambda: reader.opened("whole")),
        ("readdir", reader.names),
    ]


def read(reader: Reader, stop_fd: int, out_fd: int) -> None:
    kind, prepare = kinds(reader)[reader.number % 8]
    done, longest_s, errors = 0, 0.0, []
    once = prepare()
    os.write(out_fd, b"\n")
    while not poll(stop_fd):
        began_s = time.monotonic()
        try:
            once()
        except (OSError, AssertionError) as error:
            errors.append(f"{kind}: {error!r}")
        longest_s = max(longest_s, time.monotonic() - began_s)
        done += 1
        time.sleep(0.002)
    os.write(out_fd, json.dumps([kind, done, longest_s, errors[:5]]).encode() + b"\n")


def poll(fd: int) -> bool:
    try:
        return os.read(fd, 1) == b""
    except BlockingIOError:
        return False


def main(mount: str, truth: str) -> None:
    stop_fd, stop_end = os.pipe()
    os.set_blocking(stop_fd, False)
    out_fd, out_end = os.pipe()
    for number in range(16):
        if not os.fork():
            os.close(stop_end)
            os.close(out_fd)
            try:
                read(Reader(Path(mount), Path(truth), number), stop_fd, out_end)
            finally:
                os._exit(0)
    os.close(out_end)
    with os.fdopen(out_fd, "r") as lines:
        for _ in range(16):
            lines.readline()
        print("reading", flush=True)
        sys.stdin.read()
        os.close(stop_end)
        reports = [json.loads(line) for line in lines]
    kinds_seen: dict[str, list[float]] = {}
    for kind, done, longest_s, _ in reports:
        before = kinds_seen.get(kind, [0, 0.0])
        kinds_seen[kind] = [before[0] + done, max(before[1], longest_s)]
    errors = [error for report in reports for error in report[3]]
    print(json.dumps({"kinds": kinds_seen, "errors": errors, "readers": len(reports)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
