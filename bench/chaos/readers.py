"""The readers: processes that read through the mount in their own ways, and check every byte against the ledger.

``python -m bench.chaos.readers --kind KIND --slot N …``. What each sees goes into its slot (:mod:`bench.chaos.slots`) and, where it
is not simply right, into its file of events, one JSON object a line: an error of the kernel, a slow call, wrong bytes. Whether an
error was allowed is not decided here: the harness knows what it had broken.
"""

from __future__ import annotations

import argparse
import errno
import json
import mmap
import os
import random
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.chaos.content import State, WrongBytes, narrow
from bench.chaos.ledger import Ledger
from bench.chaos.slots import Slots

CHUNK_BYTES = 128 * 1024
"""Of one call: one READ of the kernel's, two where the first was read ahead and failed."""
SLOW_S = 0.3
DROP_CHANCE = 0.5
"""Of an open that makes the kernel forget what it has of the file: reads then come to the spoke, as with a set larger than memory."""


class Reader:
    """``rest_s``: between two calls, so that ten readers leave the machine some air."""

    def __init__(
        self, mount: Path, ledger: Path, slots: Path, slot: int, count: int, events: Path, seed: int, rest_s: float
    ) -> None:
        self.mount, self.slot, self.rest_s = mount, slot, rest_s
        self.slots = Slots(slots, count)
        self.ledger = Ledger(ledger)
        self.dice = random.Random(seed)
        self._events = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._seen = replace(self.slots.see(slot), pid=os.getpid(), busy_since_s=0.0)
        self.slots.write(slot, self._seen)
        self.ledger.refresh()

    def tell(self, kind: str, **facts: Any) -> None:
        os.write(
            self._events, json.dumps({"kind": kind, "slot": self.slot, "pid": os.getpid(), **facts}).encode() + b"\n"
        )

    @contextmanager
    def call(self, what: str, path: str, opened_s: float | None = None) -> Iterator[None]:
        """One call that the kernel may hold up. Errors go on to the caller, told."""
        began_s = time.monotonic()
        self._seen = replace(
            self._seen, busy_since_s=began_s, text=f"{what} {path}", operations=self._seen.operations + 1
        )
        self.slots.write(self.slot, self._seen)
        try:
            yield
        except OSError as error:
            self._seen = replace(self._seen, errors=self._seen.errors + 1)
            self.tell("error", what=what, path=path, errno=error.errno, from_s=began_s, to_s=time.monotonic(),
                      opened_s=opened_s or began_s)  # fmt: skip
            raise
        finally:
            now_s = time.monotonic()
            self._seen = replace(self._seen, busy_since_s=0.0)
            self.slots.write(self.slot, self._seen)
            if now_s - began_s > SLOW_S:
                self.tell("slow", what=what, path=path, from_s=began_s, to_s=now_s)

    def checked(self, count: int) -> None:
        self._seen = replace(self._seen, bytes_checked=self._seen.bytes_checked + count)
        self.slots.write(self.slot, self._seen)

    def rest(self) -> None:
        time.sleep(self.rest_s * self.dice.uniform(0.5, 1.5))

    def some_path(self, start: str) -> str:
        """Mostly one that exists."""
        self.ledger.refresh()
        names = [path for path in self.ledger.names() if path.startswith(start)]
        return self.dice.choice(names) if names else start


