"""Applies the rate control: looks at the connections of each busy path, and sets the path's pace and theirs.

A path is what lies between here and one address, whoever is behind it: spokes that were paced each for itself would
keep the proportions that TCP gave them, by connections. Owns one controller for each path and the one task that asks
the kernel. What to do is :mod:`common.serving.rate_control`'s decision; who gets how much of it, the scheduler's.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import Protocol

from common import limits
from common.log import get_logger
from common.serving.packing_choice import PackingChoice
from common.serving.rate_control import NEAR_RTT_S, RateController
from common.serving.scheduler import Scheduler
from common.tcp import PathFacts

log = get_logger(__name__)

LOOK_EVERY_S = 0.05
"""Between two looks at the connections of a busy path: two to a round of 100 ms."""

START_LOOK_EVERY_S = 0.025
"""The same while one starts: at 1.4 times what the path carries a queue grows by 10 ms from look to look, before it is heard of."""

BUSY_BYTES = 1024 * 1024
"""A path with less than this still to be sent over it has nothing to teach."""

LINK_SHARE = 1.2
"""One connection may send at so many times its even share: what was handed to the sockets before also leaves at our pace."""

START_LINK_SHARE = 4.0
"""The same before a first queue was seen: only some have much to send, and the scheduler's pace holds for all together."""

SPOKE_SHARE, DRAIN_SPOKE_SHARE = 2.0, 1.1
"""Where several spokes wait behind one address, the connections of one may carry so many times its even share: not each of the
others needs all of its own. Less while a queue drains: what the sockets hold already is what stands there."""

ACTIVE_SHARE, ACTIVE_SPOKE_SHARE = 0.3, 0.05
"""A connection that moved less than this part of what the busiest of its spoke did carries no bulk; so with spokes of a path."""

RENEW_EVERY_S = 7.0
"""While our pace keeps the queue short, a connection's BBR begins anew before the 10 s after which it would stop to measure."""

_WORTH_TELLING = 0.05


class SteeredLink(Protocol):
    """What steering needs of a connection."""

    def path(self) -> PathFacts | None: ...
    def limit_rate(self, max_rate_bytes_per_s: float | None) -> None: ...
    def renew(self) -> None: ...


class _Spoke:
    """Its part of a path. ``links``: with what each had delivered when last looked at."""

    def __init__(self) -> None:
        self.links: dict[SteeredLink, int] = {}
        self.active_links = 1.0
        self.packing: PackingChoice | None = None
        self.link_rate_bytes_per_s: float | None = None


class _Path:
    def __init__(self, known_bytes_per_s: float) -> None:
        self.controller = RateController(known_bytes_per_s)
        self.spokes: dict[bytes, _Spoke] = {}
        self.active_spokes = 1.0
        self.delivered_bytes = 0
        self.rtt_s = 0.0
        self.min_rtt_s = 0.0
        self.renewed_s = -math.inf


def _eased(known: float, seen: int) -> float:
    """Up at once, down by a quarter of the difference each look."""
    return max(1.0, seen, known + (seen - known) / 4)


def _count_from(moved_bytes: Sequence[int], share: float) -> int:
    """How many moved at least this share of what the busiest did."""
    least_bytes = share * max(moved_bytes)
    return sum(each >= least_bytes for each in moved_bytes)


