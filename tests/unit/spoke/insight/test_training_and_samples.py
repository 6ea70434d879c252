"""Steps as jobs mark them, beside what the mount did; the last hour in samples, and the phase."""

from __future__ import annotations

import pytest

from common import limits
from spoke.insight.samples import Sample, Samples
from spoke.insight.training import Mark, Reads, Training

EMPTY = Sample(0.0, *([0] * 19))


def test_steps_stand_beside_stalls_and_reads() -> None:
    asked: list[tuple[str, float, float]] = []

    def lost_between(who: str, from_s: float, to_s: float) -> float:
        asked.append((who, from_s, to_s))
        return 0.2

    training = Training(lost_between)
    training.marks(
        100.0, "rank3-77", "rank 3", 3, 0, [Mark(0.5, 0.4, 0.25), Mark(0.1, 0.4, 0.05)], Reads(10, 0, 2, 4096)
    )
    training.marks(101.0, "rank3-77", "rank 3", 3, 4, [Mark(0.0, 0.1, None)], Reads(40, 1, 4, 8192))
    training.marks(101.0, "eval", "eval", None, 0, [Mark(0.0, 9.0, None)], Reads(40, 1, 4, 8192))
    assert asked[0] == ("rank 3", pytest.approx(99.1), 99.5)
    rank, other = training.facts(102.0)
    assert (rank["steps"], rank["lost_marks"], rank["rank"], other["name"]) == (5, 2, 3, "eval")
    recent = rank["recent"]
    assert (recent["step_s_median"], recent["step_s_max"]) == (0.4, 0.4)
    assert recent["data_wait_s_mean"] == pytest.approx(0.15)
    assert recent["mount_stall_share"] == pytest.approx(0.5 / 0.9)  # no more than the step itself: 0.2 + 0.2 + 0.1
    assert recent["reads"] == {"hit": 30, "late": 1, "miss": 2, "wan_bytes": 4096}
    assert other["recent"]["data_wait_s_mean"] is None
    training.marks(103.0, "far", "far", None, 0, [Mark(0.0, 1.0, 0.5)], Reads(0, 0, 0, 0), visible=False)
    far = next(
        job for job in training.facts(103.0) if job["name"] == "far"
    )  # another pid namespace: nobody knows its reads
    assert (far["recent"]["mount_stall_share"], far["recent"]["data_wait_share"]) == (None, 0.5)


def test_a_job_that_begins_anew_counts_anew_and_jobs_are_bounded() -> None:
    training = Training(lambda *_: 0.0)
    counts = Reads(0, 0, 0, 0)
    training.marks(1.0, "j", "j", None, 0, [Mark(0, 1, None)] * 300, counts)
    training.marks(2.0, "j", "j", None, 0, [Mark(0, 1, None)], counts)
    (job,) = training.facts(2.0)
    assert (job["steps"], job["recent"]["steps"]) == (1, 1)
    for number in range(2 * limits.TRAINING_JOBS_MAX):
        training.marks(3.0, f"job{number}", "j", number, 0, [], counts)
    assert len(training.facts(3.0)) == limits.TRAINING_JOBS_MAX
    assert training.facts(4.0 + limits.TRAINING_FORGOTTEN_S) == []


def run(*steps: dict[str, int]) -> tuple[Samples, Sample]:
    """Samples of a minute, 5 s apart, each step adding these counts."""
    samples, now = Samples(), EMPTY
    samples.add(now)
    for step in steps:
        changed = {name: getattr(now, name) + count for name, count in step.items()}
        now = now._replace(at_s=now.at_s + 5.0, **changed)
        samples.add(now)
    return samples, now


MIB = 1 << 20


@pytest.mark.parametrize(
    ("step", "phase"),
    [
        ({}, "idle"),
        ({"miss": 10, "wan_bytes": 10 * MIB, "fetched_bytes": 10 * MIB}, "cold"),
        ({"hit": 95, "miss": 5, "cache_bytes": 95 * MIB, "wan_bytes": 5 * MIB, "fetched_bytes": 100 * MIB}, "converging"),
        ({"hit": 1000, "cache_bytes": 100 * MIB, "fetched_bytes": 30 * MIB}, "converging"),
        ({"hit": 1000, "cache_bytes": 100 * MIB, "fetched_bytes": MIB}, "steady"),
    ],
)  # fmt: skip
def test_phases(step: dict[str, int], phase: str) -> None:
    samples, now = run(*[step] * 6)
    assert samples.phase(now)[0] == phase


def test_files_that_the_kernel_reads_itself_are_a_steady_phase() -> None:
    samples, now = run({}, {})
    assert samples.phase(now._replace(kernel_files=3))[0] == "steady"


def test_curves_are_bounded_rates_between_samples() -> None:
    samples, _ = run(*[{"hit": 3, "miss": 1, "cache_bytes": 500, "received_bytes": 1000}] * 2000)
    series = samples.series(100)
    assert {len(column) for name, column in series.items() if name != "interval_s"} == {89}
    assert series["interval_s"] == 8 * limits.SAMPLE_INTERVAL_S
    assert (series["wan_rate"][-1], series["cache_rate"][0], series["hit_rate"][0]) == (200.0, 100.0, 0.75)
    assert series["ago_s"][-1] == 0.0
    assert Samples().series(10)["ago_s"] == []
