"""Runs a trace against a cache, a link and a predictor, in simulated time: discrete events, the same for the same input.

A request takes half a round trip to the hub, waits there (demand, then what readers stand before by its place, then prefetch), crosses
the link at its rate, and takes the other half. Blocks are fetched once however many wait (single flight); a prefetch somebody comes to
wait for is promoted, half a round trip later. The cache holds so many bytes and evicts what its policy says: whole extents, or, by the
spoke's own policy with orders, blocks of one. What arrives for a reader reaches him whether or not the cache keeps it. Hits cost the
reader ``read_s`` and nothing else. Bytes are whole blocks.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.replay.evictors import EXTENT_MASK, FILE_SHIFT, Evictor, runs
from bench.replay.trace import CLOSE, NOWAIT, OPEN, Process, Trace
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange
from spoke.hub_client.place_order import PlaceOrder

_BLOCK_SHIFT = BLOCK_BYTES.bit_length() - 1
_EXTENT_SHIFT = EXTENT_BLOCKS.bit_length() - 1
_IN_EXTENT = EXTENT_BLOCKS - 1
_RATE_SPAN_S = 0.2
_TO_HUB, _QUEUED, _SENT = 0, 1, 2
_NEVER = float("inf")
_PIECE_BLOCKS = 32
MARK_BATCHES = 2
ONES = [(1 << count) - 1 for count in range(EXTENT_BLOCKS + 1)]


@dataclass(frozen=True)
class World:
    """``capacity_bytes``: of the cache. ``rate_bytes_per_s`` may be infinite."""

    rtt_s: float
    rate_bytes_per_s: float
    capacity_bytes: int


class Predictor(Protocol):
    """What fetches ahead. Files are their indices in the trace."""

    name: str

    def start(self, sim: Simulation) -> None: ...
    def opened(self, now_s: float, handle: int, task: int, file: int) -> None: ...
    def closed(self, now_s: float, handle: int) -> None: ...
    def read(self, now_s: float, read: Read, result: int) -> None: ...
    def arrived(self, now_s: float, file: int, blocks: BlockRange) -> None: ...
    def evicted(self, file: int, blocks: BlockRange) -> None: ...
    def pump(self, now_s: float) -> None:
        """Call ``sim.prefetch`` for what is wanted now; called after each read and arrival."""


HIT, LATE, MISS = 0, 1, 2
RESULTS = ("hit", "late", "miss")


class Request:
    """Blocks of one extent on their way: ``mask`` has a bit for each. ``patient``: demand that lets READs go first."""

    __slots__ = ("demand", "extent", "mask", "patient", "prefetched", "size_bytes", "state", "waiters")

    def __init__(self, extent: int, mask: int, *, demand: bool, patient: bool = False) -> None:
        self.extent = extent
        self.mask = mask
        self.size_bytes = mask.bit_count() * BLOCK_BYTES
        self.demand = demand
        self.patient = patient
        self.prefetched = not demand
        self.state = _TO_HUB
        self.waiters: list[Read] = []

    @property
    def place(self) -> tuple[bytes, int]:
        """Its file, and its first block in it."""
        first = (self.extent & EXTENT_MASK) << _EXTENT_SHIFT
        return (self.extent >> FILE_SHIFT).to_bytes(8, "big"), first + (self.mask & -self.mask).bit_length() - 1


class Read:
    """A READ at the mount. ``missing``: requests it still waits for. ``number``: its place in its process."""

    __slots__ = ("file", "handle", "issued_s", "lane", "length_bytes", "missing", "number", "offset_bytes", "parts")

    def __init__(self, lane: Lane, number: int, handle: int, file: int, offset_bytes: int, length_bytes: int) -> None:
        self.lane = lane
        self.number = number
        self.handle = handle
        self.file = file
        self.offset_bytes = offset_bytes
        self.length_bytes = length_bytes
        self.missing = 0
        self.issued_s = 0.0
        self.parts: Sequence[tuple[int, int]] = ()


class Lane:
    """One worker of a process: the batch it reads, its READs in flight, and when it is free of the last ones' work."""

    __slots__ = ("at", "batch", "end", "free_s", "in_flight", "job", "parked", "task")

    def __init__(self, job: Job, batch: int, task: int) -> None:
        self.job = job
        self.task = task
        self.batch = batch
        self.at = self.end = 0
        self.in_flight = 0
        self.free_s = 0.0
        self.parked = True


