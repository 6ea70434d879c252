"""The simulator against cases worked out by hand: exact seconds, exact bytes."""

from __future__ import annotations

import pytest

from bench.replay.evictors import Belady, Clock, LeastRecent, runs
from bench.replay.future import NEVER, Future, local_order
from bench.replay.pages import MIB, READ, Scale
from bench.replay.patterns import make
from bench.replay.predictors import FixedWindow, KernelReadahead
from bench.replay.runs import Bench, full_speed_after, world_for
from bench.replay.simulator import Outcome, Simulation, World, split
from bench.replay.trace import NOWAIT, Process, Trace, TraceFile
from common.errors import UsageError

RTT_S = 0.1
RATE = 1_310_720.0
"""A READ of 128 KiB takes 0.1 s on the link, as long as the round trip."""

WORLD = World(RTT_S, RATE, 1 << 40)


def trace_of(*processes: Process, size_bytes: int = 64 * MIB) -> Trace:
    return Trace("by hand", [TraceFile(b"f", size_bytes)], list(processes))


def serial(*offsets: int, length: int = READ, **settings: object) -> Process:
    process = Process(**{"workers": 1, "prefetch_batches": 1, "read_s": 0.0, **settings})  # type: ignore[arg-type]
    for offset in offsets:
        process.add(0, offset, length)
        process.end_batch()
    return process


def simulate(trace: Trace, *, world: World = WORLD, **more: object) -> Outcome:
    return Simulation(trace, world, LeastRecent(), **more).run()  # type: ignore[arg-type]


def test_a_miss_costs_a_round_trip_and_the_bytes() -> None:
    outcome = simulate(trace_of(serial(0)))
    assert outcome.stall_s == pytest.approx(0.2)
    assert (outcome.hits, outcome.late, outcome.misses) == (0, 0, 1)
    assert outcome.wan_bytes == outcome.used_bytes == READ


def test_reads_one_after_another_wait_each_and_a_hit_does_not() -> None:
    outcome = simulate(trace_of(serial(0, READ, 0)))
    assert outcome.stall_s == pytest.approx(0.4)
    assert outcome.end_s == pytest.approx(0.4)
    assert (outcome.hits, outcome.misses) == (1, 2)


def test_steps_overlap_with_the_reading_of_the_next_batch() -> None:
    """Batch 1 is read while batch 0 is worked on: 0.2 + 0.5, then it is there; the end is when the last is taken."""
    outcome = simulate(trace_of(serial(0, READ, 2 * READ, step_s=0.5)))
    assert outcome.end_s == pytest.approx(0.2 + 0.5 + 0.5)
    assert outcome.consumed_s is not None
    assert list(outcome.consumed_s[0]) == pytest.approx([0.2, 0.7, 1.2])


def test_two_workers_wait_together_but_share_the_link() -> None:
    process = serial(0, READ, workers=2)
    outcome = simulate(trace_of(process))
    assert outcome.end_s == pytest.approx(0.3), "the second is sent after the first"
    assert outcome.stall_s == pytest.approx(0.2 + 0.3)


def test_the_same_block_is_fetched_once_however_many_wait() -> None:
    outcome = simulate(trace_of(serial(0), serial(0)))
    assert outcome.wan_bytes == READ
    assert (outcome.late, outcome.misses) == (1, 1)
    assert outcome.stall_s == pytest.approx(0.4)


def test_depth_two_asks_for_two_at_once() -> None:
    process = serial(depth=2)
    process.add(0, 0, READ)
    process.add(0, READ, READ)
    process.end_batch()
    assert simulate(trace_of(process)).end_s == pytest.approx(0.3)


def test_a_hint_makes_nobody_wait_and_is_fetched() -> None:
    process = serial()
    process.add(0, 0, READ, NOWAIT)
    process.end_batch()
    process.add(0, READ, READ)
    process.end_batch()
    process.add(0, 0, READ)
    process.end_batch()
    outcome = simulate(trace_of(process))
    assert outcome.stall_s == pytest.approx(0.3), "only the second READ, behind the hint on the link"
    assert outcome.wan_bytes == 2 * READ


def test_a_window_turns_the_second_read_into_a_late_one() -> None:
    """READ 0 at 0 s: demand lands at 0.2; the window of one READ is sent behind it and lands at 0.3."""
    outcome = simulate(trace_of(serial(0, READ)), predictor=FixedWindow(READ))
    assert outcome.end_s == pytest.approx(0.3)
    assert (outcome.misses, outcome.late) == (1, 1)
    assert outcome.stall_s == pytest.approx(0.2 + 0.1)
    assert outcome.wasted_bytes == READ, "what lies behind the second READ"


def test_demand_overtakes_prefetch_at_the_hub() -> None:
    """The window of 8 READs takes 0.8 s; a demand READ elsewhere waits for the one being sent only."""
    process = serial(0, 32 * MIB)
    outcome = simulate(trace_of(process), predictor=FixedWindow(8 * READ))
    # 0.2: the first. At 0.25 the second is at the hub, whose link sends the rest of the window (7 READs in one piece
    # of an extent, from 0.15 on, and one in the next) until 0.85; then it takes 0.1 and 0.05.
    assert outcome.end_s == pytest.approx(0.15 + 0.7 + 0.1 + 0.05)


