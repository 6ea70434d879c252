"""The spoke's side of the wire: carries requests over the links that :mod:`spoke.hub_client.keeper` keeps up.

One control link carries the feed and demand reads; bulk links carry prefetch (and demand when they are freer).
A request outlives the link it went out on: when that link dies, what has not arrived is asked for on another.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Protocol

from common import codec, limits
from common.blocks import BLOCK_BYTES, BlockRange, split, subtract
from common.errors import (
    CorruptData,
    HeadraceError,
    HubUnreachable,
    from_wire,
)
from common.log import get_logger
from common.runtime import cancel_and_wait
from common.wire.connection import WIRE_VERSIONS
from common.wire.messages import (
    CAPABILITIES,
    ORDERS,
    Cancel,
    Changes,
    Checked,
    Codec,
    Data,
    Error,
    Heartbeat,
    Hello,
    Kept,
    Message,
    Piece,
    Priority,
    Promote,
    Read,
    Reported,
    SnapshotPage,
    Stats,
)
from spoke.hub_client import sizing
from spoke.hub_client.checks import Checks
from spoke.hub_client.credentials import Credentials
from spoke.hub_client.keeper import LinkKeeper
from spoke.hub_client.links import Link
from spoke.hub_client.order_questions import OrderQuestions
from spoke.hub_client.place_order import PlaceOrder

log = get_logger(__name__)

_PATIENT_RANK = 0.5

FeedMessage = SnapshotPage | Changes | Heartbeat


class Sink(Protocol):
    """Who asked. Called on the event loop, never after ``finished`` or ``failed``."""

    def arrived(self, request: Request, data: Data) -> None: ...
    def finished(self, request: Request) -> None: ...
    def failed(self, request: Request, error: HeadraceError) -> None: ...


class FeedFollower(Protocol):
    """Who keeps the replica. ``link`` is where SUBSCRIBE goes, and what can be paused when messages pile up."""

    def feed_up(self, link: Link) -> None: ...
    def feed_message(self, link: Link, message: FeedMessage) -> None: ...
    def feed_lost(self, link: Link) -> None: ...


@dataclass(slots=True, eq=False)
class Request:
    """Blocks of one file version. ``remaining``: not received yet. ``deadline_s``: on the client's clock.

    ``patient``: demand whose order counts more than an early place in a link's queue: it waits here for a link with
    room, in the order of its place.
    ``untold``: it became demand while a link had it as prefetch, and the hub is to hear of it in its turn.
    """

    version: bytes
    ranges: Sequence[BlockRange]
    priority: Priority
    deadline_s: float | None
    sink: Sink
    remaining: list[BlockRange] = field(default_factory=list)
    link: Link | None = None
    request_id: int = 0
    sent_s: float = 0.0
    sends: int = 0
    unpacking: int = 0
    done: bool = False
    patient: bool = False
    untold: bool = False

    @property
    def rank(self) -> float:
        """Who is sent first: the lowest."""
        return self.priority + _PATIENT_RANK * self.patient


class HubClient:
    """``start()`` begins to dial; ``submit`` may be called at any time and waits for a link.

    ``bulk_links`` 0: as many as the path wants, by round trip, rate and what the kernels buffer for one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        hello: Hello,
        *,
        bulk_links: int,
        follower: FeedFollower,
        clock: Callable[[], float],
        dice: Random,
        credentials: Credentials | None = None,
    ) -> None:
        self.links = LinkKeeper(
            host, port, hello, self, bulk_links=bulk_links, clock=clock, dice=dice, credentials=credentials
        )
        """The connections, and what is known of the path."""
        self.checks = Checks()
        self.orders = OrderQuestions()
        self.between: Callable[[], None] = lambda: None
        """Called between two links that brought something: a step of the loop takes all of them, 10 to 25 ms with a dozen."""
        self._follower = follower
        self._clock = clock
        self._threads = ThreadPoolExecutor(limits.UNPACK_THREADS, "unpack")
        self._unpacking: set[asyncio.Task[None]] = set()
        self._waiting: list[tuple[float, int, int, Request]] = []
        self._places = PlaceOrder()
        self._stopped: HubUnreachable | None = None
        """What requests end with since :meth:`close` was called."""
        self._sequence = count()

    def start(self) -> None:
        self.links.start()

    async def close(self, grace_s: float | None = None) -> None:
        """Fail what is open, say GOODBYE on every link and end within about ``grace_s``."""
        error = self._stopped = HubUnreachable("the spoke stops")
        await self.links.stop_dialling()
        for link in self.links.up:
            for request in [found for found in link.requests.values() if isinstance(found, Request)]:
                self._leave_link(request)
                self._fail(request, error)
        await self.links.goodbye(str(error), grace_s)
        while self._waiting:
            self._fail(self._next_waiting(), error)
        await cancel_and_wait(*self._unpacking)
        self._threads.shutdown(cancel_futures=True)

    def send_stats(self, values: dict[str, float]) -> None:
        """Tell the hub what this spoke sees; nothing if no link is up."""
        control = self.links.control
        if control is not None:
            control.send(Stats(values))

    # --- requests ----------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Send now or as soon as a link has room. Prefetch without any link fails at once: nobody waits for it."""
        request.remaining = list(request.ranges)
        request.done = False
        if self._stopped is not None:  # a retry may come while GOODBYE is under way
            self._fail(request, self._stopped)
            return
        if request.priority is Priority.PREFETCH and not self.links.up:
            self._fail(request, HubUnreachable("no link to the hub"))
            return
        self._enqueue(request)
        self._dispatch()

    def spread(self, blocks: BlockRange) -> list[BlockRange]:
        """The parts in which to ask for what a reader waits for: small ones while the connections are young, and each
        brings little in its first round trip; then all at once."""
        if blocks.block_count <= limits.LINK_YOUNG_PIECE_BLOCKS:
            return [blocks]
        bulk = [link.received_bytes for link in self.links.up if link.role == "bulk"]
        young = sum(bulk) < limits.LINK_YOUNG_BYTES * len(bulk)
        return split(blocks, limits.LINK_YOUNG_PIECE_BLOCKS) if young else [blocks]

    def promote(self, request: Request, deadline_s: float | None) -> None:
        """Somebody now waits for this prefetch."""
        if request.done or request.priority is Priority.DEMAND:
            return
        request.priority = Priority.DEMAND
        request.deadline_s = deadline_s
        if request.link is not None:
            self._tell(request, request.link)
        elif request.remaining:  # else all of it is here and being unpacked
            self._enqueue(request)  # the older place in the queue is skipped when it comes up
            self._dispatch()

    def hurry(self, request: Request) -> None:
        """Make prefetch patient demand. The hub hears of it in the order of its place, too: told at once, it would be sent before
        what waits here and must be there earlier.
        """
        if request.done or request.priority is Priority.DEMAND or not request.remaining:
            return
        request.priority = Priority.DEMAND
        request.patient = True
        request.untold = request.link is not None
        self._enqueue(request)
        self._dispatch()

    def cancel(self, request: Request) -> None:
        """Withdraw; the sink hears no more of it."""
        if request.done:
            return
        request.done = True
        link = request.link
        if link is not None:
            self._leave_link(request)
            link.send(Cancel(), request.request_id)
            self._dispatch()

    def _enqueue(self, request: Request) -> None:
        rank = request.rank
        place = self._places.enter(request.version, request.remaining[0].first_block) if rank == _PATIENT_RANK else 0
        heapq.heappush(self._waiting, (rank, place, next(self._sequence), request))
        if request.priority is Priority.DEMAND:
            self.links.hurry()

    def _next_waiting(self) -> Request:
        rank, place, _, request = heapq.heappop(self._waiting)
        if rank == _PATIENT_RANK:
            self._places.leave(request.version, place)
        return request

    def _dispatch(self) -> None:
        while self._waiting and self._stopped is None:
            rank, _, _, request = self._waiting[0]
            if request.done or (request.link is not None and not request.untold) or rank != request.rank:
                self._next_waiting()
                continue
            link = self._choose_link(request)
            if link is None:
                return
            self._next_waiting()
            if request.link is not None:
                self._tell(request, request.link)
            else:
                self._send_read(link, request)

    def _choose_link(self, request: Request) -> Link | None:
        """Demand: the control link as long as hardly anything waits there, else whichever brings it first.
        Prefetch: the bulk link with room that brings it first."""
        control = self.links.control
        if request.priority is Priority.DEMAND and control is not None:
            most_bytes = limits.CONTROL_DEMAND_BYTES if control.requests else limits.CONTROL_ALONE_BYTES
            if control.outstanding_bytes + _byte_count(request) <= most_bytes:
                return control
        if request.priority is Priority.PREFETCH:
            return _roomiest([link for link in self.links.up if link.role == "bulk"] or self.links.up)
        open_links = [link for link in self.links.up if len(link.requests) < limits.REQUESTS_MAX_OUTSTANDING]
        if not open_links:
            return None
        bulk = [link for link in open_links if link.role == "bulk"] or open_links
        if request.patient:
            # Prefetch takes no room from it: the hub sends it afterwards.
            freest = min(bulk, key=lambda link: sizing.wait_of(link.demand_bytes, link.received_bytes))
            most_bytes = sizing.enough_in_flight_bytes(self.links.rtt_s, self.links.rate_bytes_per_s, len(bulk))
            return freest if freest.demand_bytes < most_bytes else None
        if _byte_count(request) <= limits.SMALL_DEMAND_BYTES:
            return min(open_links, key=lambda link: link.outstanding_bytes)
        return min(bulk, key=_wait_of)

    def _tell(self, request: Request, link: Link) -> None:
        """The hub hears that somebody waits for what it has as prefetch."""
        request.untold = False
        link.demand_bytes += _byte_count(request)
        link.send(Promote(Priority.DEMAND, self._deadline_ms(request)), request.request_id)

    def _send_read(self, link: Link, request: Request) -> None:
        request.link = link
        request.untold = False
        request.request_id = link.new_request_id()
        request.sent_s = self._clock()
        request.sends += 1
        link.requests[request.request_id] = request
        link.outstanding_bytes += _byte_count(request)
        if request.priority is Priority.DEMAND:
            link.demand_bytes += _byte_count(request)
        link.send(
            Read(request.version, tuple(request.remaining), request.priority, self._deadline_ms(request)),
            request.request_id,
        )

    def _deadline_ms(self, request: Request) -> int:
        if request.deadline_s is None:
            return 0
        return max(1, int((request.deadline_s - self._clock()) * 1000))

    def _leave_link(self, request: Request) -> None:
        link = request.link
        if link is not None:
            link.requests.pop(request.request_id, None)
            self._less_outstanding(link, request, _byte_count(request))
            request.link = None
            request.untold = False

    def _less_outstanding(self, link: Link, request: Request, size_bytes: int) -> None:
        link.outstanding_bytes -= size_bytes
        if request.priority is Priority.DEMAND and not request.untold:
            link.demand_bytes -= size_bytes

    def _fail(self, request: Request, error: HeadraceError) -> None:
        if not request.done:
            request.done = True
            request.sink.failed(request, error)

    # --- Traffic -----------------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        self.orders.link_up(link)
        if link.role == "control":
            self.checks.link_up(link)
            self._follower.feed_up(link)
        self._dispatch()

    def is_waited_for(self) -> bool:
        return any(request.priority is Priority.DEMAND for *_, request in self._waiting)

    def link_message(self, link: Link, request_id: int, message: Message) -> None:
        if isinstance(message, (SnapshotPage, Changes, Heartbeat)):
            self._follower.feed_message(link, message)
            return
        if isinstance(message, Checked):
            self.checks.answered(message)
            return
        if isinstance(message, (Reported, Kept, Piece)):
            self.orders.answered(link, message)
            return
        request = link.requests.get(request_id)
        if not isinstance(request, Request):
            return  # withdrawn meanwhile
        if isinstance(message, Data):
            self._take_data(link, request, message)
        elif isinstance(message, Error):
            self._leave_link(request)
            self._fail(request, from_wire(message.code, message.message))
            self._dispatch()

    def _take_data(self, link: Link, request: Request, data: Data) -> None:
        """The wire has checked that these blocks were asked for and not sent before."""
        before_bytes = _byte_count(request)
        request.remaining = subtract(request.remaining, data.blocks)
        self._less_outstanding(link, request, before_bytes - _byte_count(request))
        if data.last:
            self._leave_link(request)
        self.links.measure()
        if data.codec is Codec.RAW:
            request.sink.arrived(request, data)
        else:
            request.unpacking += 1
            task = asyncio.create_task(self._unpack(request, data), name="unpack")
            self._unpacking.add(task)
            task.add_done_callback(self._unpacking.discard)
        self._end_if_whole(request)
        self._dispatch()

    async def _unpack(self, request: Request, data: Data) -> None:
        """Decompress off the loop. What does not come out right has not arrived: the sink sees it missing at the end."""
        loop = asyncio.get_running_loop()
        try:
            raw = await loop.run_in_executor(self._threads, codec.unpack, data.codec, data.payload, data.raw_bytes)
        except CorruptData as error:
            log.debug("data from the hub cannot be unpacked", version=request.version.hex(), error=str(error))
            if not request.done:  # as wrong bytes: counted, told of and asked for again
                request.sink.arrived(request, replace(data, codec=Codec.RAW, payload=b""))
        else:
            if not request.done:
                request.sink.arrived(request, replace(data, codec=Codec.RAW, payload=raw))
        finally:
            request.unpacking -= 1
            self._end_if_whole(request)

    def _end_if_whole(self, request: Request) -> None:
        if not request.remaining and not request.unpacking and not request.done:
            request.done = True
            request.sink.finished(request)

    def link_taken(self) -> None:
        self.between()

    def link_closed(self, link: Link, error: HeadraceError) -> None:
        if not self.links.lost(link, error):
            return
        self.orders.link_lost(link)
        if link.role == "control":
            self.checks.link_lost(link)
            self._follower.feed_lost(link)
        stranded = [request for request in link.requests.values() if isinstance(request, Request)]
        for request in stranded:
            self._leave_link(request)
            if request.priority is Priority.DEMAND or self.links.up:
                self._enqueue(request)
            else:
                self._fail(request, error)
        self._dispatch()