class Opened:
    """A file opened through the mount, and the states it can still be of."""

    def __init__(self, reader: Reader, path: str) -> None:
        self.reader, self.path = reader, path
        self.opened_s = time.monotonic()
        with reader.call("open", path):
            self.fd = os.open(reader.mount / path, os.O_RDONLY)
        self._left: list[State] = []
        if reader.dice.random() < DROP_CHANCE:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with reader.call("fstat", path):
            self.size_bytes = os.fstat(self.fd).st_size

    def close(self) -> None:
        os.close(self.fd)

    def check(self, data: bytes, offset: int, *, at_end: bool, how: str) -> None:
        """Raises nothing: what is wrong is told. Ends with what the handle can still be."""
        if not data and not at_end:
            return
        reader = self.reader
        reader.ledger.refresh()
        # A state that began after an earlier read of this handle cannot be the one that read saw.
        states = self._left or reader.ledger.of(self.path)
        try:
            left = narrow(states, data, offset, at_end=at_end)
        except WrongBytes as error:
            known = len(reader.ledger.of(self.path))
            reader.tell("wrong", what=how, path=self.path, offset=offset, length=len(data), why=str(error), left=len(states), known=known,
                        size=self.size_bytes, from_s=self.opened_s, to_s=time.monotonic())  # fmt: skip
            self._left = []
            return
        if (latest := left[-1]).ended_s is not None and latest.ended_s < self.opened_s and not self._left:
            reader.tell(
                "old",
                what=how,
                path=self.path,
                lag_s=self.opened_s - latest.ended_s,
                from_s=self.opened_s,
                to_s=time.monotonic(),
            )
        self._left = left
        reader.checked(len(data))

    def read(self, offset: int, count: int) -> int:
        """pread until ``count`` or the end, as a careful program does: a short answer must be followed by the end, or an error."""
        data = b""
        at_end = False
        try:
            while len(data) < count:
                with self.reader.call(f"pread {count - len(data)} at {offset + len(data)}", self.path, self.opened_s):
                    piece = os.pread(self.fd, count - len(data), offset + len(data))
                if not piece:
                    at_end = True
                    break
                data += piece
        finally:
            self.check(data, offset, at_end=at_end, how="pread")
        return len(data)


# --- the ways of reading -----------------------------------------------------------------------------------


def sequential(reader: Reader) -> None:
    opened = Opened(reader, reader.some_path(reader.dice.choice(("big", "steady"))))
    try:
        offset = 0
        while count := opened.read(offset, CHUNK_BYTES):
            offset += count
            reader.rest()
    finally:
        opened.close()


def at_random(reader: Reader) -> None:
    opened = Opened(reader, reader.some_path(reader.dice.choice(("big", "steady"))))
    try:
        for _ in range(60):
            offset = reader.dice.randrange(0, max(opened.size_bytes, 1), 16)
            opened.read(offset, reader.dice.choice((16, 4096, 16_384, 65_536)))
            reader.rest()
    finally:
        opened.close()


def mapped(reader: Reader) -> None:
    """An error in a mapping is SIGBUS: the process dies of it, and another takes its place."""
    opened = Opened(reader, reader.some_path(reader.dice.choice(("big", "steady"))))
    try:
        if not opened.size_bytes:
            return
        with mmap.mmap(opened.fd, opened.size_bytes, prot=mmap.PROT_READ) as view:
            for _ in range(60):
                offset = reader.dice.randrange(0, opened.size_bytes, 4096)
                with reader.call(f"fault at {offset}", reader_path := opened.path):
                    data = view[offset : offset + 4096]
                opened.check(data, offset, at_end=False, how=f"mapping of {reader_path}")
                reader.rest()
    finally:
        opened.close()


def small_files(reader: Reader) -> None:
    for _ in range(20):
        opened = Opened(reader, reader.some_path("small"))
        try:
            offset = 0
            while count := opened.read(offset, CHUNK_BYTES):
                offset += count
        finally:
            opened.close()
        reader.rest()


def open_close(reader: Reader) -> None:
    """Handles by the dozen, one read of each, closed in another order."""
    handles: list[Opened] = []
    try:
        for _ in range(24):
            handles.append(Opened(reader, reader.some_path(reader.dice.choice(("small", "small", "big", "steady")))))
            reader.rest()
        reader.dice.shuffle(handles)
        for opened in handles:
            opened.read(0, 4096)
    finally:
        for opened in handles:
            opened.close()


