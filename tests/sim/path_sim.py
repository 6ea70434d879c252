"""A path in simulated time: a drop-tail queue before a link, senders with a congestion control, a rate limit above one.

Fluid, in steps of a millisecond or two: what a sender puts in goes through one queue in order, and is acknowledged a
round trip later. ``Tcp`` stands for all connections of a spoke: ``bbr`` keeps up to two round trips in flight whatever is
lost, ``greedy`` grows until the buffer overflows.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Literal

SEGMENT_BYTES = 8 * 1448


@dataclass(eq=False)
class Tcp:
    kind: Literal["bbr", "greedy"]
    start_s: float = 0.0
    stop_s: float = float("inf")
    limit_bytes_per_s: Callable[[], float | None] = lambda: None
    window_bytes: float = 10 * 1448.0 * 4
    in_flight_bytes: float = 0.0
    delivered_bytes: float = 0.0
    rtt_s: float = 0.0
    lost_at_s: float = -1.0
    starting: bool = True
    min_rtt_s: float = float("inf")
    allowance_bytes: float = 0.0
    marks: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=1))
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=10))


class PathSim:
    """``rate``: of the link over time. ``look``: called every ``look_every_s``, where the controller observes."""

    def __init__(
        self, rtt_s: float, rate: Callable[[float], float], buffer_bytes: float, *, loss: float = 0.0, seed: int = 1
    ):
        self.rtt_s, self.rate, self.buffer_bytes, self.loss = rtt_s, rate, buffer_bytes, loss
        self.dice = Random(seed)
        self.step_s = 0.002 if rtt_s < 0.3 else 0.005
        self.now_s = 0.0
        self.queue: deque[tuple[Tcp, float]] = deque()
        self.head_bytes = 0.0
        """Of the first in the queue, what is on the wire already."""
        self.queue_bytes = 0.0
        self.acks: list[tuple[float, int, Tcp, float, float]] = []
        self.order = count()
        self.queue_s_seen: list[tuple[float, float]] = []

    @property
    def queue_s(self) -> float:
        return self.queue_bytes / self.rate(self.now_s)

    def run(
        self,
        flows: list[Tcp],
        until_s: float,
        look: Callable[[], None],
        look_every_s: Callable[[], float] = lambda: 0.05,
    ) -> None:
        look_at_s = 0.0
        while self.now_s < until_s:
            self.now_s += self.step_s
            for flow in self.dice.sample(flows, len(flows)):
                if flow.start_s <= self.now_s < flow.stop_s:
                    self._send(flow)
            self._forward()
            self._acknowledge()
            self.queue_s_seen.append((self.now_s, self.queue_s))
            if self.now_s >= look_at_s:
                look()
                look_at_s = self.now_s + look_every_s()

    def _send(self, flow: Tcp) -> None:
        room_bytes = flow.window_bytes - flow.in_flight_bytes
        limit = flow.limit_bytes_per_s()
        if limit is not None:
            flow.allowance_bytes = min(flow.allowance_bytes + limit * self.step_s, limit * 0.01 + SEGMENT_BYTES)
            room_bytes = min(room_bytes, flow.allowance_bytes)
        else:
            flow.allowance_bytes = 0.0
        # The kernel paces: a window goes out over a round trip, not at once (twice as fast while it starts).
        paced_bytes = (
            flow.window_bytes
            / max(self.rtt_s, flow.rtt_s, self.step_s)
            * self.step_s
            * (2.0 if flow.starting else 1.25)
        )
        while room_bytes >= SEGMENT_BYTES and paced_bytes > 0:
            room_bytes -= SEGMENT_BYTES
            paced_bytes -= SEGMENT_BYTES
            flow.in_flight_bytes += SEGMENT_BYTES
            flow.allowance_bytes -= SEGMENT_BYTES if limit is not None else 0
            if self.dice.random() < self.loss or self.queue_bytes + SEGMENT_BYTES > self.buffer_bytes:
                self._answer(self.rtt_s + self.queue_s, flow, 0.0, self.now_s)
            else:
                self.queue.append((flow, self.now_s))
                self.queue_bytes += SEGMENT_BYTES

    def _answer(self, after_s: float, flow: Tcp, delivered_bytes: float, entered_s: float) -> None:
        """The sender hears of a segment: it arrived, or (``delivered_bytes`` 0) it was lost."""
        heapq.heappush(self.acks, (self.now_s + after_s, next(self.order), flow, delivered_bytes, entered_s))

    def _forward(self) -> None:
        room_bytes = self.rate(self.now_s) * self.step_s
        while self.queue and room_bytes > 0:
            taken_bytes = min(SEGMENT_BYTES - self.head_bytes, room_bytes)
            room_bytes -= taken_bytes
            self.queue_bytes -= taken_bytes
            self.head_bytes += taken_bytes
            if self.head_bytes >= SEGMENT_BYTES:
                self.head_bytes = 0.0
                flow, entered_s = self.queue.popleft()
                self._answer(self.rtt_s, flow, SEGMENT_BYTES, entered_s)

    def _acknowledge(self) -> None:
        while self.acks and self.acks[0][0] <= self.now_s:
            at_s, _, flow, delivered_bytes, entered_s = heapq.heappop(self.acks)
            flow.in_flight_bytes -= SEGMENT_BYTES
            if delivered_bytes:
                flow.delivered_bytes += delivered_bytes
                took_s = at_s - entered_s
                flow.rtt_s = flow.rtt_s + (took_s - flow.rtt_s) / 8 if flow.rtt_s else took_s
                flow.min_rtt_s = min(flow.min_rtt_s, took_s)
            if flow.kind == "bbr":
                self._bbr(flow)
            elif not delivered_bytes and flow.lost_at_s < entered_s:
                flow.lost_at_s = self.now_s
                flow.starting = False
                flow.window_bytes = max(flow.window_bytes * 0.7, 4 * SEGMENT_BYTES)
            elif delivered_bytes:
                grown_bytes = delivered_bytes if flow.starting else 8 * 1448 * delivered_bytes / flow.window_bytes
                flow.window_bytes += grown_bytes

    def _bbr(self, flow: Tcp) -> None:
        """Window: two round trips of the best rate of the last ten; doubling until a queue shows that the path is full."""
        span_s = max(self.rtt_s, 0.02)
        from_s, from_bytes = flow.marks[-1] if flow.marks else (self.now_s, flow.delivered_bytes)
        if not flow.marks or self.now_s - from_s >= span_s:
            if flow.marks:
                flow.rates.append((flow.delivered_bytes - from_bytes) / (self.now_s - from_s))
            flow.marks.append((self.now_s, flow.delivered_bytes))
        least_bytes = max(2 * max(flow.rates, default=0.0) * max(self.rtt_s, 0.002), 10 * SEGMENT_BYTES)
        if flow.starting:
            flow.window_bytes = max(flow.window_bytes, least_bytes, 2 * flow.in_flight_bytes)
            flow.starting = self.queue_bytes < 0.8 * self.buffer_bytes and self.queue_s < 0.5 * self.rtt_s + 0.02
        else:
            flow.window_bytes = least_bytes
