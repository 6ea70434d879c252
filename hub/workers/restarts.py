"""When a serving process that died is started again, and when the hub gives up. Pure: the time and the dice come in."""

from __future__ import annotations

from collections import deque
from random import Random

from common import limits
from common.backoff import delay_s


class Restarts:
    """Of one process."""

    def __init__(self) -> None:
        self._deaths_s: deque[float] = deque()
        self.total = 0

    def died(self, now_s: float, dice: Random) -> float | None:
        """How many seconds to wait before the next start; None: it died too often, give up."""
        self.total += 1
        self._deaths_s.append(now_s)
        while self._deaths_s[0] <= now_s - limits.WORKER_DEATHS_WINDOW_S:
            self._deaths_s.popleft()
        if len(self._deaths_s) >= limits.WORKER_DEATHS_MAX:
            return None
        first_s, cap_s = limits.WORKER_RESTART_FIRST_S, limits.WORKER_RESTART_CAP_S
        return delay_s(len(self._deaths_s) - 1, first_s, cap_s, dice)
