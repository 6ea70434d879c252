"""From per-batch times and counter differences to the figures of the table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

STEP_BATCHES = 10
FULL_SPEED = 0.95


class Step(NamedTuple):
    """Batches ``first``..``last`` (counted from 1) and the samples per second over them."""

    first: int
    last: int
    samples_per_s: float


@dataclass(frozen=True)
class Sweep:
    """One run of the job."""

    batch_samples: int
    batch_s: Sequence[float]
    wait_s: Sequence[float]
    checksum: str

    @classmethod
    def from_json(cls, result: Mapping[str, Any]) -> Sweep:
        return cls(result["batch"], result["batch_s"], result["wait_s"], result["checksum"])

    @property
    def batches(self) -> int:
        return len(self.batch_s)

    @property
    def samples_per_s(self) -> float:
        """Over the whole run, the start of the workers included."""
        return self.batch_samples * len(self.batch_s) / sum(self.batch_s)

    @property
    def waited_s(self) -> float:
        """How long the job stood without a batch, the start of the workers included."""
        return sum(self.wait_s)

    def steps(self, step_batches: int = STEP_BATCHES) -> list[Step]:
        """Samples per second by steps of batches; a last step that is not whole is left out unless it is the only one."""
        whole = len(self.batch_s) // step_batches * step_batches or len(self.batch_s)
        return [
            Step(start + 1, min(start + step_batches, whole), self._rate(start, min(start + step_batches, whole)))
            for start in range(0, whole, step_batches)
        ]

    @property
    def level_samples_per_s(self) -> float:
        """The run's level: the median of its steps, the first one (start of the workers) left out if there are more."""
        rates = [step.samples_per_s for step in self.steps()]
        return statistics.median(rates[1:] or rates)

    def _rate(self, start: int, end: int) -> float:
        return self.batch_samples * (end - start) / sum(self.batch_s[start:end])


def batches_to_full_speed(sweep: Sweep, level_samples_per_s: float, share: float = FULL_SPEED) -> int | None:
    """After how many batches the ten that follow ran at ``share`` of the level at least; None if never."""
    for start in range(max(1, sweep.batches - STEP_BATCHES + 1)):
        end = min(start + STEP_BATCHES, sweep.batches)
        if sweep._rate(start, end) >= share * level_samples_per_s:
            return start
    return None


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What counters gained; a series that is new began at zero."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def hit_rate(gained: Mapping[str, float]) -> float | None:
    """Share of the reads that reached the spoke and were answered without waiting for the hub; None without reads."""
    reads = {
        result: gained.get(f'headrace_spoke_reads_total{{result="{result}"}}', 0.0)
        for result in ("hit", "late", "miss")
    }
    total = sum(reads.values())
    return reads["hit"] / total if total else None


def reads_seen(gained: Mapping[str, float]) -> int:
    """Reads that reached the spoke at all: the kernel answers the rest from its page cache or by passthrough."""
    return int(sum(value for name, value in gained.items() if name.startswith("headrace_spoke_reads_total{")))
