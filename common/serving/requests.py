"""What waits to be served, and where: a READ cut into extents, the connection it came on, its spoke, the path that leads there.

Holds what the scheduler decides by; decides nothing. Others read a ``Request`` or a ``Pick``, and change neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from common.pacing import Pacer
from common.wire.messages import Priority


class PathLoad:
    """What lies between this process and one address; ``links`` counts the connections over it."""

    __slots__ = ("hungry", "hungry_weight", "links", "outstanding_bytes", "pacer")

    def __init__(self) -> None:
        self.links = 0
        self.hungry = 0
        self.hungry_weight = 0.0
        """Spokes with something outstanding, and their weights."""
        self.outstanding_bytes = 0
        self.pacer = Pacer(None)


class SpokeTurns:
    __slots__ = (
        "ahead_bytes", "deficit_bytes", "in_demand_ring", "in_ring", "links", "outstanding_bytes", "pacer", "path", "turn_bytes",
        "turn_open", "weight",
    )  # fmt: skip

    def __init__(self, weight: float, rate_bytes_per_s: float | None, path: PathLoad) -> None:
        self.weight = weight
        self.path = path
        self.pacer = Pacer(rate_bytes_per_s)
        self.links: deque[LinkQueues] = deque()
        self.deficit_bytes = 0.0
        self.ahead_bytes = 0
        self.outstanding_bytes = 0
        self.turn_open = False
        self.turn_bytes = 0
        """How far the turns of its connections have come, in prefetch."""
        self.in_ring = False
        self.in_demand_ring = False

    def next_send_at(self, now_s: float) -> float:
        return max(self.pacer.next_send_at(now_s, 0), self.path.pacer.next_send_at(now_s, 0))

    def ask(self, size_bytes: int) -> None:
        """More (or, negative, less) is outstanding."""
        changed = -(self.outstanding_bytes > 0)
        self.outstanding_bytes += size_bytes
        changed += self.outstanding_bytes > 0
        self.path.hungry += changed
        self.path.hungry_weight += changed * self.weight
        self.path.outstanding_bytes += size_bytes


class LinkQueues:
    """One connection. ``turn_bytes``: where its next turn at its spoke's prefetch is, as its spoke's."""

    __slots__ = ("ahead_bytes", "link_id", "queues", "requests", "spoke", "turn_bytes")

    def __init__(self, link_id: int, spoke: SpokeTurns) -> None:
        self.link_id = link_id
        self.spoke = spoke
        self.requests: dict[int, Request] = {}
        self.queues: tuple[deque[Request], ...] = tuple(deque() for _ in Priority)
        self.ahead_bytes = [0 for _ in Priority]
        self.turn_bytes = 0

    def first_bytes(self, lane: Priority) -> int:
        return self.queues[lane][0].queued[0].block_count * BLOCK_BYTES


class Request:
    """One READ. Read-only for all but the scheduler. ``queued``: extents not picked yet; ``picks``: those under way."""

    __slots__ = ("deadline_s", "link", "picks", "priority", "queued", "request_id", "submitted_s", "version")

    def __init__(
        self,
        link: LinkQueues,
        request_id: int,
        version: bytes,
        extents: Iterable[BlockRange],
        priority: Priority,
        submitted_s: float,
        deadline_s: float | None,
    ) -> None:
        self.link = link
        self.request_id = request_id
        self.version = version
        self.queued = deque(extents)
        self.picks: dict[Pick, None] = {}  # in order
        self.priority = priority
        self.submitted_s = submitted_s
        self.deadline_s = deadline_s

    @property
    def link_id(self) -> int:
        return self.link.link_id

    @property
    def is_open(self) -> bool:
        return self.link.requests.get(self.request_id) is self


class Pick:
    """One extent of a READ, to be read and sent now. ``live`` turns false once it was sent or its READ has ended.

    ``number``: picks are counted.
    """

    __slots__ = ("ahead_bytes", "blocks", "lane", "live", "loading", "number", "request", "size_bytes")

    def __init__(self, number: int, request: Request, blocks: BlockRange, lane: Priority) -> None:
        self.number = number
        self.request = request
        self.blocks = blocks
        # As asked for: the last block of a file may hold less. finished() corrects the pacers by what really left.
        self.size_bytes = blocks.block_count * BLOCK_BYTES
        self.ahead_bytes = max(self.size_bytes, limits.READ_AHEAD_ITEM_MIN_BYTES)
        self.lane = lane
        self.live = True
        self.loading = True

    @property
    def is_last(self) -> bool:
        """Nothing else of its READ is left to send."""
        return len(self.request.picks) == 1 and not self.request.queued