class Job:
    """A process as it runs: which batches are read and which consumed. ``consumed_s``: when each was."""

    __slots__ = ("consumed_s", "epoch_ends", "free_s", "handles", "lanes", "limit", "next_batch", "number", "process",
                 "ready", "waited_s", "waiting")  # fmt: skip

    def __init__(self, number: int, process: Process, first_task: int) -> None:
        self.number = number
        self.process = process
        self.lanes = [Lane(self, worker, first_task + worker) for worker in range(process.workers)]
        self.ready = bytearray(process.batch_count)
        self.consumed_s = array("d")
        self.waited_s = 0.0
        self.next_batch = 0
        self.limit = 0
        self.free_s = 0.0
        self.waiting = True
        self.epoch_ends = deque((*process.epochs, process.batch_count))
        self.handles: dict[int, int] = {}


@dataclass
class Outcome:
    """What came of it. ``stall_s``: readers' waits for the link, added up. ``consumed_s``: of each process, when each batch was.
    ``waited_s``: how long each process stood without a batch. ``marks``: (READs, hits) up to where the first process took its second batch,
    and to where it has taken twice as many as a loader asks for when it starts.

    ``used_bytes``: unique bytes that READs asked for. ``wasted_bytes``: fetched ahead and never read. ``order``: (process << 40 |
    number) of the READs as they were issued, if asked for.
    """

    reads: int = 0
    hits: int = 0
    late: int = 0
    misses: int = 0
    stall_s: float = 0.0
    wan_bytes: int = 0
    used_bytes: int = 0
    wasted_bytes: int = 0
    prefetched_bytes: int = 0
    evicted_bytes: int = 0
    end_s: float = 0.0
    consumed_s: list[array[float]] | None = None
    waited_s: list[float] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    order: array[int] | None = None

    def hits_since(self, mark: int) -> float | None:
        """Share of the READs since a mark; None where there was none."""
        reads, hits = self.marks[mark] if self.marks else (self.reads, self.hits)
        return (self.hits - hits) / (self.reads - reads) if self.reads > reads else None

    @property
    def amplification(self) -> float:
        return self.wan_bytes / self.used_bytes if self.used_bytes else 1.0


