"""How far apart uses of extents lie, and when those that are gone were last used: so eviction knows what nobody uses any more. Pure."""

from __future__ import annotations

import math

from common.limits import CACHE_GHOSTS_MAX


class ReuseDistances:
    """A fading histogram of how much traffic lies between two uses of an extent; first uses count as "never"."""

    _PER_OCTAVE = 4
    _RARE_SHARE = 0.05
    _MARGIN = 1.25
    _FEWEST = 8.0

    def __init__(self) -> None:
        self._weights = [0.0] * (32 * self._PER_OCTAVE + 1)
        self._total = 0.0
        self._faded_at_tick = 0

    def seen(self, distance_ticks: int | None) -> None:
        """One use, ``distance_ticks`` after the one before it (None: the first ever)."""
        self._total += 1.0
        if distance_ticks is not None:
            self._weights[int(math.log2(distance_ticks) * self._PER_OCTAVE)] += 1.0

    def fade(self, now_tick: int, capacity_ticks: int) -> None:
        """Halve what was seen for every quarter of the capacity that passed."""
        halvings = (now_tick - self._faded_at_tick) * 4 // max(4, capacity_ticks)
        if halvings > 0:
            self._faded_at_tick = now_tick
            factor = 0.5 ** min(halvings, 64)
            self._weights = [weight * factor for weight in self._weights]
            self._total *= factor

    def longest_ticks(self) -> float:
        """A distance that all but a rare share of the uses stay below (0 while too little was seen), with a margin."""
        if self._total < self._FEWEST:
            return 0.0
        beyond = 0.0
        for position in range(len(self._weights) - 1, -1, -1):
            beyond += self._weights[position]
            if beyond >= self._RARE_SHARE * self._total:
                return self._MARGIN * math.exp2((position + 1) / self._PER_OCTAVE)
        return 0.0


class Ghosts:
    """When evicted extents were last used, by rank; a sample of them once there are many."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}
        self._mask = 0

    def add(self, rank: int, tick: int) -> None:
        if rank & self._mask:
            return
        self._ticks[rank] = tick
        if len(self._ticks) > CACHE_GHOSTS_MAX:
            self._mask = self._mask * 2 + 1
            self._ticks = {kept: when for kept, when in self._ticks.items() if not kept & self._mask}

    def samples(self, rank: int) -> bool:
        """Whether an extent of this rank would be remembered at all (else its absence says nothing)."""
        return not rank & self._mask

    def pop(self, rank: int) -> int | None:
        return self._ticks.pop(rank, None)
