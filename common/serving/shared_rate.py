"""What all spokes get together when the way out is shared and nobody said how wide it is. Pure.

Where the scheduler's total is what holds everybody, it hands out fair shares, whatever each spoke brings: links, depth of requests.
Where a link behind the sockets holds them, TCP shares it by connections, and a spoke with 32 of them gets four times what one
with eight gets; each spoke's own pace (:mod:`common.serving.rate_control`) follows what it got and keeps the proportion. So
while several spokes want more than they get, the total is put just below what they take together, and lower while what was
handed out before still waits at the sockets: then it is the total that holds, first of all the greediest. More is tried slowly.

With paths that are not shared this costs little: who cannot use his share leaves it to the others, and a backlog counts only
where most of what is sent has one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

ROUND_S = 1.0
"""Extents of 1 MiB make the rate of a shorter time a matter of luck."""

ROUNDS_AVERAGED = 3

BELOW = 0.97
"""Of what they take together, to begin with: 3 % is what fairness may cost."""

DRAIN_MIN = 0.4
DRAIN_S = 2.0
"""While a backlog stands: so much less that it would be gone in this time, but never below this part. The way stays full meanwhile."""

BACKLOG_S = 0.3
BACKLOG_MIN_BYTES = 2 * 1024 * 1024
"""What may wait at the sockets of a spoke, as time at its rate: an extent or two are always on their way into one."""

GROWTH = 0.01
ABOVE = 1.05
"""A round's growth while there is no backlog, and how far above what is really sent."""

QUIET_ROUNDS = 5
"""Rounds without contest after which nothing is held back any more."""


class Load(NamedTuple):
    """A spoke that wants more than it gets. ``sent_bytes``: ever rising; ``backlog_bytes``: handed out and not taken by the network;
    ``held``: something else than the total holds it back."""

    sent_bytes: int
    backlog_bytes: int
    held: bool


class SharedRate:
    """``rate_bytes_per_s``: None while there is nothing to share, or nothing is known."""

    def __init__(self) -> None:
        self.rate_bytes_per_s: float | None = None
        self._began_s = 0.0
        self._began_bytes: Mapping[bytes, int] = {}
        self._looks = self._contested = self._held = 0
        self._seen: deque[float] = deque(maxlen=ROUNDS_AVERAGED)
        self._quiet_rounds = 0

    def observe(self, now_s: float, loads: Mapping[bytes, Load]) -> None:
        """A look at all hungry spokes, ten a second."""
        if self._looks == 0:
            self._begin_round(now_s, loads)
        self._looks += 1
        if len(loads) >= 2:
            self._contested += 1
            self._held += 5 * sum(load.held for load in loads.values()) >= 4 * len(loads)
        elapsed_s = now_s - self._began_s
        if elapsed_s < ROUND_S:
            return
        if elapsed_s < 3 * ROUND_S:  # else nobody looked for long: only begin anew
            self._end_round(elapsed_s, loads)
        self._looks = 0

    def _begin_round(self, now_s: float, loads: Mapping[bytes, Load]) -> None:
        self._began_s = now_s
        self._began_bytes = {spoke_id: load.sent_bytes for spoke_id, load in loads.items()}
        self._looks = self._contested = self._held = 0

    def _end_round(self, elapsed_s: float, loads: Mapping[bytes, Load]) -> None:
        if self._contested * 2 < self._looks:
            self._quiet_rounds += 1
            self._seen.clear()
            if self._quiet_rounds >= QUIET_ROUNDS:
                self.rate_bytes_per_s = None
            return
        self._quiet_rounds = 0
        rates = {
            spoke_id: (load.sent_bytes - self._began_bytes[spoke_id]) / elapsed_s
            for spoke_id, load in loads.items()
            if spoke_id in self._began_bytes
        }
        self._seen.append(sum(rates.values()))
        mean = sum(self._seen) / len(self._seen)
        if mean <= 0:
            return  # an outage says nothing about the rate
        backlog_bytes = self._backlog_bytes(rates, loads)
        rate = self.rate_bytes_per_s
        if rate is None:
            held = self._held * 5 >= self._contested * 4
            if held and len(self._seen) == ROUNDS_AVERAGED:
                self.rate_bytes_per_s = mean * BELOW
        elif backlog_bytes:
            self.rate_bytes_per_s = mean * max(DRAIN_MIN, BELOW - backlog_bytes / (mean * DRAIN_S))
        else:
            self.rate_bytes_per_s = max(min(rate * (1 + GROWTH), mean * ABOVE), mean * BELOW)

    def _backlog_bytes(self, rates: Mapping[bytes, float], loads: Mapping[bytes, Load]) -> float:
        """What waits beyond the allowed, if that concerns most of what is sent."""
        excess = {
            spoke_id: loads[spoke_id].backlog_bytes - max(BACKLOG_MIN_BYTES, rate * BACKLOG_S)
            for spoke_id, rate in rates.items()
        }
        behind = sum(rates[spoke_id] for spoke_id, extra in excess.items() if extra > 0)
        return sum(extra for extra in excess.values() if extra > 0) if behind * 2 > sum(rates.values()) else 0.0
