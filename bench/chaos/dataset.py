"""The writer at the hub: makes the files, and changes, appends, renames, deletes and recreates them, each step in the ledger first."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

from bench.chaos.content import Run, generate, overwrite
from bench.chaos.ledger import LedgerWriter

MIB = 1 << 20
BIG_FILES, SMALL_FILES = 6, 150
STEP_BYTES = MIB
"""A file rewritten in place is a new state after each so many bytes."""


class Dataset:
    """Files below ``root``. ``drafts``: a directory of the same file system, outside of it, where new files are written before they are
    renamed into place."""

    def __init__(self, root: Path, drafts: Path, ledger: LedgerWriter, scale: float = 1.0) -> None:
        self.root, self._drafts, self._ledger = root, drafts, ledger
        self._stamps = itertools.count(1)
        self._now: dict[str, tuple[int, tuple[Run, ...]]] = {}
        self._lock = threading.RLock()
        self.big = [f"big/{number}.bin" for number in range(BIG_FILES)]
        self.steady = [f"steady/{number}.bin" for number in range(3)]
        """Never changed, so what is cached of them stays in use whatever the writer does."""
        self.small = [f"small/{number % 5}/{number:03d}.rec" for number in range(SMALL_FILES)]
        self._scale = scale

    def fill(self, dice: random.Random) -> None:
        for path in (*self.big, *self.steady):
            self.replace(path, int(dice.randint(4 * MIB, 16 * MIB) * self._scale))
        for path in self.small:
            self.replace(path, dice.choice((100, 4096, 5000, 20_000, 65_536, 200_001)))

    def exists(self, path: str) -> bool:
        with self._lock:
            return path in self._now

    def size_bytes(self, path: str) -> int:
        with self._lock:
            return self._now[path][0]

    def _make(self, path: str, size: int | None, runs: tuple[Run, ...], act: Callable[[], object]) -> None:
        number = self._ledger.begin(path, size, runs)
        act()
        if size is None:
            self._now.pop(path, None)
        else:
            self._now[path] = (size, runs)
        self._ledger.done(path, number)

    def replace(self, path: str, size_bytes: int) -> None:
        """A new file renamed into place, as writers of datasets do it."""
        with self._lock:
            stamp = next(self._stamps)
            draft = self._drafts / f"{stamp}"
            draft.write_bytes(generate(stamp, 0, size_bytes))
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            self._make(path, size_bytes, ((0, size_bytes, stamp),) if size_bytes else (), lambda: draft.replace(target))

    def rewrite(self, path: str) -> None:
        """In place, step by step, while it is read."""
        with self._lock:
            size, runs = self._now[path]
            stamp = next(self._stamps)
            with (self.root / path).open("r+b", buffering=0) as file:
                for start in range(0, size, STEP_BYTES):
                    end = min(start + STEP_BYTES, size)
                    runs = overwrite(runs, start, end, stamp)
                    data = generate(stamp, start, end)
                    self._make(path, size, runs, lambda start=start, data=data: os.pwrite(file.fileno(), data, start))  # type: ignore[misc]

    def append(self, path: str, count: int) -> None:
        with self._lock:
            size, runs = self._now[path]
            stamp = next(self._stamps)
            data = generate(stamp, size, size + count)
            with (self.root / path).open("ab", buffering=0) as file:
                self._make(path, size + count, overwrite(runs, size, size + count, stamp), lambda: file.write(data))

    def truncate(self, path: str, size_bytes: int) -> None:
        """Only ever shorter."""
        with self._lock:
            size, runs = self._now[path]
            kept = min(size, size_bytes)
            self._make(
                path,
                kept,
                tuple((low, min(high, kept), stamp) for low, high, stamp in runs if low < kept),
                lambda: os.truncate(self.root / path, kept),
            )

    def remove(self, path: str) -> None:
        with self._lock:
            self._make(path, None, (), (self.root / path).unlink)

    def rename(self, path: str, to: str) -> None:
        """Over what stands at ``to``, if anything does."""
        with self._lock:
            size, runs = self._now[path]
            gone, made = self._ledger.begin(path, None, ()), self._ledger.begin(to, size, runs)
            (self.root / path).rename(self.root / to)
            self._now[to] = self._now.pop(path)
            self._ledger.done(path, gone)
            self._ledger.done(to, made)

    def jump_mtime(self, path: str, to_s: float) -> None:
        """The bytes stay."""
        with self._lock:
            if path in self._now:
                os.utime(self.root / path, (to_s, to_s))

    def some_change(self, dice: random.Random) -> str:
        """What the writer does all the time, also without a fault: one step; says which."""
        with self._lock:
            path = dice.choice(self.small) if dice.random() < 0.8 else dice.choice(self.big)
            if path not in self._now:
                self.replace(path, dice.choice((100, 4096, 20_000, 200_001)))
                return f"recreated {path}"
            if path in self.big:
                if dice.random() < 0.5 and self._now[path][0] < 16 * MIB:
                    self.append(path, dice.randint(1, 300_000))
                    return f"appended to {path}"
                self.replace(path, int(dice.randint(4 * MIB, 16 * MIB) * self._scale))
                return f"replaced {path}"
            other = dice.choice(self.small)
            match dice.randrange(5):
                case 0:
                    self.replace(path, dice.choice((1, 100, 4096, 20_000, 200_001)))
                    return f"replaced {path}"
                case 1 if self._now[path][0] < MIB:
                    self.append(path, dice.randint(1, 9000))
                    return f"appended to {path}"
                case 2 if other != path:
                    self.rename(path, other)
                    return f"renamed {path} to {other}"
                case 3:
                    self.remove(path)
                    return f"removed {path}"
                case _:
                    self.rewrite(path)
                    return f"rewrote {path}"
