"""When a worker that died is started again, and when the supervisor gives up. Pure: the time comes in.

A worker that had served is started again at once: readers wait for it, and whatever killed it (memory, an operator, a bug that
one request hits) mostly does not come back. One that cannot even start is tried a few times, more and more slowly.
"""

from __future__ import annotations

from collections import deque

from common import limits


class Restarts:
    """``total``: workers that died and were replaced, or are about to be."""

    def __init__(self) -> None:
        self.total = 0
        self.failed_starts = 0
        self._deaths_s: deque[float] = deque()

    def served(self) -> None:
        """A worker has come up."""
        self.failed_starts = 0

    def died(self, now_s: float, had_served: bool) -> float | None:
        """How many seconds to wait before the next start; None: give up (``why`` tells)."""
        self._deaths_s.append(now_s)
        while self._deaths_s[0] <= now_s - limits.SUPERVISED_DEATHS_WINDOW_S:
            self._deaths_s.popleft()
        if not had_served:
            self.failed_starts += 1
        if self.why():
            return None
        self.total += 1
        if self.failed_starts:
            return min(limits.SUPERVISED_RETRY_FIRST_S * (1 << self.failed_starts - 1), limits.SUPERVISED_RETRY_MAX_S)
        in_a_row = sum(death_s > now_s - limits.SUPERVISED_RECENT_S for death_s in self._deaths_s)
        return 0.0 if in_a_row <= limits.SUPERVISED_QUICK_RESTARTS else limits.SUPERVISED_SLOWED_S

    def why(self) -> str:
        """Why it is given up; empty while it is not."""
        if self.failed_starts >= limits.SUPERVISED_FAILED_STARTS_MAX:
            return f"{self.failed_starts} starts in a row failed"
        if len(self._deaths_s) >= limits.SUPERVISED_DEATHS_MAX:
            return f"it died {len(self._deaths_s)} times within {limits.SUPERVISED_DEATHS_WINDOW_S:.0f} s"
        return ""
