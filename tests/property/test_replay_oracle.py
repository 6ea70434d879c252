"""The oracle is a bound: on no small trace does another policy end the job sooner, beyond what one piece on the link explains."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay.pages import READ
from bench.replay.runs import Bench
from bench.replay.simulator import World
from bench.replay.trace import Process, Trace, TraceFile
from common.blocks import EXTENT_BYTES

FILE_BYTES = 8 * EXTENT_BYTES
OTHERS = ("none", "none/lru", "none/belady", "kernel/lru", "window:1MiB/lru", "planner", "window:256KiB/belady")


def trace_of(places: list[list[int]], workers: int, step_s: float) -> Trace:
    processes = []
    for mine in places:
        process = Process(workers=workers, step_s=step_s, read_s=1e-4)
        for place in mine:
            process.add(place % 2, place // 2 * READ, READ)
            process.end_batch()
        processes.append(process)
    return Trace("small", [TraceFile(b"a/1", FILE_BYTES), TraceFile(b"a/2", FILE_BYTES)], processes)


places = st.lists(st.integers(0, 2 * FILE_BYTES // READ - 1), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(places, st.sampled_from((0.0, 0.002, 0.02)), st.sampled_from((4e6, 40e6)), st.sampled_from((2, 4, 16)))
def test_one_reader_with_any_cache(mine: list[int], step_s: float, rate: float, cache_extents: int) -> None:
    trace = trace_of([mine], 1, step_s)
    bench = Bench(trace, World(0.06, rate, cache_extents * EXTENT_BYTES), 1)
    oracle = bench.run("oracle")
    piece_s = READ / rate
    for policy in OTHERS:
        assert oracle.job_s <= bench.run(policy).job_s + 2 * piece_s, policy


@settings(max_examples=25, deadline=None)
@given(st.lists(places, min_size=2, max_size=3), st.integers(1, 3), st.sampled_from((0.0, 0.01)))
def test_several_readers_with_room_for_all(several: list[list[int]], workers: int, step_s: float) -> None:
    trace = trace_of(several, workers, step_s)
    bench = Bench(trace, World(0.06, 40e6, 64 * EXTENT_BYTES), 1)
    oracle = bench.run("oracle")
    assert oracle.amplification == pytest.approx(1.0)
    assert oracle.wasted_bytes == 0
    lanes = sum(1 for _ in several) * workers
    for policy in OTHERS:
        assert oracle.job_s <= bench.run(policy).job_s + 2 * lanes * READ / 40e6, policy
