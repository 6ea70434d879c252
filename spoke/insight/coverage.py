"""How long at least one of many waits was going on: the length of a union of intervals, kept as they end. Pure.

The sum over readers counts a second twice when two waited through it; what a job lost cannot be longer than the time it ran.
"""

from __future__ import annotations

_KEPT = 64


class Coverage:
    """``total_s``: the union's length. Exact while intervals reach back over at most 64 gaps; else a little less."""

    __slots__ = ("_from_s", "_recent", "total_s")

    def __init__(self) -> None:
        self.total_s = 0.0
        self._recent: list[tuple[float, float]] = []
        self._from_s = float("-inf")

    def add(self, from_s: float, to_s: float) -> float:
        """Returns by how much the union grew."""
        from_s = max(from_s, self._from_s)
        if from_s >= to_s:
            return 0.0
        recent = self._recent
        if not recent or from_s > recent[-1][1]:
            recent.append((from_s, to_s))
            grown_s = to_s - from_s
            if len(recent) > _KEPT:
                self._from_s = recent.pop(0)[1]
        elif from_s >= recent[-1][0]:
            start_s, end_s = recent[-1]
            grown_s = max(0.0, to_s - end_s)
            recent[-1] = (start_s, max(end_s, to_s))
        else:
            grown_s = self._merge(from_s, to_s)
        self.total_s += grown_s
        return grown_s

    def _merge(self, from_s: float, to_s: float) -> float:
        low_s, high_s, known_s = from_s, to_s, 0.0
        apart: list[tuple[float, float]] = []
        for start_s, end_s in self._recent:
            if end_s < from_s or start_s > to_s:
                apart.append((start_s, end_s))
            else:
                low_s, high_s, known_s = min(low_s, start_s), max(high_s, end_s), known_s + end_s - start_s
        apart.append((low_s, high_s))
        self._recent = sorted(apart)[-_KEPT:]
        return high_s - low_s - known_s

    def within(self, from_s: float, to_s: float) -> float:
        """Seconds of the union between two moments, as far back as single intervals are kept."""
        return sum(max(0.0, min(end_s, to_s) - max(start_s, from_s)) for start_s, end_s in self._recent)
