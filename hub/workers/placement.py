"""Which process serves which spoke: all connections of one in one place, a new one where the load is least.

Pure. One process for a spoke, because its pace, its order of requests and its turns against other spokes are decisions
that want all of its connections in view. The load is weights of spokes, and those that wait for something count twice; a tie is
broken by a hash of both names, so that a hub that restarts places a fleet much as before.
"""

from __future__ import annotations

from collections.abc import Callable

import xxhash


class _Spoke:
    __slots__ = ("connections", "index", "weight")

    def __init__(self, index: int, weight: float) -> None:
        self.index = index
        self.weight = weight
        self.connections = 0


class Placement:
    """``waiting_weight``: of the spokes in a process that wait for something now."""

    def __init__(self, waiting_weight: Callable[[int], float]) -> None:
        self._waiting_weight = waiting_weight
        self._loads: dict[int, float] = {}
        self._spokes: dict[bytes, _Spoke] = {}

    def up(self, index: int) -> None:
        self._loads[index] = 0.0

    def down(self, index: int) -> None:
        """The process is gone, and its connections with it."""
        self._loads.pop(index, None)
        self._spokes = {spoke_id: spoke for spoke_id, spoke in self._spokes.items() if spoke.index != index}

    def place(self, spoke_id: bytes, weight: float) -> int | None:
        """Where this new connection goes; None while no process is up."""
        spoke = self._spokes.get(spoke_id)
        if spoke is None:
            if not self._loads:
                return None
            index = min(self._loads, key=lambda index: self._order(index, spoke_id))
            self._loads[index] += weight
            spoke = self._spokes[spoke_id] = _Spoke(index, weight)
        spoke.connections += 1
        return spoke.index

    def left(self, spoke_id: bytes) -> None:
        """A connection that was placed has ended."""
        spoke = self._spokes[spoke_id]
        spoke.connections -= 1
        if not spoke.connections:
            del self._spokes[spoke_id]
            self._loads[spoke.index] -= spoke.weight

    def spokes(self, index: int) -> int:
        """How many are placed there."""
        return sum(spoke.index == index for spoke in self._spokes.values())

    def _order(self, index: int, spoke_id: bytes) -> tuple[float, int]:
        # Weights added and taken away again leave roundings; a tie must stay one.
        return round(self._loads[index] + self._waiting_weight(index), 6), xxhash.xxh3_64_intdigest(spoke_id, index)
