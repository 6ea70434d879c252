"""How the total rate is divided between the serving processes: by the weights of the spokes that wait, up to what each can use.

Pure. Whoever was held back by its share may have as much as its weight gives; whoever was not gets what it used and some
room to grow; what nobody asks for is spread, so that the first to want more need not wait for the next division.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from common import limits

GROWTH = 1.25
"""A process that its share did not hold back may use so many times what it used, until the next division."""

REMEMBERED = 4
"""Looks over which the highest weight counts: between two requests a spoke that reads all the time waits for nothing."""

HELD_REMEMBERED = 2
_SMOOTHING = 0.5
_LEAST_WEIGHT = 0.01


class Claim(NamedTuple):
    """``weight``: of the spokes that wait. ``wanted_bytes_per_s``: what can be used at most; None: whatever there is."""

    weight: float
    wanted_bytes_per_s: float | None


def divide(total_bytes_per_s: float, claims: Sequence[Claim]) -> list[float]:
    """A share above 0 for each claim; together the total, never more.

    Each keeps WORKER_IDLE_SHARE of the total (all together at most half); the rest is filled up by weight until each has
    what it wants (weighted max-min), and what is left then is spread by weight.
    """
    if not claims:
        return []
    floor = total_bytes_per_s * min(limits.WORKER_IDLE_SHARE, 0.5 / len(claims))
    weights = [max(claim.weight, _LEAST_WEIGHT) for claim in claims]
    shares = [floor] * len(claims)
    left = total_bytes_per_s - floor * len(claims)
    open_ones = set(range(len(claims)))
    while open_ones:
        unit = left / sum(weights[index] for index in open_ones)
        filled = {
            index: wanted - floor
            for index in open_ones
            if (wanted := claims[index].wanted_bytes_per_s) is not None and wanted - floor <= unit * weights[index]
        }
        if not filled:
            break
        for index, more in filled.items():
            shares[index] += max(0.0, more)
            left -= max(0.0, more)
        open_ones -= filled.keys()
    takers = open_ones or set(range(len(claims)))
    unit = max(0.0, left) / sum(weights[index] for index in takers)
    for index in takers:
        shares[index] += unit * weights[index]
    excess = sum(shares) / total_bytes_per_s  # sums of floats may be above by a rounding
    return [share / excess for share in shares] if excess > 1 else shares


class _Process:
    def __init__(self) -> None:
        self.weights: deque[float] = deque(maxlen=REMEMBERED)
        self.held: deque[bool] = deque(maxlen=HELD_REMEMBERED)
        self.used_bytes_per_s: float | None = None
        self.sent_bytes = 0
        self.heard_s = 0.0

    def claim(self) -> Claim:
        wanted = None if any(self.held) else (self.used_bytes_per_s or 0.0) * GROWTH
        return Claim(max(self.weights, default=0.0), wanted)


class Shares:
    """Hears what waits in each process, and divides."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}

    def joined(self, index: int, now_s: float) -> None:
        process = self._processes[index] = _Process()
        process.heard_s = now_s

    def left(self, index: int) -> None:
        self._processes.pop(index, None)

    def heard(self, index: int, now_s: float, weight: float, held: bool, sent_bytes: int) -> None:
        """``sent_bytes``: ever, of this process."""
        process = self._processes[index]
        elapsed_s = now_s - process.heard_s
        if elapsed_s > 0:
            used = (sent_bytes - process.sent_bytes) / elapsed_s
            before = process.used_bytes_per_s
            process.used_bytes_per_s = used if before is None else before + (used - before) * _SMOOTHING
            process.sent_bytes, process.heard_s = sent_bytes, now_s
        process.weights.append(weight)
        process.held.append(held)

    def waiting_weight(self, index: int) -> float:
        process = self._processes.get(index)
        return process.claim().weight if process is not None else 0.0

    def divide(self, total_bytes_per_s: float) -> Mapping[int, float]:
        """A share for each process that joined."""
        shares = divide(total_bytes_per_s, [process.claim() for process in self._processes.values()])
        return dict(zip(self._processes, shares, strict=True))