class Simulation:
    """``world`` None: all data are local, the yardstick. ``predictor`` None: only what is read is fetched.

    ``on_read`` is called with (process, number) of each READ before anything else learns of it: for who knows the future.
    """

    def __init__(
        self,
        trace: Trace,
        world: World | None,
        evictor: Evictor | None = None,
        predictor: Predictor | None = None,
        *,
        keep_order: bool = False,
        on_read: Callable[[int, int], None] | None = None,
    ) -> None:
        self.trace = trace
        self.world = world
        self.predictor = predictor
        self.now_s = 0.0
        self.outcome = Outcome(order=array("Q") if keep_order else None)
        self.present: dict[int, int] = {}
        self.used_bytes = 0
        self.outstanding_bytes = 0
        self.prefetch_outstanding_bytes = 0
        self.rate_seen_bytes_per_s = 0.0
        self._evictor = evictor
        self._on_read = on_read
        self._ends = [-(-file.size_bytes // BLOCK_BYTES) for file in trace.files]
        self._flights: dict[int, list[Request]] = {}
        self._unread: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._events: list[tuple[float, int, Lane | Job]] = []
        self._serial = 0
        self._to_hub: deque[tuple[float, Request]] = deque()
        self._demand: deque[Request] = deque()
        self._patient: list[tuple[int, int, Request]] = []
        self._places = PlaceOrder()
        self._prefetch: deque[Request] = deque()
        self._to_spoke: deque[tuple[float, Request]] = deque()
        self._link_free_s = 0.0
        self._next_send_s = _NEVER
        self._next_handle = 1
        self._span_start_s = 0.0
        self._span_bytes = 0
        self._best_bytes_per_s = 0.0
        self.jobs: list[Job] = []
        self._jobs_left = 0

    def run(self) -> Outcome:
        if self.predictor is not None:
            self.predictor.start(self)
        tasks = 1
        for number, process in enumerate(self.trace.processes):
            self.jobs.append(Job(number, process, tasks))
            tasks += process.workers
        for phase in self.trace.phases:
            together = [job for job in self.jobs if job.process.phase == phase]
            self._jobs_left = sum(1 for job in together if job.process.batch_count)
            for job in together:
                job.free_s = self.now_s
                self._allow(job)
            if self.predictor is not None:
                self.predictor.pump(self.now_s)
            self._until_done()
        outcome = self.outcome
        outcome.end_s = self.now_s
        outcome.consumed_s = [job.consumed_s for job in self.jobs]
        outcome.waited_s = [job.waited_s for job in self.jobs]
        outcome.wasted_bytes += sum(mask.bit_count() for mask in self._unread.values()) * BLOCK_BYTES
        outcome.wasted_bytes += sum(
            request.size_bytes for found in self._flights.values() for request in found if not request.demand
        )
        outcome.used_bytes = sum(mask.bit_count() for mask in self._asked.values()) * BLOCK_BYTES
        return outcome

    def _until_done(self) -> None:
        """Until every process of this phase has consumed its last batch; what is on its way then goes on in the next."""
        events, to_spoke = self._events, self._to_spoke
        pop = heapq.heappop
        while self._jobs_left:
            event_s = events[0][0] if events else _NEVER
            arrival_s = to_spoke[0][0] if to_spoke else _NEVER
            if arrival_s <= event_s:
                if arrival_s <= self._next_send_s:
                    self.now_s = arrival_s
                    self._arrive(to_spoke.popleft()[1])
                    continue
            elif event_s < self._next_send_s:
                self.now_s, _, who = pop(events)
                if who.__class__ is Lane:
                    self._finished(who)
                else:
                    assert isinstance(who, Job)
                    self._consume(who)
                continue
            assert self._next_send_s != _NEVER, "a process waits, and nothing is left to happen"
            self._send(self._next_send_s)

    # --- the job -----------------------------------------------------------------------------------------

    def _at(self, at_s: float, who: Lane | Job) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at_s, self._serial, who))

    def _allow(self, job: Job) -> None:
        """Let workers begin the batches that the loader has handed out by now."""
        process = job.process
        limit = job.next_batch + process.prefetch_batches * process.workers
        job.limit = min(limit, job.epoch_ends[0])
        for lane in job.lanes:
            if lane.parked and lane.batch < job.limit:
                lane.parked = False
                self._begin(lane)

    def _begin(self, lane: Lane) -> None:
        ends = lane.job.process.batch_ends
        lane.at = ends[lane.batch - 1] if lane.batch else 0
        lane.end = ends[lane.batch]
        lane.free_s = max(lane.free_s, self.now_s)
        self._fill(lane)

    def _fill(self, lane: Lane) -> None:
        depth = lane.job.process.depth
        while lane.at < lane.end and lane.in_flight < depth:
            lane.at += 1
            lane.in_flight += 1
            self._issue(lane, lane.at - 1)

    def _finished(self, lane: Lane) -> None:
        """A READ is done, and the worker's work on it."""
        lane.in_flight -= 1
        if lane.at < lane.end:
            self._fill(lane)
        elif not lane.in_flight:
            job, batch = lane.job, lane.batch
            job.ready[batch] = 1
            lane.batch += len(job.lanes)
            if lane.batch < job.limit:
                self._begin(lane)
            else:
                lane.parked = True
            if job.waiting and batch == job.next_batch:
                job.waiting = False
                self._at(max(self.now_s, job.free_s), job)

    def _consume(self, job: Job) -> None:
        """The process takes its next batch, which is ready, and works on it."""
        batch, process = job.next_batch, job.process
        job.waited_s += self.now_s - job.free_s
        job.consumed_s.append(self.now_s)
        if not job.number and batch + 1 in (MARK_BATCHES, 2 * process.prefetch_batches * process.workers):
            self.outcome.marks.append((self.outcome.reads, self.outcome.hits))
        job.next_batch = batch + 1
        job.free_s = self.now_s + process.step_s + process.pauses.get(batch, 0.0)
        if job.next_batch == process.batch_count:
            self._jobs_left -= 1
            for handle in job.handles.values():
                if self.predictor is not None:
                    self.predictor.closed(self.now_s, handle)
            return
        if job.next_batch == job.epoch_ends[0]:
            job.epoch_ends.popleft()
        self._allow(job)
        if job.ready[job.next_batch]:
            self._at(job.free_s, job)
        else:
            job.waiting = True

    # --- a READ ------------------------------------------------------------------------------------------

    def _issue(self, lane: Lane, number: int) -> None:
        job = lane.job
        process = job.process
        file, offset_bytes = process.files[number], process.offsets[number]
        length_bytes, flags = process.lengths[number], process.flags[number]
        outcome = self.outcome
        outcome.reads += 1
        if outcome.order is not None:
            outcome.order.append(job.number << 40 | number)
        read_s = process.read_s if process.thinks_us is None else process.read_s + process.thinks_us[number] * 1e-6
        if self.world is None:
            outcome.hits += 1
            lane.free_s = (lane.free_s if lane.free_s > self.now_s else self.now_s) + read_s
            self._at(lane.free_s, lane)
            return
        if self._on_read is not None:
            self._on_read(job.number, number)
        handle = self._handle(job, lane, file, flags) if self.predictor is not None else 0
        first = offset_bytes >> _BLOCK_SHIFT
        last = min((offset_bytes + length_bytes - 1) >> _BLOCK_SHIFT, self._ends[file] - 1)
        extent = file << FILE_SHIFT | first >> _EXTENT_SHIFT
        asked, present, unread = self._asked, self.present, self._unread
        read = None
        if first >> _EXTENT_SHIFT == last >> _EXTENT_SHIFT:
            mask = ONES[last - first + 1] << (first & _IN_EXTENT)
            parts: list[tuple[int, int]] = [(extent, mask)]
        else:
            parts = split(file, first, last)
        result = HIT
        for extent, mask in parts:
            known = asked.get(extent, 0)
            if known | mask != known:
                asked[extent] = known | mask
            if extent in unread:
                unread[extent] &= ~mask
            missing = mask & ~present.get(extent, 0)
            if missing:
                if read is None:
                    read = Read(lane, number, handle, file, offset_bytes, length_bytes)
                result = max(result, self._demand_blocks(read, extent, missing))
        if result == HIT:
            outcome.hits += 1
            if self._evictor is not None:
                touch, share_bytes = self._evictor.touch, length_bytes // len(parts)
                for extent, mask in parts:
                    touch(extent, share_bytes, mask)
        elif result == LATE:
            outcome.late += 1
        else:
            outcome.misses += 1
        if read is not None:
            read.parts = parts
            read.issued_s = -1.0 if flags & NOWAIT else self.now_s
        if flags & NOWAIT or result == HIT:
            if flags & NOWAIT:
                read_s = 0.0
            lane.free_s = (lane.free_s if lane.free_s > self.now_s else self.now_s) + read_s
            self._at(lane.free_s, lane)
        if self.predictor is not None:
            if read is None:
                read = Read(lane, number, handle, file, offset_bytes, length_bytes)
            self.predictor.read(self.now_s, read, result)
            self.predictor.pump(self.now_s)
            if flags & CLOSE:
                self.predictor.closed(self.now_s, handle)

    def _handle(self, job: Job, lane: Lane, file: int, flags: int) -> int:
        """A handle of its own, of its worker's last open, or the process's one for this file."""
        key = -lane.task << FILE_SHIFT | file
        if flags & OPEN:
            handle = self._next_handle
            if not flags & CLOSE:
                job.handles[key] = handle
        elif key in job.handles:
            return job.handles.pop(key) if flags & CLOSE else job.handles[key]
        else:
            known = job.handles.get(file)
            if known is not None:
                return known
            handle = job.handles[file] = self._next_handle
        self._next_handle += 1
        assert self.predictor is not None
        self.predictor.opened(self.now_s, handle, lane.task, file)
        return handle

    def _demand_blocks(self, read: Read, extent: int, missing: int) -> int:
        """Join what is on its way, ask for the rest."""
        result = LATE
        for request in self._flights.get(extent, ()):
            if request.mask & missing:
                missing &= ~request.mask
                request.waiters.append(read)
                read.missing += 1
                if not request.demand:
                    self._promote(request)
        if missing:
            result = MISS
            request = Request(extent, missing, demand=True)
            request.waiters.append(read)
            read.missing += 1
            self._ask(request)
        return result

    def _answered(self, read: Read) -> None:
        """All of a READ that had to wait is here."""
        if self._evictor is not None:
            share_bytes = read.length_bytes // len(read.parts)
            for extent, mask in read.parts:
                if not mask & ~self.present.get(extent, 0):
                    self._evictor.touch(extent, share_bytes, mask)
        if read.issued_s < 0:  # nobody waits
            return
        self.outcome.stall_s += self.now_s - read.issued_s
        lane, process = read.lane, read.lane.job.process
        read_s = process.read_s if process.thinks_us is None else process.read_s + process.thinks_us[read.number] * 1e-6
        lane.free_s = (lane.free_s if lane.free_s > self.now_s else self.now_s) + read_s
        self._at(lane.free_s, lane)

    # --- the link ----------------------------------------------------------------------------------------

    def prefetch(self, file: int, first_block: int, block_count: int) -> int:
        """Ask for those of the blocks that are neither here nor on their way; returns the bytes asked for."""
        end = min(first_block + block_count, self._ends[file])
        if first_block >= end:
            return 0
        return sum(self.prefetch_mask(extent, mask) for extent, mask in split(file, first_block, end - 1))

    def expedite(self, file: int, first_block: int, block_count: int) -> None:
        """The same as what somebody waits for; what is on its way is hurried."""
        end = min(first_block + block_count, self._ends[file])
        for at in range(first_block, end, _PIECE_BLOCKS):
            for extent, mask in split(file, at, min(at + _PIECE_BLOCKS, end) - 1):
                self.expedite_mask(extent, mask, patient=True)

    def expedite_mask(self, extent: int, mask: int, *, patient: bool = False) -> None:
        """The same for bits of one extent, if not ``patient`` as what is waited for more than anything."""
        missing = mask & ~self.present.get(extent, 0)
        for request in self._flights.get(extent, ()):
            if request.mask & missing:
                missing &= ~request.mask
                if not request.demand:
                    request.patient = patient
                    self._promote(request)
        if missing:
            request = Request(extent, missing, demand=True, patient=patient)
            self.outcome.prefetched_bytes += request.size_bytes
            self._ask(request)

    def prefetch_mask(self, extent: int, mask: int) -> int:
        """The same for bits of one extent."""
        missing = mask & ~self.present.get(extent, 0)
        if missing:
            for request in self._flights.get(extent, ()):
                missing &= ~request.mask
        if not missing:
            return 0
        request = Request(extent, missing, demand=False)
        self.prefetch_outstanding_bytes += request.size_bytes
        self.outcome.prefetched_bytes += request.size_bytes
        self._ask(request)
        return request.size_bytes

    def _ask(self, request: Request) -> None:
        assert self.world is not None
        self.outstanding_bytes += request.size_bytes
        self._flights.setdefault(request.extent, []).append(request)
        at_s = self.now_s + self.world.rtt_s / 2
        self._to_hub.append((at_s, request))
        self._next_send_s = min(self._next_send_s, max(at_s, self._link_free_s))

    def _promote(self, request: Request) -> None:
        assert self.world is not None
        request.demand = True
        self.prefetch_outstanding_bytes -= request.size_bytes
        if request.state != _SENT:
            self._to_hub.append((self.now_s + self.world.rtt_s / 2, request))

    def _send(self, at_s: float) -> None:
        """The link is free at this time and the hub has something to send."""
        assert self.world is not None
        to_hub, demand, patient, prefetch = self._to_hub, self._demand, self._patient, self._prefetch
        while to_hub and to_hub[0][0] <= at_s:
            request = to_hub.popleft()[1]
            if request.state == _SENT:
                continue
            if request.state == _TO_HUB and request.prefetched:
                prefetch.append(request)
            elif request.patient:  # also what is queued already, and somebody waits for now
                self._serial += 1
                heapq.heappush(patient, (self._places.enter(*request.place), self._serial, request))
            else:
                demand.append(request)
            request.state = _QUEUED
        chosen = None
        while chosen is None and (demand or patient or prefetch):
            if demand or not patient:
                chosen = (demand or prefetch).popleft()
            else:
                key, _, chosen = heapq.heappop(patient)
                self._places.leave(chosen.place[0], key)
            if chosen.state == _SENT:  # from another queue
                chosen = None
        if chosen is not None:
            chosen.state = _SENT
            self._link_free_s = at_s + chosen.size_bytes / self.world.rate_bytes_per_s
            self._to_spoke.append((self._link_free_s + self.world.rtt_s / 2, chosen))
            self.outcome.wan_bytes += chosen.size_bytes
        if demand or patient or prefetch:
            self._next_send_s = self._link_free_s
        elif to_hub:
            self._next_send_s = max(self._link_free_s, to_hub[0][0])
        else:
            self._next_send_s = _NEVER

    def _arrive(self, request: Request) -> None:
        extent = request.extent
        flights = self._flights[extent]
        if len(flights) == 1:
            del self._flights[extent]
        else:
            flights.remove(request)
        self.outstanding_bytes -= request.size_bytes
        if not request.demand:
            self.prefetch_outstanding_bytes -= request.size_bytes
            self._unread[extent] = self._unread.get(extent, 0) | request.mask
        self._measure(request.size_bytes)
        self.present[extent] = self.present.get(extent, 0) | request.mask
        self.used_bytes += request.size_bytes
        if self._evictor is not None:
            self._evictor.wrote(extent, request.size_bytes, request.mask)
            self._make_room(extent, request.mask)
        for read in request.waiters:
            read.missing -= 1
            if not read.missing:
                self._answered(read)
        predictor = self.predictor
        if predictor is not None:
            file = extent >> FILE_SHIFT
            base = (extent & EXTENT_MASK) << _EXTENT_SHIFT
            for first, count in runs(request.mask):
                predictor.arrived(self.now_s, file, BlockRange(base + first, count))
            predictor.pump(self.now_s)

    def _measure(self, size_bytes: int) -> None:
        """The rate of arrivals, the best of late, as the spoke sees it."""
        elapsed_s = self.now_s - self._span_start_s
        if elapsed_s >= _RATE_SPAN_S:
            rate = self._span_bytes / elapsed_s
            self.rate_seen_bytes_per_s = max(rate, 0.9 * self.rate_seen_bytes_per_s)
            self._span_start_s, self._span_bytes = self.now_s, 0
        self._span_bytes += size_bytes

    # --- the cache ---------------------------------------------------------------------------------------

    def _make_room(self, newest: int, mask: int) -> None:
        assert self.world is not None
        assert self._evictor is not None
        while self.used_bytes > self.world.capacity_bytes:
            victim = self._evictor.choose(newest, mask)
            if victim is None:  # all that is here is to be kept: what came goes by
                left = self.present[newest] & ~mask
                self.used_bytes -= mask.bit_count() * BLOCK_BYTES
                self._note_waste(newest, mask)
                self.present[newest] = left
                if not left:
                    del self.present[newest]
                    self._evictor.gone(newest)
                return
            self.evict(*victim)

    def evict(self, extent: int, mask: int = 0) -> None:
        """Let blocks of an extent go (0: all)."""
        assert self._evictor is not None
        held = self.present[extent]
        mask = mask & held if mask else held
        size_bytes = mask.bit_count() * BLOCK_BYTES
        self.used_bytes -= size_bytes
        self.outcome.evicted_bytes += size_bytes
        if mask == held:
            del self.present[extent]
            self._evictor.gone(extent)
        else:
            self.present[extent] = held & ~mask
        self._note_waste(extent, mask)
        if self.predictor is not None:
            base, file = (extent & EXTENT_MASK) << _EXTENT_SHIFT, extent >> FILE_SHIFT
            for first, count in runs(mask):
                self.predictor.evicted(file, BlockRange(base + first, count))

    def _note_waste(self, extent: int, mask: int) -> None:
        unread = self._unread.get(extent)
        if unread is not None:
            self.outcome.wasted_bytes += (unread & mask).bit_count() * BLOCK_BYTES
            if unread & ~mask:
                self._unread[extent] = unread & ~mask
            else:
                del self._unread[extent]


def split(file: int, first_block: int, last_block: int) -> list[tuple[int, int]]:
    """(extent, bits of the blocks in it) for a run of blocks, both ends included."""
    parts = []
    while first_block <= last_block:
        bit = first_block & _IN_EXTENT
        count = min(EXTENT_BLOCKS - bit, last_block - first_block + 1)
        parts.append((file << FILE_SHIFT | first_block >> _EXTENT_SHIFT, ONES[count] << bit))
        first_block += count
    return parts
