"""From what the job and the spoke said to figures: speed, utilisation, time lost, reads by result. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.demo.summary import Sweep, batches_to_full_speed, difference
from bench.quantiles import quantile

FULL_SPEED = 0.98
SERVED_LOCALLY_S = 0.005
"""The reference calls a read served locally that takes less."""
RUN_LENGTHS = (10_000, 100_000, 1_000_000)

RECEIVED = "headrace_spoke_wan_received_bytes_total"
FETCHED = "headrace_spoke_fetched_bytes_total"
USED = "headrace_spoke_cache_used_bytes"
STALL = "headrace_spoke_read_stall_seconds_total"
RESULTS = ("hit", "late", "miss")


def reads_series(result: str) -> str:
    return f'headrace_spoke_reads_total{{result="{result}"}}'


class Second(NamedTuple):
    """What a look at the spoke saw; counters as they stood. ``at_s``: on the monotonic clock, shared by all processes here."""

    at_s: float
    hit: float
    late: float
    miss: float
    received_bytes: float
    fetched_bytes: float
    outstanding_bytes: float
    cache_bytes: float

    @classmethod
    def of(cls, at_s: float, numbers: Mapping[str, float], outstanding_bytes: float) -> Second:
        hit, late, miss = (numbers.get(reads_series(result), 0.0) for result in RESULTS)
        received, fetched = (numbers.get(name, 0.0) for name in (RECEIVED, FETCHED))
        return cls(at_s, hit, late, miss, received, fetched, outstanding_bytes, numbers.get(USED, 0.0))


@dataclass(frozen=True)
class Epoch:
    """One pass of the job. ``samples``: a batch over all ranks; times in seconds, an entry a batch, of the slowest rank."""

    started_s: float
    samples: int
    wait_s: Sequence[float]
    step_s: Sequence[float]
    losses: Sequence[Sequence[str]]
    checksums: Sequence[Sequence[int]]
    reads: Sequence[tuple[float, float]]

    @classmethod
    def of_ranks(cls, samples: int, ranks: Sequence[Mapping[str, Any]]) -> Epoch:
        """The ranks step together, so a batch takes as long as its slowest wait and what is left of the longest sum."""
        waits = [max(column) for column in zip(*(rank["wait_s"] for rank in ranks), strict=True)]
        sums = [
            max(wait + step for wait, step in column)
            for column in zip(*(zip(rank["wait_s"], rank["step_s"], strict=True) for rank in ranks), strict=True)
        ]
        return cls(
            min(rank["started_s"] for rank in ranks),
            samples * len(ranks),
            waits,
            [total - wait for total, wait in zip(sums, waits, strict=True)],
            [rank["losses"] for rank in ranks],
            [rank["checksums"] for rank in ranks],
            [(at, took) for rank in ranks for at, took in rank["reads"]],
        )

    @property
    def batch_s(self) -> list[float]:
        return [wait + step for wait, step in zip(self.wait_s, self.step_s, strict=True)]

    @property
    def sweep(self) -> Sweep:
        return Sweep(self.samples, self.batch_s, self.wait_s, "")

    def same_data(self, other: Epoch) -> bool:
        """Whether each rank saw the same tokens in the same order and had the same losses, as far as the shorter one went."""
        count = min(len(self.wait_s), len(other.wait_s))
        return all(
            [list(rank[:count]) for rank in ours] == [list(rank[:count]) for rank in theirs]
            for ours, theirs in ((self.checksums, other.checksums), (self.losses, other.losses))
        )

    @property
    def seconds(self) -> float:
        return sum(self.wait_s) + sum(self.step_s)

    @property
    def utilisation(self) -> float:
        return sum(self.step_s) / self.seconds

    @property
    def ends_s(self) -> list[float]:
        """When each batch was done, from the start of the epoch."""
        total = 0.0
        return [total := total + took for took in self.batch_s]


@dataclass(frozen=True)
class Phase:
    """One run and what it is held against. ``local``: the local runs next to it in time, with as many batches of the same order.

    ``same``: whether tokens and losses were those of the local run. ``gained``: what the spoke's counters gained over it;
    None without a spoke. ``before_s``: what had to pass before the job could start at all (a copy). ``marks``: (monotonic
    time, what happened).
    """

    name: str
    title: str
    mode: str
    epoch: Epoch
    local: Sequence[Epoch] = ()
    gained: Mapping[str, float] | None = None
    seconds: Sequence[Second] = ()
    before_s: float = 0.0
    before_bytes: float = 0.0
    before_seen: Sequence[tuple[float, float]] = ()
    marks: Sequence[tuple[float, str]] = ()
    same: bool = True
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def local_level(self) -> float:
        return statistics.mean(epoch.sweep.level_samples_per_s for epoch in self.local)

    @property
    def ratio(self) -> float | None:
        """Level (median of steps of ten batches, the first left out) over that of the local runs beside it."""
        return self.epoch.sweep.level_samples_per_s / self.local_level if self.local else None

    @property
    def full_speed_after(self) -> int | None:
        return batches_to_full_speed(self.epoch.sweep, self.local_level, FULL_SPEED) if self.local else None

    @property
    def lost_s(self) -> float | None:
        """Time from wanting to train to the last batch, less what the same batches took locally."""
        if not self.local:
            return None
        count = len(self.epoch.wait_s)
        return self.before_s + self.epoch.seconds - statistics.mean(sum(run.batch_s[:count]) for run in self.local)

    def lost_share(self, batches: int) -> float | None:
        """``lost_s`` as a share of a run of so many batches at the local pace."""
        lost_s = self.lost_s
        return None if lost_s is None else lost_s / (batches * self.epoch.samples / self.local_level)

    @property
    def wan_bytes(self) -> float:
        return self.before_bytes + (self.gained or {}).get(RECEIVED, 0.0)

    @property
    def without_wait(self) -> float | None:
        """Share of the reads at the spoke that did not wait for the hub; None when it saw none."""
        gained = self.gained or {}
        reads = {result: gained.get(reads_series(result), 0.0) for result in RESULTS}
        total = sum(reads.values())
        return reads["hit"] / total if total else None

    @property
    def fast_reads(self) -> float:
        """Share of the samples the loader had in less than 5 ms."""
        return sum(took < SERVED_LOCALLY_S for _, took in self.epoch.reads) / len(self.epoch.reads)


@dataclass(frozen=True)
class Pair:
    """Two runs of the job without a step, one right after the other: samples per second at their levels."""

    local: float
    mount: float

    @property
    def ratio(self) -> float:
        return self.mount / self.local


def read_percentiles(reads: Sequence[tuple[float, float]], start_s: float) -> list[tuple[int, float, float, float]]:
    """(second since ``start_s``, p50, p95, p99 of the reads that began in it), in seconds; seconds without reads are left out."""
    by_second: dict[int, list[float]] = {}
    for at_s, took_s in reads:
        by_second.setdefault(int(at_s - start_s), []).append(took_s)
    return [
        (second, *(quantile(values, share) for share in (0.5, 0.95, 0.99)))  # type: ignore[misc]
        for second, values in sorted(by_second.items())
    ]


def per_second(seconds: Sequence[Second], start_s: float) -> list[dict[str, float]]:
    """Differences of the counters between looks, as rates a second; gauges as they stood at the later look."""
    found = []
    for before, after in itertools.pairwise(seconds):
        span_s = after.at_s - before.at_s
        if span_s <= 0:
            continue
        counters = ("hit", "late", "miss", "received_bytes", "fetched_bytes")
        rates = {name: (getattr(after, name) - getattr(before, name)) / span_s for name in counters}
        found.append(
            {
                "second": after.at_s - start_s,
                **rates,
                "window_bytes": after.outstanding_bytes,
                "cache_bytes": after.cache_bytes,
            }
        )
    return found


def gained_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Counters' differences; after a restart of the spoke they began at zero."""
    return {name: value for name, value in difference(before, after).items() if not math.isnan(value)}
