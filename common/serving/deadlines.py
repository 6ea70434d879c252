"""When READs must be answered: the next deadline, and those that have passed. Pure: ``now_s`` comes in.

A READ whose deadline moves, or that ends, stays noted until its old time comes; what piles up so is swept now and then.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

_SWEPT_FROM = 1024
"""Fewer are not worth the sweep: some 120 KiB, and the READs they keep."""


class Due(Protocol):
    """``deadline_s``: of any one clock; None: it may wait for ever."""

    deadline_s: float | None

    @property
    def is_open(self) -> bool: ...


T = TypeVar("T", bound=Due)


class Deadlines(Generic[T]):
    def __init__(self) -> None:
        self._noted: list[tuple[float, int, T]] = []
        self._serial = 0

    def __len__(self) -> int:
        """With those that are over or have another by now."""
        return len(self._noted)

    def note(self, request: T, open_count: int) -> None:
        """Its deadline is new. ``open_count``: how many may have one."""
        if request.deadline_s is None:
            return
        if len(self._noted) > _SWEPT_FROM + 2 * open_count:  # mostly of READs long over
            self._noted = [noted for noted in self._noted if noted[2].is_open]
            heapq.heapify(self._noted)
        self._serial += 1
        heapq.heappush(self._noted, (request.deadline_s, self._serial, request))

    @property
    def next_s(self) -> float | None:
        return self._noted[0][0] if self._noted else None

    def passed(self, now_s: float) -> list[T]:
        """Those still open whose deadline has passed; told once each, with no deadline any more."""
        found: list[T] = []
        while self._noted and self._noted[0][0] <= now_s:
            deadline_s, _, request = heapq.heappop(self._noted)
            if request.deadline_s == deadline_s and request.is_open:
                request.deadline_s = None  # also when it was noted twice
                found.append(request)
        return found
