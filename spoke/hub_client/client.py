"""The spoke's side of the wire: keeps the links up, carries requests over them, follows the change stream.

One control link carries the feed and demand reads; bulk links carry prefetch (and demand when they are freer).
A request outlives the link it went out on: when that link dies, what has not arrived is asked for on another.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Protocol

from common import codec, limits
from common.backoff import Backoff
from common.blocks import BLOCK_BYTES, BlockRange, split, subtract
from common.errors import CorruptData, HeadraceError, HubUnreachable, PeerError, UsageError, from_wire
from common.log import get_logger
from common.runtime import cancel_and_wait
from common.wire.connection import WIRE_VERSIONS
from common.wire.messages import (
    CAPABILITIES,
    Cancel,
    Changes,
    Checked,
    Codec,
    Data,
    Error,
    Heartbeat,
    Hello,
    Message,
    Priority,
    Promote,
    Read,
    SnapshotPage,
    Stats,
    Welcome,
)
from spoke.hub_client import sizing
from spoke.hub_client.addresses import Addresses
from spoke.hub_client.checks import Checks
from spoke.hub_client.links import Link

log = get_logger(__name__)

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
    """Blocks of one file version. ``remaining``: not received yet. ``deadline_s``: on the client's clock."""

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
    ) -> None:
        self._host = host
        self._port = port
        self._addresses = Addresses(host, port)
        self._hello = hello
        self._bulk_links = bulk_links
        self._receive_buffer_bytes = sizing.receive_buffer_bytes()
        self._follower = follower
        self._clock = clock
        self._dice = dice
        self.checks = Checks()
        self._threads = ThreadPoolExecutor(limits.UNPACK_THREADS, "unpack")
        self._unpacking: set[asyncio.Task[None]] = set()
        self._links: list[Link] = []
        self._waiting: list[tuple[int, int, Request]] = []
        self._sequence = count()
        self._keepers: list[asyncio.Task[None]] = []
        self._liveness: asyncio.Task[None] | None = None
        self._link_gone: dict[Link, asyncio.Event] = {}
        self._contact: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rtt_s: float | None = None
        self._arrivals = _RateMeter()
        self._measured_s = clock()
        self._looked_at_s = clock()
        self._looked_at: dict[Link, int] = {}
        self._closing = False
        self._waited_for = asyncio.Event()
        self._told_no_link = False
        self._lost: list[str] = []
        self._tell_lost: asyncio.TimerHandle | None = None
        self.away_since_s: float | None = clock()
        """Since when there has been no link at all; None while there is one."""
        self._was_away_s = 0.0
        self.last_error: HeadraceError | None = None
        self.dials_total = 0
        self._closed_links_bytes = 0

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._keepers.append(asyncio.create_task(self._keep_link("control"), name="hub link 0 (control)"))
        self._keep_bulk_links(self._bulk_links or limits.BULK_LINKS_MIN)
        self._liveness = asyncio.create_task(self._check_links(), name="hub link liveness")

    def _keep_bulk_links(self, wanted: int) -> None:
        """Never fewer than before: one that carries nothing costs nothing."""
        for number in range(len(self._keepers), wanted + 1):
            self._keepers.append(asyncio.create_task(self._keep_link("bulk"), name=f"hub link {number} (bulk)"))

    def _fit_links(self) -> None:
        """Open more when the path holds more than those there are can carry."""
        welcome = self.welcome
        if self._bulk_links or self._rtt_s is None or welcome is None:
            return
        window_bytes = sizing.window_bytes(self._receive_buffer_bytes, welcome.send_buffer_bytes)
        wanted = sizing.wanted_links(self._rtt_s, self.rate_bytes_per_s, window_bytes)
        if wanted >= len(self._keepers):
            log.info("more links for this path", links=wanted, rtt_s=round(self._rtt_s, 4), window_bytes=window_bytes)
            self._keep_bulk_links(wanted)

    async def first_contact(self, timeout_s: float) -> None:
        """Return once the hub has welcomed us; raises what it answered, or HubUnreachable after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._contact)
        except TimeoutError:
            raise HubUnreachable(
                f"no hub within {timeout_s:g} s; the last try said: {self.last_error or 'no answer yet'}"
            ) from None

    async def close(self) -> None:
        """Fail what is open, say GOODBYE on every link and end within about CLOSE_GRACE_S."""
        self._closing = True
        error = HubUnreachable("the spoke stops")
        if self._tell_lost is not None:
            self._tell_lost.cancel()
        await cancel_and_wait(self._liveness, *self._keepers)
        for link in self._links:
            for request in [found for found in link.requests.values() if isinstance(found, Request)]:
                self._leave_link(request)
                self._fail(request, error)
        await asyncio.gather(*(link.goodbye(str(error)) for link in list(self._links)))
        while self._waiting:
            self._fail(heapq.heappop(self._waiting)[2], error)
        await cancel_and_wait(*self._unpacking)
        self._threads.shutdown(cancel_futures=True)

    async def _keep_link(self, role: str) -> None:
        """Dial, serve until the link is gone, back off, again: for ever."""
        backoff = Backoff(limits.REDIAL_FIRST_S, limits.REDIAL_CAP_S)
        while True:
            link = Link(role, self._hello, self, self._clock)
            gone = self._link_gone[link] = asyncio.Event()
            try:
                self.dials_total += 1
                address = await self._addresses.find()
                try:
                    await link.open(address)
                except HubUnreachable:
                    self._addresses.failed(address)
                    raise
                backoff.reset()
                self._link_up(link)
                await gone.wait()
            except HeadraceError as error:
                self._note_failure(role, error)
            finally:
                if not (self._closing and link.is_open):  # else close() still has to say goodbye on it
                    link.close(HubUnreachable("the spoke dropped the link"))
                self._link_gone.pop(link, None)
            await self._pause(backoff.next_delay_s(self._dice))

    async def _pause(self, delay_s: float) -> None:
        """Between two dials; cut short when a reader begins to wait meanwhile."""
        ended_s = self._clock() + delay_s
        if not self._is_waited_for:
            self._waited_for.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._waited_for.wait()
        await asyncio.sleep(min(ended_s - self._clock(), limits.REDIAL_WAITED_FOR_S * self._dice.uniform(0.5, 1.0)))

    @property
    def _is_waited_for(self) -> bool:
        """A reader waits, and there is no link on which to ask."""
        return not self._links and any(request.priority is Priority.DEMAND for _, _, request in self._waiting)

    def _note_failure(self, role: str, error: HeadraceError) -> None:
        self.last_error = error
        if role == "control" and not self._told_no_link:
            self._told_no_link = True  # once for each time that there is none
            log.warning("no link to the hub; dialling goes on", hub=f"{self._host}:{self._port}", error=str(error))
        if isinstance(error, (UsageError, PeerError)) and not error.retryable and not self._contact.done():
            self._contact.set_exception(error)
            self._contact.exception()  # retrieved: nobody need be waiting

    async def _check_links(self) -> None:
        while True:
            await asyncio.sleep(limits.LINK_CHECK_INTERVAL_S)
            now_s = self._clock()
            for link in list(self._links):
                link.check_alive(now_s)
            self._drop_laggards(now_s)
            measured = [link.rtt_s for link in self._links if link.rtt_s is not None]
            if measured:
                # Queues only ever add: the least of the links, eased upwards by 5 % a second when the path changes.
                least_s = min(measured)
                self._rtt_s = least_s if self._rtt_s is None else min(least_s, self._rtt_s * 1.05)
            self._measure_rate()
            self._fit_links()

    def _measure_rate(self) -> None:
        """Once a round trip while bytes arrive: what may be asked for grows with it, and a long path must not wait for a clock."""
        now_s = self._clock()
        if now_s - self._measured_s >= max(limits.RATE_SAMPLE_S, self._rtt_s or 0.0):
            self._measured_s = now_s
            self._arrivals.tick(now_s, self.wire_bytes_total)

    def _drop_laggards(self, now_s: float) -> None:
        """A link that does not keep up with the others is dialled anew, and what it owed comes over the others.

        Silence is one sign (a broken path); the other is a READ that waits many times as long as they do elsewhere.
        """
        rtt_s = self._rtt_s or 0.0
        elapsed_s = now_s - self._looked_at_s
        moved = {link: link.received_bytes - self._looked_at.get(link, 0) for link in self._links}
        self._looked_at_s, self._looked_at = now_s, {link: link.received_bytes for link in self._links}
        busy = [link for link in self._links if link.requests]
        all_rate = sum(moved.values()) / elapsed_s if elapsed_s > 0 else 0.0
        for link, moved_bytes in moved.items():
            link.rate_bytes_per_s = moved_bytes / elapsed_s if elapsed_s > 0 else 0.0
        outstanding_bytes = sum(link.outstanding_bytes for link in busy)
        for link in list(self._links):
            heard_s = [other.last_heard_s for other in self._links if other is not link]
            others_quiet_s = now_s - max(heard_s, default=float("-inf"))
            oldest = next(iter(link.requests.values()), None)
            if link.is_waiting and sizing.is_stalled(now_s - link.last_heard_s, rtt_s, others_quiet_s):
                link.close(HubUnreachable(f"silent for {now_s - link.last_heard_s:.1f} s while other links are not"))
            elif isinstance(oldest, Request) and sizing.lags(
                age_s=now_s - oldest.sent_s,
                rate_bytes_per_s=moved[link] / elapsed_s if elapsed_s > 0 else 0.0,
                all_rate_bytes_per_s=all_rate,
                links=len(busy),
                outstanding_bytes=outstanding_bytes,
                rtt_s=rtt_s,
                link_age_s=now_s - (link.dialled_s or now_s),
            ):
                link.close(HubUnreachable("it lags far behind the other links"))

    # --- what others ask ---------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """The control link is up (the feed flows)."""
        return any(link.role == "control" and link.is_open for link in self._links)

    def in_words(self) -> str:
        """How it stands with the hub, for the log and for ``status``."""
        if self.away_since_s is not None:
            return f"no link for {self._clock() - self.away_since_s:.0f} s: {self.last_error or 'no answer yet'}"
        quiet_s = self._clock() - max((link.last_heard_s for link in self._links), default=self._clock())
        return f"{len(self._links)} links, last heard {quiet_s:.1f} s ago"

    @property
    def welcome(self) -> Welcome | None:
        return next((link.welcome for link in self._links if link.welcome is not None), None)

    @property
    def link_count(self) -> int:
        return len(self._links)

    @property
    def rtt_s(self) -> float | None:
        """Round trip to the hub without queues, None before the first answer."""
        return self._rtt_s

    @property
    def wire_bytes_total(self) -> int:
        """All bytes received from the hub: data, names, framing."""
        return self._closed_links_bytes + sum(link.received_bytes for link in self._links)

    @property
    def rate_bytes_per_s(self) -> float:
        """The best rate of arrivals lately (0 before anything came)."""
        return self._arrivals.best_bytes_per_s

    def links(self) -> list[Mapping[str, object]]:
        """Facts of each link, for ``status``."""
        return [
            {
                "role": link.role,
                "rtt_s": link.rtt_s,
                "received_bytes": link.received_bytes,
                "outstanding_bytes": link.outstanding_bytes,
                "requests": len(link.requests),
            }
            for link in self._links
        ]

    def send_stats(self, values: dict[str, float]) -> None:
        """Tell the hub what this spoke sees; nothing if no link is up."""
        control = self._open_link("control")
        if control is not None:
            control.send(Stats(values))

    # --- requests ----------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Send now or as soon as a link has room. Prefetch without any link fails at once: nobody waits for it."""
        request.remaining = list(request.ranges)
        request.done = False
        if request.priority is Priority.PREFETCH and not self._links:
            self._fail(request, HubUnreachable("no link to the hub"))
            return
        self._enqueue(request)
        self._dispatch()

    def spread(self, blocks: BlockRange) -> list[BlockRange]:
        """The parts in which to ask for what a reader waits for: small ones while the connections are young, and each
        brings little in its first round trip; then all at once."""
        bulk = [link.received_bytes for link in self._links if link.role == "bulk"]
        young = sum(bulk) < limits.LINK_YOUNG_BYTES * len(bulk)
        return split(blocks, limits.LINK_YOUNG_PIECE_BLOCKS) if young else [blocks]

    def promote(self, request: Request, deadline_s: float | None) -> None:
        """Somebody now waits for this prefetch."""
        if request.done or request.priority is Priority.DEMAND:
            return
        request.priority = Priority.DEMAND
        request.deadline_s = deadline_s
        if request.link is not None:
            request.link.send(Promote(Priority.DEMAND, self._deadline_ms(request)), request.request_id)
        elif request.remaining:  # else all of it is here and being unpacked
            self._enqueue(request)  # the older place in the queue is skipped when it comes up
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
        heapq.heappush(self._waiting, (request.priority, next(self._sequence), request))
        if not self._links and request.priority is Priority.DEMAND:
            self._waited_for.set()

    def _dispatch(self) -> None:
        while self._waiting:
            priority, _, request = self._waiting[0]
            if request.done or request.link is not None or priority != request.priority:
                heapq.heappop(self._waiting)
                continue
            link = self._choose_link(request)
            if link is None:
                return
            heapq.heappop(self._waiting)
            self._send_read(link, request)

    def _choose_link(self, request: Request) -> Link | None:
        """Demand: the control link unless a bulk link is much freer. Prefetch: the freest bulk link with room."""
        open_links = [link for link in self._links if len(link.requests) < limits.REQUESTS_MAX_OUTSTANDING]
        if not open_links:
            return None
        if request.priority is Priority.DEMAND:
            return min(open_links, key=lambda link: (link.outstanding_bytes, link.role != "control"))
        bulk = [link for link in open_links if link.role == "bulk"] or open_links
        roomy = [link for link in bulk if link.outstanding_bytes < sizing.most_outstanding_bytes(link.received_bytes)]
        return min(roomy, key=lambda link: link.outstanding_bytes, default=None)

    def _send_read(self, link: Link, request: Request) -> None:
        request.link = link
        request.request_id = link.new_request_id()
        request.sent_s = self._clock()
        request.sends += 1
        link.requests[request.request_id] = request
        link.outstanding_bytes += _byte_count(request)
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
            link.outstanding_bytes -= _byte_count(request)
            request.link = None

    def _fail(self, request: Request, error: HeadraceError) -> None:
        if not request.done:
            request.done = True
            request.sink.failed(request, error)

    # --- LinkOwner ---------------------------------------------------------------------------------------

    def _link_up(self, link: Link) -> None:
        self._links.append(link)
        self._waited_for.clear()
        if self.away_since_s is not None:
            self._was_away_s, self.away_since_s = self._clock() - self.away_since_s, None
        self.last_error = None
        if link.rtt_s is not None and (self._rtt_s is None or link.rtt_s < self._rtt_s):
            self._rtt_s = link.rtt_s
            self._fit_links()
        if not self._contact.done():
            self._contact.set_result(None)
        if link.role == "control":
            self._told_no_link = False
            log.info("linked to the hub", hub=f"{self._host}:{self._port}", dataset=self._hello.dataset,
                     away_s=round(self._was_away_s, 1))  # fmt: skip
            self.checks.link_up(link)
            self._follower.feed_up(link)
        self._dispatch()

    def link_message(self, link: Link, request_id: int, message: Message) -> None:
        if isinstance(message, (SnapshotPage, Changes, Heartbeat)):
            self._follower.feed_message(link, message)
            return
        if isinstance(message, Checked):
            self.checks.answered(message)
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
        link.outstanding_bytes -= before_bytes - _byte_count(request)
        if data.last:
            self._leave_link(request)
        self._measure_rate()
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

    def link_closed(self, link: Link, error: HeadraceError) -> None:
        gone = self._link_gone.get(link)
        if gone is not None:
            gone.set()
        if link not in self._links:
            return
        self._links.remove(link)
        self._closed_links_bytes += link.received_bytes
        self.last_error = error
        if not self._links:
            self.away_since_s = self._clock()
        self._note_loss(link, error)
        if link.role == "control":
            self.checks.link_lost(link)
            self._follower.feed_lost(link)
        stranded = [request for request in link.requests.values() if isinstance(request, Request)]
        for request in stranded:
            self._leave_link(request)
            if request.priority is Priority.DEMAND or self._links:
                self._enqueue(request)
            else:
                self._fail(request, error)
        self._dispatch()

    def _note_loss(self, link: Link, error: HeadraceError) -> None:
        """Those that are lost together make one line."""
        if self._closing:
            return
        self._lost.append(f"{link.role}: {error}")
        if self._tell_lost is None:
            loop = asyncio.get_running_loop()
            self._tell_lost = loop.call_later(limits.LINKS_LOST_TOLD_AFTER_S, self._say_lost)

    def _say_lost(self) -> None:
        lost, self._lost, self._tell_lost = self._lost, [], None
        log.warning("links to the hub lost", lost=len(lost), left=len(self._links), error=lost[0])

    def _open_link(self, role: str) -> Link | None:
        return next((link for link in self._links if link.role == role and link.is_open), None)


class _RateMeter:
    """The best arrival rate, forgotten by 2 % a second so that a slower path shows within a minute."""

    def __init__(self) -> None:
        self.best_bytes_per_s = 0.0
        self._last_s: float | None = None
        self._last_bytes = 0

    def tick(self, now_s: float, received_bytes: int) -> None:
        if self._last_s is not None and now_s > self._last_s:
            elapsed_s = now_s - self._last_s
            seen = (received_bytes - self._last_bytes) / elapsed_s
            self.best_bytes_per_s = max(seen, self.best_bytes_per_s * 0.98**elapsed_s)
        self._last_s = now_s
        self._last_bytes = received_bytes


def _byte_count(request: Request) -> int:
    return sum(blocks.block_count for blocks in request.remaining) * BLOCK_BYTES


def make_hello(dataset: str, identity: str, spoke_id: bytes, *, compression: bool = True) -> Hello:
    """The HELLO this spoke sends on each of its links. ``compression``: offer the codecs we can unpack."""
    codecs = codec.SUPPORTED if compression else (Codec.RAW,)
    return Hello(WIRE_VERSIONS, dataset, identity, spoke_id, codecs=codecs, capabilities=CAPABILITIES)
