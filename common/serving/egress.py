"""From the scheduler's decision to the socket: reads extents from their source and hands them to their connection.

Owns the scheduler, the open reads and the one timer that pacing and deadlines need. All connections of a server
share one egress, since the rate, the disk and the fairness are shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from common.digest import DIGEST_BYTES
from common.errors import Cancelled, DeadlineExceeded, HeadraceError
from common.log import get_logger
from common.serving.observer import Observer
from common.serving.packing_choice import PackingChoice
from common.serving.requests import Pick, Request
from common.serving.scheduler import Scheduler
from common.serving.source import BlockSource, Extent
from common.wire.messages import Codec, Data, Priority

log = get_logger(__name__)


class Packed(NamedTuple):
    """An extent as it will travel."""

    extent: Extent
    codec: Codec
    payload: bytes | bytearray | memoryview

    def message(self, *, last: bool) -> Data:
        extent = self.extent
        return Data(extent.blocks, self.codec, len(extent.data), extent.digests, last, self.payload)


Pack = Callable[[bytes, Extent, "Link"], Awaitable[Packed]]
"""Given a version, its extent and the connection it goes to: chooses among the codecs agreed on, and packs."""


async def pack_raw(_version: bytes, extent: Extent, _link: Link) -> Packed:
    return Packed(extent, Codec.RAW, extent.data)


def _check_extent(extent: Extent, pick: Pick) -> None:
    """A source that breaks its contract fails the one READ, not the connection that would refuse to send it."""
    block_count = pick.blocks.block_count
    short_bytes = pick.size_bytes - len(extent.data)
    assert extent.blocks == pick.blocks, f"{extent.blocks} came for {pick.blocks}"
    assert 0 <= short_bytes < BLOCK_BYTES, f"{len(extent.data)} bytes came for {block_count} blocks"
    assert len(extent.digests) == block_count * DIGEST_BYTES, "as many digests as blocks"


class Link(Protocol):
    """What the egress needs of a connection."""

    @property
    def link_id(self) -> int: ...
    @property
    def source(self) -> BlockSource: ...
    @property
    def codecs(self) -> Sequence[Codec]: ...
    @property
    def waiting_bytes(self) -> int:
        """Bytes ready to go that the socket has not taken yet."""
        ...

    @property
    def packing(self) -> PackingChoice | None:
        """What is known of its path; None: nothing will be."""
        ...

    def stage(self, pick: Pick, packed: Packed) -> None:
        """Take an extent that is ready; when it is written, call ``Scheduler.finished`` through :meth:`Egress.sent`."""

    def refuse(self, request_id: int, error: HeadraceError) -> None:
        """Answer a READ with ERROR and forget what is staged for it."""


class Egress:
    """``close`` cancels and awaits every open read. Not for use from several threads."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        observer: Observer,
        pack: Pack = pack_raw,
    ) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._observer = observer
        self._pack = pack
        self._links: dict[int, Link] = {}
        self._reading: dict[Pick, asyncio.Task[None]] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._pump_scheduled = False
        self._closed = False

    # --- links ---------------------------------------------------------------------------------------------

    def attach(self, link: Link, spoke_id: bytes, weight: float, address: str) -> None:
        """``address``: of the peer, without port; spokes behind one share the pace of its path."""
        self.scheduler.add_link(link.link_id, spoke_id, weight, address)
        self._links[link.link_id] = link

    def detach(self, link: Link) -> None:
        """The connection is gone: so are its READs."""
        if self._links.pop(link.link_id, None) is not None:
            self._abandon(self.scheduler.remove_link(link.link_id))
            self.pump()

    def limit_total(self, rate_bytes_per_s: float | None) -> None:
        """All connections together leave no faster from now on; None: no limit."""
        self.scheduler.limit_total(self._clock(), rate_bytes_per_s)
        if self._timer is not None:  # set for a moment of the former rate
            self._timer.cancel()
            self._timer = None
        self.pump_soon()

    # --- requests ------------------------------------------------------------------------------------------

    def submit(
        self,
        link: Link,
        request_id: int,
        version: bytes,
        ranges: Sequence[BlockRange],
        priority: Priority,
        deadline_ms: int,
    ) -> None:
        """Queue a READ; ``pump`` starts it. Raises Overloaded."""
        now_s = self._clock()
        deadline_s = now_s + deadline_ms / 1000 if deadline_ms else None
        self.scheduler.submit(now_s, link.link_id, request_id, version, ranges, priority, deadline_s)

    def promote(self, link: Link, request_id: int, priority: Priority, deadline_ms: int) -> Request | None:
        deadline_s = self._clock() + deadline_ms / 1000 if deadline_ms else None
        return self.scheduler.promote(link.link_id, request_id, priority, deadline_s)

    def end(self, link: Link, request_id: int) -> bool:
        """End a READ early; False when it was over already. The caller answers it."""
        picks = self.scheduler.end(link.link_id, request_id)
        if picks is None:
            return False
        self._abandon(picks)
        return True

    def sent(self, pick: Pick, wire_bytes: int, *, last: bool) -> None:
        """A connection has handed ``pick`` to its socket."""
        self.scheduler.finished(pick, wire_bytes)
        self.pump_soon()
        if last:
            self._observer.read_done(pick.request.priority, self._clock() - pick.request.submitted_s)

    # --- the pump -------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Start what may start. Call it after anything that could allow more."""
        self._pump_scheduled = False
        if self._closed:
            return
        now_s = self._clock()
        for request in self.scheduler.expired(now_s):
            waited_s = now_s - request.submitted_s
            self._fail(request, DeadlineExceeded(f"not served within its {waited_s:.3f} s"))
        for _ in range(limits.PUMP_PICKS):
            pick = self.scheduler.next(now_s)
            if pick is None:
                break
            task = asyncio.create_task(self._read(pick), name="serving read")
            self._reading[pick] = task
        else:
            self.pump_soon()
        self._arm(now_s)

    def pump_soon(self) -> None:
        """``pump`` once for all that happens in this step of the loop."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self.pump)

    def _arm(self, now_s: float) -> None:
        wake_s = self.scheduler.wake_at(now_s)
        if self._timer is not None:
            if wake_s is not None and self._timer_at_s <= wake_s:
                return  # it will look again by then
            self._timer.cancel()
            self._timer = None
        if wake_s is not None:
            self._timer_at_s = wake_s
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_s - now_s), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.pump()

    async def _read(self, pick: Pick) -> None:
        request = pick.request
        link = self._links[request.link_id]
        try:
            extent = await link.source.read_extent(request.version, pick.blocks)
            _check_extent(extent, pick)
            packed = await self._pack(request.version, extent, link)
        except asyncio.CancelledError:
            if self._reading.pop(pick, None) is None:
                raise  # abandoned: nobody waits for it
            # The source gave up by itself (it is closing down): somebody still waits for an answer.
            self._fail(request, Cancelled("the source was closed while it read"))
        except HeadraceError as error:
            del self._reading[pick]
            self._fail(request, error)
        except Exception:
            log.exception("reading from the source failed in an unforeseen way", version=request.version.hex())
            del self._reading[pick]
            self._fail(request, HeadraceError("internal error while reading; the server's log has the details"))
        else:
            del self._reading[pick]
            self.scheduler.loaded(pick)
            if pick.live:
                link.stage(pick, packed)
        self.pump_soon()

    def _fail(self, request: Request, error: HeadraceError) -> None:
        picks = self.scheduler.end(request.link_id, request.request_id)
        if picks is not None:  # several extents of one READ may fail; it is answered once
            self._abandon(picks)
            self._observer.refused(error.wire_code)
            self._links[request.link_id].refuse(request.request_id, error)

    def _abandon(self, picks: Sequence[Pick]) -> None:
        for pick in picks:
            task = self._reading.pop(pick, None)
            if task is not None and task is not asyncio.current_task():
                self._abandoned.add(task)
                task.add_done_callback(self._abandoned.discard)
                task.cancel()

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = [*self._reading.values(), *self._abandoned]
        for task in tasks:
            task.cancel()
        self._reading.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
