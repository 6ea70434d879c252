"""64 workers of a loader that reads in order shared the link evenly, so the first of their batches was whole when nearly all were."""

from __future__ import annotations

import pytest

from bench.replay.evictors import Ours
from bench.replay.predictors import Planned
from bench.replay.runs import Bench, Report
from bench.replay.simulator import Lane, Simulation, World
from bench.replay.sweeps import WORKERS, sweep_of
from bench.replay.trace import Trace, TraceFile

MIB = 1 << 20
SIZE_BYTES = 256 * MIB
RTT_S, RATE_BYTES_PER_S = 0.06, 37.5e6


def swept(workers: int, policy: str, cache_bytes: int = 1 << 30) -> Report:
    """A job that asks for half of the link."""
    trace = Trace("sweep", [TraceFile(b"records.bin", SIZE_BYTES)], [sweep_of(workers, SIZE_BYTES)])
    bench = Bench(trace.at_load(RATE_BYTES_PER_S / 2), World(RTT_S, RATE_BYTES_PER_S, cache_bytes), 1)
    return bench.run(policy)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sweep_stalls_three_round_trips_at_most_and_then_runs_at_full_speed(workers: int) -> None:
    report = swept(workers, "planner")
    assert report.waited_s / RTT_S <= 3.0  # 14.0 and 3.2 before with 64 workers; 1.2 for who knows all
    assert report.full_speed_after is not None
    assert report.full_speed_after <= 2
    assert report.hit_share_after_rush is not None
    assert report.hit_share_after_rush >= 0.995
    assert report.amplification <= 1.01


def test_a_small_cache_bounds_what_is_fetched_for_all_of_them() -> None:
    report = swept(64, "planner", 48 * MIB)
    assert report.amplification <= 1.1
    assert report.hit_share_after_rush is not None
    assert report.hit_share_after_rush >= 0.9


class Forked(Simulation):
    """Workers start one after another, 22 ms each, as 64 do on two cores: the first goes on to his second batch before most begin."""

    FORK_S = 0.022

    def _begin(self, lane: Lane) -> None:
        if not hasattr(self, "started"):
            self.started: set[int] = set()
        if lane.task in self.started:
            super()._begin(lane)
            return
        self.started.add(lane.task)
        ends = lane.job.process.batch_ends
        lane.at, lane.end, lane.in_flight = ends[lane.batch - 1] if lane.batch else 0, ends[lane.batch], 1
        self._at(lane.batch * self.FORK_S, lane)


@pytest.mark.parametrize("workers", [4, 16, 64])
def test_who_comes_later_finds_what_lies_before_the_firsts_second_batch(workers: int) -> None:
    """With 64, each second batch took those who read for strangers: 7.8 round trips, most of them between batch 19 and 32."""
    size_bytes = 96 * MIB
    trace = Trace("sweep", [TraceFile(b"records.bin", size_bytes)], [sweep_of(workers, size_bytes)])
    trace = trace.at_load(RATE_BYTES_PER_S / 2)
    local = Forked(trace, None).run()
    swept = Forked(
        trace, World(RTT_S, RATE_BYTES_PER_S, 1 << 30), Ours(trace, 1 << 30, 1), Planned(trace, 1 << 30)
    ).run()
    assert (swept.waited_s[0] - local.waited_s[0]) / RTT_S <= 2.5
    assert swept.amplification <= 1.01
