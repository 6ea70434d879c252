"""Who is served next: every READ waits here, cut into extents, until there is room to read and send one.

Pure: no socket, no clock, no disk. Between spokes: deficit round robin by bytes, with weights; those behind one address
share the pace of its path, so their shares do not follow from how many connections each has. Within a spoke: demand
strictly before prefetch. For demand its connections take turns, and the READs of a connection extent by extent (a 16 MiB
one does not hold up the small one behind it). For prefetch they take turns by bytes, since spokes share it out by bytes:
extent by extent, small READs on one waited for a whole extent of each other. Of one, prefetch READs go in the order they came.
A spoke's demand also goes ahead of the other spokes' turns, on credit: what it took is held against its later turns, so
the shares stay equal.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange, split_at_extents
from common.errors import Overloaded
from common.pacing import Pacer
from common.serving.deadlines import Deadlines
from common.serving.requests import LinkQueues, PathLoad, Pick, Request, SpokeTurns
from common.serving.weights import WEIGHT_MAX, WEIGHT_MIN
from common.wire.messages import Priority

DEMAND_CREDIT_BYTES = 2 * EXTENT_BYTES
"""How far a spoke's demand may run ahead of its turns (times its weight)."""

DEMAND_AHEAD_S = 0.05
"""How far a spoke's demand may run ahead of its spoke's pace: prefetch pays for it afterwards."""


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """How much is under way before the sockets take it; see the limits of the same names."""

    reading_bytes: int = limits.READING_MAX_BYTES
    link_bytes: int = limits.READ_AHEAD_LINK_BYTES
    path_bytes: int = limits.READ_AHEAD_PATH_BYTES
    total_bytes: int = limits.READ_AHEAD_TOTAL_BYTES


