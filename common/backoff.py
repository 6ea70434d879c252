"""How long to wait before trying again: exponential, capped, with full jitter. Pure: dice come in."""

from __future__ import annotations

from random import Random


def delay_s(failures: int, first_s: float, cap_s: float, dice: Random) -> float:
    """The wait after ``failures`` failures in a row (0 or more), uniform between half and all of its step."""
    return min(cap_s, first_s * (1 << min(failures, 32))) * dice.uniform(0.5, 1.0)


class Backoff:
    """``next_delay_s(dice)`` grows from ``first_s`` to ``cap_s``; ``reset()`` after a success.

    The jitter keeps a fleet from dialling in step after an outage.
    """

    def __init__(self, first_s: float, cap_s: float) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self.failures = 0
        """Failures in a row."""

    def next_delay_s(self, dice: Random) -> float:
        self.failures += 1
        return delay_s(self.failures - 1, self._first_s, self._cap_s, dice)

    def reset(self) -> None:
        self.failures = 0
