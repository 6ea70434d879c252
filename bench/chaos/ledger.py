"""The writer's ledger: each state of each path, written down before it is made, in a file that readers follow.

One JSON line a fact: ``[path, number, size, runs, time]`` before the system call that makes a state, ``[path, number, time]``
after it. Lines are appended whole; a reader never sees half of one as a fact.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

from bench.chaos.content import Run, State, ended


class LedgerWriter:
    """Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}

    def begin(self, path: str, size_bytes: int | None, runs: tuple[Run, ...]) -> int:
        """Say what is about to be true of a path; returns the state's number."""
        with self._lock:
            number = self._numbers[path] = self._numbers.get(path, 0) + 1
            self._line([path, number, size_bytes, runs, time.monotonic()])
        return number

    def done(self, path: str, number: int) -> None:
        """It is true now, and the state before it is over."""
        with self._lock:
            self._line([path, number, time.monotonic()])

    def _line(self, fact: list[object]) -> None:
        os.write(self._fd, json.dumps(fact, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Ledger:
    """The reading side: :meth:`refresh`, then :attr:`states` by path, in order."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self._rest = b""
        self.states: dict[str, list[State]] = {}

    def refresh(self) -> None:
        while chunk := os.read(self._fd, 1 << 20):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, fact: list[object]) -> None:
        match fact:
            case [str(path), int(number), size_bytes, list(runs), float(at_s)]:
                kept = tuple((low, high, stamp) for low, high, stamp in runs)
                assert size_bytes is None or isinstance(size_bytes, int)
                self.states.setdefault(path, []).append(State(path, number, size_bytes, kept, at_s))
            case [str(path), int(number), float(at_s)]:
                states = self.states[path]
                if number >= 2:
                    states[number - 2] = ended(states[number - 2], at_s)
            case _:
                raise AssertionError(f"no fact of a ledger: {fact}")

    def of(self, path: str) -> list[State]:
        return self.states.get(path, [])

    def names(self) -> list[str]:
        """Paths that exist now, or are about to go."""
        return [path for path, states in self.states.items() if states and states[-1].size_bytes is not None]

    def was_absent(self, path: str, from_s: float, to_s: float) -> bool:
        """Whether there was a moment in that time without such a path."""
        states = self.of(path)
        if not states or states[0].begun_s > from_s:
            return True
        return any(
            state.size_bytes is None and state.begun_s <= to_s and (state.ended_s is None or state.ended_s >= from_s)
            for state in states
        )

    def close(self) -> None:
        os.close(self._fd)