def _wait_of(link: Link) -> float:
    return sizing.wait_of(link.outstanding_bytes, link.received_bytes)


def _roomiest(links: list[Link]) -> Link | None:
    """The first with the least wait of those that have room, asked for with each extent; nothing waits less than where nothing waits."""
    best, least, least_bytes = None, math.inf, math.inf
    for link in links:
        outstanding_bytes = link.outstanding_bytes
        if not outstanding_bytes:
            return link
        if outstanding_bytes >= least_bytes or len(link.requests) >= limits.REQUESTS_MAX_OUTSTANDING:
            continue
        if outstanding_bytes < sizing.most_outstanding_bytes(link.received_bytes):
            wait = sizing.wait_of(outstanding_bytes, link.received_bytes)
            if wait < least:
                best, least = link, wait
                least_bytes = wait * limits.LINK_GROWN_BYTES  # so much waits as long where least does
    return best


def _byte_count(request: Request) -> int:
    count = 0
    for _, block_count in request.remaining:
        count += block_count
    return count * BLOCK_BYTES


def make_hello(
    dataset: str, identity: str, spoke_id: bytes, *, compression: bool = True, share_orders: bool = False
) -> Hello:
    """The HELLO this spoke sends on each of its links. ``compression``: offer the codecs we can unpack."""
    codecs = codec.SUPPORTED if compression else (Codec.RAW,)
    capabilities = tuple(name for name in CAPABILITIES if share_orders or name != ORDERS)
    return Hello(WIRE_VERSIONS, dataset, identity, spoke_id, codecs=codecs, capabilities=capabilities)
