"""Steps of training jobs, as they mark them: step time, time without data, and what the mount did meanwhile. Pure, bounded.

Marks come a second's worth at a time; the reads counted beside them are all of the mount in that time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from common import limits


class Mark(NamedTuple):
    """One step: how long before it was said it ended, its length, and how long of it the job waited for its loader (None: not said)."""

    ago_s: float
    took_s: float
    wait_s: float | None


class Reads(NamedTuple):
    """Counts of the mount, as they stand."""

    hit: int
    late: int
    miss: int
    wan_bytes: int


class _Step(NamedTuple):
    ended_s: float
    took_s: float
    wait_s: float | None
    stalled_s: float | None
    """None: its readers cannot be told from others."""


@dataclass(slots=True)
class _Job:
    name: str
    who: str
    rank: int | None
    seen_s: float
    counts: Reads
    steps_total: int = 0
    lost_marks: int = 0
    took_s_total: float = 0.0
    wait_s_total: float = 0.0
    stalled_s_total: float = 0.0
    steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=limits.TRAINING_STEPS_KEPT))
    meanwhile: deque[tuple[float, Reads]] = field(default_factory=lambda: deque(maxlen=limits.TRAINING_READS_KEPT))


class Training:
    """Jobs by name. ``lost_between(who, from_s, to_s)``: how long a reader of it waited for the hub."""

    def __init__(self, lost_between: Callable[[str, float, float], float]) -> None:
        self._lost_between = lost_between
        self._jobs: OrderedDict[str, _Job] = OrderedDict()

    def marks(
        self,
        now_s: float,
        name: str,
        who: str,
        rank: int | None,
        first: int,
        marks: Sequence[Mark],
        counts: Reads,
        before: Reads | None = None,
        *,
        visible: bool = True,
    ) -> None:
        """Take what a job says; ``first``: how many steps it had marked before the first of these.

        ``visible``: its readers are known to be its own.
        ``counts`` as they stand now, ``before`` as they stood when these steps began: needed for a job's first message alone.
        """
        job = self._jobs.get(name)
        if job is None or first < job.steps_total:  # another job of the same name, or it began anew
            job = self._jobs[name] = _Job(name, who, rank, now_s, before or counts)
            job.steps_total = first
            if len(self._jobs) > limits.TRAINING_JOBS_MAX:
                self._jobs.popitem(last=False)
        self._jobs.move_to_end(name)
        job.lost_marks += max(0, first - job.steps_total)
        job.steps_total = first + len(marks)
        job.who, job.rank, job.seen_s = who, rank, now_s
        had, job.counts = job.counts, counts
        job.meanwhile.append((now_s, Reads(*(after - was for after, was in zip(counts, had, strict=True)))))
        for mark in marks:
            ended_s = now_s - mark.ago_s
            lost_s = self._lost_between(who, ended_s - mark.took_s, ended_s) if visible else None
            stalled_s = min(mark.took_s, lost_s) if lost_s is not None else None
            job.steps.append(_Step(ended_s, mark.took_s, mark.wait_s, stalled_s))
            job.took_s_total += mark.took_s
            job.wait_s_total += mark.wait_s or 0.0
            job.stalled_s_total += stalled_s or 0.0

    def facts(self, now_s: float) -> list[Mapping[str, Any]]:
        """Jobs heard of lately, by rank; seconds. ``reads``: of the whole mount, beside the steps in ``recent``."""
        for name in [name for name, job in self._jobs.items() if now_s - job.seen_s > limits.TRAINING_FORGOTTEN_S]:
            del self._jobs[name]
        jobs = sorted(self._jobs.values(), key=lambda job: (job.rank is None, job.rank or 0, job.name))
        return [_facts(job, now_s) for job in jobs]


def _facts(job: _Job, now_s: float) -> Mapping[str, Any]:
    steps = list(job.steps)
    took = sorted(step.took_s for step in steps)
    waits = [step.wait_s for step in steps if step.wait_s is not None]
    stalls = [step.stalled_s for step in steps if step.stalled_s is not None]
    span_s = sum(took)
    since_s = steps[0].ended_s - steps[0].took_s if steps else now_s
    reads = [found for at_s, found in job.meanwhile if at_s >= since_s]
    return {
        "name": job.name,
        "who": job.who,
        "rank": job.rank,
        "steps": job.steps_total,
        "lost_marks": job.lost_marks,
        "last_mark_ago_s": now_s - job.seen_s,
        "total": {"step_s": job.took_s_total, "data_wait_s": job.wait_s_total, "mount_stall_s": job.stalled_s_total},
        "recent": {
            "steps": len(steps),
            "step_s_median": took[len(took) // 2] if took else None,
            "step_s_max": took[-1] if took else None,
            "data_wait_s_mean": sum(waits) / len(waits) if waits else None,
            "data_wait_share": sum(waits) / span_s if waits and span_s else None,
            "mount_stall_s_mean": sum(stalls) / len(stalls) if stalls else None,
            "mount_stall_share": sum(stalls) / span_s if stalls and span_s else None,
            "reads": {
                "hit": sum(found.hit for found in reads),
                "late": sum(found.late for found in reads),
                "miss": sum(found.miss for found in reads),
                "wan_bytes": sum(found.wan_bytes for found in reads),
            },
        },
        "last_steps": [
            {
                "ended_ago_s": now_s - step.ended_s,
                "step_s": step.took_s,
                "data_wait_s": step.wait_s,
                "mount_stall_s": step.stalled_s,
            }
            for step in steps[-limits.TRAINING_STEPS_SHOWN :]
        ],
    }
