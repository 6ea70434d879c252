"""Applies the rate control: looks at the connections of each busy spoke, and sets the spoke's pace and theirs.

Owns one controller for each spoke and the one task that asks the kernel. What to do is
:mod:`common.serving.rate_control`'s decision.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from statistics import median_low
from typing import Protocol

from common.log import get_logger
from common.serving.rate_control import RateController
from common.serving.scheduler import Scheduler
from common.tcp import PathFacts

log = get_logger(__name__)

LOOK_EVERY_S = 0.05
"""Between two looks at the connections of a busy spoke: two to a round of 100 ms."""

BUSY_BYTES = 1024 * 1024
"""A spoke with less than this still to be sent has nothing to teach about its path."""

LINK_SHARE = 1.2
"""One connection may send at so many times its even share: what was handed to the sockets before also leaves at our pace."""

ACTIVE_SHARE = 0.3
"""A connection that moved less than this part of what the busiest did carries no bulk."""

RENEW_EVERY_S = 7.0
"""While our pace keeps the queue short, a connection's BBR begins anew before the 10 s after which it would stop to measure."""

_WORTH_TELLING = 0.05


class SteeredLink(Protocol):
    """What steering needs of a connection."""

    def path(self) -> PathFacts | None: ...
    def limit_rate(self, max_rate_bytes_per_s: float | None) -> None: ...
    def renew(self) -> None: ...


class _Spoke:
    def __init__(self) -> None:
        self.controller = RateController()
        self.links: dict[SteeredLink, int] = {}
        """With what each had delivered when last looked at."""
        self.delivered_bytes = 0
        self.rtt_s = 0.0
        self.min_rtt_s = 0.0
        self.link_rate_bytes_per_s: float | None = None
        self.active_links = 1.0
        self.renewed_s = -math.inf


class Steering:
    """``run`` until cancelled. ``socket_rate_bytes_per_s``: the configured bound of one connection."""

    def __init__(
        self, scheduler: Scheduler, clock: Callable[[], float], socket_rate_bytes_per_s: float | None = None
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._socket_rate_bytes_per_s = socket_rate_bytes_per_s
        self._spokes: dict[bytes, _Spoke] = {}

    def joined(self, spoke_id: bytes, link: SteeredLink) -> None:
        spoke = self._spokes.setdefault(spoke_id, _Spoke())
        spoke.links[link] = 0
        if spoke.link_rate_bytes_per_s is not None:
            link.limit_rate(spoke.link_rate_bytes_per_s)

    def left(self, spoke_id: bytes, link: SteeredLink) -> None:
        spoke = self._spokes.get(spoke_id)
        if spoke is not None:
            spoke.links.pop(link, None)
            if not spoke.links:
                del self._spokes[spoke_id]

    def controller(self, spoke_id: bytes) -> RateController | None:
        """For the fleet view: what is known of the path to this spoke."""
        spoke = self._spokes.get(spoke_id)
        return spoke.controller if spoke is not None else None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Once at all spokes that wait for something."""
        for spoke_id, spoke in self._spokes.items():
            if self._scheduler.outstanding_bytes(spoke_id):
                try:
                    self._steer(spoke_id, spoke)
                except Exception:
                    log.exception("steering one spoke failed in an unforeseen way, the others go on")

    def _steer(self, spoke_id: bytes, spoke: _Spoke) -> None:
        now_s = self._clock()
        if not self._measure(spoke):
            return
        controller = spoke.controller
        busy = self._scheduler.outstanding_bytes(spoke_id) >= BUSY_BYTES
        controller.observe(
            now_s, delivered_bytes=spoke.delivered_bytes, rtt_s=spoke.rtt_s, min_rtt_s=spoke.min_rtt_s, busy=busy
        )
        self._scheduler.pace_spoke(now_s, spoke_id, controller.rate_bytes_per_s)
        self._limit_links(spoke)
        if controller.rate_bytes_per_s is not None and now_s - spoke.renewed_s >= RENEW_EVERY_S:
            spoke.renewed_s = now_s
            for link in spoke.links:
                link.renew()

    def _measure(self, spoke: _Spoke) -> bool:
        """Add up the connections; the queue is that of the middle one of those that move."""
        seen: list[tuple[int, float, PathFacts]] = []
        for link, before_bytes in spoke.links.items():
            facts = link.path()
            if facts is None or facts.min_rtt_s <= 0:
                continue
            moved_bytes = facts.delivered_bytes - before_bytes
            spoke.links[link] = facts.delivered_bytes
            if moved_bytes > 0:  # selective acknowledgements can be taken back: then it moved already
                spoke.delivered_bytes += moved_bytes
                seen.append((moved_bytes, facts.rtt_s - facts.min_rtt_s, facts))
        if not seen:
            return False
        least_bytes = ACTIVE_SHARE * max(moved_bytes for moved_bytes, _, _ in seen)
        seen = [each for each in seen if each[0] >= least_bytes]
        spoke.active_links = max(len(seen), spoke.active_links + (len(seen) - spoke.active_links) / 4)
        spoke.min_rtt_s = min(facts.min_rtt_s for _, _, facts in seen)
        spoke.rtt_s = spoke.min_rtt_s + max(0.0, median_low(queue_s for _, queue_s, _ in seen))
        return True

    def _limit_links(self, spoke: _Spoke) -> None:
        rate = spoke.controller.rate_bytes_per_s
        wanted: float | None = None
        if rate is not None:
            share = 1.0 if spoke.controller.drains else LINK_SHARE
            wanted = rate * min(1.0, share / max(1.0, spoke.active_links))
        if self._socket_rate_bytes_per_s is not None:
            wanted = min(wanted or self._socket_rate_bytes_per_s, self._socket_rate_bytes_per_s)
        known = spoke.link_rate_bytes_per_s
        if wanted is not None and known is not None and abs(wanted - known) < _WORTH_TELLING * known:
            return
        if wanted != known:
            spoke.link_rate_bytes_per_s = wanted
            log.debug("pace", rate_bytes_per_s=rate, path_bytes_per_s=spoke.controller.path_bytes_per_s,
                      queue_s=spoke.controller.queue_s, links=spoke.active_links)  # fmt: skip
            for link in spoke.links:
                link.limit_rate(wanted)
