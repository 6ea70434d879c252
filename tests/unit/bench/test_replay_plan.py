"""A declared plan over four times the cache, in simulated time: the link is kept full, and Belady would let the same bytes go."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

import pytest

from bench.replay.evictors import Ours
from bench.replay.orders import TraceOrder
from bench.replay.pages import MIB, PageCache
from bench.replay.predictors import Planned
from bench.replay.runs import Bench
from bench.replay.simulator import Outcome, Simulation, World
from bench.replay.trace import Process, Trace, TraceFile
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.scorecard import Reason

DATA = 48 * MIB
WORLD = World(0.060, 37.5e6, DATA // 4)
BATCH = 8
NEVER = 1 << 40


def shuffled(record_bytes: int, epochs: int = 1) -> Process:
    """A loader of four workers over records in another order each epoch."""
    process, dice = Process(workers=4), Random(5)
    records = list(range(DATA // record_bytes))
    for epoch in range(epochs):
        if epoch:
            process.new_epoch()
        dice.shuffle(records)
        for number, record in enumerate(records, start=1):
            process.add(0, record * record_bytes, record_bytes)
            if not number % BATCH:
                process.end_batch()
        process.end_batch()
    return process


def trace_of(process: Process, load: float = 2.0) -> Trace:
    """A job that asks for ``load`` times what the link brings."""
    return Trace("plan", [TraceFile(b"records", DATA)], [process]).at_load(WORLD.rate_bytes_per_s * load)


def fewest_fetched(places: list[int], capacity: int) -> int:
    """Of items of one size, read in this order: how often one must be fetched, by Belady's rule."""
    following: list[int] = [NEVER] * len(places)
    seen: dict[int, int] = {}
    for at in range(len(places) - 1, -1, -1):
        following[at] = seen.get(places[at], NEVER)
        seen[places[at]] = at
    cached: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    fetched = 0
    for place, use in zip(places, following, strict=True):
        fetched += place not in cached
        cached[place] = use
        heappush(heap, (-use, place))
        while len(cached) > capacity:
            far, victim = heappop(heap)
            if cached.get(victim) == -far:
                del cached[victim]
    return fetched


@pytest.mark.parametrize("record_bytes", [16 << 10, 64 << 10, 256 << 10])
def test_the_stall_is_what_the_link_must_cost(record_bytes: int) -> None:
    trace = trace_of(shuffled(record_bytes))
    report = Bench(trace, WORLD, 1).run("orders")
    bound_s = DATA / WORLD.rate_bytes_per_s + WORLD.rtt_s - report.local_s
    assert report.delay_s <= 1.02 * bound_s, "but for the first round trip the link never rests"
    assert report.amplification == 1.0, "nothing leaves before it is read"
    assert round(report.miss_share * report.reads) <= 8, "before the plan was told"


@pytest.mark.parametrize("load", [0.5, pytest.param(2.0, marks=pytest.mark.slow)])
def test_within_two_percent_of_belady_over_scattered_records(load: float) -> None:
    """Sixteen records share an extent, each read at another time: the extent as a whole is always wanted soon."""
    record_bytes = 64 << 10
    trace = trace_of(shuffled(record_bytes, epochs=3), load)
    (process,) = trace.processes
    fewest = fewest_fetched([at // record_bytes for at in process.offsets], WORLD.capacity_bytes // record_bytes)
    assert fewest < 0.9 * process.read_count
    report = Bench(trace, WORLD, 1).run("orders")
    assert report.wan_bytes <= 1.02 * fewest * record_bytes


def with_context_readahead(records: Process) -> Process:
    """The READs of these exact reads, where the kernel keeps what was read and takes neighbours read by chance for a stream."""
    pages, reads = PageCache(DATA), records.like()
    for batch in range(records.batch_count):
        for number in records.batch(batch):
            found = pages.read_in_context(records.offsets[number], records.lengths[number])
            if found is not None:
                reads.add(0, *found)
        reads.end_batch()
    return reads


def run_with_order(trace: Trace, order: Process) -> Outcome:
    """READs of the trace, by a spoke that was told another column of reads."""
    planned, evictor = Planned(trace, WORLD.capacity_bytes, orders=True), Ours(trace, WORLD.capacity_bytes, 1)
    facts = [
        FileFacts(file.path, number.to_bytes(16, "big"), file.size_bytes) for number, file in enumerate(trace.files)
    ]
    planned.declare({0: TraceOrder("plan", Reason.PLAN, facts, [order])})
    simulation = Simulation(trace, WORLD, evictor, planned)
    evictor.foresee(planned.planner, simulation.present)
    return simulation.run()


def test_what_the_kernel_reads_beyond_a_record_is_there_too() -> None:
    records = shuffled(64 << 10)
    reads = with_context_readahead(records)
    longer = sum(length > 64 << 10 for length in reads.lengths)
    assert longer > 0.05 * records.read_count
    outcome = run_with_order(trace_of(reads), records)
    assert outcome.misses <= 0.01 * outcome.reads
    assert outcome.amplification <= 1.01
