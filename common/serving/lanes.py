"""What is read and packed and waits for one connection's socket: by priority, and within it in the order it was picked.

Extents become ready out of order, since some are read or packed in threads and some on the spot. A connection's first round trip
carries 64 kB, so what left last of three that were ready together came three round trips later.
"""

from __future__ import annotations

from collections import deque

from common.serving.egress import Packed
from common.serving.requests import Pick, Request
from common.wire.messages import Priority


class Lanes:
    """One connection's. ``waiting_bytes``: payloads that were added and not taken."""

    def __init__(self) -> None:
        self._lanes: tuple[deque[tuple[Pick, Packed]], ...] = tuple(deque() for _ in Priority)
        self.waiting_bytes = 0

    def add(self, pick: Pick, packed: Packed) -> None:
        """Behind what was picked before it, in front of what was picked after it."""
        lane = self._lanes[pick.request.priority]
        later: list[tuple[Pick, Packed]] = []
        while lane and lane[-1][0].number > pick.number:
            later.append(lane.pop())
        lane.append((pick, packed))
        while later:
            lane.append(later.pop())
        self.waiting_bytes += len(packed.payload)

    def take(self) -> tuple[Pick, Packed] | None:
        """The most urgent; None when nothing waits."""
        for lane in self._lanes:
            if lane:
                pick, packed = lane.popleft()
                self.waiting_bytes -= len(packed.payload)
                return pick, packed
        return None

    def promote(self, request: Request) -> None:
        """The request has another priority now: what is ready of it moves there."""
        for priority in Priority:
            if priority is not request.priority:
                for pick, packed in self._take_out(priority, request.request_id):
                    self.add(pick, packed)

    def drop(self, request_id: int) -> None:
        for priority in Priority:
            self._take_out(priority, request_id)

    def clear(self) -> None:
        for lane in self._lanes:
            lane.clear()
        self.waiting_bytes = 0

    def __bool__(self) -> bool:
        return any(self._lanes)

    def _take_out(self, priority: Priority, request_id: int) -> list[tuple[Pick, Packed]]:
        """What is ready of a request in this lane, which loses it."""
        lane = self._lanes[priority]
        taken = [staged for staged in lane if staged[0].request.request_id == request_id]
        if taken:
            kept = [staged for staged in lane if staged[0].request.request_id != request_id]
            lane.clear()
            lane.extend(kept)
            self.waiting_bytes -= sum(len(packed.payload) for _, packed in taken)
        return taken
