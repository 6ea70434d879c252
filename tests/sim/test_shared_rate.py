"""Spokes behind one narrow way out that nobody told the hub about, where TCP shares by connections. Virtual time.

The real scheduler picks; sockets are queues of extents; each way carries its rate, split evenly over the connections that
have bytes, as TCP about does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest

from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from common.serving.scheduler import Pick, Scheduler
from common.serving.shared_rate import Load, SharedRate
from common.wire.messages import Priority

STEP_S = 0.005
LOOK_S = 0.1
MIB = 1024 * 1024


@dataclass
class Spoke:
    """``way``: which link out it is behind. ``deep``: extents it keeps asked for."""

    name: str
    links: int
    deep: int
    way: int = 0
    weight: float = 1.0
    wants_until_s: float = float("inf")
    link_ids: list[int] = field(default_factory=list)
    got_bytes: int = 0


class Sim:
    def __init__(self, ways: list[float], spokes: list[Spoke], *, shared: bool = True) -> None:
        self.ways = ways
        self.spokes = spokes
        self.now_s = 0.0
        self.scheduler = Scheduler()
        self.shared = SharedRate() if shared else None
        self.sockets: dict[int, deque[tuple[Pick, list[float]]]] = {}
        self.owner: dict[int, Spoke] = {}
        self._requests = 0
        for spoke in spokes:
            for _ in range(spoke.links):
                link_id = len(self.sockets)
                self.scheduler.add_link(link_id, spoke.name.encode(), spoke.weight)
                spoke.link_ids.append(link_id)
                self.sockets[link_id] = deque()
                self.owner[link_id] = spoke

    def run(self, until_s: float) -> dict[str, float]:
        """Bytes per second that came to each."""
        before = {spoke.name: spoke.got_bytes for spoke in self.spokes}
        began_s = self.now_s
        look_at_s = self.now_s
        while self.now_s < until_s:
            self._ask()
            while (pick := self.scheduler.next(self.now_s)) is not None:
                self.scheduler.loaded(pick)
                self.sockets[pick.request.link_id].append((pick, [float(pick.size_bytes)]))
            if self.now_s >= look_at_s:
                self._look()
                look_at_s += LOOK_S
            self._carry()
            self.now_s += STEP_S
        return {spoke.name: (spoke.got_bytes - before[spoke.name]) / (self.now_s - began_s) for spoke in self.spokes}

    def _ask(self) -> None:
        for spoke in self.spokes:
            while (
                self.now_s < spoke.wants_until_s
                and self.scheduler.outstanding_bytes(spoke.name.encode()) < spoke.deep * EXTENT_BYTES
            ):
                self._requests += 1
                link_id = spoke.link_ids[self._requests % len(spoke.link_ids)]
                blocks = BlockRange(0, EXTENT_BLOCKS)
                self.scheduler.submit(self.now_s, link_id, self._requests, bytes(16), [blocks], Priority.PREFETCH, None)

    def _look(self) -> None:
        if self.shared is None:
            return
        loads = {
            spoke.spoke_id: Load(
                spoke.sent_bytes,
                int(sum(left[0] for link_id in spoke.link_ids for _, left in self.sockets[link_id])),
                spoke.held,
            )
            for spoke in self.scheduler.hungry_spokes(self.now_s)
        }
        self.shared.observe(self.now_s, loads)
        self.scheduler.limit_shared(self.now_s, self.shared.rate_bytes_per_s)

    def _carry(self) -> None:
        for number, rate in enumerate(self.ways):
            busy = [link for link, queue in self.sockets.items() if queue and self.owner[link].way == number]
            for link in busy:
                room = rate * STEP_S / len(busy)
                queue = self.sockets[link]
                while queue and room > 0:
                    pick, left = queue[0]
                    taken = min(room, left[0])
                    left[0] -= taken
                    room -= taken
                    if left[0] <= 0:
                        queue.popleft()
                        self.owner[link].got_bytes += pick.size_bytes
                        self.scheduler.finished(pick, pick.size_bytes)


def crowd(weights: dict[str, float] | None = None) -> list[Spoke]:
    weights = weights or {}
    light = [Spoke(f"light{number}", 2, 4, weight=weights.get(f"light{number}", 1.0)) for number in range(16)]
    return [*light, Spoke("greedy", 32, 400, weight=weights.get("greedy", 1.0))]


def test_without_it_connections_count_so_the_simulation_shows_what_is_to_be_mended() -> None:
    rates = Sim([64 * MIB], crowd(), shared=False).run(20)
    assert rates["greedy"] > 4 * sum(rates.values()) / 17


@pytest.mark.parametrize("weights", [None, {"greedy": 0.5, "light3": 2.0, "light4": 4.0}])
def test_sixteen_light_ones_and_a_greedy_one_share_an_unknown_way(weights: dict[str, float] | None) -> None:
    spokes = crowd(weights)
    sim = Sim([64 * MIB], spokes)
    sim.run(15)
    rates = sim.run(75)
    total = sum(rates.values())
    assert total >= 0.95 * 64 * MIB
    share = total / sum(spoke.weight for spoke in spokes)
    for spoke in spokes:
        assert rates[spoke.name] == pytest.approx(share * spoke.weight, rel=0.10), spoke.name


def test_paths_of_their_own_are_used_to_the_full() -> None:
    """A slow spoke must not hold a fast one back: who cannot take his share leaves it."""
    slow, fast = Spoke("slow", 8, 64, way=0), Spoke("fast", 8, 64, way=1)
    sim = Sim([8 * MIB, 96 * MIB], [slow, fast])
    sim.run(15)
    rates = sim.run(75)
    assert rates["slow"] >= 0.95 * 8 * MIB
    assert rates["fast"] >= 0.95 * 96 * MIB


def test_what_becomes_wider_is_found_and_one_alone_is_not_held_at_all() -> None:
    first, second = Spoke("first", 4, 64, wants_until_s=80), Spoke("second", 16, 128)
    sim = Sim([32 * MIB], [first, second])
    sim.run(20)
    sim.ways[0] = 96 * MIB
    sim.run(50)
    assert sum(sim.run(70).values()) >= 0.9 * 96 * MIB
    sim.run(95)
    assert sim.shared is not None
    assert sim.shared.rate_bytes_per_s is None
    assert sim.run(105)["second"] >= 0.99 * 96 * MIB
