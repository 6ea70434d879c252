"""One pattern under one policy: simulate, compare with local data, and say what it was worth."""

from __future__ import annotations

import gc
import statistics
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.replay.evictors import Belady, Ours, make_evictor
from bench.replay.future import Future, local_order
from bench.replay.predictors import Planned, make_predictor
from bench.replay.simulator import Outcome, Simulation, World
from bench.replay.trace import Trace
from common.errors import UsageError

FULL_SPEED = 0.98
SPEED_BATCHES = 10
"""Full speed: the next ten batches of every process take no longer than they do locally, over 0.98."""


@dataclass(frozen=True)
class Report:
    """``delay_s``: how much later than with local data the job ends. ``stall_s``: readers' waits added up.

    ``full_speed_after``: batches of the slowest process before full speed, None if it never comes. ``hit_share`` of all READs, and
    ``hit_share_after_2`` of those after the first process's first two batches, ``hit_share_after_rush`` after twice as many as a loader
    asks for when it starts. ``waited_s``: how much longer than with local data the slowest process stood without a batch.
    ``read_us``, ``read_us_mean``: what the planner thought about a READ, median and mean (arrivals included in the mean), if it was timed.
    """

    pattern: str
    policy: str
    reads: int
    local_s: float
    job_s: float
    delay_s: float
    stall_s: float
    hit_share: float
    late_share: float
    miss_share: float
    wan_bytes: int
    used_bytes: int
    amplification: float
    prefetched_bytes: int
    wasted_bytes: int
    evicted_bytes: int
    full_speed_after: int | None
    speed: float
    hit_share_after_2: float | None
    hit_share_after_rush: float | None
    waited_s: float
    read_us: float | None = None
    read_us_mean: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Bench:
    """Runs policies over one trace; what they share (the local run, the order of READs) is made once.

    A policy is ``predictor``, ``predictor:size`` or ``predictor/eviction``.
    """

    def __init__(self, trace: Trace, world: World, seed: int) -> None:
        self.trace = trace
        self.world = world
        self.seed = seed
        self.local = Simulation(trace, None).run()
        self._order: array[int] | None = None

    def future(self) -> Future:
        if self._order is None:
            self._order = local_order(self.trace)
        return Future(self.trace, self._order)

    def run(self, policy: str, *, timed: bool = False) -> Report:
        """Raises UsageError for a policy that is not there."""
        predictor_name, _, eviction = policy.partition("/")
        eviction = eviction or ("belady" if predictor_name in ("oracle", "foremost") else "ours")
        futures: list[Future] = []

        def future() -> Future:
            if not futures:
                futures.append(self.future())
            return futures[0]

        evictor = make_evictor(eviction, self.trace, self.world.capacity_bytes, self.seed, lambda: future().next_use)
        belady = evictor if isinstance(evictor, Belady) else None
        capacity_bytes = self.world.capacity_bytes
        predictor = make_predictor(predictor_name, self.trace, capacity_bytes, future, belady, timed=timed)
        on_read = futures[0].consumed if futures else None
        simulation = Simulation(self.trace, self.world, evictor, predictor, on_read=on_read)
        if isinstance(evictor, Ours):
            evictor.holds(simulation.present)
        if isinstance(predictor, Planned) and predictor.knows_orders and isinstance(evictor, Ours):
            evictor.foresee(predictor.planner, simulation.present)
        gc.disable()  # a million READs make as many objects, and hardly a cycle
        try:
            outcome = simulation.run()
        finally:
            gc.enable()
        report = self._report(policy, outcome)
        if timed and isinstance(predictor, Planned) and predictor.read_ns:
            assert predictor.arrival_ns is not None
            spent_ns = sum(predictor.read_ns) + sum(predictor.arrival_ns)
            report = Report(
                **{
                    **report.as_json(),
                    "read_us": statistics.median(predictor.read_ns) / 1e3,
                    "read_us_mean": spent_ns / len(predictor.read_ns) / 1e3,
                }
            )
        return report

    def _report(self, policy: str, outcome: Outcome) -> Report:
        local = self.local
        assert outcome.consumed_s is not None
        assert local.consumed_s is not None
        return Report(
            pattern=self.trace.name,
            policy=policy,
            reads=outcome.reads,
            local_s=local.end_s,
            job_s=outcome.end_s,
            delay_s=outcome.end_s - local.end_s,
            stall_s=outcome.stall_s,
            hit_share=outcome.hits / max(1, outcome.reads),
            late_share=outcome.late / max(1, outcome.reads),
            miss_share=outcome.misses / max(1, outcome.reads),
            wan_bytes=outcome.wan_bytes,
            used_bytes=outcome.used_bytes,
            amplification=outcome.amplification,
            prefetched_bytes=outcome.prefetched_bytes,
            wasted_bytes=outcome.wasted_bytes,
            evicted_bytes=outcome.evicted_bytes,
            full_speed_after=full_speed_after(outcome.consumed_s, local.consumed_s),
            hit_share_after_2=outcome.hits_since(0),
            hit_share_after_rush=outcome.hits_since(-1),
            waited_s=max(
                (mine - at_home for mine, at_home in zip(outcome.waited_s, local.waited_s, strict=True)), default=0.0
            ),
            speed=local.end_s / outcome.end_s if outcome.end_s else 1.0,
        )


def full_speed_after(consumed_s: Sequence[Sequence[float]], local_s: Sequence[Sequence[float]]) -> int | None:
    """Batches before every process runs at full speed, by the slowest; None if one never does."""
    worst = 0
    for mine, local in zip(consumed_s, local_s, strict=True):
        span = min(SPEED_BATCHES, len(mine) - 1)
        if span < 1:
            continue
        for batch in range(len(mine) - span):
            took_s, wanted_s = mine[batch + span] - mine[batch], local[batch + span] - local[batch]
            if took_s * FULL_SPEED <= wanted_s + 1e-9:
                worst = max(worst, batch)
                break
        else:
            return None
    return worst


def world_for(trace: Trace, rtt_s: float, rate_bytes_per_s: float, cache_share: float) -> World:
    """A cache of this share of the trace's files. Raises UsageError when that is less than one could work with."""
    if not cache_share > 0:
        raise UsageError(f"--cache-share {cache_share}: above 0; 0.25 is a quarter of the data")
    return World(rtt_s, rate_bytes_per_s, max(16 << 20, int(trace.data_bytes * cache_share)))
