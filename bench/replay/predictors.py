"""What may fetch ahead in the simulator: kernel-like readahead, a fixed window, the spoke's own planner, an oracle."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypedDict

from bench.replay.evictors import FILE_SHIFT, Belady
from bench.replay.future import NEVER, Future
from bench.replay.orders import orders_of
from bench.replay.perceptron import Perceptron
from bench.replay.simulator import LATE, MISS, RESULTS, Predictor, Read, Simulation, split
from bench.replay.trace import Trace
from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange
from common.errors import UsageError
from common.units import parse_size
from spoke.prefetch.orders import Order
from spoke.prefetch.planner import Fetch, FileFacts, Planner, ReadSeen
from spoke.prefetch.succession import OrderRecorder

PREDICTORS = ("none", "kernel", "window", "perceptron", "planner", "orders", "oracle", "foremost")


class _Base:
    """Does nothing."""

    name = "none"

    def __init__(self) -> None:
        self.sim: Simulation

    def start(self, sim: Simulation) -> None:
        self.sim = sim

    def opened(self, now_s: float, handle: int, task: int, file: int) -> None: ...
    def closed(self, now_s: float, handle: int) -> None: ...
    def read(self, now_s: float, read: Read, result: int) -> None: ...
    def arrived(self, now_s: float, file: int, blocks: BlockRange) -> None: ...
    def evicted(self, file: int, blocks: BlockRange) -> None: ...
    def pump(self, now_s: float) -> None: ...


class KernelReadahead(_Base):
    """Linux's on-demand readahead with a maximum of ``max_bytes``, one state a handle, as if the mount's readahead were that large.

    Begins at a file's first byte or at a READ that follows the last one; the window begins at four times the READ (at most the maximum),
    then doubles (fourfold while below 1/16) each time the reader enters the window before.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.name = "kernel"
        self._max = max_bytes // BLOCK_BYTES
        self._states: dict[int, list[int]] = {}  # handle: start, size, mark, end of the last read

    def closed(self, now_s: float, handle: int) -> None:
        self._states.pop(handle, None)

    def read(self, now_s: float, read: Read, result: int) -> None:
        first = read.offset_bytes // BLOCK_BYTES
        end = -(-(read.offset_bytes + read.length_bytes) // BLOCK_BYTES)
        state = self._states.setdefault(read.handle, [0, 0, -1, -1])
        start, size, mark, last_end = state
        state[3] = end
        if (mark >= 0 and first <= mark < end) or first == start + size > 0:  # into the window: the next one
            start += size
            size = min(size * (4 if size < self._max // 16 else 2), self._max)
            mark = start
        elif result == MISS and (first == 0 or first == last_end):
            count = end - first
            size = 1 << (count - 1).bit_length()
            size = min(size * (4 if size <= self._max // 32 else 2 if size <= self._max // 4 else 1), self._max)
            start = first
            mark = start + count if size > count else start + size
            if size <= count:
                size = count + self._max
        else:
            return
        state[:3] = start, size, mark
        self.sim.prefetch(read.file, start, size)


class FixedWindow(_Base):
    """So many bytes after every READ, whatever it was."""

    def __init__(self, window_bytes: int) -> None:
        super().__init__()
        self.name = "window"
        self._blocks = window_bytes // BLOCK_BYTES

    def read(self, now_s: float, read: Read, result: int) -> None:
        self.sim.prefetch(read.file, -(-(read.offset_bytes + read.length_bytes) // BLOCK_BYTES), self._blocks)


class Bounds(TypedDict):
    """How far the planner runs ahead in a cache of some size, as it takes them."""

    stream_max_bytes: int
    windows_max_bytes: int
    declared_max_bytes: int
    throughout_max_bytes: int


class Planned(_Base):
    """The spoke's planner, driven as ``spoke.ahead`` drives it. ``orders``: it is told what the processes of a phase will read, as the
    first of them reads.

    ``recorder``: is told of each READ, and learns the order from it.
    ``timed``: note how long it thinks about each READ (its share of ``pump`` included) and about each arrival.
    """

    def __init__(
        self,
        trace: Trace,
        capacity_bytes: int,
        *,
        orders: bool = False,
        timed: bool = False,
        recorder: OrderRecorder | None = None,
    ) -> None:
        super().__init__()
        self.name = "orders" if orders else "planner"
        self.facts = [
            FileFacts(file.path, number.to_bytes(16, "big"), file.size_bytes) for number, file in enumerate(trace.files)
        ]
        by_path = sorted(self.facts)
        after = {
            one.path: following
            for one, following in pairwise(by_path)
            if one.path.rpartition(b"/")[0] == following.path.rpartition(b"/")[0]
        }
        stream_max_bytes = min(limits.PREFETCH_STREAM_MAX_BYTES, capacity_bytes // 8)
        windows_max_bytes = min(
            limits.PREFETCH_WINDOWS_MAX_BYTES, capacity_bytes // limits.PREFETCH_WINDOWS_CACHE_SHARE
        )
        declared_max_bytes = min(
            limits.PREFETCH_WINDOWS_MAX_BYTES, int(capacity_bytes * limits.PREFETCH_DECLARED_CACHE_SHARE)
        )
        throughout_max_bytes = min(
            limits.PREFETCH_THROUGHOUT_MAX_BYTES, capacity_bytes // limits.PREFETCH_THROUGHOUT_CACHE_SHARE
        )
        self.bounds = Bounds(
            stream_max_bytes=stream_max_bytes,
            windows_max_bytes=windows_max_bytes,
            declared_max_bytes=declared_max_bytes,
            throughout_max_bytes=throughout_max_bytes,
        )
        self.planner = Planner(after.get, recorder=recorder, **self.bounds)
        self.read_ns: array[int] | None = array("Q") if timed else None
        self.arrival_ns: array[int] | None = array("Q") if timed else None
        self._undeclared = orders_of(trace, self.facts) if orders else {}
        self.knows_orders = orders

    def declare(self, orders: dict[int, Order]) -> None:
        """Be told these orders, one a phase, instead of the READs as they come."""
        self._undeclared = orders

    def opened(self, now_s: float, handle: int, task: int, file: int) -> None:
        self.planner.opened(now_s, handle, self.facts[file], task)

    def closed(self, now_s: float, handle: int) -> None:
        self.planner.closed(now_s, handle)

    def read(self, now_s: float, read: Read, result: int) -> None:
        planner, version = self.planner, self.facts[read.file].version
        task, offset_bytes, length_bytes = read.lane.task, read.offset_bytes, read.length_bytes
        fetches: Sequence[Fetch] = ()
        if self._undeclared:
            order = self._undeclared.pop(read.lane.job.process.phase, None)
            if order is not None:
                planner.add_order(now_s, order)
        began_ns = time.perf_counter_ns() if self.read_ns is not None else 0
        if result == MISS or not planner.is_quiet(version, offset_bytes, length_bytes, late=result == LATE):
            seen = ReadSeen(read.handle, task, version, offset_bytes, length_bytes, RESULTS[result])  # type: ignore[arg-type]
            planner.read(now_s, seen)
            fetches = self._plan(now_s)
        if self.read_ns is not None:
            self.read_ns.append(time.perf_counter_ns() - began_ns)
        self._ask(fetches)

    def arrived(self, now_s: float, file: int, blocks: BlockRange) -> None:
        began_ns = time.perf_counter_ns() if self.arrival_ns is not None else 0
        self.planner.arrived(now_s, self.facts[file].version, blocks)
        fetches = self._plan(now_s)
        if self.arrival_ns is not None:
            self.arrival_ns.append(time.perf_counter_ns() - began_ns)
        self._ask(fetches)

    def evicted(self, file: int, blocks: BlockRange) -> None:
        self.planner.evicted(self.facts[file].version, blocks)

    def _plan(self, now_s: float) -> Sequence[Fetch]:
        planner, sim = self.planner, self.sim
        if not planner.has_plans:
            return ()
        assert sim.world is not None
        if planner.has_waited:
            for fetch in planner.plan_waited(now_s, limits.PREFETCH_MAX_OUTSTANDING_BYTES):
                file, blocks = int.from_bytes(fetch.version, "big"), fetch.blocks
                sim.expedite(file, blocks.first_block, blocks.block_count)
        planner.link(sim.world.rtt_s, sim.rate_seen_bytes_per_s)
        limit_bytes = min(limits.PREFETCH_MAX_OUTSTANDING_BYTES, planner.outstanding_limit_bytes)
        budget_bytes = limit_bytes - sim.prefetch_outstanding_bytes
        return planner.plan(now_s, budget_bytes) if budget_bytes >= EXTENT_BYTES else ()

    def _ask(self, fetches: Sequence[Fetch]) -> None:
        """It plans a little at a time."""
        while fetches:
            for fetch in fetches:
                file, blocks = int.from_bytes(fetch.version, "big"), fetch.blocks
                self.planner.asked(fetch, self.sim.prefetch(file, blocks.first_block, blocks.block_count))
            fetches = self._plan(self.sim.now_s)


class Oracle(_Base):
    """Knows the order of all READs: fetches exactly what the next ones need, soonest first, and never lets go of what is used sooner.

    It keeps the link full and no more: what is under way is what the path holds, and a little. What will be used again goes only for
    what is read within twice that.
    ``foremost``: what it fetches waits behind nobody's READ, since nobody knows better what the job wants first.
    """

    def __init__(self, trace: Trace, future: Future, belady: Belady, *, foremost: bool = False) -> None:
        super().__init__()
        self.name = "foremost" if foremost else "oracle"
        self._foremost = foremost
        self._trace = trace
        self._future = future
        self._belady = belady
        self._next = 0

    def start(self, sim: Simulation) -> None:
        super().start(sim)
        assert sim.world is not None
        held_bytes = 2 * sim.world.rtt_s * sim.world.rate_bytes_per_s + 4 * EXTENT_BYTES
        self._limit_bytes = min(held_bytes, 1 << 30)

    def evicted(self, file: int, blocks: BlockRange) -> None:
        extent = file << FILE_SHIFT | blocks.first_block // (EXTENT_BYTES // BLOCK_BYTES)
        self._next = min(self._next, self._future.next_use(extent))

    def pump(self, now_s: float) -> None:
        sim, future = self.sim, self._future
        assert sim.world is not None
        capacity_bytes = sim.world.capacity_bytes
        processes = self._trace.processes
        while self._next < len(future.order) and sim.outstanding_bytes < self._limit_bytes:
            place = self._next
            if not future.done[place]:
                code = future.order[place]
                process, number = processes[code >> 40], code & (1 << 40) - 1
                first = process.offsets[number] // BLOCK_BYTES
                last = (process.offsets[number] + process.lengths[number] - 1) // BLOCK_BYTES
                for extent, mask in split(process.files[number], first, last):
                    missing_bytes = (mask & ~sim.present.get(extent, 0)).bit_count() * BLOCK_BYTES
                    if missing_bytes and not self._has_room(missing_bytes, place, capacity_bytes):
                        return
                    if missing_bytes and self._foremost:
                        sim.expedite_mask(extent, mask)
                    elif missing_bytes:
                        sim.prefetch_mask(extent, mask)
            self._next = max(self._next, place + 1) if self._next >= place else self._next

    def _has_room(self, need_bytes: int, place: int, capacity_bytes: int) -> bool:
        sim = self.sim
        while sim.used_bytes + sim.outstanding_bytes + need_bytes > capacity_bytes:
            furthest = self._belady.furthest()
            if furthest is None or furthest[0] <= place:
                return False
            if furthest[0] != NEVER and self._future.bytes_until(place) > 2 * self._limit_bytes:
                return False  # early enough later on, and until then what is here may still be of use
            sim.evict(furthest[1])
        return True


def make_predictor(
    text: str, trace: Trace, capacity_bytes: int, future: Callable[[], Future], belady: Belady | None, *, timed: bool
) -> Predictor | None:
    """``name`` or ``name:SIZE``. Raises UsageError for what is not there."""
    name, _, argument = text.partition(":")
    if argument and name not in ("kernel", "window"):
        raise UsageError(f"{text!r}: only kernel and window take a size")
    match name:
        case "none":
            return None
        case "kernel":
            return KernelReadahead(parse_size(argument or "1MiB"))
        case "window":
            return FixedWindow(parse_size(argument or "4MiB"))
        case "perceptron":
            return Perceptron()
        case "planner" | "orders":
            return Planned(trace, capacity_bytes, orders=name == "orders", timed=timed)
        case "oracle" | "foremost":
            if belady is None:
                raise UsageError(f"the oracle evicts by Belady: write {name} or {name}/belady")
            return Oracle(trace, future(), belady, foremost=name == "foremost")
    raise UsageError(f"no predictor {name!r}; there are: {', '.join(PREDICTORS)}")
