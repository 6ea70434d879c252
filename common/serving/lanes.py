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
        for lane, staged in self._of(request.request_id):
            if lane is not request.priority:
                self._take_out(lane, request.request_id)
                for pick, packed in staged:
                    self.add(pick, packed)

    def drop(self, request_id: int) -> None:
        for lane, _ in self._of(request_id):
            self._take_out(lane, request_id)

    def clear(self) -> None:
        for lane in self._lanes:
            lane.clear()
        self.waiting_bytes = 0

    def __bool__(self) -> bool:
        return any(self._lanes)

    def _of(self, request_id: int) -> list[tuple[Priority, list[tuple[Pick, Packed]]]]:
        found = []
        for priority, lane in zip(Priority, self._lanes, strict=True):
            staged = [each for each in lane if each[0].request.request_id == request_id]
            if staged:
                found.append((priority, staged))
        return found

    def _take_out(self, priority: Priority, request_id: int) -> None:
        lane = self._lanes[priority]
        kept = [each for each in lane if each[0].request.request_id != request_id]
        self.waiting_bytes -= sum(len(packed.payload) for _, packed in lane) - sum(
            len(packed.payload) for _, packed in kept
        )
        lane.clear()
        lane.extend(kept)