def walk(reader: Reader) -> None:
    """Names and sizes: none that never was, none missing that always was."""
    reader.ledger.refresh()
    for directory in ("big", "steady", *(f"small/{number}" for number in range(5))):
        began_s = time.monotonic()
        with reader.call("readdir", directory):
            found = os.listdir(reader.mount / directory)
        listed_s = time.monotonic()
        reader.ledger.refresh()
        known = {path.rpartition("/")[2]: path for path in reader.ledger.states if path.rpartition("/")[0] == directory}
        for name in set(found) - set(known):
            reader.tell(
                "wrong",
                what="readdir",
                path=f"{directory}/{name}",
                why="a name that never was",
                from_s=began_s,
                to_s=listed_s,
            )
        for name in set(known) - set(found):
            if not reader.ledger.was_absent(known[name], reader.ledger.of(known[name])[0].begun_s, listed_s):
                reader.tell("missing", what="readdir", path=known[name], from_s=began_s, to_s=listed_s)
        for name in reader.dice.sample(found, min(len(found), 12)):
            path = known.get(name)
            if path is None:
                continue
            try:
                with reader.call("stat", path):
                    seen = os.stat(reader.mount / path)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    continue
                raise
            reader.ledger.refresh()
            sizes = {state.size_bytes for state in reader.ledger.of(path)}
            if not stat.S_ISREG(seen.st_mode) or seen.st_size not in sizes:
                reader.tell("wrong", what="stat", path=path, why=f"mode {seen.st_mode:o}, {seen.st_size} bytes; it never was so",
                            from_s=listed_s, to_s=time.monotonic())  # fmt: skip
        reader.rest()


KINDS: dict[str, Callable[[Reader], None]] = {
    "sequential": sequential,
    "random": at_random,
    "mmap": mapped,
    "small": small_files,
    "open_close": open_close,
    "walk": walk,
}
LOADER_WORKERS = 2


def run_forever(reader: Reader, way: Callable[[Reader], None]) -> None:
    while True:
        try:
            way(reader)
        except OSError:
            time.sleep(0.1)  # told already; a mount that is away for a moment is not asked in a tight loop
        reader.rest()


def load_forever(make: Callable[[int, int], Reader]) -> None:
    """A PyTorch DataLoader whose workers read and check; each has a slot of its own."""
    import torch
    from torch.utils.data import DataLoader, Dataset, get_worker_info

    class Samples(Dataset[Any]):
        reader: Reader | None = None

        def __len__(self) -> int:
            return 4096

        def __getitem__(self, index: int) -> Any:
            info = get_worker_info()
            if self.reader is None:
                assert info is not None
                self.reader = make(info.id, index)
            reader, count = self.reader, 0
            try:
                opened = Opened(reader, reader.some_path("steady" if index % 2 else "big"))
                try:
                    blocks = max(opened.size_bytes // 8192, 1)
                    count = opened.read(random.Random(index).randrange(blocks) * 8192, 8192)
                finally:
                    opened.close()
            except OSError:
                time.sleep(0.1)
            reader.rest()
            return torch.tensor(count)

    while True:
        for _ in DataLoader(Samples(), batch_size=8, shuffle=True, num_workers=LOADER_WORKERS):
            pass


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos.readers")
    parser.add_argument("--kind", required=True, choices=[*KINDS, "loader"])
    for name in ("mount", "ledger", "slots", "events"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    for name in ("slot", "count", "seed"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--rest", default=0.01, type=float)
    given = parser.parse_args()

    def make(more: int, seed: int) -> Reader:
        return Reader(
            given.mount,
            given.ledger,
            given.slots,
            given.slot + more,
            given.count,
            given.events,
            given.seed + seed,
            given.rest,
        )

    try:
        if given.kind == "loader":
            load_forever(make)
        else:
            run_forever(make(0, 0), KINDS[given.kind])
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
