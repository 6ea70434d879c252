"""How far a row of steps has come and how long the rest will take, from what each was expected to take. Pure."""

from __future__ import annotations

from collections.abc import Sequence

SLOWER_AT_MOST = 5.0
"""So much longer than expected the rest is believed to take, however slow the beginning was."""


class Progress:
    """``expected_s``: of each step, in order."""

    def __init__(self, expected_s: Sequence[float]) -> None:
        self._expected_s = list(expected_s)
        self._done = 0
        self._took_s = 0.0

    def step_done(self, took_s: float) -> None:
        self._done += 1
        self._took_s += took_s

    @property
    def words(self) -> str:
        """For example ``7 of 24, about 6 min left``."""
        left_s = self.left_s
        told = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{max(10, round(left_s, -1)):.0f} s"
        return f"{min(self._done + 1, len(self._expected_s))} of {len(self._expected_s)}, about {told} left"

    @property
    def left_s(self) -> float:
        """What is expected of the rest, as much slower or faster as the steps so far were."""
        expected_s = sum(self._expected_s[: self._done])
        pace = self._took_s / expected_s if expected_s else 1.0
        return sum(self._expected_s[self._done :]) * min(max(pace, 1 / SLOWER_AT_MOST), SLOWER_AT_MOST)
