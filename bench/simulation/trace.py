"""What happened in a run, in order: a hash over all of it, and the last of it in words. No clock, no randomness."""

from __future__ import annotations

from collections import Counter, deque
from hashlib import blake2b

WORDS_KEPT = 4000


class Trace:
    """Two runs of a seed are the same if their ``digest`` is. ``violations``: what must not happen and did, the first first."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=8)
        self.now_s = 0.0
        self.words: deque[str] = deque(maxlen=WORDS_KEPT)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.closed = False
        """Nothing that is said any more counts."""
        self.steps: list[bytes] | None = None
        """Everything that went into the hash, for those who look for the first difference of two runs."""

    def step(self, kind: str, *facts: object) -> None:
        """Into the hash: anything that could differ if a run were not a replay. Floats as they are: time is virtual."""
        text = f"{self.now_s!r} {kind} {facts!r}".encode("utf-8", "backslashreplace")
        self._hash.update(text)
        if self.steps is not None:
            self.steps.append(text)

    def say(self, what: str) -> None:
        """Into the event log, and not into the hash."""
        if self.closed:
            return
        self.words.append(f"{self.now_s:9.3f}  {what}")

    def event(self, kind: str, *facts: object) -> None:
        """Both, and counted."""
        self.counts[kind] += 1
        self.step(kind, *facts)
        self.say(" ".join([kind, *map(str, facts)]))

    def violation(self, what: str) -> None:
        if self.closed:
            return
        self.violations.append(what)
        self.event("VIOLATION", what)

    @property
    def digest(self) -> str:
        return self._hash.copy().hexdigest()