def test_a_prefetch_somebody_waits_for_is_promoted() -> None:
    """Three extents are under way as prefetch; the reader needs the third, which then goes before the others."""

    class Three:
        name = "three"

        def start(self, sim: Simulation) -> None:
            for extent in (8, 16, 32):
                sim.prefetch(0, extent * 256, 256)

        def pump(self, now_s: float) -> None: ...
        def opened(self, *_: object) -> None: ...
        def closed(self, *_: object) -> None: ...
        def read(self, *_: object) -> None: ...
        def arrived(self, *_: object) -> None: ...
        def evicted(self, *_: object) -> None: ...

    outcome = simulate(trace_of(serial(32 * MIB)), predictor=Three())
    # All are at the hub at 0.05, and so is word of the reader; an extent takes 0.8 s.
    assert outcome.end_s == pytest.approx(0.05 + 0.8 + 0.05)
    assert outcome.late == 1


def test_a_full_cache_lets_the_least_recent_go() -> None:
    offsets = [0, MIB, 2 * MIB, 0]
    small = World(RTT_S, RATE, 2 * READ)
    outcome = simulate(trace_of(serial(*offsets)), world=small)
    assert outcome.misses == 4
    assert outcome.evicted_bytes == 2 * READ
    assert outcome.amplification == pytest.approx(4 / 3)


def test_belady_keeps_what_is_used_sooner() -> None:
    trace = trace_of(serial(0, MIB, 2 * MIB, 0, MIB))
    future = Future(trace, local_order(trace))
    sim = Simulation(
        trace, World(RTT_S, RATE, 2 * READ), Belady(future.next_use), on_read=future.consumed
    )  # fmt: skip
    outcome = sim.run()
    assert outcome.hits == 2, "2 MiB is never used again and goes at once"


def test_next_uses_follow_the_order() -> None:
    trace = trace_of(serial(0, MIB, READ, 3 * MIB))
    future = Future(trace, local_order(trace))
    assert future.next_use(0) == 0
    future.consumed(0, 0)
    assert future.next_use(0) == 2
    future.consumed(0, 2)
    assert future.next_use(0) == NEVER
    assert future.next_use(99) == NEVER


def test_clock_gives_a_second_chance() -> None:
    clock = Clock()
    for extent in (1, 2, 3):
        clock.wrote(extent, 1, 1)
    clock.touch(1, 1, 1)
    assert clock.choose() == (2, 0)
    clock.gone(2)
    assert clock.choose() == (3, 0)


def test_kernel_readahead_doubles_up_to_its_maximum() -> None:
    asked: list[tuple[int, int]] = []

    class Seen(KernelReadahead):
        def start(self, sim: Simulation) -> None:
            super().start(sim)
            fetch = sim.prefetch

            def noted(file: int, first: int, count: int) -> int:
                asked.append((first, count))
                return fetch(file, first, count)

            sim.prefetch = noted  # type: ignore[method-assign]

    simulate(trace_of(serial(*range(0, 16 * READ, READ))), predictor=Seen(4 * READ))
    assert asked[0] == (0, 64), "256 KiB at the start of a file, by READs of 128"
    assert max(count for _, count in asked) == 128
    assert [first + count for first, count in asked[1:-1]] == [first for first, _ in asked[2:]], "one after another"


def test_epochs_drain_the_workers() -> None:
    """Nothing of the second epoch is read before the last batch of the first is taken."""
    process = serial(0, READ, prefetch_batches=2)
    process.new_epoch()
    process.add(0, 2 * READ, READ)
    process.end_batch()
    outcome = simulate(trace_of(process))
    assert outcome.consumed_s is not None
    assert list(outcome.consumed_s[0]) == pytest.approx([0.2, 0.4, 0.6])


def test_a_pause_is_time_without_reads_to_wait_for() -> None:
    outcome = simulate(trace_of(serial(0, READ, pauses={0: 5.0})))
    assert outcome.end_s == pytest.approx(5.2)


def test_full_speed_is_found_by_the_slowest_process() -> None:
    local = [[float(batch) for batch in range(30)]]
    slow_start = [[10.0, 14.0, 18.0, *(19.0 + batch for batch in range(27))]]
    assert full_speed_after(local, local) == 0
    assert full_speed_after(slow_start, local) == 2
    assert full_speed_after([[2.0 * at for at in local[0]]], local) is None


def test_masks_and_runs() -> None:
    assert split(1, 254, 257) == [(1 << 32, 0b11 << 254), (1 << 32 | 1, 0b11)]
    assert runs(0b1101100) == [(2, 2), (5, 2)]
    assert runs((1 << 256) - 1) == [(0, 256)]


def test_every_policy_runs_and_the_same_seed_gives_the_same() -> None:
    trace = make("olmo", Scale(data_bytes=64 * MIB, reads=600)).at_load(50e6)
    bench = Bench(trace, world_for(trace, 0.06, 125e6, 0.5), 1)
    for policy in (
        "none",
        "kernel",
        "window:1MiB",
        "planner",
        "orders",
        "oracle",
        "none/lru",
        "planner/clock",
        "none/belady",
    ):
        assert bench.run(policy) == bench.run(policy), policy
    for wrong in ("best", "none/fifo", "none:1MiB", "oracle/lru"):
        with pytest.raises(UsageError):
            bench.run(wrong)