class Steering:
    """``run`` until cancelled. ``socket_rate_bytes_per_s``: the configured bound of one connection."""

    def __init__(
        self, scheduler: Scheduler, clock: Callable[[], float], socket_rate_bytes_per_s: float | None = None
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._socket_rate_bytes_per_s = socket_rate_bytes_per_s
        self._paths: dict[str, _Path] = {}
        self._address_of: dict[bytes, str] = {}
        self._packing: OrderedDict[tuple[str, bool], PackingChoice] = OrderedDict()
        """By address and whether it is far. They outlive their spokes: who mounts again finds what was learned."""
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """What a far path carried, bytes per second, and when its last connection went: whoever comes back starts there."""

    def joined(self, address: str, spoke_id: bytes, link: SteeredLink) -> None:
        """``address``: of the peer, without port. The first link's holds for the spoke, as in the scheduler."""
        address = self._address_of.setdefault(spoke_id, address)
        path = self._paths.get(address)
        if path is None:
            path = self._paths[address] = _Path(self._recall(address))
        spoke = path.spokes.setdefault(spoke_id, _Spoke())
        spoke.links[link] = 0
        if spoke.link_rate_bytes_per_s is not None:
            link.limit_rate(spoke.link_rate_bytes_per_s)

    def left(self, spoke_id: bytes, link: SteeredLink) -> None:
        address = self._address_of.get(spoke_id)
        if address is None:
            return
        path = self._paths[address]
        links = path.spokes[spoke_id].links
        links.pop(link, None)
        if not links:
            del path.spokes[spoke_id], self._address_of[spoke_id]
        if not path.spokes:
            del self._paths[address]
            self._remember(address, path)

    def _remember(self, address: str, path: _Path) -> None:
        controller = path.controller
        if controller.rate_bytes_per_s is not None and path.min_rtt_s >= NEAR_RTT_S:
            self._known[address] = controller.path_bytes_per_s, self._clock()
            self._known.move_to_end(address)
            if len(self._known) > limits.PATHS_KNOWN_MAX:
                self._known.popitem(last=False)

    def _recall(self, address: str) -> float:
        known_bytes_per_s, at_s = self._known.get(address, (0.0, -math.inf))
        return known_bytes_per_s if self._clock() - at_s <= limits.PATHS_KNOWN_S else 0.0

    def controller(self, address: str) -> RateController | None:
        """What is known of the path to this address."""
        path = self._paths.get(address)
        return path.controller if path is not None else None

    def packing(self, spoke_id: bytes, *, far: bool) -> PackingChoice | None:
        """What is known of the spoke's path, for whoever compresses. ``far``: its first links' round trip; theirs holds for the spoke."""
        address = self._address_of.get(spoke_id)
        if address is None:
            return None
        spoke = self._paths[address].spokes[spoke_id]
        if spoke.packing is None:
            key = (address, far)
            spoke.packing = self._packing.get(key) or PackingChoice(far=far)
            self._packing[key] = spoke.packing
            self._packing.move_to_end(key)
            if len(self._packing) > limits.PACK_PATHS_MAX:
                self._packing.popitem(last=False)
        return spoke.packing

    async def run(self) -> None:
        starts = False
        while True:
            await asyncio.sleep(START_LOOK_EVERY_S if starts else LOOK_EVERY_S)
            starts = self.look()

    def look(self) -> bool:
        """Once at all paths that something waits for; returns whether one of them starts."""
        starts = False
        for address, path in self._paths.items():
            if self._scheduler.waiting_on_path(address):
                try:
                    self._steer(address, path)
                    starts = starts or path.controller.starts
                except Exception:
                    log.exception("steering one path failed in an unforeseen way, the others go on")
            else:
                for spoke in path.spokes.values():
                    if spoke.packing is not None:
                        spoke.packing.idle(self._clock())
        return starts

    def _steer(self, address: str, path: _Path) -> None:
        now_s = self._clock()
        controller = path.controller
        busy = self._scheduler.waiting_on_path(address) >= BUSY_BYTES
        moved: dict[PackingChoice, int] = {}
        anything = self._measure(path, moved)
        for packing, moved_bytes in moved.items():
            mode = packing.mode
            packing.observe(now_s, moved_bytes=moved_bytes, rtt_s=path.min_rtt_s, busy=busy,
                            full=controller.rate_bytes_per_s is not None)  # fmt: skip
            if packing.mode is not mode:
                log.debug("compression", address=address, far=packing.far, mode=packing.mode.value,
                          raw_bytes_per_s=packing.raw_bytes_per_s, packing_bytes_per_s=packing.packing_bytes_per_s,
                          cost_s_per_byte=packing.cost.s_per_byte)  # fmt: skip
        if not anything:
            return
        controller.observe(
            now_s, delivered_bytes=path.delivered_bytes, rtt_s=path.rtt_s, min_rtt_s=path.min_rtt_s, busy=busy
        )
        self._scheduler.pace_path(now_s, address, controller.pace_bytes_per_s)
        self._limit_links(path)
        if controller.rate_bytes_per_s is not None and now_s - path.renewed_s >= RENEW_EVERY_S:
            path.renewed_s = now_s
            for spoke in path.spokes.values():
                for link in spoke.links:
                    link.renew()

    def _measure(self, path: _Path, moved: dict[PackingChoice, int]) -> bool:
        """Add up the connections; the queue is that of the middle one of those that move. ``moved``: bytes by choice are added."""
        seen: list[tuple[int, float, float]] = []
        moved_by: list[int] = []
        for spoke in path.spokes.values():
            own: list[int] = []
            for link, before_bytes in spoke.links.items():
                facts = link.path()
                if facts is None or facts.min_rtt_s <= 0:
                    continue
                moved_bytes = facts.delivered_bytes - before_bytes
                spoke.links[link] = facts.delivered_bytes
                if moved_bytes > 0:  # selective acknowledgements can be taken back: then it moved already
                    path.delivered_bytes += moved_bytes
                    own.append(moved_bytes)
                    seen.append((moved_bytes, facts.rtt_s - facts.min_rtt_s, facts.min_rtt_s))
            if spoke.packing is not None:
                moved[spoke.packing] = moved.get(spoke.packing, 0) + sum(own)
            if own:
                spoke.active_links = _eased(spoke.active_links, _count_from(own, ACTIVE_SHARE))
                moved_by.append(sum(own))
        if not seen:
            return False
        path.active_spokes = _eased(path.active_spokes, _count_from(moved_by, ACTIVE_SPOKE_SHARE))
        least_bytes = ACTIVE_SHARE * max(moved_bytes for moved_bytes, _, _ in seen)
        moving = [each for each in seen if each[0] >= least_bytes]
        path.min_rtt_s = min(min_rtt_s for _, _, min_rtt_s in moving)
        path.rtt_s = path.min_rtt_s + max(0.0, median_low(queue_s for _, queue_s, _ in moving))
        return True

    def _limit_links(self, path: _Path) -> None:
        """A connection's bound, by its spoke's part: who has many connections gets no more through them than who has few."""
        controller = path.controller
        rate = controller.pace_bytes_per_s
        part = min(1.0, (DRAIN_SPOKE_SHARE if controller.drains else SPOKE_SHARE) / path.active_spokes)
        share = LINK_SHARE if controller.rate_bytes_per_s is not None else START_LINK_SHARE
        if controller.drains:
            share = 1.0
        for spoke in path.spokes.values():
            wanted = rate * part * min(1.0, share / spoke.active_links) if rate is not None else None
            if self._socket_rate_bytes_per_s is not None:
                wanted = min(wanted or self._socket_rate_bytes_per_s, self._socket_rate_bytes_per_s)
            known = spoke.link_rate_bytes_per_s
            if wanted is not None and known is not None and abs(wanted - known) < _WORTH_TELLING * known:
                continue
            if wanted != known:
                spoke.link_rate_bytes_per_s = wanted
                log.debug("pace", rate_bytes_per_s=rate, path_bytes_per_s=controller.path_bytes_per_s,
                          queue_s=controller.queue_s, spokes=path.active_spokes, links=spoke.active_links)  # fmt: skip
                for link in spoke.links:
                    link.limit_rate(wanted)
