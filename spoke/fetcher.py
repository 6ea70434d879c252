"""Blocks from the hub, to those who wait and into the cache: one fetch a block.

Arrow: client → digest check → readers → cache. Readers get the bytes as they land, before the disk has them; a cache
that cannot write only costs the next reader another fetch, softened by a small memory of landed flights.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from common import backoff, limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange, byte_length, coalesce, intersection, split
from common.digest import first_mismatch
from common.errors import (
    CacheWriteError,
    CorruptData,
    DeadlineExceeded,
    HeadraceError,
    HubUnreachable,
    Overloaded,
    SourceReadError,
)
from common.log import get_logger
from common.runtime import cancel_and_wait
from common.wire.messages import Data, Priority
from spoke.cache.store import Store
from spoke.hub_client.client import HubClient, Request
from spoke.hub_client.single_flight import Flight, Flights, Landed, Want
from spoke.insight.history import History, What
from spoke.landed_runs import LandedRuns
from spoke.memory import MemoryBudget
from spoke.recent import Recent

log = get_logger(__name__)


class FetchObserver(Protocol):
    """Who learns from arrivals: the prefetcher and the metrics."""

    def arrived(self, version: bytes, blocks: BlockRange, raw_bytes: int) -> None: ...
    def failed(self, version: bytes, blocks: BlockRange) -> None: ...
    def corrupt_on_wire(self, version: bytes, block: int) -> None: ...


class Fetcher:
    """``demand`` for a reader that waits, ``prefetch`` for nobody yet; ``start()`` and ``close()`` own the writers."""

    def __init__(
        self,
        client: HubClient,
        store: Store,
        observer: FetchObserver,
        clock: Callable[[], float],
        dice: Random,
        memory: MemoryBudget | None = None,
    ) -> None:
        self.memory = memory if memory is not None else MemoryBudget()
        self.on_behind: Callable[[bool], None] = lambda is_behind: None
        """Told when what arrives is more than the disk takes, and when that is over."""
        self._client = client
        self._store = store
        self._observer = observer
        self._clock = clock
        self._dice = dice
        self._flights = Flights()
        self.history = History()
        self.recent = Recent(self.memory.recent_bytes)
        self._landed = LandedRuns()
        self._something_to_write = asyncio.Event()
        self._gathering = asyncio.Lock()
        self._unwritten_count = 0
        self._nothing_unwritten = asyncio.Event()
        self._nothing_unwritten.set()
        self.tasks: list[asyncio.Task[None]] = []
        self._retries: dict[Flight, asyncio.TimerHandle] = {}
        self._kept: OrderedDict[Flight, int] = OrderedDict()
        self._kept_bytes = 0
        self.prefetch_outstanding_bytes = 0
        """Asked for with nobody waiting, and not landed."""
        self.write_backlog_bytes = 0
        """Landed, and not yet in the cache."""
        self.skipped_bytes_total = 0
        """Landed, and never written: the cache disk was too far behind."""
        self._behind = False
        self._said_behind_s = float("-inf")
        self.complain: Callable[[bytes, int, int], None] | None = None
        """Told of (version, block, tries) that came with the wrong bytes."""

    def start(self) -> None:
        self.tasks = [
            asyncio.create_task(self._write_landed(), name=f"cache writer {number}")
            for number in range(limits.CACHE_WRITERS)
        ]

    async def close(self) -> None:
        """Let what has landed reach the cache (for a bounded time), then fail who still waits."""
        if self.tasks:
            try:
                async with asyncio.timeout(limits.CACHE_DRAIN_TIMEOUT_S):
                    await self.written()
            except TimeoutError:
                log.warning("cache writes given up at stop", bytes=self.write_backlog_bytes)
        await cancel_and_wait(*self.tasks)
        for flight in self._flights:
            self._end(flight, HubUnreachable("the spoke stops"))

    @property
    def held_bytes(self) -> int:
        """Asked for, or arrived and not let go yet."""
        return self._flights.held_bytes

    @property
    def is_behind(self) -> bool:
        """What arrives is more than the disk takes: some of it is only kept for a while."""
        return self._behind

    @property
    def landed_bytes(self) -> int:
        """Arrived whole, and on the way to the disk or kept in its stead."""
        return self.write_backlog_bytes + self._kept_bytes

    async def written(self) -> None:
        """Return once all that has landed was handed to the cache."""
        await self._nothing_unwritten.wait()

    # --- asking ------------------------------------------------------------------------------------------

    def demand(
        self,
        version: bytes,
        size_bytes: int,
        want: Want,
        missing: Sequence[BlockRange],
        *,
        priority: Priority = Priority.DEMAND,
        deadline_s: float | None = None,
    ) -> bool:
        """Make ``want`` wait for the ``missing`` blocks; True if others had asked for all of them already.

        ``want.done`` may be called before this returns.
        """
        want.expect(missing)
        joined_all = True
        for blocks in missing:
            joined, gaps = self._flights.plan(version, blocks)
            for flight in joined:
                self._join(flight, want, priority, deadline_s)
            for gap in gaps:
                joined_all = False
                for part in self._client.spread(gap):
                    ahead = priority is Priority.PREFETCH
                    flight = Flight(version, size_bytes, part, prefetched=ahead, to_keep=ahead)
                    flight.join(want)
                    self._launch(flight, priority, deadline_s)
        return joined_all

    def prefetch(
        self, version: bytes, size_bytes: int, blocks: BlockRange, why: int = 0, *, to_keep: bool = True
    ) -> int:
        """Ask for what is neither cached nor under way; returns the bytes asked for.

        ``why``: a number for ``explain``. ``to_keep``: for the cache, even if no reader is foretold; else for a reader who may be the last.
        """
        asked_bytes = 0
        for missing in self._store.missing(version, size_bytes, blocks):
            for gap in self._flights.plan(version, missing)[1]:
                asked_bytes += byte_length(gap, size_bytes)
                flight = Flight(version, size_bytes, gap, prefetched=True, to_keep=to_keep)
                self._launch(flight, Priority.PREFETCH, None, why)
        return asked_bytes

    def expedite(self, version: bytes, size_bytes: int, blocks: BlockRange, why: int = 0) -> None:
        """Ask for what is not cached as what a reader waits for, in small pieces in the order of their place; hurry what is under way."""
        for missing in self._store.missing(version, size_bytes, blocks):
            for piece in split(missing, limits.EXPEDITED_PIECE_BLOCKS):
                joined, gaps = self._flights.plan(version, piece)
                for flight in joined:
                    if flight.request is not None and not flight.request.done:
                        self._client.hurry(flight.request)
                        self._account(flight)
                for gap in gaps:
                    self._launch(
                        Flight(version, size_bytes, gap, prefetched=True, patient=True), Priority.DEMAND, None, why
                    )

    def flight_of(self, version: bytes, blocks: BlockRange) -> Flight | None:
        """What is under way, or not yet in the cache, for the first of these blocks."""
        return next(iter(self._flights.plan(version, BlockRange(blocks.first_block, 1))[0]), None)

    def find_landed(self, version: bytes, offset_bytes: int, length_bytes: int) -> Landed | None:
        """The piece that landed, is not in the cache yet and holds all these bytes."""
        end_bytes = offset_bytes + length_bytes
        for flight in self._flights.of_extent(version, offset_bytes // EXTENT_BYTES):
            for landed in flight.landed:
                if landed.offset_bytes <= offset_bytes and end_bytes <= landed.end_bytes:
                    if flight in self._kept:
                        self._kept.move_to_end(flight)
                    return landed
        return None

    def give_up(self, want: Want) -> None:
        """The wait is over without the bytes: withdraw what nobody else wants."""
        flights = list(want.flights)
        want.leave()
        for flight in flights:
            if not flight.wants and not flight.prefetched and flight.unlanded():
                if flight.request is not None:
                    self._client.cancel(flight.request)
                self._end(flight, HubUnreachable("given up"))

    def _join(self, flight: Flight, want: Want, priority: Priority, deadline_s: float | None) -> None:
        if flight in self._kept:
            self._kept.move_to_end(flight)
        flight.to_keep = flight.to_keep or priority is Priority.PREFETCH
        flight.join(want)
        if priority is Priority.DEMAND and flight.request is not None:
            if flight.prefetched:
                self.history.note(self._clock(), flight.version, flight.extent_index, What.JOINED)
            self._promote(flight, flight.request, deadline_s)

    def _promote(self, flight: Flight, request: Request, deadline_s: float | None) -> None:
        """One more reader waits. The hub need not hear of a later deadline: when the old one passes, it is asked again."""
        if request.priority is Priority.DEMAND:
            earlier = request.deadline_s is not None and (deadline_s is None or deadline_s > request.deadline_s)
            request.deadline_s = deadline_s if earlier else request.deadline_s
        elif request.done:  # between two tries
            request.priority, request.deadline_s = Priority.DEMAND, deadline_s
        else:
            self._client.promote(request, deadline_s)
        self._account(flight)

    def _launch(self, flight: Flight, priority: Priority, deadline_s: float | None, why: int = 0) -> None:
        self._flights.add(flight)
        flight.asked_s = self._clock()
        what = What.AHEAD if flight.prefetched else What.ASKED
        self.history.note(flight.asked_s, flight.version, flight.extent_index, what, why)
        self._submit(flight, [flight.blocks], priority, deadline_s)

    def _submit(
        self, flight: Flight, ranges: Sequence[BlockRange], priority: Priority, deadline_s: float | None
    ) -> None:
        flight.tries += 1
        flight.request = Request(
            flight.version, ranges, priority, deadline_s, _FlightSink(self, flight), patient=flight.patient
        )
        self._account(flight)
        self._client.submit(flight.request)

    def _account(self, flight: Flight) -> None:
        """Bring the flight's share of ``prefetch_outstanding_bytes`` up to date."""
        request = flight.request
        ahead_bytes = 0
        if request is not None and not request.done and request.priority is Priority.PREFETCH:
            ahead_bytes = sum(blocks.block_count for blocks in flight.unlanded()) * BLOCK_BYTES
        self.prefetch_outstanding_bytes += ahead_bytes - flight.ahead_bytes
        flight.ahead_bytes = ahead_bytes

    # --- what comes back ---------------------------------------------------------------------------------

    def landed(self, flight: Flight, data: Data) -> None:
        payload = data.payload
        bad_block: int | None = data.blocks.first_block
        if len(payload) == byte_length(data.blocks, flight.size_bytes):
            bad_block = first_mismatch(flight.version, data.blocks.first_block, payload, data.digests)
        if bad_block is not None:
            self._observer.corrupt_on_wire(flight.version, bad_block)
            if self.complain is not None:
                self.complain(flight.version, bad_block, flight.tries)
            return
        landed = Landed(data.blocks, payload, data.digests)
        flight.landed.append(landed)
        flight.landed_s = self._clock()
        if flight.request is not None:
            flight.sent_s, flight.sends = flight.request.sent_s, flight.request.sends
        self.recent.add(flight.version, landed)
        self._account(flight)
        for want in list(flight.wants):
            want.landed(landed)
        self._observer.arrived(flight.version, data.blocks, data.raw_bytes)

    def finished(self, flight: Flight) -> None:
        unlanded = flight.unlanded()
        if unlanded:  # wrong digests: only those blocks again
            places = ", ".join(f"{found.first_block}-{found.end_block - 1}" for found in unlanded)
            self._failed_once(
                flight,
                CorruptData(
                    f"blocks {places} came with wrong bytes {flight.tries} times: something between hub and spoke changes them; "
                    "look at network cards, middleboxes and memory"
                ),
            )
            return
        flight.request = None
        self._account(flight)
        self.history.note(flight.landed_s, flight.version, flight.extent_index, What.LANDED)
        size_bytes = byte_length(flight.blocks, flight.size_bytes)
        if self.write_backlog_bytes + size_bytes > self.memory.write_backlog_bytes:
            self._skip(flight, size_bytes)
            return
        self._to_be_written(flight, size_bytes)

    def _to_be_written(self, flight: Flight, size_bytes: int) -> None:
        self.write_backlog_bytes += size_bytes
        self._unwritten_count += 1
        self._nothing_unwritten.clear()
        self._landed.add(flight)
        self._look_for_work()

    def disk_is_well(self) -> None:
        """What it would not take before is tried again: in memory it serves readers, but only as long as it is there."""
        kept, self._kept, self._kept_bytes = self._kept, OrderedDict(), 0
        for flight, size_bytes in kept.items():
            self._to_be_written(flight, size_bytes)

    def _skip(self, flight: Flight, size_bytes: int) -> None:
        """Readers go on at the link's speed and memory stays bounded; the next reader of these blocks may fetch them again."""
        if not self._behind:
            self._behind = True
            self.on_behind(True)
            if self._clock() - self._said_behind_s >= limits.CACHE_TROUBLE_LOG_S:
                self._said_behind_s = self._clock()
                log.warning("the cache disk is slower than the link: some of what arrives is not cached",
                            backlog_bytes=self.write_backlog_bytes)  # fmt: skip
        self.skipped_bytes_total += size_bytes
        self._keep(flight)

    def failed(self, flight: Flight, error: HeadraceError) -> None:
        self._failed_once(flight, error)

    def _failed_once(self, flight: Flight, error: HeadraceError) -> None:
        """Retry while somebody waits; for what only time mends as long as the reader's own deadline allows."""
        request = flight.request
        mends = isinstance(error, (Overloaded, DeadlineExceeded))  # the deadline was that of a reader who came earlier
        out_of_tries = flight.tries >= limits.REQUEST_MAX_TRIES and not mends
        if isinstance(error, SourceReadError) and not out_of_tries and self._narrowed(flight):
            return
        if request is None or not error.retryable or not flight.wants or out_of_tries:
            self._end(flight, error)
            return
        self._account(flight)
        self.history.note(self._clock(), flight.version, flight.extent_index, What.AGAIN)
        delay_s = backoff.delay_s(flight.tries - 1, limits.RETRY_FIRST_S, limits.RETRY_CAP_S, self._dice)
        self._retries[flight] = asyncio.get_running_loop().call_later(delay_s, self._resubmit, flight, request)

    def _narrowed(self, flight: Flight) -> bool:
        """The hub's disk cannot read some of the flight: ask anew for what each reader needs of it, so that a bad block
        fails those alone who read it. False when all of them need all of it."""
        request, left = flight.request, flight.unlanded()
        needs = {want: _common(want.missing, left) for want in flight.wants}
        if request is None or all(need == left for need in needs.values()):
            return False
        self._forget(flight)
        for want in needs:
            flight.wants.pop(want, None)
            want.flights.pop(flight, None)
        for want, need in needs.items():
            for blocks in need:
                joined, gaps = self._flights.plan(flight.version, blocks)
                for other in joined:
                    self._join(other, want, request.priority, request.deadline_s)
                for gap in gaps:
                    part = Flight(flight.version, flight.size_bytes, gap, prefetched=False, tries=flight.tries)
                    part.join(want)
                    self._launch(part, request.priority, request.deadline_s)
        self._keep_landed(flight)
        return True

    def _forget(self, flight: Flight) -> None:
        retry = self._retries.pop(flight, None)
        if retry is not None:
            retry.cancel()
        flight.request = None
        self._account(flight)
        self._flights.remove(flight)

    def _keep_landed(self, flight: Flight) -> None:
        """What came of a flight that failed is right, and goes to the cache: it need not come again."""
        for landed in flight.landed:
            part = Flight(flight.version, flight.size_bytes, landed.blocks, prefetched=True, landed=[landed])
            self._flights.add(part)
            self.finished(part)

    def _resubmit(self, flight: Flight, request: Request) -> None:
        self._retries.pop(flight, None)
        self._submit(flight, flight.unlanded(), request.priority, request.deadline_s)

    def _end(self, flight: Flight, error: HeadraceError) -> None:
        """The flight failed: tell who waits, forget it."""
        self._forget(flight)
        for want in list(flight.wants):
            want.fail(error)
        self.history.note(self._clock(), flight.version, flight.extent_index, What.FAILED)
        self._observer.failed(flight.version, flight.blocks)
        self._keep_landed(flight)

    # --- into the cache ----------------------------------------------------------------------------------

    async def _write_landed(self) -> None:
        while True:
            run = await self._next_run()
            try:
                await self._write(run)
            finally:
                self._landed.done(run)
                self._look_for_work()
                self.write_backlog_bytes -= sum(byte_length(flight.blocks, flight.size_bytes) for flight in run)
                if self._behind and self.write_backlog_bytes <= self.memory.write_backlog_bytes // 2:
                    self._behind = False
                    self.on_behind(False)
                    self.disk_is_well()
                self._unwritten_count -= len(run)
                del run  # or its memory waits for the next one to write
                if not self._unwritten_count:
                    self._nothing_unwritten.set()

    def _look_for_work(self) -> None:
        if self._landed.next_version is None:
            self._something_to_write.clear()
        else:
            self._something_to_write.set()

    async def _next_run(self) -> list[Flight]:
        """Wait for something to write, and a moment for what follows it: readers have it from memory meanwhile."""
        async with self._gathering:
            await self._something_to_write.wait()
            if len(self._landed) < limits.CACHE_WRITE_GATHER_FLIGHTS:
                await asyncio.sleep(limits.CACHE_WRITE_GATHER_S)
            most_flights = max(1, self._store.run_max_bytes // EXTENT_BYTES)
            run = self._landed.take(min(limits.CACHE_WRITE_RUN_FLIGHTS, most_flights))
            self._look_for_work()
            return run

    async def _write(self, run: list[Flight]) -> None:
        """Write flights that lie one after another; each for itself when they cannot be written together."""
        first = run[0]
        blocks = BlockRange(first.blocks.first_block, sum(flight.blocks.block_count for flight in run))
        if not any(flight.to_keep for flight in run) and self._store.is_worthless(first.version, blocks):
            for flight in run:
                self._flights.remove(flight)
            return
        landed = sorted((piece for flight in run for piece in flight.landed), key=lambda piece: piece.blocks)
        try:
            await self._store.write_run(
                first.version,
                first.size_bytes,
                first.blocks.first_block,
                [piece.data for piece in landed],
                b"".join([piece.digests for piece in landed]),
            )
        except CacheWriteError:  # the store has logged and counted it
            if len(run) == 1:
                self._keep(first)
            else:
                for flight in run:
                    await self._write([flight])
        except Exception:
            log.exception("cache write failed unexpectedly", version=first.version.hex())
            for flight in run:
                self._keep(flight)
        else:
            for flight in run:
                self._flights.remove(flight)

    def _keep(self, flight: Flight) -> None:
        """Serve from memory for a while what the disk would not take."""
        self._kept[flight] = byte_length(flight.blocks, flight.size_bytes)
        self._kept_bytes += self._kept[flight]
        self._keep_at_most(self.memory.bypass_bytes)

    def _keep_at_most(self, most_bytes: int) -> None:
        while self._kept_bytes > most_bytes:
            oldest, held_bytes = self._kept.popitem(last=False)
            self._kept_bytes -= held_bytes
            self._flights.remove(oldest)

    def drop_idle(self) -> None:
        """Let go of what is in memory only to spare the next reader a fetch."""
        self.recent.forget()
        self._keep_at_most(0)


def _common(some: Sequence[BlockRange], others: Sequence[BlockRange]) -> list[BlockRange]:
    return coalesce(intersection(one, other) for one in some for other in others)


class _FlightSink:
    """Ties a request to its flight."""

    __slots__ = ("_fetcher", "_flight")

    def __init__(self, fetcher: Fetcher, flight: Flight) -> None:
        self._fetcher = fetcher
        self._flight = flight

    def arrived(self, request: Request, data: Data) -> None:
        self._fetcher.landed(self._flight, data)

    def finished(self, request: Request) -> None:
        self._fetcher.finished(self._flight)

    def failed(self, request: Request, error: HeadraceError) -> None:
        self._fetcher.failed(self._flight, error)