class Scheduler:
    """Holds the READs of all connections ("links") of all spokes and picks the next extent.

    The life of an extent: ``next()`` picks it, ``loaded()`` says it came from the source, ``finished()`` that the
    socket took it. ``end()`` ends a READ early. Times are seconds of any one clock.
    """

    def __init__(
        self,
        *,
        total_rate_bytes_per_s: float | None = None,
        spoke_rate_bytes_per_s: float | None = None,
        read_ahead: ReadAhead | None = None,
    ) -> None:
        self._total_pacer = Pacer(total_rate_bytes_per_s)
        self._spoke_rate_bytes_per_s = spoke_rate_bytes_per_s
        self._read_ahead = read_ahead or ReadAhead()
        self._spokes: dict[bytes, SpokeTurns] = {}
        self._paths: dict[str, PathLoad] = {}
        self._links: dict[int, LinkQueues] = {}
        self._ring: deque[SpokeTurns] = deque()
        """Spokes with something to pick, or with a debt to pay, in the order of their turns."""
        self._demand_ring: deque[SpokeTurns] = deque()
        """Those of them whose demand may go on credit."""
        self._deadlines: Deadlines[Request] = Deadlines()
        self._open_requests = 0
        self._reading_bytes = 0
        self._picks = 0
        self._total_ahead_bytes = 0
        self._spokes_paced = spoke_rate_bytes_per_s is not None
        self._total_held = False

    # --- links and requests come and go ---------------------------------------------------------------------

    def add_link(self, link_id: int, spoke_id: bytes, weight: float = 1.0, path: str = "") -> None:
        """A connection; links of one ``spoke_id`` share that spoke's turns, rate and limits.

        ``path``: the peer's address without port. The first link's holds for the spoke.
        """
        assert link_id not in self._links
        if not WEIGHT_MIN <= weight <= WEIGHT_MAX:
            raise ValueError(f"a weight is between {WEIGHT_MIN} and {WEIGHT_MAX}, not {weight}")
        spoke = self._spokes.get(spoke_id)
        if spoke is None:
            shared = self._paths.setdefault(path, PathLoad())
            spoke = self._spokes[spoke_id] = SpokeTurns(weight, self._spoke_rate_bytes_per_s, shared)
        self._weigh(spoke, weight)
        spoke.path.links += 1
        link = self._links[link_id] = LinkQueues(link_id, spoke)
        spoke.links.append(link)

    def remove_link(self, link_id: int) -> list[Pick]:
        """The connection is gone, all its READs with it; returns the extents that were under way."""
        link = self._links.pop(link_id)
        picks = [pick for request in list(link.requests.values()) for pick in self._end(request)]
        spoke = link.spoke
        spoke.links.remove(link)
        spoke.path.links -= 1
        if not spoke.path.links:
            self._paths = {name: found for name, found in self._paths.items() if found is not spoke.path}
        if not spoke.links:
            self._spokes = {spoke_id: found for spoke_id, found in self._spokes.items() if found is not spoke}
            if spoke.in_ring:
                self._ring.remove(spoke)
            if spoke.in_demand_ring:
                self._demand_ring.remove(spoke)
        return picks

    def pace_path(self, now_s: float, path: str, rate_bytes_per_s: float | None) -> None:
        """What all spokes behind one address get together from now on; None: no limit."""
        found = self._paths.get(path)
        if found is not None and rate_bytes_per_s != found.pacer.rate_bytes_per_s:
            found.pacer.set_rate(now_s, rate_bytes_per_s)
            self._spokes_paced = self._spokes_paced or rate_bytes_per_s is not None

    def bound_spoke(self, now_s: float, spoke_id: bytes, rate_bytes_per_s: float | None) -> None:
        """What one spoke may have at most from now on, whatever its path carries; None: what all spokes may."""
        spoke = self._spokes.get(spoke_id)
        if spoke is None:
            return
        rates = [rate for rate in (rate_bytes_per_s, self._spoke_rate_bytes_per_s) if rate is not None]
        rate = min(rates, default=None)
        if rate != spoke.pacer.rate_bytes_per_s:
            spoke.pacer.set_rate(now_s, rate)
            self._spokes_paced = self._spokes_paced or rate is not None

    def reweigh(self, spoke_id: bytes, weight: float) -> None:
        """Its share from its next turn on."""
        spoke = self._spokes.get(spoke_id)
        if spoke is not None:
            self._weigh(spoke, weight)

    def _weigh(self, spoke: SpokeTurns, weight: float) -> None:
        if spoke.outstanding_bytes:
            spoke.path.hungry_weight += weight - spoke.weight
        spoke.weight = weight

    def limit_total(self, now_s: float, rate_bytes_per_s: float | None) -> None:
        """What all spokes get together from now on; None: no limit. What was sent ahead of the former rate stays owed."""
        if rate_bytes_per_s != self._total_pacer.rate_bytes_per_s:
            self._total_pacer.set_rate(now_s, rate_bytes_per_s)

    def submit(
        self,
        now_s: float,
        link_id: int,
        request_id: int,
        version: bytes,
        ranges: Sequence[BlockRange],
        priority: Priority,
        deadline_s: float | None,
    ) -> None:
        """Queue a READ. Raises Overloaded when the connection has too many, or the spoke too many bytes, outstanding."""
        link = self._links[link_id]
        assert request_id not in link.requests
        size_bytes = sum(blocks.block_count for blocks in ranges) * BLOCK_BYTES
        assert size_bytes > 0
        if len(link.requests) >= limits.REQUESTS_MAX_OUTSTANDING:
            raise Overloaded(f"{len(link.requests)} READs are open on this connection, no more are taken")
        allowed_bytes = limits.SPOKE_MAX_OUTSTANDING_BYTES
        if link.spoke.outstanding_bytes + size_bytes > allowed_bytes:
            raise Overloaded(f"{link.spoke.outstanding_bytes} bytes are outstanding, at most {allowed_bytes} may be")
        extents = (extent for blocks in ranges for extent in split_at_extents(blocks))
        request = Request(link, request_id, version, extents, priority, now_s, deadline_s)
        link.requests[request_id] = request
        link.queues[priority].append(request)
        link.spoke.ask(size_bytes)
        self._open_requests += 1
        self._deadlines.note(request, self._open_requests)
        self._enter_rings(link)

    def promote(self, link_id: int, request_id: int, priority: Priority, deadline_s: float | None) -> Request | None:
        """Change priority and deadline of a READ; None when it is over (the news crossed its last DATA)."""
        request = self._links[link_id].requests.get(request_id)
        if request is None:
            return None
        if request.queued and priority is not request.priority:
            request.link.queues[request.priority].remove(request)
            request.link.queues[priority].append(request)
        request.priority = priority
        request.deadline_s = deadline_s
        self._deadlines.note(request, self._open_requests)
        self._enter_rings(request.link)
        return request

    def end(self, link_id: int, request_id: int) -> list[Pick] | None:
        """End a READ before it is complete; returns its extents under way, or None when it was over already."""
        link = self._links.get(link_id)
        request = link.requests.get(request_id) if link is not None else None
        return self._end(request) if request is not None else None

    def expired(self, now_s: float) -> list[Request]:
        """READs whose deadline has passed; the caller ends and answers each."""
        return self._deadlines.passed(now_s)

    # --- what is next -----------------------------------------------------------------------------------------

    def next(self, now_s: float) -> Pick | None:
        """The extent to read now, or None when nothing waits, or nothing may start yet (see ``wake_at``)."""
        if not self._ring or self._reading_bytes >= self._read_ahead.reading_bytes:
            return None
        if self._total_pacer.next_send_at(now_s, 0) > now_s:
            self._total_held = True
            return None
        if self._total_ahead_bytes >= self._read_ahead.total_bytes:
            return self._next_for_an_empty_link(now_s)
        return self._next_on_credit(now_s) or self._next_in_turn(now_s)

    def wake_at(self, now_s: float) -> float | None:
        """When to ask again, once ``next()`` gave None, if nothing else happens: a pace lets more go, or a deadline passes."""
        deadline_s = self._deadlines.next_s
        times = [deadline_s] if deadline_s is not None else []
        if self._ring:
            paced_s = self._total_pacer.next_send_at(now_s, 0)
            if paced_s > now_s:
                times.append(paced_s)
            elif self._spokes_paced:
                spokes_s = (spoke.next_send_at(now_s) for spoke in self._ring)
                times.extend(spoke_s for spoke_s in spokes_s if spoke_s > now_s)
        return min(times, default=None)

    def _next_for_an_empty_link(self, now_s: float) -> Pick | None:
        """Too much is read ahead (for sockets that take nothing): only who has nothing read may go on."""
        for lane in Priority:
            for link in self._links.values():
                if link.queues[lane] and not any(link.ahead_bytes) and link.spoke.next_send_at(now_s) <= now_s:
                    return self._pick(now_s, link, lane)
        return None

    def _next_on_credit(self, now_s: float) -> Pick | None:
        ring = self._demand_ring
        for _ in range(len(ring)):
            spoke = ring[0]
            link = self._choose_link(spoke, Priority.DEMAND)
            if link is None or spoke.deficit_bytes <= -DEMAND_CREDIT_BYTES * spoke.weight:
                ring.popleft().in_demand_ring = False  # until there is more to ask for, or its next turn
                continue
            ring.rotate(-1)
            if spoke.next_send_at(now_s) <= now_s + DEMAND_AHEAD_S:
                return self._pick(now_s, link, Priority.DEMAND)
        return None

    def _next_in_turn(self, now_s: float) -> Pick | None:
        """Deficit round robin: a turn adds a quantum; who cannot afford its next extent waits for its next turn."""
        ring = self._ring
        visits_left = len(ring)
        somebody_saves = False
        while ring:
            spoke = ring[0]
            stays = True
            if (
                spoke.next_send_at(now_s) <= now_s
            ):  # else its turn goes on later: what holds it back may hold its neighbours too
                if not spoke.turn_open:
                    self._begin_turn(spoke)
                link, lane = self._choose(spoke)
                if link is None:
                    # A pause earns nothing, but a debt stays until turns have paid it.
                    spoke.deficit_bytes = min(spoke.deficit_bytes, 0.0)
                    stays = spoke.deficit_bytes < 0
                elif spoke.deficit_bytes >= link.first_bytes(lane):
                    return self._pick(now_s, link, lane)
                else:
                    somebody_saves = True
                spoke.turn_open = False
            if stays:
                ring.rotate(-1)
            else:
                ring.popleft().in_ring = False
            visits_left -= 1
            if visits_left <= 0:
                if not somebody_saves:
                    return None
                visits_left = len(ring)
                somebody_saves = False
        return None

    def _begin_turn(self, spoke: SpokeTurns) -> None:
        spoke.turn_open = True
        spoke.deficit_bytes += EXTENT_BYTES * spoke.weight
        if not spoke.in_demand_ring:
            spoke.in_demand_ring = True
            self._demand_ring.append(spoke)

    def _choose(self, spoke: SpokeTurns) -> tuple[LinkQueues | None, Priority]:
        link = self._choose_link(spoke, Priority.DEMAND)
        if link is not None:
            return link, Priority.DEMAND
        return self._choose_link(spoke, Priority.PREFETCH), Priority.PREFETCH

    def _choose_link(self, spoke: SpokeTurns, lane: Priority) -> LinkQueues | None:
        if spoke.path.hungry > 1 and lane is not Priority.DEMAND:
            part_bytes = self._read_ahead.path_bytes * spoke.weight / spoke.path.hungry_weight
            if spoke.ahead_bytes >= max(2 * EXTENT_BYTES, part_bytes):
                return None
        most_bytes, found, least_bytes = self._read_ahead.link_bytes, None, math.inf
        for link in spoke.links:
            if link.queues[lane] and link.ahead_bytes[lane] < most_bytes:
                if lane is Priority.DEMAND or link.turn_bytes <= spoke.turn_bytes:
                    return link
                if link.turn_bytes < least_bytes:
                    found, least_bytes = link, link.turn_bytes
        return found

    def _pick(self, now_s: float, link: LinkQueues, lane: Priority) -> Pick:
        links = link.spoke.links
        if links[0] is not link:
            links.remove(link)
        else:
            links.popleft()
        links.append(link)  # the others' turn
        queue = link.queues[lane]
        request = queue[0]
        self._picks += 1
        pick = Pick(self._picks, request, request.queued.popleft(), lane)
        request.picks[pick] = None
        if not request.queued:
            queue.popleft()
        elif lane is Priority.DEMAND:
            queue.rotate(-1)
        if lane is Priority.PREFETCH:  # who had nothing to ask for, or took nothing, does not catch up
            link.spoke.turn_bytes = max(link.spoke.turn_bytes, link.turn_bytes)
            link.turn_bytes = link.spoke.turn_bytes + pick.size_bytes
        link.ahead_bytes[lane] += pick.ahead_bytes
        link.spoke.ahead_bytes += pick.ahead_bytes
        self._total_ahead_bytes += pick.ahead_bytes
        self._reading_bytes += pick.ahead_bytes
        self._charge(now_s, link.spoke, pick.size_bytes)
        return pick

    def _charge(self, now_s: float, spoke: SpokeTurns, size_bytes: int) -> None:
        spoke.deficit_bytes -= size_bytes
        spoke.pacer.sent(now_s, size_bytes)
        spoke.path.pacer.sent(now_s, size_bytes)
        self._total_pacer.sent(now_s, size_bytes)

    # --- what became of it -----------------------------------------------------------------------------------

    def loaded(self, pick: Pick) -> None:
        """The source has answered: its place among the open reads is free again."""
        if pick.live and pick.loading:
            pick.loading = False
            self._reading_bytes -= pick.ahead_bytes

    def finished(self, pick: Pick, sent_bytes: int) -> None:
        """The socket took it, ``sent_bytes`` long on the wire. Its READ is over when it was the last one."""
        if not pick.live:
            return
        request = pick.request
        self._release(pick, sent_bytes)
        del request.picks[pick]
        if not request.picks and not request.queued:
            del request.link.requests[request.request_id]
            self._open_requests -= 1
        self._enter_rings(request.link)

    def _end(self, request: Request) -> list[Pick]:
        link = request.link
        del link.requests[request.request_id]
        self._open_requests -= 1
        if request.queued:
            link.queues[request.priority].remove(request)
            link.spoke.ask(-sum(blocks.block_count for blocks in request.queued) * BLOCK_BYTES)
            request.queued.clear()
        picks = list(request.picks)
        for pick in picks:
            self._release(pick, 0)
        request.picks.clear()
        self._enter_rings(link)
        return picks

    def _release(self, pick: Pick, sent_bytes: int) -> None:
        self.loaded(pick)
        pick.live = False
        link = pick.request.link
        link.ahead_bytes[pick.lane] -= pick.ahead_bytes
        link.spoke.ahead_bytes -= pick.ahead_bytes
        link.spoke.ask(-pick.size_bytes)
        self._total_ahead_bytes -= pick.ahead_bytes
        difference_bytes = sent_bytes - pick.size_bytes
        link.spoke.deficit_bytes -= difference_bytes
        link.spoke.pacer.correct(difference_bytes)
        link.spoke.path.pacer.correct(difference_bytes)
        self._total_pacer.correct(difference_bytes)

    def _enter_rings(self, link: LinkQueues) -> None:
        spoke = link.spoke
        if link.queues[Priority.DEMAND] and not spoke.in_demand_ring:
            spoke.in_demand_ring = True
            self._demand_ring.append(spoke)
        if not spoke.in_ring and spoke.outstanding_bytes and any(any(other.queues) for other in spoke.links):
            spoke.in_ring = True
            self._ring.append(spoke)

    # --- what an operator asks ---------------------------------------------------------------------------------

    def open_requests(self, link_id: int) -> int:
        return len(self._links[link_id].requests)

    def outstanding_bytes(self, spoke_id: bytes) -> int:
        """Bytes this spoke asked for that no socket has taken yet."""
        spoke = self._spokes.get(spoke_id)
        return spoke.outstanding_bytes if spoke is not None else 0

    def waiting_on_path(self, path: str) -> int:
        """The same for all spokes behind one address."""
        found = self._paths.get(path)
        return found.outstanding_bytes if found is not None else 0

    def take_total_held(self, now_s: float) -> bool:
        """Whether the total rate has kept anything back since this was last asked."""
        held = self._total_held or (bool(self._ring) and self._total_pacer.next_send_at(now_s, 0) > now_s)
        self._total_held = False
        return held

    def waiting_weight(self) -> float:
        """The weights of the spokes with something outstanding, added up."""
        return sum(spoke.weight for spoke in self._spokes.values() if spoke.outstanding_bytes)

    @property
    def read_ahead_bytes(self) -> int:
        """Extents of all connections between their pick and the socket, small ones counted at their minimum."""
        return self._total_ahead_bytes
