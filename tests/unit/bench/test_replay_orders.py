"""The policy ``orders``: the real follower is told what a trace will read, and the cache evicts by it."""

from __future__ import annotations

import pytest

from bench.replay.evictors import Ours
from bench.replay.orders import orders_of
from bench.replay.pages import MIB, Scale
from bench.replay.patterns import make
from bench.replay.predictors import Planned
from bench.replay.runs import Bench, world_for
from bench.replay.simulator import Simulation
from common.blocks import BlockRange
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.scorecard import Reason

SCALE = Scale(data_bytes=128 * MIB, reads=1200)


def test_an_order_holds_the_reads_of_its_processes_in_turn() -> None:
    trace = make("mds", SCALE)
    facts = [FileFacts(file.path, bytes([number]) * 16, file.size_bytes) for number, file in enumerate(trace.files)]
    (order,) = orders_of(trace, facts).values()
    process = trace.processes[1]
    assert order.lane_count == len(trace.processes)
    assert order.length(1) == process.read_count
    file, offset, length = order.step(1, 7)
    assert (file, offset, length) == (process.files[7], process.offsets[7], process.lengths[7])
    assert (1, 7) in order.find(file, offset, offset + 1, 1000)
    following = order.next_position(1, file, offset, offset + length, 7)
    assert following == 7
    assert order.file_of(facts[file].version) == file


@pytest.mark.parametrize("pattern", ["megatron", "mds"])
def test_a_known_order_brings_a_random_job_near_local_speed(pattern: str) -> None:
    trace = make(pattern, SCALE).at_load(62.5e6)
    bench = Bench(trace, world_for(trace, 0.06, 125e6, 1.0), 1)
    told, untold = bench.run("orders"), bench.run("planner")
    assert told.speed > 0.8
    assert told.speed > 2 * untold.speed
    assert told.amplification < 1.1
    assert told == bench.run("orders"), "the same each time"


def test_the_follower_foretells_each_read_and_the_cache_asks_it() -> None:
    trace = make("olmo", SCALE).at_load(62.5e6)
    world = world_for(trace, 0.06, 125e6, 0.25)
    planned, evictor = Planned(trace, world.capacity_bytes, orders=True), Ours(trace, world.capacity_bytes, 1)
    asked: list[bytes] = []

    class Asked:
        steps_taken = 0
        knows, uses, take_used = planned.planner.knows, planned.planner.uses, planned.planner.take_used

        def next_use(self, version: bytes, blocks: BlockRange) -> int | None:
            asked.append(version)
            return planned.planner.next_use(version, blocks)

    simulation = Simulation(trace, world, evictor, planned)
    evictor.foresee(Asked(), simulation.present)
    outcome = simulation.run()
    (facts,) = planned.planner.orders()
    assert facts["reason"] == Reason.PLAN.value
    assert facts["matched_reads"] >= 0.99 * outcome.reads
    assert outcome.misses <= 1
    assert outcome.evicted_bytes > 0
    assert asked


@pytest.mark.parametrize("pattern", ["webdataset-resampled", "mds", "nanogpt"])
def test_what_is_known_is_there_though_neighbours_and_other_workers_read_the_same(pattern: str) -> None:
    """Shards drawn twice, samples that share a page, faults that overlap: a READ uses up its own step and no other."""
    trace = make(pattern, Scale(data_bytes=256 * MIB, reads=2500)).at_load(62.5e6)
    report = Bench(trace, world_for(trace, 0.06, 125e6, 0.25), 1).run("orders")
    assert report.miss_share <= 0.01
    assert report.wasted_bytes <= 0.01 * report.wan_bytes


def test_an_index_that_all_workers_read_beside_each_record_leads_no_place_away() -> None:
    trace = make("tensorstore", Scale(data_bytes=1024 * MIB, reads=6000)).at_load(62.5e6)
    report = Bench(trace, world_for(trace, 0.06, 125e6, 0.25), 1).run("orders")
    assert report.miss_share <= 0.01
    assert report.wasted_bytes <= 0.01 * report.wan_bytes
